"""`zkconsumer compile`: fill numba's cache beforehand, for instance when an image is built. Other
commands load the loops here, and say so if that takes long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from zkconsumer import loops
from zkconsumer.cli.output import say
from zkconsumer.errors import ConfigError, require

if TYPE_CHECKING:
    from zkconsumer.history.inputs import Server

SILENT_S: Final = 1.0
"""If loading or compiling loops takes longer than this, in seconds, the command reports it."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("compile")
def compile_() -> None:
    """Compile the columnar readers, so that no later process compiles them.

    The readers of the extra `fast` are loops that numba compiles at their first use on a machine.
    numba keeps the compiled code beside the package, or in NUMBA_CACHE_DIR, for this machine's kind
    of processor. If an image must fit every processor of its architecture, set
    NUMBA_CPU_NAME=generic in the image, before this command.

    Example: zkconsumer compile
    """
    require(
        "numba", "pyarrow", "google_crc32c", "cramjam", extra="fast", where="zkconsumer compile"
    )
    directory = loops.cache_directory()
    if directory is None:
        raise ConfigError(
            "numba finds no directory for compiled code",
            where="NUMBA_CACHE_DIR",
            remedy="set it to a directory that this user may write, here and where the code runs",
        )
    loops.keep_whole_seconds()
    began_s = time.monotonic()
    loops.compile_all(lambda one: say(f"compiling {one.value}"))
    took_s = time.monotonic() - began_s
    typer.echo(f"ready after {took_s:.1f} s; the reader's code is in {directory}")


@contextmanager
def announced(module: loops.Loops) -> Iterator[None]:
    """Say what is loaded if the block takes longer than `SILENT_S`."""
    text = f"loading {module.value}; the first time on a machine, it is compiled"
    note = threading.Timer(SILENT_S, say, [text])
    note.daemon = True  # Ctrl-C does not wait for it
    note.start()
    try:
        yield
    finally:
        note.cancel()


def load_decoder(servers: Sequence[Server]) -> None:
    """Load the loops that decode these servers' logs, if the logs are large enough for loops."""
    from zkconsumer.history.inputs import fast_decoder

    if fast_decoder(servers) is not None:
        with announced(loops.Loops.DECODER):
            loops.load(loops.Loops.DECODER)
