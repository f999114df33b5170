"""`scripts/bench_protocols --json` with one client and a small group, on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "_bench_protocols.py"
LIMIT_S = 600
METRICS = ("settled_s", "unowned_partition_seconds", "moved")


@pytest.mark.server
def test_json() -> None:
    """Standard output is one JSON document: each case with its figures and its prediction."""
    words = ["--members", "2", "--partitions", "4", "--clients", "zkconsumer", "--json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    cases = [(row["client"], row["case"], row["metric"]) for row in rows]
    assert cases == [
        ("zkconsumer", case, metric) for case in ("join", "leave", "kill") for metric in METRICS
    ]
    for row in rows:
        assert row["value"] >= 0
        if row["metric"] == "moved":
            assert row["value"] == row["predicted"]
