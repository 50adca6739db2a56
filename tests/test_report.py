"""The report: its numbers against ones computed by hand, its limits, what it must not let in."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mdtim.distribution import BinDistribution
from mdtim.imputation import Imputation
from mdtim.inference import Cells
from mdtim.report import render_html, summarize, write_report
from mdtim.report.plots import describe_gap, gap_svg
from mdtim.table import Table, TableOptions

HOSTILE = "<img src=x onerror=alert(1)>\"'&</title></style></svg><script>alert(2)</script>"
EVALUATION: dict[str, Any] = {
    "share_hidden": 0.1,
    "num_hidden": np.int64(1234),
    "rows": [
        {"method": "mdtim", "mae": 0.2134, "rmse": 0.4, "crps": 0.15, "coverage90": 0.897},
        {"method": "linear", "mae": 0.3, "rmse": 0.5, "crps": np.nan, "coverage90": None},
    ],
    "columns": [{"column": HOSTILE, "mae": 0.1, "linear_mae": 0.2, "coverage90": 0.91}],
}


def filled(
    data: Any, width: float = 1.0, left: tuple[int, ...] = (), options: TableOptions | None = None
) -> Imputation:
    """Fill with row / 10 and mass spread evenly by `width` around it; leave columns `left`."""
    table = Table.read(data) if options is None else Table.read(data, options)
    rows, variates = np.nonzero(~table.panel.observed)
    kept = ~np.isin(variates, left)
    rows, variates = rows[kept], variates[kept]
    mean = rows / 10
    half = width * (1 + 0.01 * rows)
    distribution = BinDistribution(
        torch.full((len(rows), 20), 1 / 20),
        torch.from_numpy(mean - half * 19 / 20),
        torch.from_numpy(half / 10),
    )
    cells = Cells(rows, variates, mean, distribution)
    return Imputation(table, cells, lambda number: table.panel.values, 0)


def holes(steps: int, gaps: dict[str, list[tuple[int, int]]]) -> pd.DataFrame:
    """Hourly table with gaps (first step, length) in each column."""
    index = pd.date_range("2024-03-01", periods=steps, freq="h", name="time")
    frame = pd.DataFrame(index=index)
    for number, (name, runs) in enumerate(gaps.items()):
        column = np.sin(np.arange(steps) / 4 + number)
        for first, length in runs:
            column[first : first + length] = np.nan
        frame[name] = column
    return frame


class Page(HTMLParser):
    """Collects what a browser would see of a page: elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(imputation: Imputation, evaluation: dict[str, Any] | None = None) -> Page:
    html = render_html(summarize(imputation, evaluation))
    assert "http://" not in html
    assert "https://" not in html
    page = Page(html)
    assert not {"script", "img", "iframe", "link", "object"} & set(page.tags)
    names = [name for name, _ in page.attributes]
    assert not [name for name in names if name.startswith("on") or name in ("src", "href")]
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "nan" not in html
    return page


def test_table_and_column_numbers() -> None:
    frame = holes(100, {"a": [(10, 1), (30, 4), (60, 2)], "b": [(0, 10)], "c": []})
    imputation = filled(frame)
    summary = summarize(imputation)
    assert summary["table"] == {
        "steps": 100,
        "variates": 3,
        "series": 1,
        "start": "2024-03-01 00:00",
        "end": "2024-03-05 03:00",
        "step_seconds": 3600.0,
        "missing": 17,
        "share": pytest.approx(17 / 300),
        "filled": 17,
        "gaps": 4,
        "longest_gap": 10,
        "left_missing": [],
    }
    b, a, c = summary["columns"]
    assert (a["column"], a["missing"], a["gaps"], a["median_gap"], a["longest_gap"]) == (
        ("a", 7, 3, 2.0, 4)
    )
    assert (b["column"], b["share"], b["filled"]) == ("b", 0.1, 10)
    assert (c["missing"], c["median_gap"], c["longest_gap"], c["relative_std"]) == (0, *3 * (None,))
    for column in (a, b):
        name = column["column"]
        spread = imputation.std[name][frame[name].isna()].mean()
        assert column["relative_std"] == pytest.approx(spread / frame[name].std(ddof=0))


def test_gap_holds_its_surroundings_and_bands() -> None:
    frame = holes(100, {"a": [(40, 4)]})
    imputation = filled(frame)
    (gap,) = summarize(imputation)["gaps"]
    assert (gap["column"], gap["series"], gap["position"], gap["length"]) == ("a", None, 40, 4)
    assert (gap["start"], gap["end"]) == ("2024-03-02 16:00", "2024-03-02 19:00")
    assert gap["positions"] == list(range(28, 56))
    assert gap["labels"][0] == "2024-03-02 04:00"
    assert [value is None for value in gap["observed"]] == [40 <= p < 44 for p in range(28, 56)]
    assert gap["observed"][0] == frame["a"].iloc[28]
    assert gap["mean"][11:17] == [None, *np.arange(40, 44) / 10, None]
    for name, level in (("5", 0.05), ("25", 0.25), ("75", 0.75), ("95", 0.95)):
        expected = imputation.quantile(level)["a"].to_numpy()[40:44]
        assert gap["quantiles"][name][12:16] == pytest.approx(expected)
        assert gap["quantiles"][name][11] is None


def test_quantiles_are_computed_once_per_level(monkeypatch: pytest.MonkeyPatch) -> None:
    imputation = filled(holes(300, {"a": [(n, 3) for n in range(20, 280, 40)]}))
    asked: list[float] = []
    real = imputation.panel_quantile
    monkeypatch.setattr(
        imputation, "panel_quantile", lambda level: asked.append(level) or real(level)
    )
    assert len(summarize(imputation)["gaps"]) == 3  # at most, of one column
    assert asked == [0.05, 0.25, 0.75, 0.95]


def test_longest_and_most_uncertain_gaps_are_chosen() -> None:
    # The spread grows with the row, so the last gap is the most uncertain.
    runs = [(20, 2), (60, 9), (110, 3), (150, 4), (190, 1)]
    gaps = summarize(filled(holes(220, {"a": runs})))["gaps"]
    assert [(g["position"], g["reason"]) for g in gaps] == [
        (60, "longest"),
        (150, None),
        (190, "most uncertain"),
    ]


def test_every_column_gets_a_picture_before_any_gets_more() -> None:
    many = {f"c{n}": [(20 + 2 * n, 3), (120, 2), (200, 1)] for n in range(30)}
    gaps = summarize(filled(holes(240, many)))["gaps"]
    assert [gap["column"] for gap in gaps] == [f"c{n}" for n in range(24)]
    some = {f"c{n}": [(20, 3), (120, 2), (200, 1)] for n in range(10)}
    gaps = summarize(filled(holes(240, some)))["gaps"]
    counts = pd.Series([gap["column"] for gap in gaps]).value_counts()
    assert (counts.sum(), counts.min(), counts.max()) == (24, 2, 3)


def test_long_gap_is_thinned_but_keeps_extremes_and_borders() -> None:
    frame = holes(9000, {"a": [(1000, 7000)]})
    frame.iloc[950, 0] = 77.0
    (gap,) = summarize(filled(frame))["gaps"]
    assert len(gap["positions"]) <= 400
    assert {800, 999, 1000, 7999, 8000, 8199} <= set(gap["positions"])
    assert np.all(np.diff(gap["positions"]) > 0)
    assert 77.0 in gap["observed"]
    for position, mean in zip(gap["positions"], gap["mean"], strict=True):
        assert mean == (position / 10 if 1000 <= position < 8000 else None)


def test_map_shares() -> None:
    frame = holes(1000, {"a": [(0, 5)], "b": [(500, 502)]})
    missing_map = summarize(filled(frame))["map"]
    assert missing_map["columns"] == ["b", "a"]
    expected = frame[["b", "a"]].isna().to_numpy().reshape(200, 5, 2).mean(axis=1)
    assert np.array(missing_map["shares"]) == pytest.approx(expected.T)
    assert missing_map["ticks"][0] == [0.0, "2024-03-01 00:00"]
    missing_map = summarize(filled(holes(400_000, {"a": [(123_456, 1)]})))["map"]
    assert sorted(missing_map["shares"][0])[-2:] == [0.0, 0.001]  # must not vanish


@pytest.mark.parametrize("evaluation", [None, EVALUATION])
def test_summary_is_plain_json(evaluation: dict[str, Any] | None) -> None:
    data = np.sin(np.arange(120.0)).reshape(40, 3)
    data[5:9, 0] = np.nan
    data[:, 1] = np.nan
    data[:, 2] = np.where(np.arange(40) % 7 == 3, np.nan, 4.0)
    summary = summarize(filled(data, left=(1,)), evaluation)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    unfilled = summary["columns"][0]
    assert (unfilled["column"], unfilled["share"], unfilled["filled"]) == ("x1", 1.0, 0)
    assert unfilled["relative_std"] is None
    assert summary["table"]["left_missing"] == ["x1"]
    assert {gap["column"] for gap in summary["gaps"]} == {"x0", "x2"}
    relative = {column["column"]: column["relative_std"] for column in summary["columns"]}
    assert relative["x2"] is None  # the observed values never vary


def test_nothing_missing() -> None:
    imputation = filled(holes(50, {"a": [], "b": []}))
    summary = summarize(imputation)
    assert summary["gaps"] == []
    assert summary["table"]["longest_gap"] == 0
    page = page_of(imputation, EVALUATION)
    assert "Nothing is missing" in page.text
    assert "How it was filled" not in page.text
    assert "How well it was filled" in page.text


def test_column_that_is_missing_altogether() -> None:
    frame = holes(60, {"a": [(0, 60)], "b": []})
    page = page_of(filled(frame, left=(0,)))
    assert "No gap could be filled" in page.text
    assert "Left missing60in a" in page.text
    page = page_of(filled(frame))
    assert "60 steps, 2024-03-01 00:00 to 2024-03-03 11:00" in page.text
    assert "Left missing" not in page.text


def test_panel_of_several_series() -> None:
    parts = [holes(80, {"a": [(70, 10)]}), holes(80, {"a": [(0, 6)]}), holes(80, {"a": []})]
    frame = pd.concat([part.assign(id=name) for part, name in zip(parts, "xyz", strict=True)])
    imputation = filled(frame.reset_index(), options=TableOptions(time="time", id="id"))
    summary = summarize(imputation)
    assert summary["table"]["series"] == 3
    assert summary["table"]["end"] == "2024-03-04 07:00"
    first, second = summary["gaps"]
    assert (first["series"], first["position"], first["length"]) == ("x", 70, 10)
    assert (second["series"], second["position"], second["length"]) == ("y", 0, 6)
    assert first["positions"] == list(range(55, 80))  # never into the next series
    assert second["positions"] == list(range(18))
    assert summary["map"]["ticks"] == [[0.0, "x"], [1 / 3, "y"], [2 / 3, "z"]]
    assert "series y" in page_of(imputation).text


@pytest.mark.parametrize("shape", [(40, 2), (3, 40, 2), (1, 2)])
def test_arrays_without_timestamps(shape: tuple[int, ...]) -> None:
    data = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    data.reshape(-1, 2)[-30::10, 1] = np.nan
    data[..., -1, 1] = np.nan
    imputation = filled(data)
    summary = summarize(imputation)
    assert summary["table"]["start"] is None
    assert summary["gaps"][0]["start"] == str(summary["gaps"][0]["position"])
    assert f"1 step, step {shape[-2] - 1}" in page_of(imputation).text


def test_hostile_names_are_inert() -> None:
    frame = holes(60, {HOSTILE: [(20, 3)]})
    frame["id"] = HOSTILE
    imputation = filled(frame.reset_index(), options=TableOptions(time="time", id="id"))
    page = page_of(imputation, {**EVALUATION, "rows": [{"method": HOSTILE, "mae": 1.0}]})
    assert page.text.count(HOSTILE) == 7  # caption and SVG title twice each, three tables


@pytest.mark.parametrize("scale", [0.0, 1e-308, 1e-9, 1.0, 1e9, 1e305])
@pytest.mark.parametrize("offset", [0.0, 1e12])
def test_values_of_any_size_can_be_drawn(scale: float, offset: float) -> None:
    data = offset + scale * np.sin(np.arange(60.0))[:, None]
    data[20:25] = np.nan
    html = render_html(summarize(filled(data, width=scale)))
    assert not {"nan", "inf"} & set(re.findall("[a-z]+", html))


@pytest.mark.parametrize("freq", ["ms", "s", "min", "h", "D", "W", "MS", "YS"])
def test_ticks_fit_any_frequency(freq: str) -> None:
    index = pd.date_range("2001-01-01", periods=60, freq=freq)
    frame = pd.DataFrame({"a": np.sin(np.arange(60.0))}, index=index)
    frame.iloc[20:25] = np.nan
    (gap,) = summarize(filled(frame))["gaps"]
    assert 1 <= gap_svg(gap, 0).count('v4"') <= 8
    assert len(gap["labels"][0]) == {"ms": 23, "s": 19, "min": 16, "h": 16}.get(freq, 10)


def test_description_in_words() -> None:
    data = np.full((60, 1), 2.5)
    data[20:25] = np.nan
    (gap,) = summarize(filled(data))["gaps"]
    text = describe_gap(gap)
    assert text.startswith("Missing: 5 steps, step 20 to 24. Filled with values from 2 to 2.4;")
    assert text.endswith("value before it is 2.5. The first observed value after it is 2.5.")


def test_evaluation_tables() -> None:
    text = page_of(filled(holes(60, {"a": [(20, 3)]})), EVALUATION).text
    assert "10.0 % of the observed cells (1,234) were hidden" in text
    assert "in units of the column's standard deviation" in text
    assert "mdtim0.2130.4000.15089.7 %" in text
    assert "linear0.3000.500––" in text


def test_wide_page_stays_small() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(4000, 50)).cumsum(axis=0)
    data[rng.random(data.shape) < 0.02] = np.nan
    for column in range(50):
        data[100 : 1000 + 40 * column, column] = np.nan
    html = render_html(summarize(filled(data)))
    assert len(html.encode()) < 2_000_000


def test_report_is_written_whole(tmp_path: Path) -> None:
    imputation = filled(holes(60, {"a": [(20, 3)]}))
    path = tmp_path / "report.html"
    half = "\ud800"  # half of a character, which UTF-8 cannot write
    write_report(imputation, path, {"rows": [{"method": half}]})
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    imputation.report(str(path))
    assert "How well it was filled" not in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="no folder"):
        write_report(imputation, tmp_path / "nowhere" / "report.html")
