"""Progress of long work on standard error: a bar on a terminal, and lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from zkconsumer.cli.output import say

BAR: Final = 30
"""Characters of the bar. With the numbers beside it, a line fits a terminal of 80 columns."""


class Progress:
    """Shows how much of some work is done; work that ends within `DELAY_S` shows nothing.

    Attributes:
        done, total: the amount that is known to be done, and the whole amount.
    """

    DELAY_S = 1.0  # before the first line; most work ends earlier
    TERMINAL_S, PIPE_S = 0.1, 1.0  # between two lines

    def __init__(self, what: str) -> None:
        """`what` is a plural noun, such as "changes"."""
        self.done = self.total = 0
        self._what = what
        self._next_s = time.monotonic() + self.DELAY_S
        self._is_open = False

    def advanced(self, done: int, total: int) -> None:
        """Record the amount, and show it if it is time. The result shows the end."""
        self.done, self.total = done, total
        now = time.monotonic()
        if now < self._next_s or done == total:
            return
        is_terminal = sys.stderr.isatty()
        self._next_s = now + (self.TERMINAL_S if is_terminal else self.PIPE_S)
        if not is_terminal:
            say(f"{done} of {total} {self._what}")
            return
        full = BAR * done // total
        bar = "#" * full + "." * (BAR - full)
        sys.stderr.write(f"\r[{bar}] {done} of {total} {self._what}\x1b[K")
        sys.stderr.flush()
        self._is_open = True

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Remove the bar at the end; a Ctrl-C reports how much was read."""
        try:
            yield
        except KeyboardInterrupt:
            self.end()
            if self.done:
                say(f"interrupted: {self.done} of {self.total} {self._what} were read")
            raise
        finally:
            self.end()

    def end(self) -> None:
        """Remove the bar from the terminal."""
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_open = False
