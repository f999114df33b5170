"""The examples of the documentation run unchanged on real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from support.logged import without_look_ups
from support.wait import LIMIT_S, eventually

from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port
from zkconsumer.testing import groups

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PARTITIONS = 4
MESSAGES = 400


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """A topic that contains messages; the group has the same name."""
    name = unique("example")
    sandbox.create_topic(name, partitions=PARTITIONS)
    sandbox.produce(name, [f"m{number}" for number in range(MESSAGES)])
    return name


@contextmanager
def _running(example: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / example), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _committed(sandbox: Sandbox, group: str) -> int:
    return sum(groups.committed(sandbox.zookeeper_connect, group).values())


def _read_all(example: str, sandbox: Sandbox, topic: str, members: int) -> tuple[list[str], str]:
    """Run an example until its group has read all messages; return its output and its errors.

    The example ends when no message has arrived for five seconds. On a busy machine, some messages
    may be left then; the next run reads them.
    """
    lines: list[str] = []
    errors: list[str] = []

    def is_all_read() -> bool:
        arguments = (sandbox.zookeeper_connect, topic, topic, str(members))
        with _running(example, *arguments) as process:
            out, err = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, err
        lines.extend(out.splitlines())
        errors.append(err)
        return _committed(sandbox, topic) == MESSAGES

    eventually(is_all_read)
    return lines, "".join(errors)


def _total(errors: str) -> int:
    """Return the number of messages that the runs of an example have reported."""
    return sum(int(one) for one in re.findall(r"^(\d+) messages$", errors, re.MULTILINE))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_single_threaded(sandbox: Sandbox, topic: str, number: int, code: int) -> None:
    """The example prints every message once, commits after each batch, and ends at a signal."""
    with _running("single_threaded.py", sandbox.zookeeper_connect, topic, topic) as process:
        assert process.stdout is not None
        values = [process.stdout.readline().split()[-1] for _ in range(MESSAGES)]
        assert sorted(values) == sorted(f"b'm{number}'" for number in range(MESSAGES))
        # The commit of the last batch may be late.
        eventually(lambda: _committed(sandbox, topic) == MESSAGES, LIMIT_S)
        assert process.poll() is None
        os.kill(process.pid, number)
        assert process.stderr is not None
        assert (process.stdout.read(), without_look_ups(process.stderr.read())) == ("", [])
        assert process.wait(LIMIT_S) == code


def test_multi_threaded(sandbox: Sandbox, topic: str) -> None:
    """Several threads together print every message once; one without a partition says why."""
    lines, errors = _read_all("multi_threaded.py", sandbox, topic, PARTITIONS + 1)
    assert sorted(line.split()[3] for line in lines) == sorted(
        f"m{number}" for number in range(MESSAGES)
    )
    assert "more consumer threads than the topic has partitions" in errors
    assert _total(errors) == MESSAGES


def test_multi_threaded_interrupted(sandbox: Sandbox, topic: str) -> None:
    """Ctrl-C ends all threads, and the next run handles the messages that were unfinished."""
    arguments = (sandbox.zookeeper_connect, topic, topic, "2")
    lines: list[str] = []
    with _running("multi_threaded.py", *arguments) as process:
        assert process.stdout is not None
        # Read to the end of the output: communicate() would miss the text that is buffered here.
        for line in process.stdout:
            if not lines:
                process.send_signal(signal.SIGINT)
            lines.append(line)
        assert process.wait(LIMIT_S) == 130
    rest, _ = _read_all("multi_threaded.py", sandbox, topic, 2)
    values = [line.split()[3] for line in (*lines, *rest)]
    assert set(values) == {f"m{number}" for number in range(MESSAGES)}
    assert len(values) <= MESSAGES + 2  # Each thread has at most one message in flight.


def test_asynchronous(sandbox: Sandbox, topic: str) -> None:
    """The tasks in one event loop together handle every message once, and commit all."""
    lines, errors = _read_all("asynchronous.py", sandbox, topic, 2)
    assert sorted(line.split()[3] for line in lines) == sorted(
        f"m{number}" for number in range(MESSAGES)
    )
    assert _total(errors) == MESSAGES


def test_two_topics(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path) -> None:
    """With a JVM consumer's properties file, all messages of two topics are read and committed."""
    names = {"orders": unique("orders"), "payments": unique("payments")}
    group = names["orders"]
    for topic in names.values():
        sandbox.create_topic(topic, partitions=2)
        for partition in range(2):
            sandbox.produce(topic, 5, partition=partition)
    properties = tmp_path / "consumer.properties"
    properties.write_text(
        f"group.id={group}\nzookeeper.connect={sandbox.zookeeper_connect}\n"
        "auto.offset.reset=smallest\nconsumer.timeout.ms=8000\n"
    )
    program = (EXAMPLES / "two_topics.py").read_text(encoding="utf-8")
    for name, real in names.items():
        program = program.replace(f'"{name}"', f'"{real}"')
    example = tmp_path / "two_topics.py"
    example.write_text(program, encoding="utf-8")
    with _running(str(example), str(properties)) as process:
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
    lines = out.splitlines()
    assert sum(line.split()[2] == "None" for line in lines[:10]) == 10
    assert lines[10].startswith(f"no message of {names['payments']} within 8 s")
    read = [int(line.split()[0]) for line in lines if "messages under fencing tokens" in line]
    assert (len(read), sum(read)) == (2, 10)
    assert lines[-1].startswith("Status(phase='settled'")
    assert _committed(sandbox, group) == 20


def test_processes(sandbox: Sandbox, topic: str) -> None:
    """Two processes of one group together handle every message once, and commit all."""
    lines, _ = _read_all("processes.py", sandbox, topic, 2)
    values = [line.split()[3] for line in lines]
    assert sorted(values) == sorted(f"b'm{number}'" for number in range(MESSAGES))


def test_health(sandbox: Sandbox, topic: str) -> None:
    """The program answers health checks while it consumes; SIGTERM ends the program."""
    port = free_port()
    with _running("health.py", sandbox.zookeeper_connect, topic, topic, str(port)) as process:
        assert process.stdout is not None
        for _ in range(MESSAGES):
            assert process.stdout.readline()

        def is_healthy() -> bool:
            try:
                with urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT_S) as answer:
                    return "lag" in json.load(answer)
            except OSError:  # The answer is 503 until the member has settled.
                return False

        eventually(is_healthy)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert _committed(sandbox, topic) > 0
