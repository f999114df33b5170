"""The loops that numba compiles: load them from its cache, or compile them once on a machine.

Compiling takes 5 to 20 seconds of a processor's core, and minutes if several processes do it at
once. A process that cannot wait asks `are_loaded`. If the cache lacks the loops, the process does
without them and calls `start_compiling`. One process of the machine then compiles all loops, in the
background and with a low priority. Later processes load them.

numba keeps the machine code in `__pycache__` beside the module, or in the user's cache directory if
that is not writable, or in `NUMBA_CACHE_DIR`. It compiles again for another processor.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

ABANDONED_S: Final = 1800.0
"""Age in seconds after which the mark of a compiling process is ignored, because compiling takes
less time. The mark stays if the process fails or is killed."""


class Loops(Enum):
    """The loops of one module."""

    READER = "the columnar reader"
    DECODER = "the decoder of ZooKeeper's logs"


def load(loops: Loops) -> None:
    """Make these loops usable in this process; compile them if the cache lacks them.

    Raises:
        ImportError: the extra `fast` is missing.
        RuntimeError: numba finds no directory for its cache.
    """
    if loops is Loops.READER:
        from zkconsumer.kafka.columns.record_sets import compiled_engine  # noqa: PLC0415 - an extra

        compiled_engine()
    else:
        from zkconsumer.history import commit_loop  # noqa: PLC0415 - as above
        from zkconsumer.history.columns import ColumnDecoder  # noqa: PLC0415 - as above

        # The beginning of a log that contains no transaction yet.
        ColumnDecoder().decode(bytes(64), 0)
        commit_loop.load()


def are_loaded(loops: Loops) -> bool:
    """Load these loops from the cache; return False if it lacks one. The call compiles nothing.

    Raises ImportError if the extra `fast` is missing.
    """
    from zkconsumer.kafka.columns.compilation import (  # noqa: PLC0415 - loads numba
        NotCompiledError,
        compiling_nothing,
    )

    with compiling_nothing():
        try:
            load(loops)
        except (NotCompiledError, RuntimeError):
            return False
    return True


def cache_directory() -> Path | None:
    """Return the directory in which numba keeps the reader's loops; None if it finds no directory.

    Raises ImportError if the extra `fast` is missing.
    """
    from numba import njit  # noqa: PLC0415 - the import of numba is slow

    from zkconsumer.kafka.columns import parsers  # noqa: PLC0415 - as above

    try:
        return Path(njit(cache=True)(parsers.scan).stats.cache_path)
    except RuntimeError:
        return None


@cache
def start_compiling() -> subprocess.Popen[bytes] | None:
    """Start the process that compiles all loops, which continues if this process ends.

    Return None if another process of this machine compiles them, or if nothing can be cached. Only
    the first call of a process has an effect.
    """
    directory = cache_directory()
    if directory is None:
        return None
    mark = directory / f"zkconsumer-compiling.{platform.node()}.{sys.implementation.cache_tag}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if time.time() - mark.stat().st_mtime > ABANDONED_S:
                mark.unlink()
        mark.touch(exist_ok=False)
    except OSError:
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "zkconsumer.loops", str(mark)],
        # The package may come from a file that was sent with a Spark job.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def compile_all(say: Callable[[Loops], None] = lambda loops: None) -> None:
    """Load all loops, and compile those that the cache lacks; call `say` before each module.

    Raises as `load` does.
    """
    for loops in Loops:
        say(loops)
        load(loops)


def keep_whole_seconds() -> None:
    """Drop the fractions from the modification times of the modules with loops.

    numba compares these times with those that it has cached, and an image's layer keeps no
    fractions. A module that cannot be changed keeps its time.
    """
    root = Path(__file__).parent
    for module in (
        root / "kafka/columns/parsers.py",
        root / "history/columns.py",
        root / "history/commit_loop.py",
    ):
        with suppress(OSError):
            os.utime(module, (module.stat().st_atime, int(module.stat().st_mtime)))


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    compile_all()
    Path(sys.argv[1]).unlink(missing_ok=True)
