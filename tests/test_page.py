"""The page in a real browser: from a dropped file to the library's own bytes."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from service_cases import Place, csv_of, running, sensors, stub_settings, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

DROP = """([name, text, place]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.querySelector(place).dispatchEvent(
    new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture
def page(browser_page: Page, place: Place) -> Page:
    """The page with its example."""
    browser_page.set_default_timeout(90_000)
    browser_page.goto(str(place.client.base_url))
    expect(browser_page.locator("#facts")).to_contain_text("missing", timeout=60_000)
    return browser_page


def drop(page: Page, name: str, content: bytes, place: str = "#drop") -> None:
    page.evaluate(DROP, [name, base64.b64encode(content).decode(), place])
    expect(page.locator("#facts")).not_to_contain_text("example.csv")


def fill(page: Page) -> None:
    page.get_by_role("button", name="Fill", exact=True).click()
    expect(page.get_by_role("heading", name="Filled")).to_be_visible(timeout=90_000)


def download(page: Page, button: str) -> bytes:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    return Path(waiting.value.path()).read_bytes()


def test_a_first_visit_shows_an_example_with_its_gaps(page: Page) -> None:
    assert page.get_by_role("img", name="Map of missing cells").is_visible()
    assert page.locator("#map .gap").count() > 10
    assert page.get_by_role("button", name="Fill", exact=True).is_enabled()
    assert page.get_by_label("Time column").input_value() == "time_hour"
    assert page.get_by_label("Series column").input_value() == "origin"


def test_a_dropped_file_is_filled_drawn_and_downloaded_as_the_library_fills_it(
    page: Page, expected: Path
) -> None:
    drop(page, "sensors.csv", csv_of(sensors()))
    expect(page.locator("#facts")).to_contain_text("sensors.csv: 120 rows, 4 columns")
    expect(page.locator("#map .stripe")).to_have_count(2)
    fill(page)
    chart = page.locator("#chart svg")
    assert chart.locator("polygon.band").count() > 1
    before = chart.get_attribute("aria-label")
    page.get_by_label("View").select_option(index=1)
    assert "gap of" in (chart.get_attribute("aria-label") or "")
    page.get_by_text("The filled cells as a table").click()
    said = page.get_by_role("region", name="Filled cells").locator("tbody tr")
    assert f"{said.count()} of the" in (chart.get_attribute("aria-label") or "")
    low, filled, high = (float(said.first.locator("td").nth(n).inner_text()) for n in (1, 0, 2))
    assert low <= filled <= high
    page.get_by_label("Column", exact=True).select_option(index=1)
    assert chart.get_attribute("aria-label") != before
    assert download(page, "Download CSV") == (expected / "out.csv").read_bytes()
    assert download(page, "Download Parquet") == (expected / "out.parquet").read_bytes()
    assert b"<html" in download(page, "Download report")


def test_only_the_chosen_columns_are_filled(page: Page) -> None:
    drop(page, "sensors.csv", csv_of(sensors()), "h1")  # anywhere on the page
    expect(page.locator("#facts")).to_contain_text("sensors.csv: 120 rows")
    page.get_by_role("checkbox", name="level").uncheck()
    fill(page)
    assert page.get_by_label("Column", exact=True).locator("option").all_inner_texts() == ["flow"]


def test_minutes_are_asked_for_and_sent_only_where_the_network_is_to_adapt(page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    drop(page, "sensors.csv", csv_of(sensors()))
    minutes = page.get_by_label("Minutes at most")
    expect(minutes).to_be_hidden()
    fill(page)
    assert not re.search("adapt|minutes", " ".join(sent))
    expect(page.locator("#result-facts")).not_to_contain_text("training")
    page.get_by_label("Adapt to this table first").check()
    minutes.fill("0.1")
    page.get_by_role("button", name="Fill", exact=True).click()
    training = re.compile(r"training, step \d+.*; about \d+ s left")
    expect(page.locator("#work-text")).to_contain_text(training, timeout=30_000)
    facts = page.locator("#result-facts")
    expect(facts).to_contain_text("of training on this table", timeout=30_000)
    assert [url for url in sent if re.search(r"/v1/jobs\?.*adapt=true&max_minutes=0\.1$", url)]
    sent.clear()
    page.get_by_label("Model").select_option("pumps")  # fills as it was fitted
    expect(page.get_by_label("Adapt to this table first")).to_be_hidden()
    expect(minutes).to_be_hidden()
    fill(page)
    assert [url for url in sent if "model=pumps" in url]
    assert not re.search("adapt|minutes", " ".join(sent))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("broken.csv", b"a,b\n1,2\n3\n", "cannot be read"),
        ("picture.png", b"x", "must end in .csv"),
        ("empty.parquet", b"", "not a Parquet file"),
    ],
)
def test_a_bad_file_gives_a_sentence(
    page: Page, page_faults: list[str], name: str, content: bytes, sentence: str
) -> None:
    page.evaluate(DROP, [name, base64.b64encode(content).decode(), "#drop"])
    expect(page.get_by_role("alert")).to_contain_text(sentence)
    expect(page.locator("#facts")).to_have_text("No table yet.")
    page_faults.clear()  # the browser notes the refusal on its console


def test_names_with_markup_stay_text(page: Page) -> None:
    name = "<img src=x onerror=alert(1)>"
    drop(page, f"{name}.csv", csv_of(sensors().rename(columns={"flow": name})))
    expect(page.locator("#facts")).to_contain_text(name)
    fill(page)
    page.get_by_label("Column", exact=True).select_option(name)
    assert page.locator("img").count() == 0
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open report").click()
    opened.value.wait_for_load_state()
    assert opened.value.locator("img").count() == 0
    assert name in opened.value.locator("body").inner_text()


def test_a_table_of_several_series_asks_for_their_column(page: Page) -> None:
    frame = sensors()[["when", "level"]]
    both = csv_of(frame.assign(place="north"))
    both += csv_of(frame.assign(place="south")).partition(b"\n")[2]
    drop(page, "both.csv", both)
    expect(page.locator("#facts")).to_contain_text("2 series")
    page.get_by_label("Series column").select_option("one series")
    expect(page.get_by_label("Series column")).to_have_value("place")


def begin_slow_work(page: Page, client: httpx.Client) -> None:
    """Fill a table that takes a minute."""
    page.goto(str(client.base_url))
    drop(page, "slow.csv", b"sleep 60")
    expect(page.locator("#facts")).to_contain_text("slow.csv: 2 rows")
    page.get_by_role("button", name="Fill", exact=True).click()


def test_a_job_shows_the_time_left_and_can_be_cancelled(browser_page: Page, tmp_path: Path) -> None:
    with running(stub_settings(tmp_path)) as client:
        begin_slow_work(browser_page, client)
        expect(browser_page.locator("#work-text")).to_contain_text("half way; about")
        expect(browser_page.get_by_role("progressbar")).to_have_attribute("value", "0.5")
        browser_page.get_by_role("button", name="Cancel").click()
        expect(browser_page.locator("#work")).to_be_hidden()
        expect(browser_page.get_by_role("button", name="Fill", exact=True)).to_be_enabled()
        expect(browser_page.get_by_role("alert")).to_be_hidden()
        wait_until(lambda: client.get("/healthz").json()["running"] == 0)


def test_another_table_ends_the_work_on_the_last_one(browser_page: Page, tmp_path: Path) -> None:
    with running(stub_settings(tmp_path)) as client:
        begin_slow_work(browser_page, client)
        expect(browser_page.locator("#work-text")).to_contain_text("half way")
        drop(browser_page, "other.csv", b"ok")
        expect(browser_page.locator("#facts")).to_contain_text("other.csv: 2 rows")
        expect(browser_page.locator("#work")).to_be_hidden()
        expect(browser_page.get_by_role("button", name="Fill", exact=True)).to_be_enabled()
        expect(browser_page.get_by_role("alert")).to_be_hidden()
        wait_until(lambda: client.get("/healthz").json()["running"] == 0)


def test_a_job_that_fails_gives_a_sentence_and_can_be_sent_again(
    browser_page: Page, tmp_path: Path
) -> None:
    with running(stub_settings(tmp_path)) as client:
        browser_page.goto(str(client.base_url))
        drop(browser_page, "bad.csv", b"die")
        expect(browser_page.locator("#facts")).to_contain_text("bad.csv: 2 rows")
        browser_page.get_by_role("button", name="Fill", exact=True).click()
        expect(browser_page.get_by_role("alert")).to_contain_text("ended unexpectedly")
        expect(browser_page.locator("#work")).to_be_hidden()
        expect(browser_page.get_by_role("button", name="Fill", exact=True)).to_be_enabled()


def test_a_page_loaded_anew_goes_on_with_its_job(browser_page: Page, tmp_path: Path) -> None:
    with running(stub_settings(tmp_path)) as client:
        begin_slow_work(browser_page, client)
        expect(browser_page.locator("#work-text")).to_contain_text("half way")
        browser_page.reload()
        expect(browser_page.locator("#facts")).to_contain_text("slow.csv was sent before")
        expect(browser_page.locator("#work-text")).to_contain_text("half way; about")
        assert client.get("/healthz").json()["running"] == 1
        browser_page.get_by_role("button", name="Cancel").click()
        expect(browser_page.locator("#facts")).to_have_text("Cancelled; nothing was filled.")
        wait_until(lambda: client.get("/healthz").json()["running"] == 0)
        assert "#" not in browser_page.url


def test_a_result_is_there_again_until_it_expires(
    page: Page, page_faults: list[str], place: Place, expected: Path
) -> None:
    drop(page, "sensors.csv", csv_of(sensors()))
    fill(page)
    page.reload()
    expect(page.get_by_role("heading", name="Filled")).to_be_visible()
    assert download(page, "Download CSV") == (expected / "out.csv").read_bytes()
    job = page.url.partition("#job=")[2]
    assert place.client.delete(f"/v1/jobs/{job}").status_code == 204
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("There is no such job; it may have expired")
    expect(page.locator("#facts")).to_contain_text("example.csv")
    page_faults.clear()  # the browser notes the refusal on its console


def test_a_result_is_saved_under_the_name_of_its_table(page: Page) -> None:
    drop(page, "Zähler.csv", csv_of(sensors()))
    fill(page)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download Parquet").click()
    assert waiting.value.suggested_filename == "Zähler_filled.parquet"


def test_notes_name_the_fields_that_help_and_those_open(page: Page) -> None:
    frame = sensors()
    frame.loc[::4, "flow"] = -999.0
    drop(page, "sensors.csv", csv_of(frame))
    notes = page.locator("#table-notes")
    expect(notes).to_contain_text("enter -999 under “Missing values”")
    numbers = page.get_by_label("Missing values")
    expect(numbers).to_be_visible()
    before = page.locator("#facts").inner_text()
    numbers.fill("-999, -9999")
    numbers.press("Tab")
    expect(notes).to_be_hidden()
    expect(page.locator("#facts")).not_to_have_text(before)
    page.get_by_label("Quantiles").fill("0.05; 0.95")
    fill(page)
    first = download(page, "Download CSV").decode().splitlines()[0]
    assert first == ("when,level,flow,note,level_q0.05,flow_q0.05,level_q0.95,flow_q0.95")


def test_columns_that_cannot_be_read_are_left_out_with_a_sentence(page: Page) -> None:
    frame = sensors()
    frame["count"] = [str(n) if n % 3 else "about 7" for n in range(120)]
    drop(page, "sensors.csv", csv_of(frame))
    expect(page.locator("#table-notes")).to_contain_text("or choose other columns to fill")
    expect(page.get_by_role("checkbox", name="level")).to_be_checked()
    expect(page.get_by_role("checkbox", name="count")).not_to_be_checked()
    expect(page.locator("#map .stripe")).to_have_count(2)
    page.get_by_role("checkbox", name="count").check()
    expect(page.get_by_role("button", name="Fill", exact=True)).to_be_disabled()
    page.get_by_role("checkbox", name="count").uncheck()
    fill(page)


def test_a_column_that_stays_missing_says_so(page: Page) -> None:
    drop(page, "sensors.csv", csv_of(sensors().assign(never="")))
    fill(page)
    page.get_by_label("Column", exact=True).select_option("never")
    expect(page.locator("#chart")).to_contain_text("120 cells of this column stay missing")
    expect(page.get_by_label("View")).to_be_hidden()


def test_a_token_is_asked_for_where_the_service_has_one(
    browser_page: Page, page_faults: list[str], tmp_path: Path
) -> None:
    token = "0123456789abcdef"
    with running(stub_settings(tmp_path, token=token)) as client:
        browser_page.goto(str(client.base_url))
        browser_page.get_by_label("This service asks for a token").fill(token)
        page_faults.clear()
        browser_page.get_by_role("button", name="Use it").click()
        expect(browser_page.locator("#facts")).to_contain_text("example.csv: 2 rows")
        expect(browser_page.locator("#token-form")).to_be_hidden()


def test_every_control_has_a_name_and_is_reached_by_keyboard(page: Page) -> None:
    drop(page, "sensors.csv", csv_of(sensors()))
    fill(page)
    page.get_by_label("Adapt to this table first").check()
    tree = page.locator("body").aria_snapshot()
    roles = "button|textbox|combobox|checkbox|link|spinbutton|progressbar|img|region"
    found = re.findall(rf"- ({roles})\b(.*)", tree)
    assert {role for role, _ in found} >= {"button", "combobox", "checkbox", "spinbutton", "img"}
    assert [role for role, rest in found if not rest.startswith(' "')] == []
    reached = set()
    page.locator("h1").click()
    for _ in range(30):
        page.keyboard.press("Tab")
        focused = "document.activeElement"
        reached.add(page.evaluate(f"{focused}.id || {focused}.textContent"))
    wanted = {"file", "example", "map", "time", "id", "adapt", "minutes", "fill", "column", "view"}
    assert wanted | {"open-report", "Download CSV"} <= reached


@pytest.fixture
def phone(chromium: Browser, place: Place) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    page.goto(str(place.client.base_url))
    expect(page.locator("#facts")).to_contain_text("missing", timeout=60_000)
    yield page
    context.close()


def test_on_a_phone_in_the_dark_nothing_sticks_out(phone: Page) -> None:
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    color = phone.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in color[4:-1].split(",")) < 60
