"""The command that runs random faults on real groups for hours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "scripts" / "_soak.py"


def test_two_groups_at_a_time() -> None:
    """Two rounds of two groups on the same servers pass, and the command sums up the results."""
    command = [sys.executable, SOAK, "--rounds", "2", "--groups", "2", "--round-s", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED: 2 rounds" in done.stdout
    assert "0 violations" in done.stdout.splitlines()[-1]
