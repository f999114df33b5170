"""Measure the operator's commands, each in a new process, on a real ZooKeeper and broker.

There are 5,000 groups, half of them with a member, and three more: `large` has 200 members that own
and have committed 10,000 partitions of ten topics, as range assigns them. `stored` has as many
offsets and no member; its offsets are exported, changed and imported. `small` has 512 partitions;
Kafka 1.1.1's own ConsumerGroupCommand and `zkconsumer lag` describe it in turn.

`--only inventory` measures `zkconsumer inventory` of 10,000 groups with 40,000 offsets in ZooKeeper
on servers of its own; ten of these groups have offsets in Kafka, too.

Each figure is the median of `--rounds` runs, in seconds of wall-clock time from start to end of the
process. Memory is the largest resident set of all runs. Output goes to a pipe.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _bench import Result, add_json, at_least, at_most, show, without_goal
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPartition
from kazoo.client import KazooClient

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import Sandbox, jars
from zkconsumer.sandbox.jars import find_java

GROUPS, MEMBERS, TOPICS, PARTITIONS = 5_000, 200, 10, 1_000
INVENTORY_GROUPS, INVENTORY_PARTITIONS, INVENTORY_IN_KAFKA = 10_000, 4, 10
LARGE, SMALL, STORED = "large", "small", "stored"
SMALL_PARTITIONS = 512
MEMORY_MIB = 200
JVM_ROUNDS = 3
# Writes per transaction while the groups are created.
BATCH = 1_000
COMMAND_LIMIT_S = 120
# Seconds for which the processor time of `top` is measured after its first screen.
TOP_S = 20
# A broker maps the whole index of each partition into memory; 10,000 indexes of the default 10 MiB
# would be too much.
OVERRIDES = {"log.index.size.max.bytes": 65_536}


# ---- Groups and topics ---------------------------------------------------------------------------


def large_partitions() -> list[TopicPartition]:
    return [TopicPartition(f"topic.{n}", p) for n in range(TOPICS) for p in range(PARTITIONS)]


def nodes(name: str, members: int, owned: Sequence[TopicPartition]) -> Iterator[tuple[str, bytes]]:
    """Yield the znodes of a group, parents first. Registrations and owners must be created as
    ephemeral znodes.
    """
    yield from (
        (path, b"")
        for path in (paths.group(name), paths.ids(name), paths.owners(name), paths.offsets(name))
    )
    topics = dict.fromkeys(tp.topic for tp in owned)
    registration = encode_registration(Registration(dict.fromkeys(topics, 1), timestamp_ms=0))
    consumers = [f"{name}_host-1400000000{n:03}-{n * 7919:08x}" for n in range(members)]
    yield from ((paths.member(name, consumer), registration) for consumer in consumers)
    yield from ((paths.owners_of(name, topic), b"") for topic in topics)
    yield from ((paths.offsets_of(name, topic), b"") for topic in topics)
    for tp in owned:
        if (
            members
        ):  # as range assigns them: the number of partitions is a multiple of the number of members
            share = len(owned) // len(topics) // members
            yield paths.owner(name, tp), f"{consumers[tp.partition // share]}-0".encode()
        yield paths.offset(name, tp), b"0"


def make(client: KazooClient, wanted: Iterable[tuple[str, bytes]]) -> None:
    transaction, size = client.transaction(), 0
    for path, data in wanted:
        kind = paths.locate(path).kind
        live = kind in (paths.ZnodeKind.MEMBER, paths.ZnodeKind.OWNER)
        transaction.create(path, data, ephemeral=live)
        size += 1
        if size == BATCH:
            done(transaction)
            transaction, size = client.transaction(), 0
    if size:
        done(transaction)


def done(transaction: Any) -> None:
    for result in transaction.commit():
        if isinstance(result, Exception):
            raise result


@contextlib.contextmanager
def scene() -> Iterator[Sandbox]:
    with Sandbox(overrides=OVERRIDES) as sandbox:
        for number in range(TOPICS):
            print(f"topic {number + 1} of {TOPICS} ...", file=sys.stderr)
            sandbox.create_topic(f"topic.{number}", partitions=PARTITIONS)
        sandbox.create_topic(SMALL, partitions=SMALL_PARTITIONS)
        client = KazooClient(sandbox.zookeeper_connect, timeout=30)
        client.start()
        try:
            client.ensure_path(paths.CONSUMERS)
            make(client, nodes(LARGE, MEMBERS, large_partitions()))
            make(client, nodes(STORED, 0, large_partitions()))
            small = [TopicPartition(SMALL, p) for p in range(SMALL_PARTITIONS)]
            make(client, nodes(SMALL, 8, small))
            for number in range(GROUPS):
                make(client, nodes(f"group-{number}", number % 2, ()))
            yield sandbox
        finally:
            client.stop()
            client.close()


@contextlib.contextmanager
def inventory_scene() -> Iterator[Sandbox]:
    partitions = [TopicPartition(SMALL, p) for p in range(INVENTORY_PARTITIONS)]
    with Sandbox() as sandbox:
        sandbox.create_topic(SMALL, partitions=INVENTORY_PARTITIONS)
        client = KazooClient(sandbox.zookeeper_connect, timeout=30)
        client.start()
        try:
            client.ensure_path(paths.CONSUMERS)
            names = [f"group-{number}" for number in range(INVENTORY_GROUPS)]
            make(client, (one for name in names for one in nodes(name, 0, partitions)))
        finally:
            client.stop()
            client.close()
        for name in names[:INVENTORY_IN_KAFKA]:
            consumer = Consumer({"bootstrap.servers": sandbox.bootstrap, "group.id": name})
            offsets = [RawPartition(*tp, 0) for tp in partitions]
            consumer.commit(offsets=offsets, asynchronous=False)
            consumer.close()
        yield sandbox


# Let Python write byte code: an installed package has it, and so has a checkout after its first
# run.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
# The scene has just written the offsets, so plans would wait for a second reading of the groups.
# The benchmark measures the work of both readings without the wait.
_ENVIRONMENT["ZKCONSUMER_PATIENCE"] = "0"


# ---- Running -------------------------------------------------------------------------------------


def timed(command: Sequence[str], *, allowed: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Run a command. Return its duration in seconds and its memory in MiB. Raise SystemExit if it
    fails.
    """
    with tempfile.TemporaryFile() as words:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, env=_ENVIRONMENT)
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode not in allowed:
            words.seek(0)
            text = (words.read() or output)[-2000:].decode(errors="replace")
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}: {text}")
    return seconds, usage.ru_maxrss / 1024


def jvm_tool(sandbox: Sandbox) -> list[str]:
    """Return the command of ConsumerGroupCommand 1.1.1 for the small group."""
    classpath = os.pathsep.join(map(str, jars.resolve("kafka-1.1.1")))
    return [
        str(find_java().executable),
        "-cp",
        classpath,
        "kafka.admin.ConsumerGroupCommand",
        "--zookeeper",
        sandbox.zookeeper_connect,
        "--describe",
        "--group",
        SMALL,
    ]


class Runs:
    """Runs commands and records the largest resident set."""

    def __init__(self, rounds: int, connect: str) -> None:
        self.rounds, self.connect, self.largest_mib = rounds, connect, 0.0

    def seconds(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> float:
        """Return the median of the rounds, after a first run that counts only for memory."""
        taken = [self.once(*arguments, allowed=allowed) for _ in range(self.rounds + 1)]
        return statistics.median(taken[1:])

    def once(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> float:
        command = [sys.executable, "-m", "zkconsumer", *arguments]
        seconds, mib = timed(command, allowed=allowed)
        self.largest_mib = max(self.largest_mib, mib)
        return seconds

    def of_zookeeper(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> float:
        return self.seconds(*arguments, "--zookeeper", self.connect, allowed=allowed)


def completed(rounds: int, connect: str) -> float:
    """Return the median seconds that the completion of a group's name takes, called as a shell
    does.
    """
    line = f"zkconsumer groups show -z {connect} {LARGE[:3]}"
    asked = {"_ZKCONSUMER_COMPLETE": "complete_bash", "_ZKCONSUMER_LINE": line}
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        command = [sys.executable, "-m", "zkconsumer"]
        done = subprocess.run(
            command, env=_ENVIRONMENT | asked, capture_output=True, text=True, check=True
        )
        taken.append(time.perf_counter() - start)
        if done.stdout.split() != [LARGE]:
            raise SystemExit(f"{line}: {done.stdout!r} is completed")
    return statistics.median(taken[1:])


def watched(connect: str) -> tuple[float, float]:
    """Return the seconds until `top` shows groups, and the fraction of a core that it uses
    afterwards.
    """
    mine, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "zkconsumer", "top", "--zookeeper", connect],
        stdin=other,
        stdout=other,
        stderr=other,
        env=_ENVIRONMENT | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(other)
    try:
        shown = b""
        while b"group-" not in shown:
            if time.perf_counter() - start > COMMAND_LIMIT_S:
                raise SystemExit(f"top shows no group: {shown[-2000:]!r}")
            shown += _read(mine, 0.05)
        first_s = time.perf_counter() - start
        before_s, before = _cpu_s(process.pid), time.perf_counter()
        while time.perf_counter() - before < TOP_S:
            _read(mine, 0.5)
        share = (_cpu_s(process.pid) - before_s) / (time.perf_counter() - before)
    finally:
        process.kill()
        process.wait()
        os.close(mine)
    return first_s, share


def _read(terminal: int, limit_s: float) -> bytes:
    return os.read(terminal, 65536) if select.select([terminal], [], [], limit_s)[0] else b""


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured_inventory(rounds: int) -> Iterator[Result]:
    """Measure `zkconsumer inventory`; its processor time depends less on other work."""
    case = f"inventory {INVENTORY_GROUPS}"
    with inventory_scene() as sandbox:
        runs = Runs(rounds, sandbox.zookeeper_connect)
        before = os.times()
        taken = runs.of_zookeeper("inventory", "--output", "json")
        after = os.times()
        used = sum(after[2:4]) - sum(before[2:4])
        yield at_most(case, "seconds", taken, "s", 10)
        yield without_goal(case, "processor_seconds", used / (rounds + 1), "s")
        yield without_goal(case, "memory", runs.largest_mib, "MiB")


def measured_commands(rounds: int) -> Iterator[Result]:
    with scene() as sandbox, tempfile.TemporaryDirectory() as directory:
        yield from measure(sandbox, rounds, Path(directory))


def measure(sandbox: Sandbox, rounds: int, directory: Path) -> Iterator[Result]:
    runs = Runs(rounds, sandbox.zookeeper_connect)
    ask: Callable[..., float] = runs.of_zookeeper
    yield at_most("help", "seconds", runs.seconds("--help"), "s", 0.12)
    yield at_most("completion", "seconds", completed(rounds, runs.connect), "s", 0.3)
    firsts, shares = zip(*(watched(runs.connect) for _ in range(min(rounds, 3))), strict=True)
    yield at_most(f"top {GROUPS}", "first_screen", statistics.median(firsts), "s", 1.5)
    yield at_most(f"top {GROUPS}", "share_of_a_core", statistics.median(shares), "cores", 0.1)
    for command in (("lag",), ("groups", "show"), ("offsets", "reset")):
        taken = runs.seconds(*command, "--help")
        yield at_most(f"{' '.join(command)} help", "seconds", taken, "s", 0.3)
    jvm_s: list[float] = []
    own_s: list[float] = []
    for number in range(max(JVM_ROUNDS, rounds)):
        if number < JVM_ROUNDS:
            jvm_s.append(timed(jvm_tool(sandbox))[0])
        own_s.append(runs.once("lag", "--group", SMALL, "--zookeeper", runs.connect))
    lag = statistics.median(own_s)
    yield at_most(f"lag {SMALL_PARTITIONS}", "seconds", lag, "s", 0.8)
    speedup = statistics.median(jvm_s) / lag
    yield at_least(f"lag {SMALL_PARTITIONS}", "speedup_over_jvm_tool", speedup, "times", 5)
    count = TOPICS * PARTITIONS
    yield at_most(f"groups show {count}", "seconds", ask("groups", "show", LARGE), "s", 3.5)
    yield at_most(f"groups list {GROUPS}", "seconds", ask("groups", "list"), "s", 1.2)
    file = directory / "offsets"
    export = ("offsets", "export", "--group", STORED, "--format", "legacy")
    yield at_most(f"export {count}", "seconds", ask(*export), "s", 2)
    runs.once(*export, "--file", str(file), "--zookeeper", runs.connect)
    imports = [once_imported(runs, file, number) for number in range(1, rounds + 1)]
    yield at_most(f"import {count}", "seconds", statistics.median(imports), "s", 2)
    yield at_most("doctor", "seconds", ask("doctor", allowed=(0, 6)), "s", 5)
    yield at_most("all", "memory", runs.largest_mib, "MiB", MEMORY_MIB)


def once_imported(runs: Runs, file: Path, offset: int) -> float:
    """Return the seconds of an import, with a backup, that changes every offset of the file."""
    lines = file.read_text().splitlines()
    file.write_text("".join(f"{line.rpartition(':')[0]}:{offset}\n" for line in lines))
    command = ("offsets", "import", str(file), "--execute", "--backup-dir", str(file.parent))
    return runs.once(*command, "--zookeeper", runs.connect)


CASES = {"commands": measured_commands, "inventory": measured_inventory}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench_cli", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    add_json(parser)
    arguments = parser.parse_args()
    results = []
    for name in arguments.only:
        for one in CASES[name](arguments.rounds):
            print(f"{one.case}: {one.metric} {one.value} {one.unit}", file=sys.stderr)
            results.append(one)
    return show("cli", results, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())
