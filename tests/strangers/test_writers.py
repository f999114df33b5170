"""zkconsumer beside programs that cannot be installed: no false finding, no lost partition."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from strangers.conftest import MESSAGES, PARTITIONS, Tools
from strangers.writers import (
    ConsumerGroup,
    KafkaNode,
    Registered,
    flink_commit,
    flink_read,
    kafka_python,
    persistent_copy,
    secor_commit,
    secor_create,
    spark_direct,
    storm,
)
from support.members.group import Group
from support.scenes import repeated
from support.wait import eventually

from zkconsumer.cli.exits import Exit
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration

UUID = "7b664118-958e-40d8-b3c5-0aede349b15e"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(KafkaNode, f"knode_{UUID}"), (ConsumerGroup, f"web1:{UUID}")],
    ids=["kafka-node", "consumergroup"],
)
def test_a_client_that_owns_by_its_bare_id(
    group: Group, tools: Tools, kind: type[Registered], name: str
) -> None:
    """It gets its share beside a member, the tools find nothing, and no message is lost."""
    member = group.join("aa")
    member.read(PARTITIONS * MESSAGES)
    other = kind(group.admin, group.sandbox.bootstrap, group.name, name)
    other.register(group.topic)
    member.settled(0, 1)
    other.claim(group.tp(2), group.tp(3))
    for partition in (2, 3):
        group.sandbox.produce(group.topic, 5, partition=partition)
    other.commit(group.tp(2), 12)
    member.connector.commit_offsets()
    assert tools.run("verify", group.name).exit_code == 0
    assert tools.listed() == (2, "live")
    assert [one["owned"] for one in tools.rows("members", group.name)] == [2, 2]
    assert f"member {name} is another client" in tools.run("members", group.name).stderr
    owners = tools.rows("owners", group.name)
    assert [one["consumer"] for one in owners] == [f"{group.name}_aa"] * 2 + [name] * 2
    assert [one["lag"] for one in tools.rows("lag", group.name)] == [0, 0, 3, 5]
    assert tools.findings() == []
    other.leave(group.tp(2), group.tp(3))
    member.settled(0, 1, 2, 3)
    reader = member.readers[0]
    eventually(lambda: len(reader.offsets(2) + reader.offsets(3)) >= 2 * MESSAGES + 8)
    assert reader.offsets(2) == [*range(10), 12, 13, 14]
    assert reader.offsets(3) == [*range(15)]


def test_clients_that_commit_without_a_registration(
    group: Group, tools: Tools, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The member reads on; the doctor names these clients' partitions only; a plan is refused."""
    topic, numbers = unique("other"), itertools.count(1)
    group.sandbox.create_topic(topic, partitions=3)
    for partition in range(3):
        group.sandbox.produce(topic, MESSAGES, partition=partition)

    def commit() -> None:
        offset = min(next(numbers), MESSAGES)
        kafka_python(group.sandbox.bootstrap, group.name, TopicPartition(topic, 0), offset)
        spark_direct(group.admin, group.name, TopicPartition(topic, 1), offset)
        flink_commit(group.admin, group.name, TopicPartition(topic, 2), offset)

    commit()
    with repeated(commit):
        member = group.join()
        member.read(PARTITIONS * MESSAGES)
        assert tools.run("verify", group.name).exit_code == 0
        assert tools.listed() == (1, "live")
        # On a busy machine, not each of the clients commits within a second.
        found = tools.only_finding(lambda one: one["partitions"] == [0, 1, 2])
        assert (found["code"], found["subject"]) == ("unregistered-writer", topic)
        member.close()
        options = ("--patience", "60", "--backup-dir", str(tmp_path), "--execute")
        refused = tools.run("groups", "delete", group.name, *options)
    assert refused.exit_code == Exit.REFUSED
    assert "a client without a registration commits" in refused.stderr
    assert group.stored(0) == str(MESSAGES)


def test_flink_reads_before_it_commits(group: Group, tools: Tools) -> None:
    """Its empty offset znodes are a finding and no offset; a member reads everything."""
    for partition in range(PARTITIONS):
        assert flink_read(group.admin, group.name, group.tp(partition)) == b""
    assert [one["code"] for one in tools.findings()] == ["empty-offset"]
    assert {one["offset"] for one in tools.rows("lag", group.name)} == {None}
    member = group.join()
    member.read(PARTITIONS * MESSAGES)
    assert member.readers[0].errors == []
    member.connector.commit_offsets()
    assert tools.findings() == []


def test_secor(group: Group, tools: Tools) -> None:
    """Its commits are its JVM member's; an address that it leaves behind is no offset."""
    name = f"{group.name}_secor"
    payload = encode_registration(Registration({group.topic: 1}, timestamp_ms=1))
    path = paths.member(group.name, name)
    group.admin.create(path, payload, ephemeral=True, makepath=True)
    for partition in range(PARTITIONS):
        group.hold(partition, f"{name}-0")
    for partition in range(1, PARTITIONS):
        secor_commit(group.admin, group.name, group.tp(partition), 4)
    with repeated(lambda: secor_commit(group.admin, group.name, group.tp(1), 5)):
        assert tools.run("verify", group.name).exit_code == 0
        assert tools.findings(patience_s=1.0) == []
    secor_create(group.admin, group.name, group.tp(0))
    assert [one["code"] for one in tools.findings()] == ["malformed-offset"]
    assert [one["lag"] for one in tools.rows("lag", group.name)] == [None, 5, 6, 6]
    for partition in range(PARTITIONS):
        group.admin.delete(group.owner(partition))
    group.admin.delete(path)
    member = group.join()
    member.read(17)
    assert member.status.unreadable_offsets == {group.tp(0)}
    assert group.stored(0) == "10.20.30.40"
    assert member.readers[0].offsets(1) == [*range(5, 10)]


def test_storm(group: Group, tools: Tools, tmp_path: Path) -> None:
    """A running spout is a writer whose offsets no plan deletes; a member reads beside it."""
    numbers = itertools.count(1)

    def commit() -> str:
        return storm(group.admin, group.name, group.tp(0), next(numbers))

    path = commit()
    assert tools.listed() == (0, "idle")
    assert tools.findings() == []
    delete = ("groups", "delete", group.name, "--backup-dir", str(tmp_path), "--execute")
    with repeated(commit):
        refused = tools.run(*delete, "--patience", "60")
        assert refused.exit_code == Exit.REFUSED
        assert "a client without a registration writes znodes of the group" in refused.stderr
        assert path in refused.stderr
        member = group.join()
        member.read(PARTITIONS * MESSAGES)
        assert tools.run("verify", group.name).exit_code == 0
        found = tools.only_finding(lambda one: path in one["what"])
        assert (found["code"], found["subject"]) == ("unregistered-writer", group.name)
        member.close()
    assert json.loads(group.admin.get(path)[0])["offset"] == next(numbers) - 1
    assert tools.findings(patience_s=0.5) == []
    assert tools.run(*delete, "--patience", "0.5").exit_code == Exit.OK
    assert group.admin.exists(path) is None


def test_a_copy_of_a_live_group(group: Group, tools: Tools, tmp_path: Path) -> None:
    """No process holds a copy's znodes; the doctor repairs it beside a member, which then reads."""
    owner = f"{group.name}_old"
    payload = encode_registration(Registration({group.topic: 1}, timestamp_ms=1))
    group.admin.create(paths.member(group.name, owner), payload, ephemeral=True, makepath=True)
    for partition in range(PARTITIONS):
        group.hold(partition, f"{owner}-0")
        group.write(partition, b"3")
    persistent_copy(group.admin, paths.group(group.name), f"{paths.group(group.name)}-saved")
    group.admin.delete(paths.group(group.name), recursive=True)
    persistent_copy(group.admin, f"{paths.group(group.name)}-saved", paths.group(group.name))
    group.admin.delete(f"{paths.group(group.name)}-saved", recursive=True)
    assert tools.listed() == (0, "leftover")
    codes = {one["code"] for one in tools.findings()}
    assert codes == {"persistent-registration", "persistent-owner", "no-members"}
    assert [one["lag"] for one in tools.rows("lag", group.name)] == [7] * PARTITIONS
    member = group.join()
    eventually(lambda: bool(member.status.blocked))
    options = ("--fix", "--execute", "--backup-dir", str(tmp_path))
    fixed = tools.run("doctor", group.name, *options)
    assert fixed.exit_code == Exit.OK, fixed.stderr
    member.settled(0, 1, 2, 3)
    member.read(PARTITIONS * 7)
    assert tools.findings() == []
