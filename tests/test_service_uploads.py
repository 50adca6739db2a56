"""Tables from strangers: read faithfully, or refused with a sentence before they cost anything."""

from __future__ import annotations

import gzip
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdtim.service.chart import chart, thin
from mdtim.service.preview import preview
from mdtim.service.protocol import Failed, Task
from mdtim.service.results import write_result
from mdtim.service.schemas import FillChoices, TableChoices
from mdtim.service.settings import Limits
from mdtim.service.uploads import (
    _check_text,
    read_table,
    read_upload,
    result_name,
    shown_name,
    source_suffix,
)
from mdtim.service.worker import perform
from report_cases import filled, holes

LIMITS = Limits(rows=1_000, columns=20, cells=5_000, unpacked_bytes=100_000)


def refused(path: Path, limits: Limits = LIMITS) -> str:
    with pytest.raises(ValueError) as caught:
        read_upload(path, limits)
    sentence = str(caught.value)
    assert str(path.parent) not in sentence, "where the service keeps files is its own business"
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]
    return sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n" + "1,\n" * 2_000, "2,001 rows"),
        (",".join(f"c{n}" for n in range(30)) + "\n" + "1," * 29 + "1\n", "30 columns"),
        (",".join(f"c{n}" for n in range(15)) + "\n" + ("1," * 14 + "1\n") * 500, "cells"),
        ("x" * 60_000 + "\n" + "y" * 60_000, "unpacks to more than 100,000 bytes"),
        ("a,b\n1\n", "cannot be read"),
        ('a,b\n1,2\n3,"4\n5,6\n', "quote"),
        ("\0\1\2", "binary"),
    ],
)
def test_text_beyond_the_limits_or_damaged_is_refused(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "input.csv"
    path.write_text(text)
    assert sentence in refused(path)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_a_column_whose_name_is_a_book_is_refused(suffix: str, tmp_path: Path) -> None:
    path, name = tmp_path / f"input{suffix}", "x" * 501
    if suffix == ".csv":
        path.write_text(f"a,{name}\n1,2\n")
    elif suffix == ".json":
        path.write_text(json.dumps({"columns": {"a": [1.0], name: [2.0]}}))
    else:
        pq.write_table(pa.table({"a": [1.0], name: [2.0]}), path)
    assert "name of column 2 has 501 characters, the limit is 500" in refused(path)


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_bytes(b"a" * 2_000_000)
    assert "first line" in refused(path, replace(LIMITS, unpacked_bytes=10_000_000))


def test_a_bomb_of_compressed_text_is_refused_while_it_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "input.csv.gz"
    path.write_bytes(gzip.compress(b"a\n" + b"0\n" * 10_000_000))
    assert path.stat().st_size < 100_000
    assert "unpacks to more than 100,000 bytes" in refused(path)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (pa.table({"a": np.zeros(2_000)}), "2,000 rows"),
        (pa.table({f"c{n}": [1.0] for n in range(30)}), "30 columns"),
        (pa.table({"a": [[0.0] * 1_000] * 100}), "100,000 values"),
        (pa.table({"a": ["x" * 50_000, "y" * 80_000]}), "unpacks to more than"),
    ],
)
def test_parquet_is_measured_by_its_metadata(
    table: pa.Table, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "input.parquet"
    pq.write_table(table, path, compression="zstd")
    assert sentence in refused(path)


@pytest.mark.parametrize("content", [b"PAR1 no parquet PAR1", b"", b"PAR1"])
def test_what_is_no_parquet_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "input.parquet"
    path.write_bytes(content)
    assert refused(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        ('{"rows": []}', '"columns"'),
        ('{"columns": {"a": 1}}', '"columns"'),
        ('{"columns": {}}', "no columns"),
        ('{"columns": {"a": [1], "b": [1, 2]}}', "[1, 2] cells"),
        ('{"columns": {"a": [1, "x"]}}', "'a' mixes"),
        ('{"columns": {"a": [[1]]}}', "lists"),
        ('{"columns": {"a": [1e400, 123456789012345678901234567890]}}', "'a'"),
        ('{"columns": {"\\ud800": [1]}}', "half a character"),
        (json.dumps({"columns": {"a": [0] * 2_000}}), "2,000 rows"),
    ],
)
def test_json_that_is_no_table_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text(text)
    assert sentence in refused(path)


letters = st.characters(codec="utf-8")
kinds = (
    st.floats(allow_infinity=False, allow_nan=False),
    st.integers(-(2**62), 2**62),
    st.text(letters, max_size=5),
)
cells = st.one_of(st.lists(st.none() | kind, min_size=3, max_size=3) for kind in kinds)
names = st.text(letters, min_size=1, max_size=5)


@given(st.dictionaries(names, cells, min_size=1, max_size=4))
def test_a_json_table_comes_back_as_it_went_in(columns: dict[str, list[object]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "input.json", Path(folder) / "result.json"
        source.write_text(json.dumps({"columns": columns}))
        frame, style = read_upload(source, LIMITS)
        write_result(frame, target, style)
        assert json.loads(target.read_text())["columns"] == columns


def test_json_holds_times_and_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    times = pd.DatetimeIndex(["2024-01-01", "2024-01-02"], name="when")
    frame = pd.DataFrame({"a": [0.1 + 0.2, np.inf], "b": pd.array([1, None])}, index=times)
    write_result(frame, tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["columns"] == {
        "when": ["2024-01-01T00:00:00", "2024-01-02T00:00:00"],
        "a": [0.1 + 0.2, None],
        "b": [1, None],
    }


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("../../etc/passwd.csv", ".csv"),
        ("C:\\x\\Table.CSV.GZ", ".csv.gz"),
        ("a.parquet", ".parquet"),
        ("a.json", ".json"),
        ("<img src=x onerror=alert(1)>.tsv", ".tsv"),
    ],
)
def test_only_the_suffix_of_a_name_is_taken(name: str, suffix: str) -> None:
    assert source_suffix(name) == suffix


@pytest.mark.parametrize("name", ["a.zip", "a", "", ".csv/x", "a.csv.zip", "a.parquet.gz"])
def test_other_kinds_of_files_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must end in"):
        source_suffix(name)


def test_times_far_apart_are_refused_when_they_mean_too_many_steps() -> None:
    times = [
        "2024-01-01 00:00:00",
        "2024-01-01 00:00:01",
        "2024-01-01 00:00:02",
        "2024-01-01 03:00",
    ]
    frame = pd.DataFrame({"time": pd.to_datetime(times, format="mixed"), "a": [1.0, 2, 3, 4]})
    with pytest.raises(ValueError, match="10,801 steps"):
        read_table(frame, {"freq": "s"}, LIMITS)


@pytest.mark.parametrize("above", ["", "# made by hand\n", "\n\n", "\ufeff# both\r\n\r\n"])
def test_columns_are_counted_in_the_header_whatever_is_above_it(tmp_path: Path, above: str) -> None:
    header = ",".join(f"c{number}" for number in range(600))
    (tmp_path / "wide.csv").write_text(f"{above}{header}\n" + ",".join(["1"] * 600) + "\n")
    with pytest.raises(ValueError, match="600 columns, the limit is 20"):
        _check_text(tmp_path / "wide.csv", LIMITS)


def test_a_preview_describes_columns_gaps_and_time() -> None:
    frame = pd.DataFrame(
        {
            "day": pd.date_range("2024-01-01", periods=4).astype(str),
            "a": [1.0, np.nan, np.nan, 4.0],
            "b": [1, 2, 3, 4],
            "text": list("wxyz"),
        }
    )
    found = preview(frame, TableChoices(columns=["b"]), LIMITS)
    assert (found.rows, found.time, found.id, found.problem) == (4, "day", None, None)
    assert found.names == ["day", "a", "b", "text"]
    assert found.numeric == ["a", "b"]
    assert found.table is not None
    assert found.table.missing == 2
    assert found.table.map.columns == ["a", "b"]
    assert found.table.map.shares == [[0, 1, 1, 0], [0, 0, 0, 0]]
    assert found.table.map.ticks[0] == (0, "2024-01-01")


@pytest.mark.parametrize("named", [{"time": "when", "freq": "h"}, {"freq": "h"}, {}])
def test_a_model_is_no_way_around_the_limit(tmp_path: Path, named: dict[str, str]) -> None:
    (tmp_path / "model").mkdir()
    remembered = {"time": "when", "freq": "h", "columns": ["x"], "seed": 0}
    (tmp_path / "model" / "config.json").write_text(json.dumps({"params": remembered}))
    source = tmp_path / "input.csv"
    source.write_text("when,x\n2024-01-01,1\n2024-03-01,2\n")
    limits = replace(LIMITS, cells=1_000)
    choices = FillChoices(model="m", **named)
    task = Task(
        kind="check",
        source=source,
        choices=choices,
        limits=limits,
        imputer={},
        model=tmp_path / "model",
        formats=(),
        with_pictures=False,
    )
    answer = perform(task, lambda message: None)
    assert isinstance(answer, Failed)
    assert "above the limit of 1,000 cells" in answer.sentence


def test_a_preview_looks_past_columns_whose_cells_cannot_be_compared() -> None:
    days = pd.date_range("2024-01-01", periods=4).repeat(2)
    frame = pd.DataFrame({"day": days, "x": np.arange(8.0), "tags": [["a"], ["b"]] * 4})
    assert preview(frame, TableChoices(), LIMITS).problem is not None


def test_a_preview_suggests_the_series_column_a_table_cannot_be_read_without() -> None:
    days = list(pd.date_range("2024-01-01", periods=5).astype(str))
    frame = pd.DataFrame({"day": days * 2, "x": range(10), "place": ["n"] * 5 + ["s"] * 5})
    assert preview(frame, TableChoices(), LIMITS).id == "place"
    told = preview(frame, TableChoices(id="day"), LIMITS)
    assert told.id == "day"
    nothing = preview(frame.drop(columns="place"), TableChoices(), LIMITS)
    assert nothing.table is None
    assert nothing.problem is not None
    assert nothing.numeric == ["x"]


def test_a_preview_shows_the_chosen_columns_where_not_all_can_be_read() -> None:
    days = list(pd.date_range("2024-01-01", periods=6).astype(str))
    frame = pd.DataFrame({"day": days, "a": [1.0, np.nan, 3, 4, 5, 6], "b": list("12x456")})
    everything = preview(frame, TableChoices(), LIMITS)
    assert everything.table is None
    assert everything.problem is not None
    chosen = preview(frame, TableChoices(columns=["a"]), LIMITS)
    assert chosen.problem == everything.problem  # of all columns
    assert chosen.table is not None
    assert (chosen.numeric, chosen.table.missing) == (["a"], 1)
    unreadable = preview(frame, TableChoices(columns=["b"]), LIMITS)
    assert unreadable.table is None
    assert unreadable.problem is not None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a.csv", "a.csv"),
        ("../../etc/Zähler.csv", "Zähler.csv"),
        (r"C:\Data\a.csv", "a.csv"),
        ("a\r\nSet-Cookie: b.csv", "aSet-Cookie: b.csv"),
        ("x" * 300 + ".csv", "x" * 196 + ".csv"),
        ("", None),
    ],
)
def test_the_name_of_a_file_is_shown_without_folders_and_controls(
    said: str, shown: str | None
) -> None:
    assert shown_name(said) == shown


@pytest.mark.parametrize(
    ("name", "suffix", "called"),
    [
        ("sensors.CSV.GZ", ".csv.gz", "sensors_filled.csv"),
        ("2024.01.tsv", ".tsv", "2024.01_filled.csv"),
        (".csv", ".csv", "filled.csv"),
        (None, ".parquet", "filled.csv"),
    ],
)
def test_a_result_is_called_after_its_table(name: str | None, suffix: str, called: str) -> None:
    assert result_name(name, suffix, "filled.csv") == called


@pytest.mark.parametrize("name", [None, "sensors.csv"])
def test_errors_and_warnings_call_a_file_as_its_sender_does(
    name: str | None, tmp_path: Path
) -> None:
    called = name or "the file"
    path = tmp_path / "input.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=called) as refused:
        read_upload(path, LIMITS, name)
    path.write_text("5,2\n3,4\n5,\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_upload(path, LIMITS, name)
    said = [str(refused.value), *(str(warning.message) for warning in caught)]
    assert len(said) > 1
    assert not re.search(f"input|plain|{re.escape(str(tmp_path))}", " ".join(said))


@given(st.lists(st.one_of(st.just(np.nan), st.floats(-10, 10)), min_size=1), st.integers(1, 9))
def test_thinning_keeps_extremes_and_every_stretch_with_a_gap(
    values: list[float], stretches: int
) -> None:
    observed = np.array(values)
    chosen = observed[thin(observed, stretches)]
    assert np.isnan(chosen).any() == np.isnan(observed).any()
    if not np.isnan(observed).all():
        assert np.nanmin(chosen) == np.nanmin(observed)
        assert np.nanmax(chosen) == np.nanmax(observed)
    assert len(chosen) <= 3 * stretches


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_a_chart_shows_the_result_of_the_library_with_its_band(gappy: np.ndarray) -> None:
    from conftest import tiny_config
    from mdtim import MDTIMImputer

    frame = pd.DataFrame(gappy, columns=["a", "b", "c"])
    result = MDTIMImputer(window=24, preset=tiny_config(), progress=False).fit(frame).impute(frame)
    drawn = chart(result)
    assert set(drawn["columns"]) == {"a", "b", "c"}
    low, high = result.interval(0.9)
    whole = next(p for p in drawn["pictures"] if p["title"] == "whole series")
    for name, expected in (("low", low), ("high", high), ("filled", result.values)):
        column = expected[whole["column"]].to_numpy()
        is_gap = np.isnan(frame[whole["column"]].to_numpy())
        for position, value in zip(whole["positions"], whole[name], strict=True):
            if is_gap[position]:
                assert value == pytest.approx(column[position], rel=1e-5)
            else:
                assert value is None
    longest = next(p for p in drawn["pictures"] if p["column"] == "b" and "gap" in p["title"])
    assert "gap of 15 steps" in longest["title"] or "gap of 16 steps" in longest["title"]
    assert json.dumps(drawn, allow_nan=False)


def test_a_chart_names_columns_of_which_nothing_could_be_filled() -> None:
    drawn = chart(filled(holes(60, {"never": [(0, 60)], "a": [(10, 3)], "full": []}), left=(0,)))
    assert drawn["unfilled"] == {"never": 60}
    assert drawn["columns"] == ["a"]
    assert {picture["column"] for picture in drawn["pictures"]} == {"a"}
