"""What a report is about, the notes on it, and that its numbers are those of the filled table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from mdtim import __version__
from mdtim.imputation import Origin
from mdtim.learning.fitting import FitReport
from mdtim.report import summarize, write_report
from mdtim.report.words import describe_chart, describe_columns, number, origin
from mdtim.tables.table import TableWarning
from report_cases import EVALUATION, HOSTILE, filled, holes, methods

FIT = FitReport("no longer improving", 1200, 900, 31.5, 1_061_290, 0.1291, 0.3698, 0.1, 0.9, True)


def test_a_report_tells_its_table_what_filled_it_and_its_notes(tmp_path: Path) -> None:
    imputation = filled(holes(60, {"a": [(20, 3)]}))
    imputation.origin = Origin(512, FIT)
    path = tmp_path / "report.html"
    imputation.report(path, name="sensors.csv", notes=["first", "second", "first"])
    page = path.read_text(encoding="utf-8")
    assert "<title>sensors.csv: filled gaps</title>" in page
    assert "<h1>Filled gaps of <bdi>sensors.csv</bdi></h1>" in page
    assert "<ul><li>first</li><li>second</li></ul>" in page
    facts = (
        "Window of 512 steps · network of 1.1 million weights, trained for 1,200 steps (no longer "
        "improving) · error on held-out cells 0.129 std, linear interpolation 0.370"
    )
    assert f"{facts} · mdtim {__version__}" in page


def test_what_is_not_known_is_not_told(tmp_path: Path) -> None:
    imputation = filled(holes(60, {"a": [(20, 3)]}))
    path = tmp_path / "report.html"
    about = write_report(imputation, path).about
    page = path.read_text(encoding="utf-8")
    assert "<title>Filled gaps</title>" in page
    assert "<h1>Filled gaps</h1>" in page
    assert 'id="notes"' not in page
    assert origin(about) == f"mdtim {__version__}"
    nothing_learned = replace(about, window=4, trained=FitReport.nothing_to_learn().reason)
    assert origin(nothing_learned) == f"Window of 4 steps · no column varies · mdtim {__version__}"


def test_the_same_fill_makes_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for seconds in (1.0, 2.0):
        imputation = filled(holes(60, {"a": [(20, 3)]}))
        imputation.origin = Origin(512, replace(FIT, seconds=seconds))
        imputation.report(tmp_path / "report.html", name="sensors.csv", notes=["one"])
        pages.append((tmp_path / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_a_hostile_name_or_note_is_text(tmp_path: Path) -> None:
    imputation = filled(holes(60, {"a": [(20, 3)]}))
    imputation.report(tmp_path / "report.html", name=HOSTILE, notes=[HOSTILE])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 3  # title, heading and note


def test_without_notes_those_on_how_the_table_was_read_are_told() -> None:
    frame = holes(60, {"a": [(20, 3)]})
    frame["flow"] = ["1,847.5"] * 50 + [None] * 10
    with pytest.warns(TableWarning, match="flow"):
        imputation = filled(frame)
    assert ["flow" in note for note in summarize(imputation).about.notes] == [True]
    assert summarize(imputation, notes=["other"]).about.notes == ("other",)
    assert summarize(imputation, notes=()).about.notes == ()


# -- numbers as they are written ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Int64", "object", "polars"])
def test_integers_are_told_as_the_table_holds_them(kind: str) -> None:
    frame = holes(60, {"a": [(24, 3)], "b": [(24, 3)]})  # filled with 2.4, 2.5 and 2.6
    frame["a"] = frame["a"].round().astype("Int64" if kind == "polars" else kind)
    if kind == "object":
        whole = [None if pd.isna(cell) else int(cell) for cell in frame["a"]]
        frame["a"] = pd.Series(whole, index=frame.index, dtype=object)
    imputation = filled(pl.from_pandas(frame) if kind == "polars" else frame)
    written = imputation.values["a"][24:27]
    assert list(written) == [2, 2, 3]
    whole_chart, chart = summarize(imputation).charts
    assert whole_chart.listed[0].mean == pytest.approx(np.mean([2, 2, 3]))
    assert (whole_chart.lowest, whole_chart.highest) == (2.0, 3.0)
    assert (chart.lowest, chart.highest) == (2.4, 2.6)


def test_a_small_part_of_a_rounded_number_is_not_told() -> None:
    frame = holes(60, {"rain": [(0, 1), (20, 2)]})
    frame["rain"] = frame["rain"].round(1)
    chart = summarize(filled(frame, width=1e-9)).charts[0]
    assert chart.decimals == 1
    assert "filled with values from 0 to 2.1." in describe_chart(chart)
    assert "The 90 % band is on average 0 wide" in describe_chart(chart)
    assert number(1.384e-07, chart.decimals) == "0"
    assert summarize(filled(holes(60, {"a": [(20, 2)]}))).charts[0].decimals is None


# -- where it is not better -----------------------------------------------------------------


def test_columns_in_which_a_line_is_as_good_are_named(tmp_path: Path) -> None:
    def column(name: str, of_linear: float) -> object:
        rows = tuple(
            replace(row, mae=of_linear) if row.method == "linear" else row for row in methods(0.1)
        )
        return replace(EVALUATION.columns[0], column=name, rows=rows)

    columns = tuple(column(*case) for case in (("good", 0.11), ("equal", 0.1), ("bad", 0.09)))
    scores = replace(EVALUATION, columns=columns)
    assert describe_columns(scores) == (
        "In 2 of 3 columns mdtim is not better than linear interpolation by its mean absolute "
        "error: equal, bad."
    )
    filled(holes(60, {"a": [(20, 3)]})).report(tmp_path / "report.html", scores)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("not better than linear</span>") == 2
    assert describe_columns(EVALUATION).startswith("In every column")
