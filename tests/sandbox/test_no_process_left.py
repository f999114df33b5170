"""However a sandbox's owner ends, its servers and its temporary directory disappear."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.wait import LIMIT_S

from zkconsumer.sandbox import jars
from zkconsumer.sandbox.guard import start_time
from zkconsumer.sandbox.process import until

OWNER = """
import json, signal
from zkconsumer.sandbox import Sandbox
with Sandbox() as sandbox:
    pids = [server.pid for server in (sandbox.zookeeper, *sandbox.brokers)]
    print(json.dumps({"pids": pids, "directory": str(sandbox.directory)}), flush=True)
    signal.pause()
"""


@contextmanager
def _owner(code: str = OWNER) -> Iterator[subprocess.Popen[str]]:
    """Run an owner of a sandbox; kill it at the end, because a failed test would wait for it."""
    jars.resolve("kafka-3.9.1")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        try:
            yield owner
        finally:
            owner.kill()


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGKILL],
    ids=lambda number: signal.Signals(number).name,
)
def test_owner_ended_by_a_signal(number: signal.Signals) -> None:
    """After SIGINT, SIGTERM or SIGKILL of the owner, no process and no file is left."""
    with _owner() as owner:
        assert owner.stdout is not None
        left = json.loads(owner.stdout.readline())
        births = {pid: start_time(pid) for pid in left["pids"]}
        assert None not in births.values()
        owner.send_signal(number)
        assert until(
            lambda: not any(birth == start_time(pid) for pid, birth in births.items()),
            limit_s=LIMIT_S,
        )
        assert until(lambda: not Path(left["directory"]).exists(), limit_s=LIMIT_S)


STARTING = """
import sys
from zkconsumer.sandbox import Sandbox
sandbox = Sandbox()
print(sandbox.directory, flush=True)
with sandbox:
    pass
"""


@pytest.mark.parametrize("what", ["zookeeper/server.json", "broker-0/server.json"])
def test_interrupted_while_starting(what: str) -> None:
    """If Ctrl-C comes while a server starts, the server ends and its directory is removed."""
    with _owner(STARTING) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        record: dict[str, object] = {}

        def started() -> bool:
            if not (directory / what).exists():
                return False
            record.update(json.loads((directory / what).read_text()))
            return True

        assert until(started, limit_s=LIMIT_S)
        owner.send_signal(signal.SIGINT)
        assert owner.wait(LIMIT_S) != 0
        assert start_time(int(str(record["pid"]))) != record["born"]
        assert not directory.exists()
