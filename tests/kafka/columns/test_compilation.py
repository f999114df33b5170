"""Which engine parses records, with a full and with an empty cache of compiled loops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kafka.encoded_records import Record, batch
from support.wait import LIMIT_S

# Prints the engines for a small and for two large responses, the engine after waiting, and the one
# for a small response then. The second large response has much time to wait for the cache.
ENGINES = f"""
from zkconsumer.kafka.columns import compilation, record_sets
compilation.LOADING_LIMIT_S = {LIMIT_S}
names = {{id(record_sets.plain_engine()): "plain"}}
large = compilation.LOADED_FROM
found = [compilation.engine_for(size) for size in (large - 1, large, large)]
found += [compilation.fastest_engine(), compilation.engine_for(0)]
print(*(names.get(id(one), "compiled") for one in found))
"""

# Reads a compressed batch, and prints the heavy packages that are imported: after small responses
# and one large response, and after loading the compiled loops.
IMPORTED = """
import sys
from zkconsumer.kafka.columns import compilation
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.kafka.columns.record_sets import RecordSet
from zkconsumer.kafka.columns.responses import response_of
from zkconsumer.protocol.model import TopicPartition
def heavy():
    return [one for one in ("pyarrow", "numpy", "numba") if one in sys.modules]
data = bytes.fromhex(sys.argv[1])
for size in [1] * 100 + [compilation.LOADED_FROM]:
    engine = compilation.engine_for(size)
(run,) = RecordSet(TopicPartition("topic", 0), response_of(data), engine).records()
print(run.value(0), heavy())
compilation.fastest_engine()
print(heavy())
"""


def engines(**environment: str) -> list[str]:
    """Return the engines that a new process chooses; see `ENGINES`."""
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
    """With an empty cache the plain engine is ready at once; a full one is waited for."""
    cache = str(tmp_path)
    assert engines(NUMBA_CACHE_DIR=cache) == ["plain"] * 3 + ["compiled"] * 2
    assert engines(NUMBA_CACHE_DIR=cache) == ["plain"] * 2 + ["compiled"] * 3


def test_plain_python_parses_if_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """If numba finds no directory for its cache, the plain engine parses, and nothing fails."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert engines(NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator") == ["plain"] * 5


def test_a_process_with_few_messages_imports_no_heavy_package() -> None:
    """Small responses and one large one import neither numba nor numpy, and messages no pyarrow."""
    data = batch([Record(0, b"key", b"value", 5)], codec="zstd")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, data.hex()],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["b'value' []", "['numpy', 'numba']"]
