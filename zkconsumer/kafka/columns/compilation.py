"""Choose the engine that parses records now: compiled, or plain Python until numba is loaded.

The second large response makes a thread load the compiled loops, which takes half a second of
processor time and 80 MB. So a process that receives few messages never needs them. The response
waits for the loops, but only briefly, and not if they have to be compiled: at the first use on a
machine, numba takes 5 to 20 seconds of a processor's core, and minutes on a busy machine. A reader
parses in plain Python meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.record_sets import ParserEngine, compiled_engine, plain_engine
from zkconsumer.kafka.fetcher import descriptors_error
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

Event: TypeAlias = Any  # Any: numba has no types

# The compiled loops are loaded for a response whose records have at least this number of bytes.
# Plain Python parses smaller responses in some milliseconds, and needs less memory.
LOADED_FROM: Final = 64 * 1024

# How long large responses wait altogether, in seconds, until the loops are loaded from numba's
# cache. The import of numba takes half a second of processor time, and longer on a busy machine.
LOADING_LIMIT_S: Final = 1.0


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

    The second response of at least `LOADED_FROM` bytes makes a thread load or compile the loops.
    The first one does not, because the thread would delay the first message. From then on, large
    responses wait for loops of the cache, but altogether at most `LOADING_LIMIT_S` seconds. The
    plain engine parses small responses meanwhile, and large ones after this time or while the loops
    are compiled.
    """
    if compiled_engine.cache_info().currsize:
        return compiled_engine()
    if size >= LOADED_FROM and next(_large_responses):
        _loading()
        return _from_cache()
    return plain_engine()


def _from_cache() -> ParserEngine:
    """Return the compiled engine if it is loaded from numba's cache soon; otherwise the plain one.

    While numba is imported, plain Python would compete with the import for Python's global lock,
    and both would take longer than one after the other.
    """
    _is_decided.wait(max(0.0, _waits_until() - time.monotonic()))
    return compiled_engine() if compiled_engine.cache_info().currsize else plain_engine()


@cache
def _waits_until() -> float:
    """Return the monotonic time until which large responses wait; the first call determines it."""
    return time.monotonic() + LOADING_LIMIT_S


# The numbers of the large responses of this process, from 0.
_large_responses: Final = itertools.count()


def is_decided() -> bool:
    """Return whether `engine_for` never waits from now on."""
    return _is_decided.is_set()


def fastest_engine() -> ParserEngine:
    """Return the compiled engine; wait until it is loaded or compiled.

    Without numba, or without a directory for the compiled loops, return the plain one.
    """
    return _loading().result()


# Set when the loops were loaded from the cache, or when it is known that they must be compiled.
_is_decided: Final = threading.Event()

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
        _is_decided.set()
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
    finally:
        _is_decided.set()


def _loaded() -> ParserEngine:
    """Load the compiled engine from numba's cache, or compile it."""
    try:
        with _IMPORTING, compiling_nothing():
            return compiled_engine()
    except NotCompiledError:
        _is_decided.set()
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
