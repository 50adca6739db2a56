"""The fixture that other tests look through: it sees a page, and sees what goes wrong on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def test_a_page_can_be_read_and_clicked(browser_page: Page) -> None:
    browser_page.set_content("<button onclick=\"this.textContent = 'done'\">go</button>")
    browser_page.get_by_role("button", name="go").click()
    assert browser_page.get_by_role("button").text_content() == "done"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("alert(1)", "dialog: 1"),
        ("console.error('oh')", "console: oh"),
        ("setTimeout(() => nonsense(), 0)", "script error: nonsense is not defined"),
    ],
)
def test_a_fault_on_a_page_is_seen(
    browser_page: Page, page_faults: list[str], script: str, fault: str
) -> None:
    browser_page.set_content(f"<script>{script}</script>")
    browser_page.wait_for_timeout(50)
    assert page_faults == [fault]
    page_faults.clear()
