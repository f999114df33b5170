"""The logger of every module: a user's filter or handler that raises ends no thread."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from numbers import Number
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
        if not self.isEnabledFor(level):
            return
        shown = (one if isinstance(one, Number) else escaped(str(one)) for one in args)
        try:
            super().log(level, msg, *shown, **({"stacklevel": 2} | kwargs))
        except Exception:  # noqa: BLE001  # the user's filter or handler may raise anything
            if not self._has_failed and sys.stderr is not None:
                self._has_failed = True
                with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
                    traceback.print_exc(file=sys.stderr)
