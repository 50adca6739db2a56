from __future__ import annotations

import io
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_cases import OPTIONS, Case, fill, make_case, read_parts, same, sensors, write_parts
from mdtim.batch import BatchOptions, run_batch
from mdtim.batch.plan import lay_out
from mdtim.batch.runs import Runs
from mdtim.batch.sample import sample_panel
from mdtim.batch.source import Part, Piece
from mdtim.batch.survey import _one_spacing
from mdtim.batch.target import MODEL_FILES
from mdtim.checkpoint import FILES
from mdtim.imputer import MDTIMImputer
from mdtim.tables.grid import Spacing, Workdays
from mdtim.tables.table import Table, TableOptions

HOURS = Spacing("utc", 3_600 * 10**9)

# -- the same cells, however the data set is cut ----------------------------------------------


@pytest.mark.parametrize("edges", [(30, 34, 90), (1, 2, 3, 138), (72,)])
def test_parts_are_filled_as_the_whole_table_is(
    case: Case, tmp_path: Path, edges: tuple[int, ...]
) -> None:
    write_parts(case.frame, tmp_path / "source", edges)
    report = run_batch(tmp_path / "source", tmp_path / "target", OPTIONS, model=case.model)
    assert not report.failures
    assert report.rows == len(case.frame)
    same(read_parts(tmp_path / "target"), case.expected)


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
@pytest.mark.parametrize(
    "days",
    [
        pd.date_range("2024-01-01", periods=140, freq="B"),
        pd.date_range("2024-01-01", periods=140, freq="D", tz="Europe/Berlin"),
    ],
    ids=["without weekends", "with one of 23 hours"],
)
def test_days_that_a_part_alone_cannot_tell_are_told_by_all_parts(
    case: Case, tmp_path: Path, days: pd.DatetimeIndex
) -> None:
    hour = (case.frame["time"] - case.frame["time"].min()) // pd.Timedelta("1h")
    frame = case.frame.assign(time=days[hour])
    (tmp_path / "source").mkdir()
    for number, first in enumerate(range(0, 140, 10)):
        own = frame[(hour >= first) & (hour < first + 10)]
        own.to_parquet(tmp_path / "source" / f"part-{number:02d}.parquet", index=False)
    report = fill(tmp_path / "source", tmp_path / "target", case)
    assert not report.failures
    result = MDTIMImputer.load(case.model, device="cpu").impute(frame)
    filled = read_parts(tmp_path / "target")[list(result.values.columns)]
    same(filled, result.values.reset_index(drop=True))


@pytest.mark.parametrize(
    ("last", "reading"),
    [
        (pd.date_range("2024-02-05", periods=8, freq="B"), "weekdays"),
        (pd.date_range("2024-02-05", periods=8, freq="D"), "utc"),  # with a weekend
        (pd.date_range("2024-02-05 08:00", periods=8, freq="B"), "utc"),  # at another hour
    ],
)
def test_one_part_with_a_weekend_makes_all_days_count(last: pd.DatetimeIndex, reading: str) -> None:
    first = pd.date_range("2024-01-01", periods=25, freq="B")
    scans = []
    for days in (first, last):
        frame = pd.DataFrame({"time": days, "x": np.arange(float(len(days)))})
        timeline = Table.read(frame, TableOptions()).timeline
        assert timeline is not None
        assert timeline.clock is not None
        found = Mock(spacings=(timeline.spacing,), timed=True)
        found.workdays = Workdays.of(timeline.clock)
        scans.append(found)
    spacing = _one_spacing(scans)
    assert spacing is not None
    assert spacing.reading == reading


@pytest.mark.parametrize("piece_rows", [40, 20])
def test_a_time_that_some_rows_alone_have_is_refused(
    case: Case, tmp_path: Path, piece_rows: int
) -> None:
    frame = case.frame.drop(columns="time").iloc[:40]
    stamps = pd.Series(pd.date_range("2024", periods=40, freq="h"))
    stamps[2:18] = pd.NaT
    frame = frame.assign(measured=stamps.to_numpy())
    (tmp_path / "source").mkdir()
    if piece_rows == 20:
        pq.write_table(
            pa.Table.from_pandas(frame), tmp_path / "source" / "a.parquet", row_group_size=20
        )
        report_of = "tells the time of some of its rows and is mostly empty in others"
    else:
        for number, own in enumerate((frame.iloc[:20], frame.iloc[20:])):
            own.to_parquet(tmp_path / "source" / f"{number}.parquet", index=False)
        report_of = (
            r"1.parquet has a column that tells the time of its rows, but 0.parquet has none"
        )
    with pytest.raises(ValueError, match=report_of):
        fill(
            tmp_path / "source",
            tmp_path / "target",
            case,
            table=TableOptions(id="sensor"),
            piece_rows=piece_rows,
        )


def test_long_parts_are_filled_piece_by_piece_to_the_same_cells(case: Case, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "all.parquet"
    pq.write_table(pa.Table.from_pandas(case.frame), path, row_group_size=37)
    fill(tmp_path / "source", tmp_path / "target", case, piece_rows=50)
    same(read_parts(tmp_path / "target"), case.expected)
    assert pq.ParquetFile(tmp_path / "target" / "all.parquet").num_row_groups == 6


def test_drawn_tokens_are_drawn_alike_in_every_part(tmp_path: Path) -> None:
    case = make_case(tmp_path / "model", interpolated=False, num_draws=2)
    write_parts(case.frame, tmp_path / "source")
    fill(tmp_path / "source", tmp_path / "target", case)
    same(read_parts(tmp_path / "target"), case.expected)


def test_folders_can_name_the_series(case: Case, tmp_path: Path) -> None:
    for name, group in case.frame.groupby("sensor"):
        folder = tmp_path / "source" / f"sensor={name}" / "year=2020"
        folder.mkdir(parents=True)
        group.drop(columns="sensor").to_parquet(folder / "0.parquet", index=False)
    fill(tmp_path / "source", tmp_path / "target", case)
    for name, group in case.expected.groupby("sensor"):
        filled = pq.ParquetFile(tmp_path / "target" / f"sensor={name}" / "year=2020" / "0.parquet")
        same(filled.read().to_pandas(), group.drop(columns="sensor").reset_index(drop=True))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_parts_are_read_in_one_set_of_types(case: Case, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "source").mkdir()
    frame = case.frame.copy()
    frame.loc[frame["time"] < "2020-01-02", "x"] = 1.0
    hours = frame["time"] < "2020-01-02"
    for number, part in enumerate((frame[hours], frame[~hours])):
        # Whole numbers in the first part, fractions in the second.
        text = part.assign(x=part["x"].astype("Int64")) if number == 0 else part
        text.to_csv(tmp_path / "source" / f"{number}{suffix}", index=False)
    fill(tmp_path / "source", tmp_path / "target", case)
    frame["time"] = frame["time"].astype(str)
    imputer = MDTIMImputer.load(case.model, device="cpu")
    expected = imputer.transform(frame)
    filled = read_parts(tmp_path / "target", f"*{suffix}")
    for name in ("x", "y", "z", "count"):
        assert np.array_equal(filled[name].to_numpy(float), expected[name].to_numpy(float)), name


def test_a_text_part_comes_back_in_its_own_style(case: Case, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    style = {"sep": ";", "decimal": ",", "index": False, "lineterminator": "\r\n"}
    case.frame.to_csv(tmp_path / "source" / "0.csv", **style)
    fill(tmp_path / "source", tmp_path / "target", case)
    raw = (tmp_path / "target" / "0.csv").read_bytes()
    filled = pd.read_csv(io.BytesIO(raw), sep=";", decimal=",")
    assert raw.count(b"\r\n") == len(filled) + 1
    assert np.array_equal(filled["x"].to_numpy(), case.expected["x"].to_numpy())


def test_a_dot_means_the_same_in_every_text_part(case: Case, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    frame = case.frame.assign(y=(1_000 + np.arange(len(case.frame)) % 977).astype(float))
    half = len(frame) // 2
    for number, part in enumerate((frame[:half], frame[half:])):
        # Thousands with dots in both; decimal commas in the first alone.
        told = part.assign(
            x=part["x"].round(2) if number == 0 else part["x"].round().astype("Int64"),
            y=[f"{value / 1_000:.3f}" for value in part["y"]],
            z=part["z"] if number == 0 else part["z"].round().astype("Int64"),
        )
        told.to_csv(tmp_path / "source" / f"{number}.csv", sep=";", decimal=",", index=False)
    report = fill(tmp_path / "source", tmp_path / "target", case)
    assert any("in column 'y' are read as thousands" in note for note in report.notes)
    for number, expected in enumerate((frame["y"][:half], frame["y"][half:])):
        path = tmp_path / "target" / f"{number}.csv"
        filled = pd.read_csv(path, sep=";", decimal=",", thousands=".")
        assert filled["y"].tolist() == expected.tolist()


def test_series_without_times_follow_the_order_of_the_parts(tmp_path: Path, case: Case) -> None:
    values = sensors()[["x", "y", "z", "count"]].iloc[:136]
    (tmp_path / "source").mkdir()
    for number, begin in enumerate(range(0, 136, 40)):
        path = tmp_path / "source" / f"{number}.parquet"
        values.iloc[begin : begin + 40].to_parquet(path, index=False)
    options = BatchOptions(device="cpu")
    run_batch(str(tmp_path / "source"), str(tmp_path / "target"), options, model=case.model)
    paths = sorted((tmp_path / "target").glob("*.parquet"))
    filled = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    model = MDTIMImputer.load(case.model, device="cpu").model_
    table = Table.read(values)
    cells = model.fill(table.panel, keep_distribution=False)
    expected = table.panel.values.copy()
    expected[cells.rows, cells.variates] = cells.filled
    same(filled, table.restore(expected))


def test_parts_of_one_step_each_are_taken_as_equal_steps_with_a_note(
    case: Case, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    first_hours = case.frame[case.frame["time"] < "2020-01-01 04:00"]
    for number, (_, step) in enumerate(first_hours.groupby("time")):
        step.to_parquet(tmp_path / "source" / f"{number}.parquet", index=False)
    report = fill(tmp_path / "source", tmp_path / "target", case)
    assert report.filled_parts == 4
    assert any("taken as equal steps" in note for note in report.notes)
    expected = MDTIMImputer.load(case.model, device="cpu").transform(first_hours)
    filled = read_parts(tmp_path / "target")[expected.columns.tolist()]
    same(filled, expected.reset_index(drop=True))


def test_other_columns_and_their_types_stay_as_they_are(case: Case, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    table = pa.Table.from_pandas(case.frame, preserve_index=False)
    notes = pa.array(["n"] * len(case.frame)).dictionary_encode()
    table = table.append_column("note", notes).append_column(
        "when", pa.array([None] * len(case.frame), pa.date32())
    )
    pq.write_table(table, tmp_path / "source" / "0.parquet")
    fill(tmp_path / "source", tmp_path / "target", case, levels=())
    filled = pq.read_table(tmp_path / "target" / "0.parquet")
    assert filled.schema.equals(pq.read_schema(tmp_path / "source" / "0.parquet"))
    assert filled.column("note").equals(table.column("note"))
    assert filled.column("count").null_count == 0


def test_addresses_of_other_file_systems_work(case: Case, source: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(source), "/batch/source", recursive=True)
    fill("memory://batch/source", "memory://batch/target", case)
    memory.get("/batch/target", str(tmp_path / "target"), recursive=True)
    same(read_parts(tmp_path / "target"), case.expected)
    fill(f"file://{source}", f"file://{tmp_path}/second", case)
    same(read_parts(tmp_path / "second"), case.expected)


# -- one model for all parts -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_without_a_model_one_is_fitted_to_a_sample_and_kept(source: Path, tmp_path: Path) -> None:
    from conftest import tiny_config

    estimator = MDTIMImputer(16, tiny_config(max_steps=2), device="cpu", progress=False)
    target = tmp_path / "target"
    options = replace(OPTIONS, sample_rows=100)
    run_batch(str(source), str(target), options, estimator=estimator)
    kept = MDTIMImputer.load(target / "_mdtim" / "model", device="cpu")
    assert kept.id == "sensor"
    first = read_parts(target)
    (target / "part-1.parquet").unlink()
    report = run_batch(str(source), str(target), options)  # no second fit
    assert (report.filled_parts, report.kept_parts) == (1, 3)
    same(read_parts(target), first)
    frame = pd.concat([pd.read_parquet(path) for path in sorted(source.glob("*.parquet"))])
    filled = kept.transform(frame.sort_values(["sensor", "time"]).reset_index(drop=True))
    same(first[filled.columns.tolist()], filled)


def test_a_small_data_set_is_sampled_as_the_whole_table_however_it_is_cut(case: Case) -> None:
    frame = case.frame.sort_values(["sensor", "time"]).reset_index(drop=True)
    whole = Table.read(frame, OPTIONS.table).panel
    for edges in ([0, len(frame)], range(0, len(frame) + 1, 7)):
        cuts = [frame.iloc[a:b] for a, b in pairwise([*edges, len(frame)]) if b > a]
        tables = [Table.read(cut, replace(OPTIONS.table, spacing=HOURS)) for cut in cuts]
        runs = Runs.join([Runs.of(table, number) for number, table in enumerate(tables)])
        pieces = [Piece(Part(f"{number}.csv", 1, 0)) for number in range(len(cuts))]
        layout = lay_out(runs, pieces, HOURS, timed=True)
        panels = dict(zip(pieces, (table.panel for table in tables), strict=True))
        sample = sample_panel(layout, pieces, panels.__getitem__, 10_000, 0)
        np.testing.assert_array_equal(sample.values, whole.values)
        np.testing.assert_array_equal(sample.offsets, whole.offsets)
        assert sample.names == whole.names
        few = sample_panel(layout, pieces, panels.__getitem__, 64, 0)
        assert len(few.values) <= 64


def test_words_of_a_text_column_stay_in_parts_that_have_no_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number, words in enumerate((["None"] * 40, ["None", "HIGH"] * 20)):
        levels = [None if row % 9 == 7 else row % 12 for row in range(40)]
        times = range(40 * number, 40 * (number + 1))
        part = pd.DataFrame({"time": times, "alarm": words, "level": levels})
        part.to_csv(source / f"{number}.csv", index=False)
    estimator = MDTIMImputer(window=8, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so little is filled no better than by a line
        run_batch(source, tmp_path / "target", BatchOptions(device="cpu"), estimator=estimator)
    filled = pd.read_csv(tmp_path / "target" / "0.csv", keep_default_na=False)
    assert set(filled["alarm"]) == {"None"}
    assert "" not in filled["level"].astype(str).tolist()


@pytest.mark.parametrize("sign", ["/", "."])
def test_dates_of_all_parts_are_read_alike(tmp_path: Path, sign: str) -> None:
    """Of the 12th day and of earlier ones, the day may also be the month."""
    options, small = BatchOptions(device="cpu"), MDTIMImputer(window=16, device="cpu")
    hours = pd.date_range("2024-01-10", periods=6 * 24, freq="h")
    level = pd.Series(range(len(hours))).mod(24).astype(float)
    level[(hours.hour < 3) | (hours.hour > 20)] = None
    filled = []
    for form in ("%Y-%m-%d %H:%M", f"%d{sign}%m{sign}%Y %H:%M"):
        source = tmp_path / f"source-{len(filled)}"
        source.mkdir()
        frame = pd.DataFrame({"time": hours.strftime(form), "x": level, "y": level + 1})
        for day in range(6):
            part = frame[24 * day : 24 * (day + 1)]
            part.to_csv(source / f"{day}.csv", index=False)
        target = tmp_path / f"target-{len(filled)}"
        report = run_batch(source, target, options, estimator=small)
        assert not report.failures
        parts = [pd.read_csv(target / f"{day}.csv") for day in range(6)]
        filled.append(pd.concat(parts)[["x", "y"]].to_numpy())
    assert (filled[0] == filled[1]).all()
    # Another style of writing the same order is no matter; a day later one part is in seconds.
    seconds = pd.read_csv(source / "5.csv")
    seconds["time"] += ":00"
    seconds.to_csv(source / "5.csv", index=False)
    again = run_batch(source, tmp_path / "seconds", options, estimator=small)
    assert not again.failures
    # Where no part tells them apart, nothing is guessed.
    early = tmp_path / "early"
    early.mkdir()
    times = pd.date_range("2024-01-01", periods=96, freq="h").strftime("%d/%m/%Y %H:%M")
    table = pd.DataFrame({"time": times, "x": [None, *range(95)]})
    for number in range(2):
        table[48 * number : 48 * (number + 1)].to_csv(early / f"{number}.csv", index=False)
    with pytest.raises(ValueError, match="can be read in two ways"):
        run_batch(early, tmp_path / "nowhere", options, estimator=small)


def test_a_model_in_a_target_has_the_files_of_any_model() -> None:
    assert MODEL_FILES == FILES
