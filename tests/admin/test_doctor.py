"""`doctor` finds each planted fault, and finds nothing in a healthy group."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.security import make_acl
from support.scenes import Scene

from zkconsumer.admin.checks import rights
from zkconsumer.admin.doctor import doctor
from zkconsumer.admin.findings import Finding, Severity
from zkconsumer.errors import RemedyOperation, UnknownGroupError
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import AssignmentFailure, GroupInput, assign_each_member
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.protocol.releases import profile
from zkconsumer.protocol.requests import Create
from zkconsumer.zk.client import ZooKeeperClient

TWO = {"g_a": {"orders": 2}, "g_b": {"orders": 1, "logs": 1}}
SIZES = {"orders": 7, "logs": 2}
ALICE = [make_acl("digest", "alice:hash", all=True)]


def examined(scene: Scene, *groups: str, **said: Any) -> list[Finding]:
    """Return the findings of some groups, by default all, without a second examination."""
    with ZooKeeperClient(scene.config()) as connection:
        return doctor(connection, groups or None, patience_s=0.0, **said)


def codes(found: list[Finding]) -> list[str]:
    """Return the codes of the findings."""
    return [one.code for one in found]


@pytest.mark.parametrize("strategy", Strategy)
def test_sound_groups(scene: Scene, strategy: Strategy) -> None:
    """Settled groups of both strategies, and a group without members, give no finding."""
    members = {name: {"orders": 1, "logs": 1} for name in ("g_a", "g_b")}
    scene.settled(members, SIZES, strategy=strategy)
    scene.offset("orders", 0, 5, "idle")
    scene.settled({"h_a": {"orders": 9}}, {"orders": 7}, group="h")
    assert examined(scene) == []


@dataclass(frozen=True)
class Plant:
    """A planted fault, a part of its finding's text, and whether --fix repairs the fault."""

    code: str
    severity: Severity
    fixable: bool
    plant: Callable[[Scene], object]
    words: list[str]


PLANTS = [
    Plant(
        "malformed-registration",
        Severity.ERROR,
        False,
        lambda scene: scene.hold(paths.member("g", "g_x"), b'{"version":1}'),
        ["g_x", "kafka.common.KafkaException", "0x"],
    ),
    Plant(
        "malformed-registration",
        Severity.ERROR,
        True,
        lambda scene: scene.put(paths.member("g", "g_x"), b"hello"),
        ["g_x", "delete it"],
    ),
    Plant(
        "persistent-registration",
        Severity.ERROR,
        True,
        lambda scene: scene.put(
            paths.member("g", "g_x"),
            b'{"version":1,"subscription":{"other":1},"pattern":"static","timestamp":"1"}',
        ),
        ["g_x"],
    ),
    Plant(
        "malformed-topic",
        Severity.ERROR,
        False,
        lambda scene: scene.put(paths.topic("logs"), b'{"partitions":[]}'),
        ["logs"],
    ),
    Plant(
        "persistent-owner",
        Severity.ERROR,
        True,
        lambda scene: (
            scene.session.delete(paths.owner("g", TopicPartition("orders", 0))),
            scene.put(paths.owner("g", TopicPartition("orders", 0)), b"g_a-0"),
        ),
        ["orders", "partition 0", "g_a-0"],
    ),
    Plant(
        "unregistered-owner",
        Severity.ERROR,
        False,
        lambda scene: scene.owner("orders", 4, "g_gone-0"),
        ["g_gone-0", "partition 4", "0x"],
    ),
    Plant(
        "unregistered-owner",
        Severity.ERROR,
        False,
        lambda scene: scene.owner("orders", 4, "g_a-2"),
        ["g_a-2", "not registered that thread"],
    ),
    Plant(
        "unregistered-owner",
        Severity.ERROR,
        False,
        lambda scene: (scene.topic("more", 1), scene.owner("more", 0, "g_a-0")),
        ["more"],
    ),
    Plant(
        "no-owner",
        Severity.ERROR,
        False,
        lambda scene: scene.session.delete(paths.owner("g", TopicPartition("orders", 6))),
        ["partition 6", "g_b", "see how they are assigned"],
    ),
    Plant(
        "owner-of-nothing",
        Severity.WARNING,
        False,
        lambda scene: scene.owner("deleted", 3, "g_a-0"),
        ["deleted", "does not exist", "0x"],
    ),
    Plant(
        "owner-of-nothing",
        Severity.WARNING,
        True,
        lambda scene: scene.put(paths.owner("g", TopicPartition("deleted", 3)), b"g_a-0"),
        ["deleted"],
    ),
    Plant(
        "owner-of-nothing",
        Severity.WARNING,
        True,
        lambda scene: scene.put(paths.owner("g", TopicPartition("logs", 2)), b"g_a-0"),
        ["logs", "no such partition"],
    ),
    Plant(
        "foreign-owner-nodes",
        Severity.ERROR,
        False,
        lambda scene: scene.hold(f"{paths.owners_of('g', 'orders')}/0-1", b"host:uuid-0"),
        ["'0-1'", "pykafka", "0x"],
    ),
    Plant(
        "foreign-owner-nodes",
        Severity.ERROR,
        True,
        lambda scene: scene.put(f"{paths.owners_of('g', 'orders')}/x/y", b""),
        ["'x'"],
    ),
    Plant(
        "foreign-topic-name",
        Severity.WARNING,
        False,
        lambda scene: scene.hold(
            f"{paths.owners_of('g', chr(98) + chr(39) + 'orders' + chr(39))}/0-1", b"x"
        ),
        ["b'orders'", "pykafka"],
    ),
    Plant(
        "foreign-topic-name",
        Severity.WARNING,
        True,
        lambda scene: scene.put(f"{paths.offsets_of('g', 'b' + chr(39) + 't' + chr(39))}/0", b"7"),
        ["b't'"],
    ),
    Plant(
        "foreign-offset-nodes",
        Severity.WARNING,
        True,
        lambda scene: scene.put(f"{paths.offsets_of('g', 'orders')}/0-1", b"7"),
        ["'0-1'"],
    ),
    Plant(
        "malformed-offset",
        Severity.ERROR,
        True,
        lambda scene: scene.offset("orders", 1, "12\n"),
        ["partition 1", "replace it by 12"],
    ),
    Plant(
        "malformed-offset",
        Severity.ERROR,
        True,
        lambda scene: scene.offset("orders", 1, '"12"'),
        ["partition 1", "replace it by 12"],
    ),
    Plant(
        "empty-offset",
        Severity.ERROR,
        True,
        lambda scene: scene.offset("orders", 1, ""),
        ["partition 1", "is empty", "delete it"],
    ),
    Plant(
        "malformed-offset",
        Severity.ERROR,
        True,
        lambda scene: scene.offset("orders", 1, "?"),
        ["partition 1", "delete it"],
    ),
    Plant(
        "offset-of-nothing",
        Severity.WARNING,
        True,
        lambda scene: scene.offset("deleted", 1, 7),
        ["deleted", "partition 1"],
    ),
    Plant(
        "offset-of-nothing",
        Severity.WARNING,
        True,
        lambda scene: scene.offset("logs", 2, 7),
        ["logs", "partition 2", "no such"],
    ),
    Plant(
        "no-brokers",
        Severity.ERROR,
        False,
        lambda scene: scene.session.delete(paths.broker(0)),
        ["no broker"],
    ),
    Plant(
        "locked-out",
        Severity.ERROR,
        False,
        lambda scene: scene.session.set_acls(
            paths.offset("g", TopicPartition("orders", 1)),
            [make_acl("digest", "alice:hash", all=True), make_acl("world", "anyone", read=True)],
        ),
        ["digest:alice", "commit"],
    ),
    Plant(
        "locked-out",
        Severity.ERROR,
        False,
        lambda scene: scene.session.set_acls(
            paths.owners_of("g", "orders"), [make_acl("world", "anyone", read=True)]
        ),
        ["no identity", "claim"],
    ),
]


@pytest.mark.parametrize(
    "plant", PLANTS, ids=[f"{one.code}-{number}" for number, one in enumerate(PLANTS)]
)
def test_a_planted_fault_is_found(scene: Scene, plant: Plant) -> None:
    """`doctor` finds only the planted fault: its severity, subject, reason and repair."""
    scene.settled(TWO, SIZES)
    plant.plant(scene)
    found = examined(scene, "g")
    assert codes(found) == [plant.code]
    (one,) = found
    assert (one.severity, one.group, bool(one.fixes)) == (plant.severity, "g", plant.fixable)
    text = " ".join((one.subject, one.what, one.why, one.remedy))
    assert all(word in text for word in plant.words), text
    assert all((one.what, one.why, one.remedy))


def test_the_finding_that_stops_every_member_is_first(scene: Scene) -> None:
    """Of several findings, the first is a registration that makes every JVM member fail."""
    scene.settled(TWO, SIZES)
    scene.offset("deleted", 0, 1)
    scene.session.delete(paths.owner("g", TopicPartition("orders", 0)))
    scene.hold(paths.member("g", "zz"), b"hello")
    assert codes(examined(scene)) == ["malformed-registration", "no-owner", "offset-of-nothing"]


def test_an_owner_of_an_older_session(scene: Scene) -> None:
    """An owner znode of a member's older session is found, unlike those of its present session."""
    scene.settled(TWO, SIZES)
    with ZooKeeperClient(scene.config()) as connection:
        path = paths.owner("g", TopicPartition("orders", 0))
        scene.session.delete(path)
        connection.write([Create(path, b"g_a-0", ephemeral=True)])
        (one,) = examined(scene)
    assert (one.code, one.subject, one.severity) == ("stale-owner", "g_a", Severity.WARNING)
    assert "orders-0" in one.what


def test_members_that_disagree(scene: Scene) -> None:
    """A finding names a member that owns partitions by another order than the others'."""
    members = {name: {"events": 2, "logs": 2} for name in ("g_a", "g_b")}
    scene.settled(members, {"events": 11, "logs": 11}, strategy=Strategy.ROUND_ROBIN)
    for topic in ("events", "logs"):
        for number in range(11):
            path = paths.owner("g", TopicPartition(topic, number))
            if scene.session.get(path)[0].startswith(b"g_b"):
                scene.session.delete(path)
    payload = encode_registration(Registration({"events": 2, "logs": 2}, timestamp_ms=1))
    topic = json.dumps({"partitions": {str(number): [0] for number in range(11)}}).encode()
    known = GroupInput(
        Strategy.ROUND_ROBIN, dict.fromkeys(members, payload), {"events": topic, "logs": topic}
    )
    of_b = assign_each_member(known, profile("1.1.1"))["g_b"]
    assert not isinstance(of_b, AssignmentFailure)
    for tp, thread in of_b.items():
        if not scene.session.exists(paths.owner("g", tp)):
            scene.owner(*tp, thread)
    found = examined(scene)
    (finding,) = (one for one in found if one.code == "disagreement")
    assert finding.subject == "g_b"
    assert "1.0-1.1" in finding.what


def test_a_member_that_owns_nothing_does_not_disagree(scene: Scene) -> None:
    """A member that has just joined or has given up is named with its partitions, and no more."""
    scene.settled({"g_a": {"t": 1, "u": 1}, "g_b": {"t": 1, "u": 1}}, {"t": 4, "u": 4})
    for topic in ("t", "u"):
        for number in (2, 3):
            scene.session.delete(paths.owner("g", TopicPartition(topic, number)))
    found = examined(scene)
    assert codes(found) == ["no-owner", "no-owner"]
    assert all("assigned to g_b" in one.what for one in found)
    assert all("has just joined, or has given up" in one.why for one in found)


def test_a_filter_that_was_escaped_twice(scene: Scene) -> None:
    r"""For a filter that Kafka 1.1.1 escaped twice, the remedy is `[.]` instead of `\.`."""
    scene.topic("a.b", 1)
    payload = rb'{"version":1,"subscription":{"a\\\\.b":1},"pattern":"white_list","timestamp":"1"}'
    scene.hold(paths.member("g", "g_a"), payload)
    (one,) = [one for one in examined(scene) if one.code == "disagreement"]
    assert "escaped twice" in one.what
    assert r"[.] instead of \." in one.remedy


def test_offsets_outside_the_log(scene: Scene) -> None:
    """An offset above the log's end is an error, one below its start a warning."""
    scene.settled(TWO, SIZES)

    def logs(brokers: Any, partitions: Any) -> dict[TopicPartition, LogRange | str]:
        assert len(brokers) == 1
        at: dict[int, LogRange | str] = {0: LogRange(0, 4), 1: LogRange(6, 9), 2: "gone"}
        return {tp: at.get(tp.partition, LogRange(5, 5)) for tp in partitions}

    beyond, other, behind, of_logs, note = examined(scene, "g", ask_logs=logs)
    above = {(one.code, one.severity) for one in (beyond, other)}
    assert above == {("offset-beyond-log", Severity.ERROR)}
    assert (behind.code, behind.severity) == ("offset-behind-log", Severity.WARNING)
    assert of_logs.code == "offset-behind-log"
    assert {beyond.subject, other.subject} == {behind.subject, of_logs.subject} == {*SIZES}
    assert "partition 0: the offset is 5, beyond the end of the log (0 to 4)" in beyond.what
    assert beyond.advice is not None
    assert beyond.advice.step is RemedyOperation.RESET_TO_CURRENT
    assert beyond.advice.value == f"{beyond.subject}:0"
    assert (note.code, note.severity, note.is_problem) == ("log-unknown", Severity.NOTE, False)
    assert "gone" in note.what


def test_retries_shorter_than_the_session_timeout(scene: Scene) -> None:
    """If the members' retries x back-off are below the session timeout, there is a warning."""
    scene.settled(TWO, SIZES)
    good = scene.config(rebalance_backoff_s=2.0)
    bad = scene.config(rebalance_backoff_s=1.0, rebalance_max_retries=5)
    assert examined(scene, "g", settings=lambda _: good) == []
    (one,) = examined(scene, "g", settings=lambda _: bad)
    assert (one.code, one.severity) == ("short-retries", Severity.WARNING)
    assert "5 x 1 s = 5 s" in one.what


def test_a_group_that_may_not_be_read(scene: Scene) -> None:
    """A group that may not be read is a finding, and the other groups are still examined."""
    for name in ("a", "b", "c"):
        scene.offset("deleted", 0, 1, name)
    scene.session.set_acls(paths.offsets("b"), ALICE)
    found = examined(scene)
    assert [(one.group, one.code) for one in found] == [
        ("a", "offset-of-nothing"),
        ("b", "access-denied"),
        ("c", "offset-of-nothing"),
    ]


def test_a_partly_readable_group(scene: Scene) -> None:
    """The readable znodes are examined and not repaired; what is unreadable counts as unknown."""
    scene.settled(TWO, SIZES)
    scene.hold(paths.member("g", "g_x"), b"{")
    scene.offset("logs", 1, "x")
    scene.offset("deleted", 0, 1)
    hidden = [
        paths.member("g", "g_b"),
        paths.owner("g", TopicPartition("orders", 0)),
        paths.offset("g", TopicPartition("deleted", 1)),
        scene.put(f"{paths.owners_of('g', 'orders')}/odd"),
    ]
    scene.offset("deleted", 1, 1)
    for path in hidden:
        scene.session.set_acls(path, ALICE)
    found = examined(scene, "g")
    assert codes(found) == [
        "access-denied",
        "malformed-registration",
        "foreign-owner-nodes",
        "malformed-offset",
        "offset-of-nothing",
    ]
    assert all(path in found[0].what + found[0].subject for path in hidden)
    assert not any(one.fixes for one in found)


def test_a_group_that_does_not_exist(scene: Scene) -> None:
    """Examining a group that does not exist is an error."""
    with pytest.raises(UnknownGroupError):
        examined(scene, "nobody")


def test_temporary_findings_are_examined_twice(scene: Scene) -> None:
    """If a partition has an owner at the second examination, it is not a finding."""
    scene.settled(TWO, SIZES)
    path = paths.owner("g", TopicPartition("orders", 0))
    scene.session.delete(path)

    def claims(brokers: Any, partitions: Any) -> dict[TopicPartition, LogRange | str]:
        scene.hold(path, b"g_a-0")
        return {}

    assert codes(examined(scene)) == ["no-owner"]
    assert examined(scene, ask_logs=claims) == []


def test_hashes_of_passwords_are_not_shown() -> None:
    """For a digest identity a finding shows only the user, but not the hash."""
    assert rights.identity_names(frozenset({"digest:alice:bHQ="})) == "digest:alice"
