"""A group and its tools on the oldest and the newest ZooKeeper: the tests of each run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from admin.conftest import clients
from admin.test_apply import group, test_offsets_are_set
from integration.test_connections import test_a_lost_reply_to_a_claim
from integration.test_membership import test_a_member_is_killed, test_a_member_joins
from integration.test_wildcards import join, owners, prefix, test_topics_come_and_go
from support.members.crew import BRIEF, Crew, wait_for
from support.scenes import connect_clients
from support.zk.proxies import Trap
from support.zk.servers import release_number
from typer.testing import CliRunner
from zk.test_tools_connection import test_reads_in_one_request_equal_single_reads

from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk import kazoo_transport
from zkconsumer.zk.kazoo_transport import MultiRead

__all__ = [
    "clients",
    "group",
    "join",
    "owners",
    "prefix",
    "test_a_lost_reply_to_a_claim",
    "test_a_member_is_killed",
    "test_a_member_joins",
    "test_offsets_are_set",
    "test_reads_in_one_request_equal_single_reads",
    "test_topics_come_and_go",
]

# As in the modules from which these tests come.
pytestmark = pytest.mark.usefixtures("topic")


@pytest.mark.parametrize("sandbox", ["3.4.6"], indirect=True)
def test_the_oldest_servers(
    crew: Crew, sandbox: Sandbox, topic: str, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """Broker 0.8.2.2 on ZooKeeper 3.4.6: three members, a take-over, lag, doctor, offsets reset."""
    assert sandbox.broker.release == "0.8.2.2"
    assert "version: 3.4.6-" in sandbox.zookeeper.command("srvr")
    members = first, second, third = crew.join(), crew.join(), crew.join(**BRIEF)
    crew.settle(*members)
    crew.flowing(*members)
    assert sorted(len(one.owned) for one in members) == [2, 3, 3]
    third.kill()
    crew.settle(first, second)
    crew.flowing(first, second)

    def command(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "--zookeeper", sandbox.zookeeper_connect])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if "json" in words else None

    rows = command("lag", "--group", crew.group, "--output", "json")
    assert [row["partition"] for row in rows] == list(range(8))
    assert {row["owner"].rpartition("-")[0] for row in rows} == {first.consumer, second.consumer}
    assert all(isinstance(row["lag"], int) for row in rows)
    assert command("doctor", "--group", crew.group, "--output", "json") == []
    crew.finish()
    # The group is at rest and nothing is produced, so the lag is 0 until the reset.
    rows = command("lag", "--group", crew.group, "--output", "json")
    assert {row["lag"] for row in rows} == {0}
    reset = ("offsets", "reset", "--group", crew.group, "--topic", topic, "--to-earliest")
    command(*reset, "--execute", "--backup-dir", str(tmp_path))
    with connect_clients(sandbox.zookeeper_connect) as both:
        assert set(both.stored(crew.group).values()) == {"0"}
    # A member that joins after the reset reads all messages again.
    late = crew.join(consumer_id=unique("late"))
    produced = sum(map(len, crew.traffic.produced.values()))
    wait_for(lambda: len(late.delivered) == produced, "all messages again")


# `ZooDefs.OpCode` of 3.4.6. Later releases have added 15 (create2) to 22 (multiRead) and more.
KNOWN_TO_3_4 = {-11, -10, *range(10), 11, 12, 13, 14, 100, 101, 102}

# TOPIC and GROUP stand for the real names. Only the last of these commands write.
TOOLS = (
    "topics list",
    "topics show TOPIC",
    "groups list",
    "groups show GROUP",
    "members --group GROUP",
    "owners --group GROUP",
    "offsets get --group GROUP",
    "lag --group GROUP",
    "assign --group GROUP",
    "verify --group GROUP",
    "doctor --group GROUP",
    "explain GROUP",
    "offsets reset --group GROUP --topic TOPIC --to-latest --force-live --execute",
    "groups copy GROUP GROUP-copy --execute",
    "groups delete GROUP-copy --execute",
)


class Ledger(Trap):
    """Records the operation of each request, by ZooKeeper's number for it."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.operations: set[int] = set()

    def _is_bait(self, frame: bytes) -> bool:
        self.operations.add(int.from_bytes(frame[8:12], "big", signed=True))
        return super()._is_bait(frame)


def test_no_request_is_sent_that_the_server_lacks(
    crew: Crew, sandbox: Sandbox, topic: str, tmp_path: Path
) -> None:
    """A member and the tools send 3.4 no newer request, and read in batches from 3.6 on."""
    sandbox.add_partitions(topic, partitions=3 * kazoo_transport.MIN_MULTI_READ)
    crew.feed(topic, 3 * kazoo_transport.MIN_MULTI_READ)
    with Ledger(sandbox.zookeeper_connect) as ledger:
        # If a member commits, offsets may change between a tool's reading and its write.
        member = crew.join(zookeeper=ledger.address, auto_commit_interval_s=3600.0)
        crew.settle(member)
        crew.flowing(member)
        for words in TOOLS:
            named = words.replace("TOPIC", topic).replace("GROUP", crew.group).split()
            backup = ["--backup-dir", str(tmp_path)] if "--execute" in named else []
            result = CliRunner().invoke(app, [*named, *backup, "--zookeeper", ledger.address])
            # While the group works, `verify` and `doctor` may find something.
            assert result.exit_code in (Exit.OK, Exit.FOUND), (words, result.output)
        member.leave()
        asked = ledger.operations
    has_multi_read = release_number(sandbox.zookeeper.release) >= kazoo_transport.SINCE
    assert asked - KNOWN_TO_3_4 == ({MultiRead.type} if has_multi_read else set())
    assert {1, 3, 4, 8, 14} <= asked
