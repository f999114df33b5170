"""The command line as users run it, in a separate process, or in the process of the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO

import pytest
from kazoo.client import KazooClient
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.sandbox import Sandbox, ZooKeeperServer

# Time limit of a whole run, in seconds. The longest is a demo: ten seconds on an idle machine.
RUN_LIMIT_S = 200

Spawn = Callable[..., subprocess.Popen[bytes]]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start `zkconsumer ARGUMENTS`; a process that runs at the end of the test is killed by pid."""
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
    """Run `zkconsumer ARGUMENTS` to its end: exit code, standard output, standard error."""

    def to_the_end(*arguments: str) -> tuple[int, str, str]:
        process = spawn(*arguments)
        out, err = process.communicate(timeout=RUN_LIMIT_S)
        return process.returncode, out.decode(), err.decode()

    return to_the_end


@pytest.fixture
def call() -> Run:
    """Run `zkconsumer ARGUMENTS` in this process, which saves the imports of a new one."""

    def to_the_end(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result.exit_code, result.stdout, result.stderr

    return to_the_end


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """The kazoo client that creates the group."""
    one = KazooClient(zookeeper.connect)
    one.start(60)
    yield one
    one.stop()
    one.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """An empty topic of this test alone, with the module's number of PARTITIONS."""
    name = unique("topic")
    sandbox.create_topic(name, partitions=request.module.PARTITIONS)
    return name
