"""The pictures of the documents: `python tests/pictures.py` takes them anew.

They show what a user gets who says nothing: the page's example, and the report of `mdtim demo`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from playwright.sync_api import expect

from browser_cases import launched_chromium
from mdtim.demo import run_demo
from mdtim.service.settings import ServiceSettings
from service_cases import running

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCS = Path(__file__).parents[1] / "docs"
Scheme = Literal["light", "dark"]


def take_page(page: Page, address: str, path: Path) -> None:
    """The example filled, one of its gaps in view."""
    page.goto(address)
    expect(page.locator("#facts")).to_contain_text("missing", timeout=60_000)
    page.get_by_role("button", name="Fill", exact=True).click()
    expect(page.locator("#result")).to_be_visible(timeout=120_000)
    page.get_by_label("Column", exact=True).select_option("pressure")
    view = page.get_by_label("View")
    gaps = [name for name in view.locator("option").all_inner_texts() if "gap of" in name]
    view.select_option(gaps[1])
    page.screenshot(path=path, full_page=True)


def take_report(page: Page, report: Path, path: Path) -> None:
    """One long gap of the pressure in all three series."""
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=60_000)
    page.get_by_text("Gaps of pressure, series LGA").click()
    page.get_by_role("button", name="Show the gap of pressure, series LGA").first.click()
    page.get_by_text("Gaps of pressure, series LGA").click()
    page.get_by_text("pressure series LGA").scroll_into_view_if_needed()
    page.wait_for_timeout(1_000)  # charts of other columns are drawn when they come into view
    page.screenshot(path=path)


def take_pictures(folder: Path, scheme: Scheme) -> None:
    """Write page.png and report.png."""
    with tempfile.TemporaryDirectory() as name, launched_chromium() as browser:
        wide = browser.new_context(viewport={"width": 1200, "height": 960}, color_scheme=scheme)
        run_demo(Path(name), progress=False)
        take_report(wide.new_page(), Path(name) / "report.html", folder / "report.png")
        narrow = browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme=scheme)
        with running(ServiceSettings(folder=Path(name) / "jobs")) as client:
            take_page(narrow.new_page(), str(client.base_url), folder / "page.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    chosen = parser.parse_args()
    take_pictures(chosen.folder, chosen.scheme)
