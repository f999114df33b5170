"""The command that starts a program: an interpreter by the file's suffix, or a compiled class.

A `.java` file is compiled by Eclipse's compiler, because a Java runtime contains none. The compiler
and Gson, which reads and writes JSON, come from Maven like the sandbox's jars.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from zkconsumer.errors import ConfigError, quoted
from zkconsumer.sandbox import jars

_INTERPRETERS: Final[dict[str, str]] = {".py": sys.executable, ".js": "node", ".mjs": "node"}

_COMPILER: Final = jars.Jar(
    "29f6d3918ee02db4400c103bc25dd90a22491c3a395867d9393070cb96a7dd29",
    "org.eclipse.jdt",
    "ecj",
    "3.42.0",
)

_GSON: Final = jars.Jar(
    "57928d6e5a6edeb2abd3770a8f95ba44dce45f3b23b7a9dc2b309c581552a78b",
    "com.google.code.gson",
    "gson",
    "2.11.0",
)

_SMALL_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_COMPILE_S: Final = 300.0
"""Seconds within which the compiler must end; a loaded machine needs some."""


@contextmanager
def runnable(words: Sequence[str]) -> Iterator[list[str]]:
    """Return the command that starts a program; compiled classes are removed with the block.

    A `.py`, `.js` or `.java` file needs no interpreter.

    Raises:
        ConfigError: there is no such program, or it cannot be compiled.
        SandboxError: Java or a jar is missing, and cannot be downloaded.
    """
    first = Path(words[0])
    if first.suffix == ".java" and first.is_file():
        with tempfile.TemporaryDirectory(prefix="zkconsumer-judge-") as classes:
            yield [*_compiled(first, classes), *words[1:]]
        return
    interpreter = _INTERPRETERS.get(first.suffix)
    if interpreter is not None and first.is_file():
        yield [_found(interpreter), *words]
    else:
        yield [_found(words[0]), *words[1:]]


def _found(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return found
    if Path(name).is_file():
        raise ConfigError(
            f"{quoted(name)} is not executable", where="PROGRAM", remedy="chmod +x the file"
        )
    is_interpreter = name in _INTERPRETERS.values()
    raise ConfigError(
        f"there is no program {quoted(name)}",
        where="PROGRAM",
        remedy=f"install {name}"
        if is_interpreter
        else "give the path of a program, such as ./mine.py",
    )


def _compiled(source: Path, classes: str) -> list[str]:
    """Compile a Java file, and return the command that runs its class."""
    java = str(jars.find_java().executable)
    compiler, gson = jars.resolve_jars([_COMPILER, _GSON], title="Java's compiler and Gson")
    options = ["-17", "-proc:none", "-nowarn", "-encoding", "UTF-8"]
    options += ["-cp", str(gson), "-d", classes]
    options += ["-sourcepath", str(source.parent.absolute())]
    command = [java, *_SMALL_JVM, "-jar", str(compiler), *options, str(source)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_S, check=False
    )
    if done.returncode:
        raise ConfigError(
            f"the program cannot be compiled: {(done.stderr or done.stdout).strip()}",
            where=str(source),
            remedy="correct the errors",
        )
    search = os.pathsep.join([classes, str(gson)])
    return [java, *_SMALL_JVM, "-Xmx128m", "-cp", search, source.stem]
