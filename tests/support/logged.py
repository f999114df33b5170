"""The lines that one logger has written during a test, and those of a program."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Refusing(logging.Handler):
    """A handler whose filter raises an exception for every line."""

    def filter(self, record: logging.LogRecord) -> Any:
        raise ValueError(f"the filter does not like {record.msg}")


@contextmanager
def refused_lines() -> Iterator[None]:
    """In the block, every line of zkconsumer and kazoo raises an exception in the thread that logs
    it."""
    handler = Refusing()
    loggers = [logging.getLogger(name) for name in ("zkconsumer", "kazoo")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)


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
