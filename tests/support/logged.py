"""The lines that one logger has written during a test."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """Return the messages of a logger and of those below it.

    A client that an earlier test has left may log its lost connection at any time.
    """
    return [
        one.getMessage() for one in list(caplog.records) if f"{one.name}.".startswith(f"{logger}.")
    ]
