"""The znodes and messages with which the old tools were recorded, in a chroot per release.

The broker znodes in each chroot are copies of the sandbox's, so that one broker serves all chroots.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from typer.testing import CliRunner

from support.captures import captured
from support.zk.client import peer_of
from zkconsumer.cli import app
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings

RELEASES = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1")

# Topics and their numbers of partitions; partition n gets 10 + n messages, tool3 gets none.
TOPICS = {"tool": 3, "tool2": 2, "tool3": 1}

Znodes = Sequence[Mapping[str, Any]]


def captured_runs(release: str) -> list[dict[str, Any]]:
    """Return the records of a release in order: the runs, and the znodes between the runs."""
    return [one for one in captured("tools") if one["release"] == release]


class World:
    """The chroot of one release, and the directory that the captures call DIR."""

    def __init__(self, sandbox: Sandbox, release: str, directory: Path) -> None:
        self.sandbox, self.release, self.directory = sandbox, release, directory
        self.chroot = f"/old-{release}"
        self.connect = f"{sandbox.zookeeper_connect}{self.chroot}"

    # ---- ZooKeeper -------------------------------------------------------------------------------

    def build(self) -> None:
        """Create the brokers' znodes, which the JVM's tools read."""
        with peer_of(self.sandbox.zookeeper_connect) as zk:
            for topic, partitions in TOPICS.items():
                path = f"/brokers/topics/{topic}"
                zk.create(self.chroot + path, zk.get(path)[0], makepath=True)
                for partition in range(partitions):
                    state = f"{path}/partitions/{partition}/state"
                    zk.create(self.chroot + state, zk.get(state)[0], makepath=True)
            for number in zk.get_children("/brokers/ids"):
                path = f"/brokers/ids/{number}"
                zk.create(self.chroot + path, zk.get(path)[0], makepath=True)

    def put(self, znodes: Znodes) -> None:
        """Create or overwrite these znodes, which may be registrations of members."""
        with peer_of(self.connect) as zk:
            for one in znodes:
                data = None if one["data"] is None else one["data"].encode()
                zk.ensure_path(one["path"].rpartition("/")[0])
                if zk.exists(one["path"]):
                    zk.set(one["path"], data)
                else:
                    zk.create(one["path"], data)

    def ensure(self, *groups: str) -> None:
        """Create the groups of other recorded runs; these groups had neither offsets nor
        members."""
        with peer_of(self.connect) as zk:
            for group in groups:
                zk.ensure_path(f"/consumers/{group}")

    def delete(self, *paths: str) -> None:
        with peer_of(self.connect) as zk:
            for path in paths:
                if zk.exists(path):
                    zk.delete(path, recursive=True)

    def below(self, *roots: str) -> dict[str, str | None]:
        """Return path -> payload, without the edit marks that zkconsumer's tools write."""
        found: dict[str, str | None] = {}
        with peer_of(self.connect) as zk:
            left = [root for root in roots if zk.exists(root)]
            while left:
                path = left.pop()
                if path.split("/")[3:4] == ["edits"]:
                    continue
                data = zk.get(path)[0]
                found[path] = None if data is None else data.decode()
                left += [f"{path}/{name}" for name in zk.get_children(path)]
        return found

    def groups(self) -> list[str]:
        with peer_of(self.connect) as zk:
            return sorted(zk.get_children("/consumers"))

    # ---- running ---------------------------------------------------------------------------------

    def run(self, tool: str, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr, with the addresses of the recording."""
        backups = self.directory / "backups"
        backups.mkdir(exist_ok=True)
        ours = ["legacy", "--release", self.release, "--backup-dir", str(backups), tool]
        result = CliRunner().invoke(app, [*ours, *map(self._here, arguments)])
        return result.exit_code, self._there(result.stdout), self._there(result.stderr)

    def _here(self, argument: str) -> str:
        place = argument.replace(f"127.0.0.1:2181/b{self.release}", self.connect)
        place = place.replace("127.0.0.1:9092", self.sandbox.bootstrap)
        return re.sub(r"^DIR(?=/)", str(self.directory), place)

    def _there(self, text: str) -> str:
        port = self.sandbox.broker.port
        text = text.replace(str(self.directory), "DIR").replace(f":{port}\n", ":9092\n")
        text = re.sub(r"^\[[-0-9]+ [0-9:]+,\d+\]", "[TIME]", text, flags=re.MULTILINE)
        return without_stacks(re.sub(r"^zkconsumer: backup: .*\n", "", text, flags=re.MULTILINE))


def without_stacks(text: str) -> str:
    """Return the text without the JVM's stack traces, which zkconsumer does not print."""
    return re.sub(r"^(\s+at |\s+\.\.\. \d+ more|Caused by: ).*\n", "", text, flags=re.MULTILINE)


def produce(sandbox: Sandbox) -> None:
    """Produce the messages of each partition, with keys k0, k1, ...; values name their position."""
    producer = Producer(client_settings(sandbox.zookeeper_connect))
    for topic, partitions in TOPICS.items():
        for partition in range(partitions if topic != "tool3" else 0):
            for number in range(10 + partition):
                producer.produce(
                    topic, f"{topic}-{partition}-{number}", f"k{number}", partition=partition
                )
    assert producer.flush(60) == 0
