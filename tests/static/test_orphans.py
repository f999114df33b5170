"""`scripts/test` leaves no process behind, however a worker of pytest has ended."""

from __future__ import annotations

import subprocess
import sys

from support.members.crew import environment
from support.wait import LIMIT_S

# A worker that is killed: its child, which leads its own session as members of groups do, remains.
PROGRAM = """
import os, subprocess, sys
from support.processes import adopt_orphans, children, end_orphans, wait_and_bury

adopt_orphans()
kept = subprocess.Popen(["sleep", "1000"])
try:
    worker = subprocess.Popen(
        ["sh", "-c", "setsid sleep 1001 >/dev/null & sleep 0.01 & wait $!; kill -KILL $$"]
    )
    print(wait_and_bury(worker))
    print(end_orphans([kept.pid], grace_s=0.1))
    print(children(os.getpid()) == {kept.pid})
finally:
    kept.kill()
"""


def test_orphans_end_with_the_run() -> None:
    """What a killed worker has started is killed and named; other children of the run stay."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.splitlines() == ["-9", "['sleep 1001 ']", "True"]
