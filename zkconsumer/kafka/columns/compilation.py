"""Choose the engine that parses records now: compiled, or plain Python until numba is loaded.

The second large response makes a thread load the compiled loops, which takes half a second of
processor time and 80 MB. So a process that receives few messages never needs them. At the first
use on a machine, numba compiles the loops, which takes 5 to 20 seconds of a processor's core, and
minutes on a busy machine. A reader does not wait: it parses in plain Python meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.record_sets import ParserEngine, compiled_engine, plain_engine
from zkconsumer.kafka.fetcher import descriptors_error

logger = logging.getLogger(__name__)

Event: TypeAlias = Any  # Any: numba has no types

# The compiled loops are loaded for a response whose records have at least this number of bytes.
# Plain Python parses smaller responses in some milliseconds, and needs less memory.
LOADED_FROM: Final = 64 * 1024


class NotCompiledError(Exception):
    """The cache lacks a loop."""


@contextmanager
def compiling_nothing() -> Iterator[None]:
    """Raise NotCompiledError if this thread begins to compile a function."""
    from numba.core import event  # noqa: PLC0415 - the import of numba is slow

    thread = threading.get_ident()

    class Refusal(event.Listener):  # type: ignore[misc]  # numba has no types
        def on_start(self, event: Event) -> None:
            if threading.get_ident() == thread:
                raise NotCompiledError

        def on_end(self, event: Event) -> None: ...

    with event.install_listener("numba:compile", Refusal()):
        yield


def engines_for(chosen: ParserEngine | None) -> Callable[[int], ParserEngine]:
    """Return a function that returns the engine for a response: the chosen one, or without a
    choice that of `engine_for`."""
    return engine_for if chosen is None else lambda size: chosen


def engine_for(size: int) -> ParserEngine:
    """Return the engine for a response with `size` bytes of records.

    Until the compiled loops are loaded, this is the plain one. The second response of at least
    `LOADED_FROM` bytes makes a thread load or compile the loops. The first one does not, because
    the thread would delay the first message.
    """
    if compiled_engine.cache_info().currsize:
        return compiled_engine()
    if size >= LOADED_FROM and next(_large_responses):
        _loading()
    return plain_engine()


# The numbers of the large responses of this process, from 0.
_large_responses: Final = itertools.count()


def fastest_engine() -> ParserEngine:
    """Return the compiled engine; wait until it is loaded or compiled.

    Without numba, or without a directory for the compiled loops, return the plain one.
    """
    return _loading().result()


_STARTING: Final = threading.Lock()


def _loading() -> Future[ParserEngine]:
    with _STARTING:
        return _begin()


@cache
def _begin() -> Future[ParserEngine]:
    """Start the thread that loads or compiles the loops."""
    found: Future[ParserEngine] = Future()
    if not parsers.can_compile():
        found.set_result(plain_engine())
        return found
    # A daemon thread, because a program must not wait for the compiler when it ends.
    threading.Thread(target=_load, args=[found], name="columns-compile", daemon=True).start()
    return found


def _load(found: Future[ParserEngine]) -> None:
    try:
        found.set_result(_loaded())
    except Exception as error:  # noqa: BLE001  # the messages can be read without the compiler
        if descriptors_error():
            _begin.cache_clear()  # the next large response makes another attempt
        else:
            logger.warning("plain Python parses the messages, because numba failed: %s", error)
        found.set_result(plain_engine())


def _loaded() -> ParserEngine:
    """Load the compiled engine from numba's cache, or compile it."""
    try:
        with _IMPORTING, compiling_nothing():
            return compiled_engine()
    except NotCompiledError:
        logger.info(
            "numba compiles the columnar reader, once on this machine; until then, plain Python "
            "parses the messages (`zkconsumer compile` compiles it beforehand)"
        )
        return compiled_engine()
    except RuntimeError:
        logger.warning(
            "numba finds no directory for compiled code, so plain Python parses the messages, "
            "which is slower: set NUMBA_CACHE_DIR to a directory that this process may write"
        )
        return plain_engine()


# Held while a thread imports numba. A fork waits for it: in the child process of a fork during an
# import, each later import of the same module would wait for ever.
_IMPORTING: Final = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_IMPORTING.acquire,
        after_in_parent=_IMPORTING.release,
        after_in_child=_IMPORTING.release,
    )
