"""The sizes that `compare` counts, compared with encoded requests and responses."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE
from support.jvm.kafka_391 import ask

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.sim.compare import wire_sizes
from zkconsumer.sim.ensemble import CHANGED
from zkconsumer.testing import zookeeper_wire as wire

FRAME = 4 + 4 + 4
"""Bytes of the length, the number and the type, which kazoo writes before each request."""

PATH, DATA = "/consumers/gruppe-ä/ids/a", b'{"version":1}'

WRITES: list[tuple[rq.Create | rq.SetData | rq.Delete | rq.Check, Any]] = [
    (rq.Create(PATH, DATA, ephemeral=True), kazoo.Create(PATH, DATA, OPEN_ACL_UNSAFE, 1)),
    (rq.Create(PATH, None), kazoo.Create(PATH, None, OPEN_ACL_UNSAFE, 0)),
    (rq.SetData(PATH, DATA, 7), kazoo.SetData(PATH, DATA, 7)),
    (rq.Delete(PATH), kazoo.Delete(PATH, -1)),
    (rq.Check(PATH, 0), kazoo.CheckVersion(PATH, 0)),
]

REQUESTS: list[tuple[Any, Any]] = [
    (rq.Get(PATH, watch=True), kazoo.GetData(PATH, print)),
    (rq.Exists(PATH), kazoo.Exists(PATH, None)),
    (rq.Children(PATH), kazoo.GetChildren(PATH, None)),
    (rq.Listing(PATH, watch=True), kazoo.GetChildren2(PATH, print)),
    (rq.SyncLeader(PATH), kazoo.Sync(PATH)),
    (rq.Create(PATH, DATA), kazoo.Create(PATH, DATA, OPEN_ACL_UNSAFE, 0)),
    (
        rq.Multi(tuple(one for one, _ in WRITES)),
        kazoo.Transaction([encoded for _, encoded in WRITES]),
    ),
]


@pytest.mark.parametrize(("request_", "encoded"), REQUESTS, ids=lambda one: type(one).__name__)
def test_a_request_to_zookeeper_has_the_size_that_kazoo_sends(request_: Any, encoded: Any) -> None:
    """The counted bytes of each kind of request are those of the client that members use."""
    assert wire_sizes.of_zookeeper(request_, None) == FRAME + len(encoded.serialize())


STAT = rq.Stat(1, 2, 3, 0, 4)
LISTED = ("a", "gruppe-ä")
# A kind of request, with the value of its reply.
REPLIES: list[tuple[Any, wire.Op, Any]] = [
    (rq.Get(PATH), wire.Op.GET_DATA, rq.Node(DATA, STAT)),
    (rq.Get(PATH), wire.Op.GET_DATA, rq.Node(None, STAT)),
    (rq.Exists(PATH), wire.Op.EXISTS, STAT),
    (rq.Children(PATH), wire.Op.GET_CHILDREN, LISTED),
    (rq.Listing(PATH), wire.Op.GET_CHILDREN2, rq.ListedChildren(LISTED, 2)),
    (rq.SyncLeader(PATH), wire.Op.SYNC, PATH),
    (rq.Create(PATH, DATA), wire.Op.CREATE, PATH),
    (rq.SetData(PATH, DATA, 7), wire.Op.SET_DATA, STAT),
    (rq.Delete(PATH), wire.Op.DELETE, None),
]


def _full(path: str, stat: rq.Stat | None) -> wire.FullStat:
    return wire.FullStat(*range(11))


@pytest.mark.parametrize(("request_", "op", "value"), REPLIES, ids=lambda one: type(one).__name__)
def test_a_reply_of_zookeeper_has_the_size_that_clients_read(
    request_: Any, op: wire.Op, value: Any
) -> None:
    """The counted bytes of each kind of reply are those of the fake server, which kazoo reads."""
    counted = wire_sizes.of_zookeeper(request_, rq.Reply(rq.Code.OK, value))
    counted -= wire_sizes.of_zookeeper(request_, None)
    assert counted == 4 + len(wire.head(1, 2) + wire.result(op, request_, value, _full))


def test_the_replies_of_a_transaction_and_of_a_watch() -> None:
    """A transaction counts each of its results; a watch event has its head and its path."""
    writes = (rq.Create(PATH, DATA), rq.SetData(PATH, DATA, 7), rq.Delete(PATH), rq.Check(PATH, 0))
    ops = (wire.Op.CREATE, wire.Op.SET_DATA, wire.Op.DELETE, wire.Op.CHECK)
    reply = rq.Reply(rq.Code.OK, (PATH, STAT, None, None))
    request = rq.Multi(writes)
    counted = wire_sizes.of_zookeeper(request, reply) - wire_sizes.of_zookeeper(request, None)
    encoded = wire.transaction_result(wire.MultiWrite(ops, writes), reply, _full)
    assert counted == 4 + len(wire.head(1, 2) + encoded)
    assert wire_sizes.of_watch_event(PATH) == 4 + len(wire.event(CHANGED, PATH))


def test_every_kind_of_request_is_compared() -> None:
    """No request that a simulated member sends to ZooKeeper is left out."""
    kinds = {type(one) for one, _ in [*REQUESTS, *WRITES]}
    assert kinds >= {rq.Get, rq.Exists, rq.Children, rq.Listing, rq.SyncLeader, rq.Multi}
    assert kinds >= {rq.Create, rq.SetData, rq.Delete, rq.Check}


# ---- Kafka ---------------------------------------------------------------------------------------

GROUP, MEMBER = "gruppe-ä", "g_0-" + 40 * "x"
OFFSETS = {TopicPartition(t, n): OffsetAndMetadata(5) for t in ("t", "u" * 130) for n in (0, 1)}
PLACES = {t: [tp.partition for tp in OFFSETS if tp.topic == t] for t in ("t", "u" * 130)}
IDS = [
    {"topicId": f"AAAAAAAAAAAAAAAAAAAA{n}A", "partitions": numbers}
    for n, numbers in enumerate(PLACES.values())
]
# Bytes, as Kafka's converters read them.
DATA_200 = base64.b64encode(bytes(200)).decode()
CLASSIC = {"groupId": GROUP, "memberId": MEMBER, "groupInstanceId": "i"}


def by_topic(**more: Any) -> list[dict[str, Any]]:
    return [
        {"name": topic, "partitions": [{"partitionIndex": n, **more} for n in numbers]}
        for topic, numbers in PLACES.items()
    ]


# Kafka's key and version of a request, the request and its response, and Kafka's fields of both.
EXCHANGES: list[tuple[int, int, Any, Any, dict[str, Any], dict[str, Any]]] = [
    (
        10,
        6,
        msg.FindCoordinator(GROUP),
        msg.FoundCoordinator(broker=1),
        {"coordinatorKeys": [GROUP]},
        {
            "coordinators": [
                {
                    "key": "",
                    "nodeId": 1,
                    "host": "localhost",
                    "port": 9092,
                    "errorCode": 0,
                    "errorMessage": "",
                }
            ]
        },
    ),
    (
        11,
        9,
        msg.JoinGroup(GROUP, MEMBER, (msg.Protocol("range", bytes(200)),), "i"),
        msg.Joined(
            member=MEMBER,
            protocol_type="consumer",
            protocol="range",
            leader=MEMBER,
            members=(msg.JoinedMember(MEMBER, None, bytes(200)),),
        ),
        CLASSIC
        | {
            "protocolType": "consumer",
            "protocols": [{"name": "range", "metadata": DATA_200}],
            "reason": "",
        },
        {
            "protocolType": "consumer",
            "protocolName": "range",
            "leader": MEMBER,
            "memberId": MEMBER,
            "members": [{"memberId": MEMBER, "groupInstanceId": None, "metadata": DATA_200}],
        },
    ),
    (
        14,
        5,
        msg.SyncGroup(GROUP, MEMBER, 3, {MEMBER: bytes(200)}, "i", protocol="range"),
        msg.Synced(assignment=bytes(200), protocol_type="consumer", protocol="range"),
        CLASSIC
        | {
            "protocolType": "consumer",
            "protocolName": "range",
            "assignments": [{"memberId": MEMBER, "assignment": DATA_200}],
        },
        {"protocolType": "consumer", "protocolName": "range", "assignment": DATA_200},
    ),
    (12, 4, msg.Heartbeat(GROUP, MEMBER, 3, "i"), msg.HeartbeatAnswer(), CLASSIC, {}),
    (
        13,
        5,
        msg.LeaveGroup(GROUP, (msg.Leaver(MEMBER, "i"),)),
        msg.Left(leavers=((msg.Leaver(MEMBER, "i"), msg.Error.NONE),)),
        {
            "groupId": GROUP,
            "members": [{"memberId": MEMBER, "groupInstanceId": "i", "reason": ""}],
        },
        {"members": [{"memberId": MEMBER, "groupInstanceId": "i", "errorCode": 0}]},
    ),
    (
        8,
        9,
        msg.OffsetCommit(GROUP, OFFSETS, MEMBER, 3, "i"),
        msg.OffsetsCommitted(),
        CLASSIC
        | {"topics": by_topic(committedOffset=5, committedLeaderEpoch=-1, committedMetadata="")},
        {"topics": by_topic(errorCode=0)},
    ),
    (
        9,
        9,
        msg.OffsetFetch(GROUP, tuple(OFFSETS), MEMBER),
        msg.OffsetsFetched(offsets=OFFSETS),
        {
            "groups": [
                {
                    "groupId": GROUP,
                    "memberId": MEMBER,
                    "memberEpoch": 3,
                    "topics": [
                        {"name": topic, "partitionIndexes": numbers}
                        for topic, numbers in PLACES.items()
                    ],
                }
            ]
        },
        {
            "groups": [
                {
                    "groupId": "",
                    "topics": by_topic(
                        committedOffset=5, committedLeaderEpoch=-1, metadata="", errorCode=0
                    ),
                    "errorCode": 0,
                }
            ]
        },
    ),
    (
        68,
        0,
        msg.ConsumerGroupHeartbeat(
            GROUP, MEMBER, 3, topics=("t", "u"), assignor="uniform", owned=frozenset(OFFSETS)
        ),
        msg.ConsumerGroupAnswer(member=MEMBER, assignment=frozenset(OFFSETS)),
        {
            "groupId": GROUP,
            "memberId": MEMBER,
            "subscribedTopicNames": ["t", "u"],
            "serverAssignor": "uniform",
            "topicPartitions": IDS,
        },
        {"memberId": MEMBER, "assignment": {"topicPartitions": IDS}},
    ),
]


def test_messages_of_kafka_have_the_sizes_that_kafka_encodes() -> None:
    """The counted bytes of each request and response are those of Kafka 3.9.1's own encoder."""
    asked = [
        {
            "call": "size",
            "message": type(request).__name__ + "Request" * (side == 0) + "Response" * side,
            "key": key,
            "version": version,
            "client": "g_0",
            "fields": fields,
        }
        for key, version, request, _, *both in EXCHANGES
        for side, fields in enumerate(both)
    ]
    sizes = [one["size"] for one in ask(asked)]
    counted = [
        wire_sizes.of_kafka("g_0", request, response) for _, _, request, response, *_ in EXCHANGES
    ]
    assert counted == [sum(sizes[at : at + 2]) for at in range(0, len(sizes), 2)]
    kinds = {type(request).__name__ for _, _, request, *_ in EXCHANGES}
    assert kinds == {one.__name__ for one in msg.Request.__subclasses__()}
