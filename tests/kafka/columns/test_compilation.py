"""Which engine parses records, with a full and with an empty cache of compiled loops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.wait import LIMIT_S

# Prints three engines: the ready one, the one after waiting, and the one that is ready then.
ENGINES = """
from zkconsumer.kafka.columns import compilation, record_sets
names = {id(record_sets.plain_engine()): "plain"}
print(names.get(id(compilation.ready_engine()), "compiled"))
print(names.get(id(compilation.fastest_engine()), "compiled"))
print(names.get(id(compilation.ready_engine()), "compiled"))
"""


def engines(**environment: str) -> list[str]:
    """Return the engines that a new process chooses: at first, after waiting, and afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", ENGINES],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=10 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_plain_python_parses_until_the_loops_are_compiled(tmp_path: Path) -> None:
    """With an empty cache the plain engine is ready at once, and the compiled one replaces it."""
    assert engines(NUMBA_CACHE_DIR=str(tmp_path)) == ["plain", "compiled", "compiled"]
    assert engines(NUMBA_CACHE_DIR=str(tmp_path)) == ["compiled"] * 3


def test_plain_python_parses_if_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """If numba finds no directory for its cache, the plain engine parses, and nothing fails."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert engines(NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator") == ["plain"] * 3
