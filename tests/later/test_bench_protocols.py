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


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the script with these options."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--clients", "foo"), "'foo' is no client"),
        (("--members", "1"), "fewer than 2 members"),
        (("--members", "200"), "more than 200 members"),
        (("--partitions", "1000000"), "the number of partitions must be between 1 and"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str) -> None:
    """For bad input there is one line and exit code 2, before a server is started."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.server
@pytest.mark.parametrize("client", ["zkconsumer", "confluent-range"])
def test_json(client: str) -> None:
    """Standard output is one JSON document: each case with its figures and its prediction."""
    done = run("--members", "2", "--partitions", "4", "--clients", client, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    cases = [(row["client"], row["case"], row["metric"]) for row in rows]
    assert cases == [
        (client, case, metric) for case in ("join", "leave", "kill") for metric in METRICS
    ]
    for row in rows:
        assert row["value"] >= 0
        if row["metric"] == "moved":
            assert row["value"] == row["predicted"]
