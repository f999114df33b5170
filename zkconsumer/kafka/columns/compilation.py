"""Choose the engine that parses records now: compiled, or plain Python until numba has compiled.

At the first use on a machine numba compiles the loops, which takes 5 to 20 seconds of a processor's
core, and minutes on a busy machine. A reader does not wait: it parses in plain Python meanwhile,
and a thread compiles. Later processes load the compiled loops from numba's cache.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.record_sets import ParserEngine, compiled_engine, plain_engine

logger = logging.getLogger(__name__)

Event: TypeAlias = Any  # Any: numba has no types


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


def ready_engine() -> ParserEngine:
    """Return the compiled engine if its loops are loaded, else the plain one.

    The first call loads the loops from numba's cache, or starts the thread that compiles them. A
    child process of a fork stays with the plain engine if the fork interrupted that thread.
    """
    found = _fastest()
    return found.result() if found.done() else plain_engine()


def fastest_engine() -> ParserEngine:
    """Return the compiled engine; wait until it is compiled.

    Without numba, or without a directory for the compiled loops, return the plain one.
    """
    return _fastest().result()


def engines_for(chosen: ParserEngine | None) -> Callable[[], ParserEngine]:
    """Return a function that a reader calls for each response: it returns the chosen engine, or
    without a choice the ready one.

    Without a choice, this call already loads the loops, or starts to compile them.
    """
    if chosen is not None:
        return lambda: chosen
    ready_engine()
    return ready_engine


_STARTING: Final = threading.Lock()


def _fastest() -> Future[ParserEngine]:
    with _STARTING:
        return _begin()


@cache
def _begin() -> Future[ParserEngine]:
    """Load the compiled engine, or start to compile it."""
    found: Future[ParserEngine] = Future()
    if not parsers.can_compile():
        found.set_result(plain_engine())
        return found
    try:
        with compiling_nothing():
            found.set_result(compiled_engine())
    except NotCompiledError:
        logger.info(
            "numba compiles the columnar reader, once on this machine; until then, plain Python "
            "parses the messages (`zkconsumer compile` compiles it beforehand)"
        )
        # A daemon thread, because a program must not wait for the compiler when it ends.
        threading.Thread(target=_compile, args=[found], name="columns-compile", daemon=True).start()
    except RuntimeError:
        logger.warning(
            "numba finds no directory for compiled code, so plain Python parses the messages, "
            "which is slower: set NUMBA_CACHE_DIR to a directory that this process may write"
        )
        found.set_result(plain_engine())
    return found


def _compile(found: Future[ParserEngine]) -> None:
    try:
        found.set_result(compiled_engine())
    except Exception as error:  # noqa: BLE001  # the messages can be read without the compiler
        logger.warning("plain Python parses the messages, because numba failed: %s", error)
        found.set_result(plain_engine())
