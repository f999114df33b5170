"""`zkconsumer consume` on a real ZooKeeper and a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from cli.conftest import Run, Spawn
from confluent_kafka import Producer
from support.logged import without_look_ups
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import groups

PARTITIONS = 4


@pytest.fixture
def arguments(sandbox: Sandbox, topic: str) -> tuple[str, ...]:
    """Return the arguments of every run; the group and the topic have the same name."""
    connect = ("--zookeeper", sandbox.zookeeper_connect, "--group", topic, "--topic", topic)
    return ("consume", *connect, "--from-beginning")


def committed(sandbox: Sandbox, group: str) -> int:
    """Return the number of messages that the group has committed: the sum of its offsets."""
    return sum(groups.committed(sandbox.zookeeper_connect, group).values())


def test_everything_once(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...], run: Run
) -> None:
    """Several runs of one group write every message exactly once to standard output."""
    sandbox.produce(topic, 5000)
    code, first, err = run(*arguments, "--max-messages", "1234")
    assert (code, without_look_ups(err)) == (0, ["zkconsumer: 1234 messages"])
    assert committed(sandbox, topic) == 1234
    more = ("--max-messages", "321", "--threads", "3")
    code, second, _ = run(*arguments, *more)
    assert (code, committed(sandbox, topic)) == (0, 1555)
    code, third, _ = run(*arguments, "--threads", "2", "--max-messages", "3445")
    assert code == 0
    seen = Counter((first + second + third).splitlines())
    assert seen == Counter(map(str, range(5000)))
    assert committed(sandbox, topic) == 5000


def test_messages_that_cannot_be_written_are_not_committed(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...]
) -> None:
    """A full disk ends the command with one line, and the next run gets the same messages."""
    sandbox.produce(topic, 10)
    command = [sys.executable, "-m", "zkconsumer", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    fault = "zkconsumer: standard output cannot be written: No space left on device"
    assert without_look_ups(done.stderr) == [fault]
    assert committed(sandbox, topic) == 0


def test_a_malformed_offset_does_not_stop_the_other_partitions(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...], spawn: Spawn
) -> None:
    """One malformed offset is reported, and the other partitions and an empty offset are read."""
    for partition in range(PARTITIONS):
        sandbox.produce(topic, 10, partition=partition)
    malformed, empty = (paths.offset(topic, TopicPartition(topic, number)) for number in (0, 1))
    with peer_of(sandbox.zookeeper_connect) as client:
        client.create(malformed, b"ten", makepath=True)
        client.create(empty, b"")
    process = spawn(*arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    assert all(process.stdout.readline() for _ in range(30))
    lines = (line.decode() for line in process.stderr)
    assert any(line.startswith("zkconsumer: ") and malformed in line for line in lines)
    process.send_signal(signal.SIGINT)
    assert (process.wait(LIMIT_S), process.stdout.read()) == (130, b"")


def test_an_idle_thread_leaves_the_budget_to_the_others(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...], run: Run
) -> None:
    """If one thread has no messages, another thread can use the whole message limit."""
    sandbox.produce(topic, 400, key="k", partition=PARTITIONS - 1)
    more = ("--max-messages", "321", "--threads", str(PARTITIONS))
    code, out, err = run(*arguments, *more)
    assert (code, without_look_ups(err)) == (0, ["zkconsumer: 321 messages"])
    assert len(out.splitlines()) == committed(sandbox, topic) == 321


def test_by_a_pattern(sandbox: Sandbox, topic: str, arguments: tuple[str, ...], run: Run) -> None:
    """--whitelist consumes every matching topic, and cannot be combined with --topic."""
    sandbox.create_topic(f"{topic}.more", partitions=1)
    for name in (topic, f"{topic}.more"):
        sandbox.produce(name, 3)
    group = tuple(part for part in arguments if part != "--topic")[:-2]
    pattern = ("--whitelist", f"{topic}[.a-z]*", "--output", "jsonl")
    first = (*group, "--from-beginning", "--max-messages", "6", "--threads", "2")
    code, out, _ = run(*first, *pattern)
    assert code == 0
    seen = Counter(json.loads(line)["topic"] for line in out.splitlines())
    assert seen == {topic: 3, f"{topic}.more": 3}
    code, _, err = run(*arguments, *pattern)
    assert code == 2
    assert "--topic and --whitelist exclude each other" in err


def test_json(sandbox: Sandbox, topic: str, arguments: tuple[str, ...], run: Run) -> None:
    """In JSON lines text is text, other bytes are base64, and each message has its position."""
    sandbox.produce(topic, ["grüße", b"\xff", None], key="k", partition=1)
    code, out, _ = run(*arguments, "--output", "jsonl", "--max-messages", "3")
    assert code == 0
    documents = [json.loads(line) for line in out.splitlines()]
    assert all(isinstance(document.pop("timestamp"), int) for document in documents)
    place = {"topic": topic, "partition": 1, "key": "k"}
    assert documents == [
        place | {"offset": 0, "value": "grüße"},
        place | {"offset": 1, "value_base64": "/w=="},
        place | {"offset": 2, "value": None},
    ]


def test_a_jvm_consumers_file(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    """A JVM consumer's properties file is enough, even for the timeout; --property overrides it."""
    sandbox.produce(topic, 10)
    file = tmp_path / "consumer.properties"
    file.write_text(
        f"zookeeper.connect={sandbox.zookeeper_connect}\ngroup.id=somebody-else\n"
        "auto.offset.reset=smallest\nconsumer.timeout.ms=500\n"
    )
    words = ("consume", "--topic", topic, "--config", str(file), "--property", f"group.id={topic}")
    # A busy machine may need longer than the file's timeout for the first message.
    endless = ("--property", "consumer.timeout.ms=-1", "--max-messages", "10")
    code, out, _ = run(*words, *endless)
    assert (code, len(out.splitlines())) == (0, 10)
    assert committed(sandbox, topic) == 10
    code, out, err = run(*words)
    assert (code, out) == (0, "")
    assert "zkconsumer: 0 messages" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal(
    *,
    sandbox: Sandbox,
    topic: str,
    arguments: tuple[str, ...],
    spawn: Spawn,
    number: int,
    code: int,
) -> None:
    """After SIGINT or SIGTERM exactly the messages that were written are committed."""
    sandbox.produce(topic, 2000)
    process = spawn(*arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    read = {process.stdout.readline() for _ in range(2000)}
    process.send_signal(number)
    rest = process.stdout.read()
    assert (process.wait(timeout=LIMIT_S), rest) == (code, b"")
    assert without_look_ups(process.stderr.read().decode()) == ["zkconsumer: 2000 messages"]
    assert committed(sandbox, topic) == len(read - {b""}) == 2000


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves(
    *,
    sandbox: Sandbox,
    topic: str,
    arguments: tuple[str, ...],
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    unbuffered: str,
) -> None:
    """If the reader closes the pipe, the run exits with 0 and commits only written messages."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    sandbox.produce(topic, [b"x" * 1000] * 3000, partition=0)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        process = spawn(*arguments, stdout=pipe)
    assert len(os.read(reading, 1000)) == 1000
    os.close(reading)
    assert process.stderr is not None
    code, lines = process.wait(timeout=LIMIT_S), without_look_ups(process.stderr.read().decode())
    assert (code, len(lines)) == (0, 1), lines
    assert "the reader of standard output has ended" in lines[0]
    # A pipe holds 64 KiB. A batch is ten times larger, so that the first batch is not written
    # completely.
    assert committed(sandbox, topic) == 0


def test_a_reader_that_takes_one_line(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...], run: Run, spawn: Spawn
) -> None:
    """Messages that are in the pipe when its reader ends are not committed: none is lost."""
    sandbox.produce(topic, 300)  # They fit into the pipe, so each write succeeds.
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        process = spawn(*arguments, stdout=pipe)
    first = os.read(reading, 1)
    os.close(reading)
    assert (process.wait(timeout=LIMIT_S), len(first)) == (0, 1)
    assert committed(sandbox, topic) == 0
    code, out, _ = run(*arguments, "--max-messages", "300")
    assert (code, len(out.splitlines())) == (0, 300)
    assert committed(sandbox, topic) == 300


def test_a_closed_standard_output(sandbox: Sandbox, topic: str, arguments: tuple[str, ...]) -> None:
    """With `>&-`, nothing is committed, one line says why, and no socket gets the output."""
    sandbox.produce(topic, 10)
    command = f'exec "{sys.executable}" -m zkconsumer "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
    )
    words = "zkconsumer: standard output cannot be written: it is closed"
    assert (done.returncode, without_look_ups(done.stderr)) == (1, [words])
    assert committed(sandbox, topic) == 0


def test_a_reader_that_sleeps(
    sandbox: Sandbox, topic: str, arguments: tuple[str, ...], spawn: Spawn
) -> None:
    """If a reader stalls, Ctrl-C ends the run, and the batch that waits is not committed."""
    sandbox.produce(topic, [b"x" * 1000] * 3000, partition=0)
    process = spawn(*arguments)
    assert process.stdout is not None
    assert len(process.stdout.read(1000)) == 1000
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT_S) == 130
    assert committed(sandbox, topic) == 0


def test_messages_by_their_place(sandbox: Sandbox, topic: str, run: Run) -> None:
    """--offset writes messages from an offset or before the end; no group exists afterwards."""
    with closing(Producer({"bootstrap.servers": sandbox.bootstrap})) as producer:
        for number in range(5):
            headers: list[tuple[str, str | bytes | None]] = [("trace", b"\xff"), ("n", str(number))]
            producer.produce(topic, f'{{"n":{number}}}', partition=3, headers=headers)
        assert producer.flush(LIMIT_S) == 0

    def consume(offset: str, *words: str) -> tuple[int, str, str]:
        at = ("--zookeeper", sandbox.zookeeper_connect, "--topic", f"{topic}:3")
        return run("consume", *at, "--offset", offset, *words)

    code, out, err = consume("2", "--max-messages", "1")
    assert (code, out) == (0, '{"n":2}\n')
    assert without_look_ups(err) == [
        "zkconsumer: 1 messages; no group was joined, and nothing was committed"
    ]
    assert consume("-2", "--max-messages", "2", "-o", "hex")[1].splitlines() == [
        f'{{"n":{number}}}'.encode().hex() for number in (3, 4)
    ]
    (line,) = consume("@2020-01-31T03:00", "--max-messages", "1", "-o", "json")[1].splitlines()
    row = json.loads(line)
    assert (row["topic"], row["partition"], row["offset"]) == (topic, 3, 0)
    assert row["value"] == {"n": 0}
    assert row["headers"] == [
        {"name": "trace", "value_base64": "/w=="},
        {"name": "n", "value": "0"},
    ]
    code, out, err = consume("42")
    assert (code, out) == (2, "")
    assert "the offset 42 is not in the log, which has the offsets 0 to 4" in err
    with peer_of(sandbox.zookeeper_connect) as client:
        assert client.exists(paths.group("zkconsumer")) is None
