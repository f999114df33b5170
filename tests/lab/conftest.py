"""A lab's server as a process of its own, as users start it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class LabProcess:
    """`zkconsumer lab`, and the address that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"http://\S+/", line)
            if found:
                self.url = found[0]
                break
        else:
            raise AssertionError("the lab ended before it printed its address")
        # The rest must be read, so that the process never waits for the pipe.
        threading.Thread(target=process.stdout.read, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])


@contextmanager
def running_lab(*arguments: str) -> Iterator[LabProcess]:
    """Run `zkconsumer lab` with these arguments until the block ends."""
    command = [sys.executable, "-m", "zkconsumer", "lab", "--no-browser", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield LabProcess(process)
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="session")
def lab() -> Iterator[LabProcess]:
    """One lab for all tests that do not end it."""
    with running_lab() as process:
        yield process
