"""The loggers of code that runs on this package's own threads: they never raise."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

from zkconsumer.errors import escaped


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises, and whose lines are safe to display.

    It escapes every argument, because owner znodes and names may contain line ends and other
    control characters. An exception of a user's filter or handler ends no thread of this package.
    The logger writes the first such exception to standard error, as `logging` does with a handler's
    error.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)
        self._has_failed = False

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        **kwargs: Any,  # Any: as in the base class
    ) -> None:
        shown = (one if isinstance(one, int | float) else escaped(str(one)) for one in args)
        try:
            super().log(level, msg, *shown, **({"stacklevel": 2} | kwargs))
        except Exception:  # noqa: BLE001  # the user's filter or handler may raise anything
            if not self._has_failed and sys.stderr is not None:
                self._has_failed = True
                traceback.print_exc(file=sys.stderr)


def safe_logger(name: str) -> SafeLogger:
    """Return the logger of a module, usually of `__name__`."""
    return SafeLogger(logging.getLogger(name))
