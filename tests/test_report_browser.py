"""The report in a real browser: it draws, moves, can be used by keyboard, and lets nothing in."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from mdtim.evaluation import Evaluation
from mdtim.imputation import Imputation
from mdtim.tables.table import TableOptions
from report_cases import (
    EVALUATION,
    HOSTILE,
    filled,
    holes,
    panel_of_three,
    values_of_any_size,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

ROLES = ("button", "link", "toolbar", "region", "image", "table", "navigation")


def open_report(
    page: Page, folder: Path, imputation: Imputation, evaluation: Evaluation | None = None
) -> None:
    """Open the report of an imputation and wait until every chart is drawn."""
    path = folder / "report.html"
    imputation.report(path, evaluation)
    page.route("http*://**", lambda route: pytest.fail(f"asks for {route.request.url}"))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")


def ranges(page: Page) -> list[list[float]]:
    """Start and end of both axes of every chart of a column."""
    script = """Bokeh.documents.map((d) => d.roots()[0]).filter((p) => p.name === "line")
        .map((p) => [p.x_range.start, p.x_range.end, p.y_range.start, p.y_range.end])"""
    found: list[list[float]] = page.evaluate(script)
    return found


def ink(page: Page, chart: str) -> int:
    """Number of different colours that a chart shows."""
    shot = page.locator(f"#{chart}").screenshot()
    return len(Image.open(BytesIO(shot)).convert("RGB").getcolors(2**24) or [])


def test_every_chart_is_drawn_in_light_and_in_dark(browser_page: Page, tmp_path: Path) -> None:
    imputation = filled(holes(300, {"a": [(40, 30)], "b": [(7, 1)]}))
    open_report(browser_page, tmp_path, imputation, EVALUATION)
    charts = ["map", "lengths", "chart-0", "chart-1", "calibration", "errors"]
    assert browser_page.locator(".chart").count() == len(charts)
    assert all(ink(browser_page, chart) > 10 for chart in charts)
    accents = []
    for scheme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=scheme)
        style = "getComputedStyle(document.documentElement).getPropertyValue('--accent')"
        accents.append(browser_page.evaluate(style))
        # The page hears of the scheme a moment after its style has changed.
        browser_page.wait_for_function(
            """(accent) => {
                const lines = Bokeh.documents.map((d) => d.roots()[0])
                    .filter((p) => p.name === "line")
                return lines.length === 2 && lines.every(
                    (p) => p.renderers.at(-1).glyph.line_color.value === accent)
            }""",
            arg=accents[-1],
        )
    assert accents[0] != accents[1]
    assert ink(browser_page, "chart-0") > 10


def test_a_gap_is_shown_in_all_charts_and_the_keyboard_moves_on(
    browser_page: Page, tmp_path: Path
) -> None:
    frame = holes(400, {"a": [(40, 30)], "b": [(300, 5)]})
    open_report(browser_page, tmp_path, filled(frame))
    whole = ranges(browser_page)
    assert [view[:2] for view in whole] == [
        [frame.index[0].timestamp() * 1000, frame.index[-1].timestamp() * 1000]
    ] * 2
    browser_page.get_by_role("button", name="Show the gap of b from 2024-03-13 12:00").first.click()
    browser_page.wait_for_timeout(100)
    start, end = (frame.index[row].timestamp() * 1000 for row in (288, 316))
    assert [view[:2] for view in ranges(browser_page)] == [[start, end]] * 2
    low, high = ranges(browser_page)[1][2:]
    assert low < frame["b"].iloc[288:317].min()
    assert high > 30.4  # fits the filled values, 30 to 30.4, and their band
    assert browser_page.evaluate("document.activeElement.id") == "chart-1"
    assert browser_page.locator("#shown").text_content() == "2024-03-13 00:00 to 2024-03-14 04:00"
    for key, middle, size in (("ArrowRight", 0.75, 1), ("+", 0.75, 0.5), ("-", 0.75, 1)):
        browser_page.keyboard.press(key)
        seen = ranges(browser_page)[0]
        assert (seen[0] + seen[1]) / 2 == pytest.approx(start + middle * (end - start))
        assert seen[1] - seen[0] == pytest.approx(size * (end - start))
    for key, times in (("-", 8), ("ArrowLeft", 8), ("+", 30)):  # to the limits and no further
        for _ in range(times):
            browser_page.keyboard.press(key)
    first, last = whole[0][:2]
    assert first - (last - first) <= ranges(browser_page)[0][0] < ranges(browser_page)[0][1]
    browser_page.keyboard.press("0")
    assert ranges(browser_page) == whole


@pytest.mark.parametrize("width", [1280, 360])
def test_a_gap_that_is_shown_stands_below_the_bar_with_its_name(
    browser_page: Page, tmp_path: Path, width: int
) -> None:
    browser_page.set_viewport_size({"width": width, "height": 740})
    open_report(browser_page, tmp_path, filled(holes(400, {"a": [(40, 30)], "b": [(300, 5)]})))
    browser_page.get_by_role("button", name="Show the gap of a").first.click()
    bar, name = (browser_page.locator(at).bounding_box() for at in (".controls", "#chart-0-h"))
    assert bar is not None
    assert name is not None
    assert bar["y"] + bar["height"] <= name["y"] < 740
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_line_is_not_cut_where_it_enters_and_leaves_the_view(
    browser_page: Page, tmp_path: Path
) -> None:
    # One long slope, thinned; in the view of the gap of b it has no point of its own.
    frame = holes(40_000, {"a": [(1, 1)], "b": [(20_000, 3)]})
    frame["a"] = np.where(frame["a"].isna(), np.nan, np.arange(40_000.0))
    open_report(browser_page, tmp_path, filled(frame))
    browser_page.get_by_role("button", name="Show the gap of b").first.click()
    browser_page.wait_for_timeout(200)
    low, high = ranges(browser_page)[1][2:]
    assert low < 19_988
    assert high > 20_014


def test_dragging_one_chart_moves_all(browser_page: Page, tmp_path: Path) -> None:
    open_report(browser_page, tmp_path, filled(holes(400, {"a": [(40, 30)], "b": [(300, 5)]})))
    before = ranges(browser_page)
    browser_page.locator("#chart-0").scroll_into_view_if_needed()
    box = browser_page.locator("#chart-0").bounding_box()
    assert box is not None
    browser_page.mouse.move(box["x"] + 600, box["y"] + 80)
    browser_page.mouse.down()
    browser_page.mouse.move(box["x"] + 400, box["y"] + 80, steps=4)
    browser_page.mouse.up()
    browser_page.wait_for_timeout(100)
    after = ranges(browser_page)
    assert after[0][0] > before[0][0] + 3_600_000
    assert after[0][:2] == pytest.approx(after[1][:2])


@pytest.mark.parametrize(
    "imputation",
    [
        panel_of_three(),
        filled(np.where(np.arange(80).reshape(40, 2) % 7 == 3, np.nan, 1.0)),
        filled(holes(30, {"a": [(0, 30)], "b": []}), left=(0,)),
        filled(holes(30, {"a": []})),
        filled(values_of_any_size()),
    ],
    ids=["panel", "array", "left missing", "nothing missing", "any size"],
)
def test_any_table_is_drawn_without_an_error(
    browser_page: Page, tmp_path: Path, imputation: Imputation
) -> None:
    open_report(browser_page, tmp_path, imputation)
    drawn = browser_page.evaluate("Bokeh.documents.length")
    assert drawn == browser_page.locator(".chart").count()


def test_hostile_names_are_shown_as_they_are_and_do_nothing(
    browser_page: Page, tmp_path: Path
) -> None:
    names = [HOSTILE, "$$\\sin x$$", "{{ 7 * 7 }} @value ${x}"]
    frame = holes(60, {name: [(20, 3)] for name in names})
    frame["id"] = HOSTILE
    imputation = filled(frame.reset_index(), options=TableOptions(time="time", id="id"))
    open_report(browser_page, tmp_path, imputation, EVALUATION)
    for name, heading in zip(names, browser_page.locator("section.line h3").all(), strict=True):
        assert name in str(heading.text_content())
        assert HOSTILE in str(heading.text_content())
    assert browser_page.locator("img").count() == 0
    browser_page.wait_for_timeout(100)  # an alert would be a fault


def test_every_series_begins_with_a_line_on_the_map(browser_page: Page, tmp_path: Path) -> None:
    data = np.ones((12, 10, 2))
    data[:, 4] = np.nan
    open_report(browser_page, tmp_path, filled(data))
    begins = browser_page.evaluate(
        """Array.from(Bokeh.documents.map((d) => d.roots()[0]).find((p) => p.name === "map")
            .renderers.at(-1).data_source.data.x)"""
    )
    assert begins == pytest.approx(np.arange(12) / 12)


def test_names_and_dates_of_the_map_leave_room_on_a_telephone(
    browser_page: Page, tmp_path: Path
) -> None:
    browser_page.set_viewport_size({"width": 390, "height": 844})
    name = "Outside temperature of the northern wall"
    open_report(browser_page, tmp_path, filled(holes(2000, {name: [(40, 30)], "b": [(7, 1)]})))
    plot = """Bokeh.documents.map((d) => d.roots()[0]).find((p) => p.name === "map")"""
    labels = browser_page.evaluate(
        f"[...{plot}.left[0].major_label_overrides.values()].map((l) => l.text)"
    )
    assert labels == ["Outside tem…", "b"]
    inner, whole = browser_page.evaluate(
        f"[{plot}.inner_width, document.getElementById('map').clientWidth]"
    )
    assert inner > 0.6 * whole
    assert browser_page.evaluate(f"{plot}.below[0].major_label_policy.type") == "NoOverlap"


def test_the_button_of_a_gap_is_in_view_on_a_telephone(browser_page: Page, tmp_path: Path) -> None:
    browser_page.set_viewport_size({"width": 390, "height": 844})
    open_report(browser_page, tmp_path, filled(holes(400, {"Indoors": [(40, 30)]})))
    button = browser_page.get_by_role("button", name="Show the gap of Indoors").first
    box = button.bounding_box()
    assert box is not None
    assert 0 < box["x"] < box["x"] + box["width"] < 390
    assert browser_page.locator("#first .scroll.cut").count() == 1  # says that it goes on
    name = browser_page.locator("#first tbody th bdi").bounding_box()
    assert name is not None
    assert name["height"] < 30  # in one line: no name breaks inside a word


def test_further_charts_are_drawn_when_they_are_opened(browser_page: Page, tmp_path: Path) -> None:
    names = [f"c{number:02}" for number in range(20)]
    gaps = {name: [(20, 30 - number)] for number, name in enumerate(names)}
    open_report(browser_page, tmp_path, filled(holes(100, {**gaps, "full": []})))
    assert len(ranges(browser_page)) == 12
    find = browser_page.get_by_role("combobox", name="Go to a column")
    find.fill("c15")
    find.press("Enter")
    assert browser_page.evaluate("document.activeElement.id") == "chart-15"
    browser_page.locator("#chart-15 canvas").first.wait_for()
    assert ink(browser_page, "chart-15") > 10
    assert len(ranges(browser_page)) == 13
    browser_page.get_by_role("button", name="Show the gap of c11").first.click()
    assert browser_page.evaluate("document.activeElement.id") == "chart-11"
    find.fill("full")  # has no gap, so no chart
    find.press("Enter")
    assert browser_page.evaluate("document.activeElement.id") == "column-20"
    find.fill("nowhere")
    find.press("Enter")
    assert find.evaluate("find => find.validationMessage") == "No column has such a name."
    find.fill("c1")  # the first that begins so
    find.press("Enter")
    assert browser_page.evaluate("document.activeElement.id") == "chart-10"


def test_scores_stand_below_the_names_of_their_methods(browser_page: Page, tmp_path: Path) -> None:
    open_report(browser_page, tmp_path, filled(holes(100, {"a": [(20, 3)]})), EVALUATION)
    rights = [
        browser_page.locator(f"table.wide {row}").evaluate_all(
            "all => all.map((cell) => cell.getBoundingClientRect().right)"
        )
        for row in ("thead tr + tr th", "tbody tr td:nth-child(n + 3):nth-child(-n + 10)")
    ]
    assert rights[0] == pytest.approx(rights[1])
    aligned = browser_page.locator("table.wide thead tr + tr th").evaluate_all(
        "all => all.map((cell) => getComputedStyle(cell).textAlign)"
    )
    assert set(aligned) == {"right"}


def test_the_range_stands_beside_the_legend(browser_page: Page, tmp_path: Path) -> None:
    open_report(browser_page, tmp_path, filled(holes(100, {"a": [(20, 3)], "b": [(7, 1)]})))
    tops = [
        box["y"] + box["height"] / 2
        for at in (".controls .legend", "#shown")
        if (box := browser_page.locator(at).bounding_box()) is not None
    ]
    assert tops[0] == pytest.approx(tops[1], abs=4)


def test_text_that_got_through_could_not_run(
    browser_page: Page, page_faults: list[str], tmp_path: Path
) -> None:
    open_report(browser_page, tmp_path, filled(holes(60, {"a": [(20, 3)]})))
    path = tmp_path / "report.html"
    bad = '<img src="x" onerror="alert(1)"><script>alert(2)</script></main>'
    path.write_text(path.read_text(encoding="utf-8").replace("</main>", bad), encoding="utf-8")
    browser_page.goto(path.as_uri())
    browser_page.wait_for_selector("html[data-drawn]", state="attached")
    assert page_faults
    assert all("Content Security Policy" in fault for fault in page_faults)
    page_faults.clear()


def test_every_control_and_figure_has_a_name_and_can_be_reached(
    browser_page: Page, tmp_path: Path
) -> None:
    imputation = filled(holes(300, {"a": [(40, 30)], "b": [(7, 1)]}))
    open_report(browser_page, tmp_path, imputation, EVALUATION)
    browser_page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    session = browser_page.context.new_cdp_session(browser_page)
    nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        focusable = any(
            part["name"] == "focusable" and part["value"]["value"]
            for part in node.get("properties", [])
        )
        if node.get("ignored") or not (role in ROLES or focusable):
            continue
        if role in ("RootWebArea", "main"):
            continue
        seen.add(role)
        assert node.get("name", {}).get("value", "").strip(), node
    assert {"button", "link", "toolbar", "image", "table", "group", "navigation"} <= seen
    regions = browser_page.get_by_role("region").evaluate_all("all => all.map(e => e.ariaLabel)")
    named = [name for name in regions if name is not None]  # others have their heading
    assert len(named) == len(set(named)) > 3
    # From the top of the page Tab leads past the skip link to each chart of a column.
    browser_page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        browser_page.keyboard.press("Tab")
        reached.add(browser_page.evaluate("document.activeElement.id"))
    assert {"chart-0", "chart-1"} <= reached
