"""Long searches of the simulator: the worker processes end together with the command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from support.processes import children, ending_with_this_process
from support.wait import wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "_bench_sim.py"


def test_workers_end_when_the_command_is_ended() -> None:
    """SIGTERM to a command that searches schedules also ends its two worker processes."""
    command = [sys.executable, str(SCRIPT), "--case=swarm", "--processes=2", "--schedules=1000000"]
    search = subprocess.Popen(ending_with_this_process(command), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(children(search.pid)) == 2, "the search does not have two workers")
        workers = children(search.pid)
        search.send_signal(signal.SIGTERM)
        search.wait(timeout=60)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers run")
    finally:
        search.kill()
        search.wait()
