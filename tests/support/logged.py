"""The lines that one logger has written during a test, and those of a program."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """Return the messages of a logger and of those below it.

    A client that an earlier test has left may log its lost connection at any time.
    """
    return [
        one.getMessage() for one in list(caplog.records) if f"{one.name}.".startswith(f"{logger}.")
    ]


def without_look_ups(err: str) -> list[str]:
    """Return the lines of a program's standard error without the warnings about look-ups.

    If the look-up of a leader gets no connection in time, it is logged and repeated; this happens
    on a busy machine.
    """
    return [line for line in err.splitlines() if "Failed to get metadata" not in line]
