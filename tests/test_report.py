"""The report: its numbers against ones computed by hand, what its lines keep, what it lets in."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdtim.evaluation import Evaluation
from mdtim.imputation import Imputation
from mdtim.report import summarize, write_report
from mdtim.report.charts import chart_document
from mdtim.report.lines import Fill, Line, make_line
from mdtim.report.packing import pack_places
from mdtim.report.page import bokeh_script, json_for_script, render_page
from mdtim.report.summary import GapFacts
from mdtim.report.words import describe_chart, describe_errors, describe_lengths, describe_map
from mdtim.tables.table import TableOptions
from report_cases import EVALUATION, HOSTILE, filled, holes, panel_of_three, values_of_any_size


class Page(HTMLParser):
    """Collects what a browser would see of a page: elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._within = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.text += data


def page_of(imputation: Imputation, evaluation: Evaluation | None = None) -> Page:
    html = render_page(summarize(imputation, evaluation), Fill.of(imputation))
    page = Page(html.replace(bokeh_script(), ""))  # a megabyte that only a browser should read
    assert page.tags.count("script") == 3  # the data, Bokeh and our own
    assert not {"img", "iframe", "link", "object"} & set(page.tags)
    links = [value for name, value in page.attributes if name in ("src", "href")]
    assert all(link is not None and link.startswith("#") for link in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    return page


def gap_of(imputation: Imputation, chart: int = 0, number: int = 0) -> GapFacts:
    return summarize(imputation).charts[chart].listed[number]


# -- the summary ----------------------------------------------------------------------------


def test_table_and_column_numbers_are_those_of_the_data() -> None:
    frame = holes(100, {"a": [(10, 1), (30, 4), (60, 2)], "b": [(0, 10)], "c": []})
    imputation = filled(frame)
    summary = summarize(imputation)
    assert summary.to_dict()["table"] == {
        "steps": 100,
        "skipped": 0,
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
        "empty": [],
    }
    b, a, c = summary.columns
    assert (a.column, a.missing, a.gaps, a.median_gap, a.longest_gap) == ("a", 7, 3, 2.0, 4)
    assert (b.column, b.share, b.filled) == ("b", 0.1, 10)
    assert (c.missing, c.median_gap, c.longest_gap, c.uncertainty) == (0, None, None, None)
    lengths = [
        (group.shortest, group.longest, group.gaps, group.cells) for group in summary.lengths
    ]
    assert lengths == [(1, 1, 1, 1), (2, 2, 1, 2), (3, 4, 1, 4), (5, 8, 0, 0), (9, 16, 1, 10)]


def test_steps_that_no_row_has_are_told() -> None:
    frame = holes(100, {"a": [(10, 1), (30, 4)]})
    imputation = filled(frame.drop(index=frame.index[50:56]))
    table = summarize(imputation).table
    assert (table.steps, table.skipped, table.missing) == (100, 6, 11)
    assert "6 steps without a row" in page_of(imputation).text


def test_uncertainty_is_the_spread_of_the_filled_over_that_of_the_observed() -> None:
    frame = holes(100, {"a": [(10, 1), (30, 4)], "b": [(0, 10)]})
    imputation = filled(frame)
    for column in summarize(imputation).columns:
        spread = imputation.std[column.column][frame[column.column].isna()].mean()
        # The scale pulls the most extreme values in, here by very little.
        expected = spread / frame[column.column].std(ddof=0)
        assert column.uncertainty == pytest.approx(expected, rel=0.01)


def test_a_gap_is_told_with_its_place_its_fill_and_its_band() -> None:
    frame = holes(100, {"a": [(40, 4)]})
    imputation = filled(frame)
    gap = gap_of(imputation)
    assert (gap.column, gap.series, gap.position, gap.length) == ("a", None, 40, 4)
    assert (gap.start, gap.end) == ("2024-03-02 16:00", "2024-03-02 19:00")
    assert gap.mean == pytest.approx(np.mean([4.0, 4.1, 4.2, 4.3]))
    lower, upper = imputation.interval(0.9)
    assert gap.band90 == pytest.approx((upper - lower)["a"].iloc[40:44].mean())
    first, last = (pd.Timestamp(end, unit="ms") for end in gap.view)
    assert (first, last) == (frame.index[28], frame.index[55])


def test_the_longest_and_the_most_uncertain_gaps_come_first() -> None:
    # The spread grows with the row, so the last gap is the most uncertain.
    runs = [(20, 2), (60, 9), (110, 3), (150, 4), (190, 1)]
    summary = summarize(filled(holes(220, {"a": runs})))
    found = [(gap.position, gap.reason) for gap in summary.charts[0].listed]
    assert found == [(60, "longest"), (190, "most uncertain"), (150, None), (110, None), (20, None)]
    assert summary.first_gaps == summary.charts[0].listed


def test_first_gaps_are_those_of_all_columns() -> None:
    summary = summarize(filled(holes(400, {"a": [(20, 2)], "b": [(300, 9)], "c": [(390, 1)]})))
    assert [gap.column for gap in summary.first_gaps] == ["b", "c", "a"]
    for gap in summary.first_gaps:
        assert summary.charts[gap.chart].column == gap.column


def test_every_column_gets_a_chart_before_any_gets_a_second() -> None:
    frame = holes(60, {f"c{number}": [(20, 3)] for number in range(30)})
    frame = pd.concat([frame.assign(id=name) for name in "xyz"]).reset_index()
    summary = summarize(filled(frame, options=TableOptions(time="time", id="id")))
    counts = pd.Series([chart.column for chart in summary.charts]).value_counts()
    assert (len(counts), counts.sum(), counts.min(), counts.max()) == (30, 50, 1, 2)
    assert summary.charts_left_out == 40


def test_the_map_holds_the_share_missing_of_each_bin() -> None:
    frame = holes(1500, {"a": [(0, 5)], "b": [(500, 502)]})
    missing_map = summarize(filled(frame)).map
    assert missing_map.columns == ("b", "a")
    expected = frame[["b", "a"]].isna().to_numpy().reshape(300, 5, 2).mean(axis=1)
    assert np.array(missing_map.shares) == pytest.approx(expected.T)
    assert missing_map.ticks[0] == (0.0, "2024-03-01 00:00")
    missing_map = summarize(filled(holes(400_000, {"a": [(123_456, 1)]}))).map
    assert sorted(missing_map.shares[0])[-2:] == [0.0, 0.001]  # must not vanish


@pytest.mark.parametrize("evaluation", [None, EVALUATION])
def test_a_summary_is_plain_json(evaluation: Evaluation | None) -> None:
    data = np.sin(np.arange(120.0)).reshape(40, 3)
    data[5:9, 0] = np.nan
    data[:, 1] = np.nan
    data[:, 2] = np.where(np.arange(40) % 7 == 3, np.nan, 4.0)
    summary = summarize(filled(data, left=(1,)), evaluation)
    document = summary.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    unfilled = summary.columns[-1]
    assert (unfilled.column, unfilled.share, unfilled.filled) == ("x1", 1.0, 0)
    assert unfilled.uncertainty is None
    assert summary.table.left_missing == ("x1",)
    assert {gap.column for gap in summary.first_gaps} == {"x0", "x2"}
    uncertainty = {column.column: column.uncertainty for column in summary.columns}
    assert uncertainty["x2"] is None  # the observed values never vary


def test_series_of_a_panel_are_told_apart() -> None:
    summary = summarize(panel_of_three())
    assert (summary.table.series, summary.table.end) == (3, "2024-03-04 07:00")
    first, second = summary.charts
    assert [(chart.series, chart.missing, chart.steps) for chart in (first, second)] == [
        ("x", 10, 80),
        ("y", 6, 80),
    ]
    assert (first.listed[0].position, second.listed[0].position) == (70, 0)
    assert summary.map.ticks == ((0.0, "x"), (1 / 3, "y"), (2 / 3, "z"))


@pytest.mark.parametrize("count", [9, 12, 20, 101])
def test_many_series_are_named_evenly(count: int) -> None:
    data = np.ones((count, 10, 1))
    data[:, 4] = np.nan
    named = [int(name) for _, name in summarize(filled(data)).map.ticks]
    assert 4 <= len(named) <= 8
    assert len(set(np.diff(named))) == 1


# -- the lines ------------------------------------------------------------------------------


def line_of(imputation: Imputation, stretches: int = 50) -> Line:
    listed = [(gap.position, gap.length) for gap in summarize(imputation).charts[0].listed]
    fill = Fill.of(imputation)
    return make_line(fill, 0, 0, stretches=stretches, details=listed, detail_stretches=20)


def test_a_short_line_is_drawn_as_it_is_with_bands_that_meet_what_was_observed() -> None:
    frame = holes(40, {"a": [(10, 2), (38, 2)]})
    imputation = filled(frame)
    line = line_of(imputation)
    known = ~np.isnan(line.observed.values)
    assert line.observed.positions[known].tolist() == [*range(10), *range(12, 38)]
    assert np.flatnonzero(~known).tolist() == [10]
    assert line.filled.positions.tolist() == [9, 10, 11, 12, 12, 37, 38, 39, 39, 39]
    value = frame["a"].iloc
    expected = [value[9], 1.0, 1.1, value[12], np.nan, value[37], 3.8, 3.9, 3.9, np.nan]
    assert line.filled.values == pytest.approx(expected, nan_ok=True)
    assert line.filled.bounds[0, 1:3] == pytest.approx(imputation.quantile(0.05)["a"].iloc[10:12])
    for at in (0, 3, 4, 5, 8, 9):  # where a gap begins and ends no area is left
        assert np.ptp(line.filled.bounds[:, at]) == 0
    assert len(line.marks.positions) == 0


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5]))
def test_a_thinned_line_keeps_extremes_and_something_of_every_stretch_with_a_gap(
    seed: int, rate: float
) -> None:
    generator = np.random.default_rng(seed)
    data = generator.normal(size=(5_000, 1))
    data[generator.random(5_000) < rate] = np.nan
    data[1_000 : 1_000 + int(generator.integers(1, 3_000))] = np.nan
    data[4_500] = np.nan
    imputation = filled(data)
    line = line_of(imputation)
    observed = line.observed.values
    assert np.nanmin(observed) == np.nanmin(data)
    assert np.nanmax(observed) == np.nanmax(data)
    size = 5_000 // 50
    drawn = np.concatenate([line.filled.positions, line.marks.positions]) // size
    assert set(np.flatnonzero(np.isnan(data[:, 0])) // size) <= set(drawn)
    assert len(observed) + len(line.filled.values) + len(line.marks.values) < 2_000
    for points in (line.observed, line.filled, line.marks):
        assert np.all(np.diff(points.positions) >= 0)
    truth = data[line.observed.positions, 0]
    known = ~np.isnan(observed)
    assert np.array_equal(observed[known], truth[known])


def test_a_value_between_two_gaps_is_drawn_as_a_dot() -> None:
    line = line_of(filled(holes(40, {"a": [(10, 2), (13, 2)]})))
    assert line.observed.alone().positions.tolist() == [12]


def test_lines_are_as_fine_as_the_page_has_room_for() -> None:
    frame = holes(4_000, {f"c{number}": [(20, 3), (2_000, 40)] for number in range(20)})
    imputation = filled(frame)
    document = chart_document(summarize(imputation), Fill.of(imputation))
    points = unpacked(document["lines"]["chart-7"]["observed"]["value"])
    assert len(points) > 2 * 1_000  # twice the 400 stretches it would have as one of 20 lines


@pytest.mark.parametrize(
    ("places", "unit", "kind"),
    [
        ([0.0, 7200.0, 7200.0, 10800.0], 3600, "u2"),
        ([5.0, 1e9 + 1], 1e9 - 4, "u2"),
        ([0.0, 1.0, 1e6], 1, "u4"),
        ([0.0, 1.0, 1e12], 0, "f8"),
        ([0.0, 0.5], 0, "f8"),
        ([3.0, 2.0], 0, "f8"),
        ([], 1, "u2"),
    ],
)
def test_places_are_packed_without_loss(places: list[float], unit: float, kind: str) -> None:
    packed = pack_places(np.array(places))
    assert packed["unit"] == unit
    assert str(packed["x"]).startswith(f"{kind}:")
    numbers = unpacked(packed["x"])
    found = float(packed["first"]) + unit * np.cumsum(numbers) if unit else numbers
    assert list(found) == places


def unpacked(packed: str | float) -> np.ndarray:
    kind, _, text = str(packed).partition(":")
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}").astype(np.float64)


# -- the page -------------------------------------------------------------------------------


def test_a_page_of_nothing_missing_says_so() -> None:
    imputation = filled(holes(50, {"a": [], "b": []}))
    assert summarize(imputation).first_gaps == ()
    page = page_of(imputation, EVALUATION)
    assert "Nothing is missing" in page.text
    assert "How it was filled" not in page.text
    assert "How well it was filled" in page.text


def test_a_column_that_is_missing_altogether_is_left_and_named() -> None:
    frame = holes(60, {"a": [(0, 60)], "b": []})
    page = page_of(filled(frame, left=(0,)))
    assert "No gap could be filled" in page.text
    assert "60in a" in page.text
    assert "a was never observed and is left missing. No chart shows it." in page.text
    page = page_of(filled(frame))
    assert "60 of 60 steps missing in 1 gap, filled with values from 0 to 5.9." in page.text
    assert "Left missing" not in page.text
    page = page_of(filled(holes(60, {"a": [(0, 50)]}), left=(0,)))
    assert "50 of 60 steps missing in 1 gap; left missing." in page.text


def test_columns_that_were_never_observed_come_last_and_have_no_gaps() -> None:
    imputation = filled(
        holes(100, {"never": [(0, 100)], "a": [(10, 1), (30, 4)], "full": []}), left=(0,)
    )
    summary = summarize(imputation)
    assert [facts.column for facts in summary.columns] == ["a", "full", "never"]
    assert summary.map.columns == ("a", "full", "never")
    assert [chart.column for chart in summary.charts] == ["a"]
    assert (summary.table.missing, summary.table.gaps, summary.table.longest_gap) == (105, 2, 4)
    assert [group.longest for group in summary.lengths] == [1, 2, 4]
    never = summary.columns[-1]
    assert (never.missing, never.gaps, never.longest_gap) == (100, 0, None)
    assert describe_map(summary) == (
        "a lacks the most, 5.0 % of its steps. never was never observed and is left missing. "
        "1 column of 3 lacks nothing."
    )
    assert "2, the longest 4 steps" in imputation._repr_html_()


@pytest.mark.parametrize("shape", [(40, 2), (3, 40, 2), (1, 2)])
def test_arrays_without_timestamps_are_told_in_steps(shape: tuple[int, ...]) -> None:
    data = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    data.reshape(-1, 2)[-30::10, 1] = np.nan
    data[..., -1, 1] = np.nan
    imputation = filled(data)
    gap = gap_of(imputation)
    assert summarize(imputation).table.start is None
    assert gap.start == str(gap.position)
    assert gap.view[0] == max(gap.position - 12, 0)
    assert "data-timed" not in [name for name, _ in page_of(imputation).attributes]


def test_hostile_names_are_text_and_nothing_else() -> None:
    frame = holes(60, {HOSTILE: [(20, 3)]})
    frame["id"] = HOSTILE
    imputation = filled(frame.reset_index(), options=TableOptions(time="time", id="id"))
    assert HOSTILE in page_of(imputation, EVALUATION).text


def test_data_cannot_end_the_script_that_holds_them() -> None:
    document = {"name": "</script><script>alert(1)</script><!--"}
    text = json_for_script(document)
    assert "<" not in text
    assert json.loads(text) == document


@pytest.mark.parametrize("width", [0.0, 1e-308, 1.0, 1e305])
def test_values_of_any_size_have_a_page(width: float) -> None:
    page_of(filled(values_of_any_size(), width))


def test_figures_are_told_in_words() -> None:
    data = np.full((60, 2), 2.5)
    data[20:25, 0] = np.nan
    data[7, 0] = np.nan
    summary = summarize(filled(data), EVALUATION)
    assert describe_map(summary) == (
        "x0 lacks the most, 10.0 % of its steps. 1 column of 2 lacks nothing."
    )
    assert describe_lengths(summary) == (
        "2 gaps, the longest 5 steps. 50.0 % of them are single steps."
    )
    assert describe_chart(summary.charts[0]).startswith(
        "6 of 60 steps missing in 2 gaps, filled with values from 0.7 to 2.4. The 90 % band is"
    )
    assert describe_errors(EVALUATION) == (
        "In gaps of 1 step the mean absolute error is 0.100, that of linear interpolation 0.200; "
        "in gaps of 5–8 steps the mean absolute error is 0.300, that of linear interpolation 0.600."
    )


def test_scores_stand_beside_those_of_the_simple_methods() -> None:
    text = page_of(filled(holes(60, {"a": [(20, 3)]})), EVALUATION).text
    assert "10.0 % of the observed cells (1,234) were hidden" in text
    assert "mdtim0.2130.4270.21389.7 %" in text
    assert "linear interpolation0.4270.8540.427–" in text
    assert f"{HOSTILE}1,2340.1000.4000.3000.2000.2000.8000.6000.4000.10089.7 %" in text


def test_the_page_of_50_columns_is_smaller_than_3_megabytes() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(6_000, 50)).cumsum(axis=0)
    data[rng.random(data.shape) < 0.05] = np.nan
    for column in range(50):
        for first in range(column, 6_000, 200):  # as many gaps that can be seen as fit in
            data[first : first + 60, column] = np.nan
    imputation = filled(data)
    html = render_page(summarize(imputation, EVALUATION), Fill.of(imputation))
    assert 2_000_000 < len(html.encode()) < 3_000_000


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    half = "\ud800"  # half of a character, which UTF-8 cannot write
    imputation = filled(holes(60, {"a": [(20, 3)]}))
    path = tmp_path / "report.html"
    evaluation = replace(EVALUATION, columns=(replace(EVALUATION.columns[0], column=half),))
    summary = write_report(imputation, path, evaluation)
    assert summary == summarize(imputation, evaluation)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>")
    imputation.report(str(path))
    assert "How well it was filled</h2>" not in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="no folder"):
        write_report(imputation, tmp_path / "nowhere" / "report.html")
