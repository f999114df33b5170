"""A lab's server in a process of its own, as users start it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect
from support.wait import LIMIT_S

LIMIT_MS = 1000 * LIMIT_S
"""How long a test waits for the page, in ms."""

# Without this, an expectation without a time limit fails after 5 s, and an action after 30 s.
expect.set_options(timeout=LIMIT_MS)


class LabProcess:
    """`zkconsumer lab`, and the first URL that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"http://\S+/", line)
            if found:
                self.url = found[0]
                break
        else:
            raise AssertionError("the lab ended before it printed its address")
        # The rest of the output must be read; otherwise the process would block on a full pipe.
        threading.Thread(target=process.stdout.read, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])


@contextmanager
def running_lab(*arguments: str) -> Iterator[LabProcess]:
    """Run `zkconsumer lab` with these arguments until the block ends."""
    command = [sys.executable, "-m", "zkconsumer", "lab", "--no-browser", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield LabProcess(process)
        finally:
            process.terminate()
            try:
                process.wait(timeout=LIMIT_S)
            finally:
                process.kill()  # A lab that hangs must not stay behind.


@pytest.fixture(scope="session")
def lab() -> Iterator[LabProcess]:
    """One lab for all tests that do not stop it."""
    with running_lab() as process:
        yield process


NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
OPENINGS = 5


class LabPage:
    """A page of the lab; an error in one of its scripts fails the test."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self._is_cut = False
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._on_console)

    def _on_console(self, message: ConsoleMessage) -> None:
        self._is_cut |= NETWORK_CHANGED in message.text
        # The page itself handles a server that does not answer, or that expects another token.
        handled = (
            "ERR_CONNECTION",
            "403 (Forbidden)",
            "ERR_EMPTY_RESPONSE",
            "CHUNKED",
            NETWORK_CHANGED,
        )
        if message.type == "error" and not any(one in message.text for one in handled):
            self.errors.append(message.text)

    def go(self, address: str, ready: str = ".picture", limit_ms: float = LIMIT_MS) -> LabPage:
        """Open an address; wait until the page shows the element `ready` and accepts keys.

        Chromium ends all its requests when a network interface of this machine appears or
        disappears, for example a container's. In this case, open the page again.
        """
        for _ in range(OPENINGS):
            self._is_cut = False
            try:
                # Load a blank page first: if only the fragment of the URL changes, the browser does
                # not reload.
                self.page.goto("about:blank")
                self.page.goto(address)
                expect(self.page.locator(ready).first).to_be_visible(timeout=limit_ms)
                # While the page is busy, it ignores keys.
                expect(self.page.locator(".lab[aria-busy=false]")).to_have_count(
                    1, timeout=limit_ms
                )
            except (Error, AssertionError) as error:
                if not self._is_cut and NETWORK_CHANGED not in str(error):
                    raise
            else:
                return self
        raise AssertionError(f"{address} could not be opened {OPENINGS} times: {NETWORK_CHANGED}")

    def keys(self, *names: str) -> None:
        for name in names:
            self.page.keyboard.press(name)

    def at(self, move: int) -> None:
        """Wait until the page shows the move that has this number."""
        expect(self.page.locator(".place")).to_contain_text(f"move {move} of", timeout=LIMIT_MS)

    def shows(self, text: str) -> None:
        """Wait until the description of the last move contains a text."""
        expect(self.page.locator(".happens")).to_contain_text(text, timeout=LIMIT_MS)

    def has(self, selector: str, count: int) -> None:
        """Wait until this number of elements matches the selector."""
        expect(self.page.locator(selector)).to_have_count(count, timeout=LIMIT_MS)


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., LabPage]]:
    """Return a function that opens a new page; it takes the keywords of `new_context`."""
    contexts = []
    opened = []

    def make(**options: Any) -> LabPage:
        context = chromium.new_context(
            **{"viewport": {"width": 1280, "height": 720}, "reduced_motion": "reduce", **options}
        )
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        opened.append(LabPage(context.new_page()))
        return opened[-1]

    yield make
    for context in contexts:
        context.close()
    assert not [error for one in opened for error in one.errors]
