"""Locks of open files between processes, on each operating system.

The system releases a lock when its file is closed or its process ends. The Windows half is checked
by the type checker only; it has not been run.
"""

from __future__ import annotations

import sys
import time
from typing import IO, Any

if sys.platform == "win32":
    import msvcrt

    _BEYOND = 1 << 62
    """Windows denies access to locked bytes, so the locked byte lies beyond the end of the file."""

    def try_lock(file: IO[Any]) -> None:  # Any: text or bytes
        """Lock an open file. Raises BlockingIOError if another process holds the lock."""
        at = file.tell()
        file.seek(_BEYOND)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None
        finally:
            file.seek(at)

else:
    import fcntl

    def try_lock(file: IO[Any]) -> None:  # Any: text or bytes
        """Lock an open file. Raises BlockingIOError if another process holds the lock."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


RETRY_S = 0.05
"""Seconds between two attempts to get a lock that another process holds."""


def wait_for_lock(file: IO[Any]) -> None:  # Any: text or bytes
    """Lock an open file, and wait as long as another process holds the lock."""
    while True:
        try:
            try_lock(file)
        except BlockingIOError:
            time.sleep(RETRY_S)
        else:
            return
