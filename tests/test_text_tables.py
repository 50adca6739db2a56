"""A table comes back in the style of the text it came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mdtim import TableWarning
from mdtim.cli import app
from mdtim.tables.files import read_frame, read_styled, write_frame
from mdtim.tables.table import Table
from mdtim.tables.text_tables import TextStyle

STYLES = [
    TextStyle(),
    TextStyle(";", ",", "utf-8-sig", "\r\n"),
    TextStyle(";", ".", "cp1252"),
    TextStyle("\t", ".", "utf-16"),
    TextStyle("|"),
]


def test_a_file_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for raw in (
        b"when,x,note\n2024-01-01,1.5,a\n2024-01-02,,b\n",
        "\ufeffZeit;Größe;n\r\n01.01.2024;1,5;7\r\n02.01.2024;;8\r\n".encode(),
        "when;größe\n1;1.5\n2;-0.25\n".encode("latin-1"),
        "a\tgröße\r\n1\t2.5\r\n".encode("utf-16"),
        b"a|b\n1|x,y\n",
    ):
        path.write_bytes(raw)
        frame, style = read_styled(path)
        write_frame(frame, tmp_path / "again.csv", style)
        assert (tmp_path / "again.csv").read_bytes() == raw


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.sampled_from(STYLES),
    st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=9),
    st.lists(st.text("aäß;,|\t\"'. ", min_size=1), min_size=2, max_size=9),
)
def test_every_style_says_the_same(
    tmp_path: Path, style: TextStyle, numbers: list[float], notes: list[str]
) -> None:
    frame = pd.DataFrame({"x": [0.5, *numbers]})
    frame["größe"] = [f"a{note}b" for note in (notes * 9)[: len(frame)]]
    write_frame(frame, tmp_path / "table.csv", style)
    back, found = read_styled(tmp_path / "table.csv")
    pd.testing.assert_frame_equal(back, frame)
    assert found == style


def test_where_no_number_has_a_comma_the_decimal_sign_is_a_point(tmp_path: Path) -> None:
    (tmp_path / "whole.csv").write_text("t;x\n1;2\n2;\n")
    _, style = read_styled(tmp_path / "whole.csv")
    assert style == TextStyle(";", ".")


def test_a_file_with_another_suffix_has_the_separator_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("t\tx\n1\t2.5\n")
    frame, style = read_styled(tmp_path / "a.tsv")
    write_frame(frame, tmp_path / "a.csv", style)
    assert (tmp_path / "a.csv").read_text() == "t,x\n1,2.5\n"


def test_a_column_without_a_name_is_told_from_one_with_a_name_like_it(tmp_path: Path) -> None:
    for text in (",Unnamed: 0,x\n0,10,2.5\n1,11,3.5\n", "x,Unnamed: 1\n1.5,a\n", ",,x\n1,2,3\n"):
        (tmp_path / "table.csv").write_text(text)
        frame, style = read_styled(tmp_path / "table.csv")
        assert frame.shape[1] == text.partition("\n")[0].count(",") + 1
        write_frame(frame, tmp_path / "again.csv", style)
        assert (tmp_path / "again.csv").read_text() == text


def test_a_name_may_hold_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text('time,"level\nin m"\n1,2.5\n2,3.5\n')
    frame, _ = read_styled(tmp_path / "table.csv")
    assert list(frame.columns) == ["time", "level\nin m"]
    assert len(frame) == 2


def test_line_ends_are_those_of_a_header_with_a_sharp(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"# made by hand\r\n#t,x\r\n1,2.5\r\n")
    _, style = read_styled(tmp_path / "table.csv")
    assert style is not None
    assert style.line_end == "\r\n"


def test_one_word_does_not_hide_a_column_of_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("n;level\n1;1,5\n2;n.d.\n3;2,5\n4;\n")
    frame, _ = read_styled(tmp_path / "table.csv")
    with pytest.raises(ValueError, match=r"mixes numbers and text: row 1 holds 'n\.d\.'"):
        Table.read(frame)


def test_a_tsv_has_tabs_and_points_whatever_the_table_came_from(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.5]})
    write_frame(frame.assign(b=2.5), tmp_path / "t.tsv", TextStyle(";", ",", "latin-1", "\r\n"))
    assert (tmp_path / "t.tsv").read_bytes() == b"a\tb\r\n1.5\t2.5\r\n"


@pytest.mark.parametrize("suffix", [".parquet", ".pq"])
def test_what_is_no_text_has_no_style(tmp_path: Path, suffix: str) -> None:
    write_frame(pd.DataFrame({"a": [1.5]}), tmp_path / f"t{suffix}")
    assert read_styled(tmp_path / f"t{suffix}")[1] is None


WRITTEN = """# of a logger
time, level ;Zustand;Höhe;code;;n
01.01.2020 00:00;1,500;ok;007,10;01.10;;599
01.01.2020 01:00;;ok;1e-3;02.10;;1000
01.01.2020 02:00;+2,0;;-0,50;03.10;;-7
01.01.2020 03:00;NA;"a;b";n/a;;;12
""".replace("time, level ", "time; level ")


def test_only_gaps_change(tmp_path: Path) -> None:
    raw = WRITTEN.replace("\n", "\r\n").encode("latin-1")
    (tmp_path / "in.csv").write_bytes(raw)
    frame, style = read_styled(tmp_path / "in.csv")
    assert list(frame.columns[:2]) == ["time", "level"]
    assert frame["level"].tolist()[0::2] == [1.5, 2.0]
    write_frame(frame, tmp_path / "same.csv", style)
    assert (tmp_path / "same.csv").read_bytes() == raw
    write_frame(frame.fillna({"level": 0.125}), tmp_path / "out.csv", style)
    expected = raw.replace(b"01:00;;", b"01:00;0,125;").replace(b"03:00;NA;", b"03:00;0,125;")
    assert (tmp_path / "out.csv").read_bytes() == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.data(), st.permutations(range(6)))
def test_text_is_kept_only_where_it_says_the_number(
    tmp_path: Path, data: st.DataObject, order: list[int]
) -> None:
    texts = ["1.50", "2", "", "NA", "1e1", "10.0"]
    cells = data.draw(st.lists(st.sampled_from(texts), min_size=6, max_size=6))
    (tmp_path / "in.csv").write_text("x,y\n" + "".join(f"{cell},a\n" for cell in cells))
    frame, style = read_styled(tmp_path / "in.csv")
    moved = frame.iloc[order]
    write_frame(moved, tmp_path / "out.csv", style)
    back, _ = read_styled(tmp_path / "out.csv")
    assert back["x"].astype(float).tolist() == pytest.approx(
        moved["x"].astype(float).tolist(), nan_ok=True
    )


def test_the_separator_is_told_by_the_rows_too(tmp_path: Path) -> None:
    for text, columns in (
        ("Datum;Temperatur (Außen, 2 m)\n01.01.2024;1,5\n02.01.2024;2,5\n", 2),
        ("time;temp (C, 2m);wind (m/s, 10m)\n1;2,5;3,5\n2;3,5;4,5\n", 3),
        ("t\tx\n1\t2,5\n2\t3,5\n", 2),
        ("sep=;\nt;x\n1;2,5\n2;3,5\n", 2),
        ("t,x (a;b)\n1,2.5\n2,3.5\n", 2),
    ):
        (tmp_path / "table.csv").write_text(text)
        frame, style = read_styled(tmp_path / "table.csv")
        assert frame.shape == (2, columns)
        assert frame.iloc[:, -1].dtype == np.float64
        write_frame(frame, tmp_path / "again.csv", style)
        assert (tmp_path / "again.csv").read_text() == text


def test_lines_may_end_as_on_old_computers(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"t,x\r1,2.50\r2,3.50\r")
    frame, style = read_styled(tmp_path / "table.csv")
    assert frame["x"].tolist() == [2.5, 3.5]
    write_frame(frame, tmp_path / "again.csv", style)
    assert (tmp_path / "again.csv").read_bytes() == b"t,x\r1,2.50\r2,3.50\r"


def test_a_first_line_that_looks_like_data_is_told(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("2024-01-01 00:00,,0.5\n2024-01-01 01:00,1.5,0.7\n")
    with pytest.warns(TableWarning, match="looks like data"):
        read_styled(tmp_path / "table.csv")


@pytest.mark.parametrize("header", ["0,1,2", "2019,2020,2021", "a,1,2", "Unnamed: 0,Unnamed: 1,x"])
def test_columns_may_be_counted(tmp_path: Path, header: str) -> None:
    (tmp_path / "table.csv").write_text(f"{header}\n0.5,0.25,1.5\n")
    frame, _ = read_styled(tmp_path / "table.csv")
    assert ",".join(frame.columns) == header


def test_a_separator_at_the_end_makes_no_column_to_fill(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("t,x,\n1,2.5,\n2,,\n3,1.5,\n")
    frame, _ = read_styled(tmp_path / "table.csv")
    assert Table.read(frame).panel.variates == ("t", "x")


def test_the_command_leaves_every_known_value_and_the_style_of_the_file(tmp_path: Path) -> None:
    steps = np.arange(60)
    lines = [
        f"01.{step % 12 + 1:02d}.{2020 + step // 12};{comma(np.sin(step / 5))};{step}"
        for step in steps
    ]
    lines[20] = lines[20].split(";")[0] + ";;20"
    raw = "\r\n".join(["Tag;Höhe;n", *lines, ""]).encode("latin-1")
    (tmp_path / "in.csv").write_bytes(raw)
    command = [
        "impute",
        str(tmp_path / "in.csv"),
        "-o",
        str(tmp_path / "out.csv"),
        "--columns",
        "Höhe",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    said = (tmp_path / "out.csv").read_bytes().decode("latin-1").split("\r\n")
    known = raw.decode("latin-1").split("\r\n")
    assert len(said) == len(known)
    for number, (after, before) in enumerate(zip(said, known, strict=True)):
        if number == 21:
            assert abs(float(after.split(";")[1].replace(",", ".")) - np.sin(4.0)) < 0.2
        else:
            assert [float_of(cell) for cell in after.split(";")] == [
                float_of(cell) for cell in before.split(";")
            ]


def comma(number: float) -> str:
    return f"{number:.3f}".replace(".", ",")


def float_of(cell: str) -> float | str:
    try:
        return float(cell.replace(",", "."))
    except ValueError:
        return cell


def test_what_windows_calls_ansi_keeps_its_letters(tmp_path: Path) -> None:
    text = "Ort;Preis €;self\nMüller’s Hof – Süd;1,5;2\nNord;;3\n"
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    frame, style = read_styled(tmp_path / "a.csv")
    assert list(frame.columns) == ["Ort", "Preis €", "self"]
    assert frame["Ort"][0] == "Müller’s Hof – Süd"
    write_frame(frame, tmp_path / "b.csv", style)
    assert (tmp_path / "b.csv").read_bytes() == text.encode("cp1252")


def test_commas_group_thousands_where_a_dot_must_be_the_decimal_sign(tmp_path: Path) -> None:
    text = "price\tvolume\n106.43\t2,085\n\t12,248\n107.1\t\n"
    (tmp_path / "a.tsv").write_text(text)
    frame, style = read_styled(tmp_path / "a.tsv")
    assert frame["volume"].tolist()[:2] == [2085, 12248]
    assert frame["price"].tolist()[::2] == [106.43, 107.1]
    frame["price"] = frame["price"].fillna(106.75)
    write_frame(frame.assign(volume=frame["volume"].fillna(9000)), tmp_path / "b.tsv", style)
    filled = text.replace("\n\t12", "\n106.75\t12").replace("107.1\t\n", "107.1\t9000\n")
    assert (tmp_path / "b.tsv").read_text() == filled


def test_each_column_keeps_its_own_decimal_sign(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n0,5;5.25\n;\n1,5;7.75\n")
    frame, style = read_styled(tmp_path / "a.csv")
    assert frame["b"].tolist()[::2] == [5.25, 7.75]
    write_frame(frame.fillna(1.25), tmp_path / "b.csv", style)
    assert (tmp_path / "b.csv").read_text() == "a;b\n0,5;5.25\n1,25;1.25\n1,5;7.75\n"


def test_numbers_that_may_be_read_in_two_ways_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("price\tvolume\n153.477\t2,085\n153.232\t2,248\n")
    with (
        pytest.warns(TableWarning, match="'153.477' in column 'price' are read as thousands"),
        pytest.warns(TableWarning, match="'2,085' in column 'volume' are read with a decimal sign"),
    ):
        assert read_frame(tmp_path / "a.tsv")["volume"].tolist() == [2.085, 2.248]


def test_three_decimals_beside_a_comma_of_another_column_are_told_or_kept(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("time\tchannel\ta\n0\t1,2\t22.847\n1\t1,2\t22.992\n2\t1,2\t\n")
    with pytest.warns(TableWarning, match=r"'22.847' in column 'a' are read as thousands.*22,847"):
        read_frame(path)
    # Nothing below 1 is grouped.
    path.write_text("time\tchannel\ta\n0\t1,2\t0.847\n1\t1,2\t22.992\n2\t1,2\t\n")
    frame, style = read_styled(path)
    assert frame["a"].tolist()[:2] == [0.847, 22.992]
    frame["a"] = [0.847, 22.992, 1.5]
    write_frame(frame, path, style)
    assert path.read_text().splitlines()[1:] == ["0\t1,2\t0.847", "1\t1,2\t22.992", "2\t1,2\t1.5"]


def test_all_numbers_with_three_digits_behind_a_comma_are_told(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("time\ta\n0\t20,345\n1\t21,870\n2\t\n")
    with pytest.warns(TableWarning, match="'20,345' in column 'a' are read with a decimal sign"):
        assert read_frame(path)["a"].tolist()[:2] == [20.345, 21.87]
    path.write_text("time\ta\tb\n0\t20,345\t1,5\n1\t21,870\t2,25\n2\t\t\n")
    assert read_frame(path)["a"].tolist()[:2] == [20.345, 21.87]  # b says what a comma means


def test_a_line_end_inside_a_cell_is_not_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b'time,note,a\n0,"one\r\ntwo",1.5\n1,x,\n')
    frame, style = read_styled(path)
    frame["a"] = [1.5, 2.5]
    write_frame(frame, path, style)
    assert path.read_bytes() == b'time,note,a\n0,"one\r\ntwo",1.5\n1,x,2.5\n'


def test_empty_lines_at_the_end_of_one_column_are_told(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("v\n1\n\n3\n\n\n")
    with pytest.warns(TableWarning, match=r"one.csv ends with 2 empty lines.* write NA"):
        assert len(read_frame(path)) == 3
