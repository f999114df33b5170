"""A process on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Self

from support.wait import LIMIT_S


class Terminal:
    """A process on a terminal, and what it has written; a context manager that kills the process.

    Attributes:
        written: what `read_until` and `read_to_end` have read; a test may empty it.
    """

    def __init__(
        self,
        *command: str,
        columns: int = 80,
        lines: int = 24,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, **environ},
        )
        os.close(theirs)
        self.written = b""
        self._has_hung_up = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def type(self, text: str) -> None:
        """Type a text on the keyboard."""
        os.write(self._mine, text.encode())

    def read_until(
        self, seen: Callable[[bytes], object], *, idle: Callable[[], object] = lambda: None
    ) -> None:
        """Read until `seen` holds of `written`; call `idle` after each second without a text."""
        deadline = time.monotonic() + LIMIT_S
        while not seen(self.written):
            assert time.monotonic() < deadline, self.written
            if not select.select([self._mine], [], [], 1)[0]:
                idle()
                continue
            chunk = self._read()
            if not chunk:
                assert seen(self.written), self.written
                return
            self.written += chunk

    def read_to_end(self) -> None:
        """Read until the process has closed its end of the terminal."""
        while chunk := self._read():
            self.written += chunk

    def hang_up(self) -> None:
        """Close this end of the terminal."""
        if not self._has_hung_up:
            self._has_hung_up = True
            os.close(self._mine)

    def _read(self) -> bytes:
        try:
            return os.read(self._mine, 65536)
        except OSError:  # the process has closed its end of the terminal
            return b""
