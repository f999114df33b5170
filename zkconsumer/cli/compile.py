"""`zkconsumer compile`: fill numba's cache beforehand, for instance when an image is built."""

from __future__ import annotations

import time

import typer

from zkconsumer import loops
from zkconsumer.cli.output import say
from zkconsumer.errors import ConfigError, require

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
