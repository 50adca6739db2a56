import gzip
import math
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mdtim import TableWarning
from mdtim.atomic import atomic_path
from mdtim.tables.files import parquet_source, read_frame, read_styled, unpack, write_frame

TEXT_SUFFIXES = [".csv", ".tsv", ".txt", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst", ".CSV"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def write(folder, content, name="table.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def small_frame():
    return pd.DataFrame(
        {
            "time": ["2020-01-01 00:00", "2020-01-01 01:00", "2020-01-01 02:00"],
            "count": pd.array([1, None, 2**60 + 1], dtype="Int64"),
            "level": [0.1, np.nan, -1e-300],
            "note": ["a,b", None, 'say "x"\nagain'],
        }
    )


@pytest.mark.parametrize("suffix", [*TEXT_SUFFIXES, ".parquet", ".pq"])
def test_a_table_comes_back_from_a_file_as_it_was(folder, suffix):
    path = folder / f"table{suffix}"
    write_frame(small_frame(), path)
    pd.testing.assert_frame_equal(read_frame(path), small_frame(), check_dtype=False)
    assert read_frame(str(path)).dtypes.astype(str).tolist()[1:3] == ["Int64", "float64"]
    assert [entry.name for entry in folder.iterdir()] == [path.name]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_floats_survive_a_csv_file_to_the_last_bit(folder, numbers):
    # Whole numbers print as 1.0, so even a column of these stays one of floats.
    path = folder / "floats.csv"
    write_frame(pd.DataFrame({"x": numbers}), path)
    back = read_frame(path)["x"].to_numpy()
    assert back.dtype == np.float64
    assert back.tobytes() == np.array(numbers).tobytes()


def test_numbers_are_rounded_correctly_from_long_decimals(folder):
    text = [
        "0.1000000000000000055511151231257827021181583404541015625",
        "8.41470984807896506652e-1",
    ]
    frame = read_frame(write(folder, "x\n" + "\n".join(text) + "\n"))
    assert frame["x"].tolist() == [float(cell) for cell in text]


def test_unfilled_cells_are_the_same_text_after_reading_and_writing(folder):
    text = (
        ",when,zip,flag,count,big,level,country\n"
        "0,01.02.2020 00:10,007,true,1,123456789012345678901,0.1,NA\n"
        "1,01.02.2020 00:20,010,False,,2,1e-07,FR\n"
        "2,01.02.2020 00:30,100,,-3,3,,None\n"
    )
    frame, style = read_styled(write(folder, text))
    write_frame(frame, folder / "again.csv", style)
    assert (folder / "again.csv").read_text() == text
    assert frame["count"].dtype == "Int64"
    assert frame["level"].dtype == np.float64
    assert not {"i", "f"} & {frame[name].dtype.kind for name in ("when", "zip", "flag", "big")}


def test_integers_without_gaps_are_plain_integers(folder):
    assert read_frame(write(folder, "a,b\n1,+2\n3,-4\n")).dtypes.tolist() == [np.int64, np.int64]


def test_words_for_missing_are_missing_among_numbers_but_text_among_text(folder):
    frame = read_frame(write(folder, "x,y\nNA,NA\n1.5,b\nnull, \n 2 ,null\n"))
    assert frame["x"].tolist()[1::2] == [1.5, 2.0]
    assert frame["x"].isna().tolist() == [True, False, True, False]
    assert frame["y"].tolist() == ["NA", "b", " ", "null"]


def test_a_column_without_any_value_is_one_of_missing_floats(folder):
    frame = read_frame(write(folder, "x,y\n1,\n2,\n"))
    assert frame["y"].dtype == np.float64
    assert frame["y"].isna().all()


def test_a_single_column_keeps_its_missing_rows(folder):
    write_frame(pd.DataFrame({"x": [1.5, np.nan, 2.5]}), folder / "x.csv")
    assert read_frame(folder / "x.csv")["x"].isna().tolist() == [False, True, False]


def test_a_semicolon_file_may_use_decimal_commas(folder):
    frame = read_frame(write(folder, "t;x\n01.02.2020;1,5\n02.02.2020;-2\n"))
    assert frame["x"].tolist() == [1.5, -2.0]


def test_beside_decimal_commas_dots_group_thousands(folder):
    text = "t;heat;visitors;cost;map\n1;20,5;1.003;1.234,56;3.14\n2;18;953;7,5;2.718\n"
    frame = read_frame(write(folder, text))
    assert frame["visitors"].tolist() == [1003, 953]
    assert frame["cost"].tolist() == [1234.56, 7.5]
    assert frame["map"].tolist() == [3.14, 2.718]  # no groups of three: it has its own habits
    path = write(folder, "t;visitors\n1;1.003\n2;953\n", "plain.csv")
    with pytest.warns(TableWarning, match="such as '1.003' in column 'visitors' are read with a"):
        plain = read_frame(path)
    assert plain["visitors"].tolist() == [1.003, 953]  # nothing says that this is a thousand


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_text_is_decoded_whatever_its_usual_encoding(folder, encoding):
    frame = read_frame(write(folder, "größe,b\r\n1,é\r\n".encode(encoding)))
    assert list(frame.columns) == ["größe", "b"]
    assert frame["b"].tolist() == ["é"]


def damaged(name):
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=500)})

    def content(folder):
        write_frame(frame, folder / name)
        whole = (folder / name).read_bytes()
        return whole[: len(whole) // 2]

    return content


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\n\n", "is empty"),
        ("a.parquet", b"", "is empty"),
        ("a.csv", b"x,y\n", "no rows"),
        ("a.csv", b"x,y\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("a.csv", b"x,y\n1,2,3\n", "Expected 2 columns, got 3"),
        ("a.csv", b"x,x\n1,2\n", "several columns called x"),
        ("a.csv", b'x,y\n1,"2\n3,4\n', "quote that never ends"),
        ("a.csv", b"x,y\n1,\0\n", "binary data"),
        ("a.csv", b"\xff\xfea", "UTF-16"),
        ("a.csv.gz", b"x\n1\n", "cannot be read"),
        ("a.parquet", b"x\n1\n", "cannot be read"),
        ("a.xlsx", b"x", "'.xlsx'; expected one of .csv"),
        ("a.parquet.gz", b"x", "expected one of"),
        ("a", b"x", "no suffix"),
        *((f"a{suffix}", damaged(f"a{suffix}"), "cut short") for suffix in (".csv.gz", ".parquet")),
        *((f"a{suffix}", damaged(f"a{suffix}"), "cut short") for suffix in (".csv.bz2", ".csv.xz")),
        ("a.csv.zst", damaged("a.csv.zst"), "cut short"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(folder, name, content, message):
    path = write(folder, content(folder) if callable(content) else content, name)
    with pytest.raises(ValueError, match=message) as caught:
        read_frame(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_told_apart(folder):
    with pytest.raises(ValueError, match="there is no file"):
        read_frame(folder / "nowhere.csv")
    (folder / "some.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        read_frame(folder / "some.csv")
    with pytest.raises(ValueError, match="is a folder"):
        write_frame(small_frame(), folder / "some.csv")
    with pytest.raises(ValueError, match="there is no folder"):
        write_frame(small_frame(), folder / "nowhere" / "a.csv")


def test_a_parquet_file_of_other_makers_keeps_integers_with_gaps(folder):
    table = pa.table({"n": pa.array([2**60 + 1, None], pa.int64()), "m": pa.array([1, 2])})
    pq.write_table(table, folder / "a.parquet")
    frame = read_frame(folder / "a.parquet")
    assert frame["n"].dtype == "Int64"
    assert frame["n"][0] == 2**60 + 1
    assert frame["m"].dtype == np.int64


def test_a_parquet_file_keeps_a_time_index_with_its_zone(folder):
    index = pd.date_range("2020-03-28", periods=3, tz="Europe/Berlin", name="when")
    frame = pd.DataFrame({"x": [1.0, math.nan, 3.0]}, index=index)
    write_frame(frame, folder / "a.parquet")
    pd.testing.assert_frame_equal(read_frame(folder / "a.parquet"), frame, check_freq=False)


@pytest.mark.parametrize(
    ("index", "header"),
    [
        (pd.date_range("2020", periods=2), "time,x"),
        (pd.date_range("2020", periods=2, name="ds"), "ds,x"),
        (pd.Index([5, 6], name="number"), "number,x"),
        (pd.Index(["a", "b"]), ",x"),
        (pd.RangeIndex(2), "x"),
        (pd.Index([7, 3]), "x"),
    ],
)
def test_an_index_is_written_where_it_says_something(folder, index, header):
    write_frame(pd.DataFrame({"x": [1.0, 2.0]}, index=index), folder / "a.csv")
    assert (folder / "a.csv").read_text().partition("\n")[0] == header


def test_compressed_files_do_not_depend_on_when_they_were_written(folder):
    for name in ("a.csv.gz", "b.csv.gz"):
        write_frame(small_frame(), folder / name)
    assert (folder / "a.csv.gz").read_bytes() == (folder / "b.csv.gz").read_bytes()
    assert gzip.decompress((folder / "a.csv.gz").read_bytes()).startswith(b"time,count,level")


class Unprintable:
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst", "a.parquet"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(folder, name):
    write(folder, b"old", name)
    with pytest.raises((RuntimeError, pa.ArrowException)):
        write_frame(pd.DataFrame({"x": [Unprintable()]}), folder / name)
    assert (folder / name).read_bytes() == b"old"
    assert [entry.name for entry in folder.iterdir()] == [name]


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(folder):
    target = folder / "model"
    for content in ("first", "second"):
        with atomic_path(target) as temporary:
            temporary.mkdir()
            (temporary / content).touch()
    assert [entry.name for entry in target.iterdir()] == ["second"]

    def interrupted():
        with atomic_path(target) as temporary:
            temporary.mkdir()
            (temporary / "third").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [entry.name for entry in target.iterdir()] == ["second"]
    assert [entry.name for entry in folder.iterdir()] == ["model"]


def test_the_temporary_path_keeps_the_suffix_and_the_target_its_mode_and_links(folder):
    target = write(folder, b"old", "report.html")
    target.chmod(0o640)
    (folder / "link.html").symlink_to(target)
    with atomic_path(folder / "link.html") as temporary:
        assert temporary.suffix == ".html"
        assert temporary.parent == target.parent.resolve()
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert (folder / "link.html").is_symlink()


@pytest.mark.parametrize(
    "above",
    ["# station 5\n# in degrees, mostly\na,b\n", "#a,b\n", "# of 2024\n\n# a,b\n", "#\na,b\n"],
)
def test_lines_with_a_sharp_above_the_header_are_no_table(above: str, tmp_path: Path) -> None:
    path = tmp_path / "noted.csv"
    path.write_text(above + "1,2\n3,4\n")
    frame = read_frame(path)
    assert frame.to_dict("list") == {"a": [1, 3], "b": [2, 4]}


def test_other_lines_above_the_header_are_told(tmp_path: Path) -> None:
    path = tmp_path / "titled.csv"
    path.write_text("Report of 2024\n\na,b\n1,2\n")
    with pytest.raises(ValueError, match="or have lines above its header; correct it"):
        read_frame(path)


def test_a_header_cell_longer_than_a_reader_takes_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("a" * 200_000 + ",b\n1,2\n")
    with pytest.raises(ValueError, match="cannot be read"):
        read_frame(path)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv.bz2", ".txt.xz", ".csv.zst"])
def test_unpacking_stops_at_its_limit_and_copies_what_is_below(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.zeros(50_000)})
    path, target = tmp_path / f"zeros{suffix}", tmp_path / "plain"
    write_frame(frame, path)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        unpack(path, target, 1_000)
    assert target.stat().st_size <= 1_000
    unpack(path, target, 200_002)
    assert target.read_text() == "a\n" + "0.0\n" * 50_000


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n\n"])
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_an_empty_line_of_a_single_column_is_a_missing_cell(
    tmp_path: Path, line: str, end: str
) -> None:
    path = tmp_path / "one.csv"
    path.write_bytes((line.join(["level", "1.5", "", "", "3", '""', "4"]) + end).encode())
    told = pytest.warns(TableWarning, match="2 empty lines") if end == "\n\n\n" else nullcontext()
    with told:
        frame = read_frame(path)
    assert frame["level"].tolist() == pytest.approx(
        [1.5, np.nan, np.nan, 3.0, np.nan, 4.0], nan_ok=True
    )
    path.write_text("a,b\n1,2\n\n3,4\n\n")  # of several columns it is nothing
    assert len(read_frame(path)) == 2


def test_columns_of_a_parquet_file_keep_their_types_and_notes(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("flag", pa.bool_()),
            pa.field("place", pa.dictionary(pa.int32(), pa.string())),
            pa.field("x", pa.float32()),
            pa.field("n", pa.int16(), metadata={b"unit": b"pieces"}),
        ],
        metadata={b"source": b"plant 7"},
    )
    columns = [[Decimal("1.50"), None], [None, None], ["a", "b"], [1.5, None], [1, None]]
    arrays = [pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)]
    pq.write_table(pa.table(arrays, schema=schema), tmp_path / "a.parquet")
    frame = read_frame(tmp_path / "a.parquet")
    frame["x"] = frame["x"].fillna(2.5)
    known = parquet_source(tmp_path / "a.parquet")
    write_frame(frame.assign(new=0.1), tmp_path / "b.parquet", source=known)
    written = pq.read_schema(tmp_path / "b.parquet")
    assert written.types[:5] == schema.types
    assert written.names == [*schema.names, "new"]
    assert written.metadata[b"source"] == b"plant 7"
    assert written.field("n").metadata[b"unit"] == b"pieces"
    assert parquet_source(tmp_path / "a.csv") is None
    write_frame(frame.assign(n=0.5), tmp_path / "c.parquet", source=known)
    assert pq.read_schema(tmp_path / "c.parquet").field("n").type == pa.float64()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[2**60 + 1, None], None], pa.list_(pa.int64())),
        pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
        pa.array([{"a": 2**60 + 1, "b": None}, None]),
    ],
)
def test_nested_columns_of_a_parquet_file_come_back_as_they_were(
    tmp_path: Path, column: pa.Array
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.5, None], "nested": column, "y": ["a", "b"]}), path)
    frame, source = read_frame(path), parquet_source(path)
    write_frame(frame.assign(x=[1.5, 2.5]), tmp_path / "b.parquet", source=source)
    written = pq.read_table(tmp_path / "b.parquet")
    assert written.column_names == ["x", "nested", "y"]
    assert written.column("nested").type == column.type
    assert written.column("nested").to_pylist() == column.to_pylist()
    assert written.column("x").to_pylist() == [1.5, 2.5]
    longer = pd.concat([frame, frame], ignore_index=True)  # as with rows that a table skips
    other = parquet_source(path, adds_rows=True)
    if pa.types.is_map(column.type) and column.type.item_type == pa.int64():
        with pytest.raises(ValueError, match="cannot be written to Parquet; leave it out"):
            write_frame(longer, tmp_path / "c.parquet", source=other)
    else:
        write_frame(longer, tmp_path / "c.parquet", source=other)
