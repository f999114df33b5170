"""The cache of compiled loops: what it lacks is compiled by one other process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.wait import LIMIT_S

from zkconsumer import loops
from zkconsumer.loops import Loops
from zkconsumer.sandbox.process import until

# Prints whether each module's loops are loaded, and whether this process starts the compiler.
STATE = """
import json, numba.core.compiler as compiler
from zkconsumer import loops
compiled = []
compiler.compile_extra = lambda *given, **more: compiled.append(1)
found = [loops.are_loaded(one) for one in loops.Loops]
print(json.dumps([found, len(compiled), {started}]))
"""


def state(cache: Path | None, *, started: str = "None") -> list[object]:
    """Return what a new process prints, which uses the compiled code in `cache`."""
    done = subprocess.run(
        [sys.executable, "-c", STATE.replace("{started}", started)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache or "")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def marks(cache: Path) -> list[Path]:
    return [*cache.rglob("zkconsumer-compiling.*")]


def test_nothing_is_compiled_to_find_out_what_is_missing(tmp_path: Path) -> None:
    """With an empty cache, a process finds no loops, and it compiles nothing."""
    assert state(tmp_path) == [[False, False], 0, None]
    assert [*tmp_path.rglob("*.nbc")] == []


def test_loops_of_the_cache_are_loaded() -> None:
    """After the loops were compiled, a process of this machine loads them."""
    loops.compile_all()
    assert [loops.are_loaded(one) for one in Loops] == [True, True]


def test_one_process_compiles(tmp_path: Path) -> None:
    """Of two processes that lack the loops, the first one starts a compiling process."""
    start = "loops.start_compiling() is not None and loops.start_compiling().poll() is None"
    held = "(loops.start_compiling() is not None and loops.start_compiling().kill()) is None"
    first = state(tmp_path, started=f"{start} and {held}")
    assert first[2] is True
    (mark,) = marks(tmp_path)
    assert state(tmp_path, started="loops.start_compiling() is None")[2] is True
    # A compiling process that was killed leaves its mark, which is ignored later.
    old = mark.stat().st_mtime - loops.ABANDONED_S - 1
    os.utime(mark, (old, old))
    assert state(tmp_path, started=f"{start} and {held}")[2] is True


def test_the_compiling_process_fills_the_cache(tmp_path: Path) -> None:
    """The process that another one has started compiles all loops, and removes its mark."""
    started = state(tmp_path, started="loops.start_compiling().pid")[2]
    assert isinstance(started, int)
    assert until(lambda: not marks(tmp_path), limit_s=10 * LIMIT_S)
    assert state(tmp_path) == [[True, True], 0, None]


def test_no_directory_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """If numba finds no directory for its cache, nothing is loaded and nothing is started."""
    monkeypatch.setenv("NUMBA_CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    found = state(None, started="[loops.cache_directory(), loops.start_compiling()]")
    assert found == [[False, False], 0, [None, None]]
