"""Chromium without a window, for tests and for the pictures of the documents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# It must not look for updates: tests use no network, and a closed one would delay the start.
QUIET = ("background-networking", "component-update", "sync", "quic", "gpu", "dev-shm-usage")


class NoChromium(Exception):
    """There is no browser on this machine."""


@contextmanager
def launched_chromium() -> Iterator[Browser]:
    """The system's Chromium, or Playwright's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = [shutil.which("chromium"), shutil.which("chromium-browser")]
        found.append(playwright.chromium.executable_path)
        path = next((path for path in found if path and Path(path).exists()), None)
        if path is None:
            raise NoChromium
        browser = playwright.chromium.launch(
            executable_path=path,
            chromium_sandbox=False,
            args=[*(f"--disable-{part}" for part in QUIET), "--no-first-run"],
        )
        yield browser
        browser.close()
