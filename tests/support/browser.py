"""A real browser, for the lab and for the documentation site."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Return Chromium: its headless shell, which the set-up of the suite installs, or the complete
    browser.

    If both are missing, tests fail in CI and are skipped elsewhere.

    The browser ends with the module. Until then Playwright's event loop counts as running, and
    `asyncio.run` raises in all tests of this worker.
    """
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        assert not os.environ.get("CI"), "scripts/test has not installed Chromium"
        pytest.skip("there is no Chromium")
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, in containers and in CI. The machine has no
        # graphics processor; imitating one would take 8 % more processor time.
        options = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()
