"""The command line as users run it: in a process of its own, or in the process of the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO

import pytest
from kazoo.client import KazooClient
from support.internals import let_zookeeper_answer_late
from support.wait import LIMIT_S
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.output import Progress
from zkconsumer.sandbox import Sandbox, ZooKeeperServer

# Time limit of one run in seconds. The longest run is a demo, which takes 10 s on an idle machine.
RUN_LIMIT_S = 200

Spawn = Callable[..., subprocess.Popen[bytes]]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start `zkconsumer ARGUMENTS`. A process that still runs when the test ends is killed by its
    pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "zkconsumer", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


@pytest.fixture
def run(spawn: Spawn) -> Callable[..., tuple[int, str, str]]:
    """Run `zkconsumer ARGUMENTS` to its end; return exit code, standard output and standard
    error."""

    def to_the_end(*arguments: str) -> tuple[int, str, str]:
        process = spawn(*arguments)
        out, err = process.communicate(timeout=RUN_LIMIT_S)
        return process.returncode, out.decode(), err.decode()

    return to_the_end


@pytest.fixture(autouse=True)
def patience_with_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process of the tests, `--timeout` limits only how long commands wait for brokers."""
    let_zookeeper_answer_late(monkeypatch)


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process of the tests, commands show no progress, however long a busy machine takes."""
    monkeypatch.setattr(Progress, "DELAY_S", LIMIT_S)


@pytest.fixture
def call() -> Run:
    """Call `zkconsumer ARGUMENTS` in this process, which has imported the package already."""

    def to_the_end(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result.exit_code, result.stdout, result.stderr

    return to_the_end


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """The kazoo client that creates the group."""
    with peer_of(zookeeper.connect) as one:
        yield one


@pytest.fixture
def topic(request: pytest.FixtureRequest, sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """An empty topic that only this test uses; the module's PARTITIONS gives its size."""
    name = unique("topic")
    sandbox.create_topic(name, partitions=request.module.PARTITIONS)
    return name
