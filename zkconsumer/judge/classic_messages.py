"""The messages between the judge and a member of the classic protocol; see docs/judge.md.

The judge finds the coordinator, and encodes subscriptions and assignments as Kafka's consumers do.
The group subscribes to one topic, so partitions are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zkconsumer.judge.vocabulary import (
    COUNT,
    COUNTS,
    DONE,
    NOW,
    SECONDS,
    TEXT,
    TICK,
    WHOLE,
    Message,
    MessageField,
    Sender,
    Vocabulary,
    reset,
    table_of,
    wrong,
)
from zkconsumer.protocol.later import consumer_protocol as wire
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.later.subscriptions import Subscription
from zkconsumer.protocol.model import Json, JsonObject, OffsetAndMetadata, TopicPartition
from zkconsumer.sim.coordinated.world import GROUP, TOPIC

_APIS: Final = (
    *("join_group", "sync_group", "heartbeat"),
    *("leave_group", "offset_commit", "offset_fetch"),
)

_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "offset_commit": ("offsets",),
    "offset_fetch": ("partitions",),
}
"""The optional fields of a request that one API needs."""

_OFFSETS = table_of(COUNT)

_TYPES: Final[Mapping[str, Message]] = {
    "reset": reset(
        {
            "client": MessageField(TEXT, "the client id, for instance `g_0`; it is no member id"),
            "group": MessageField(TEXT, "the group"),
            "topic": MessageField(TEXT, "the topic to which all members subscribe"),
            "assignor": MessageField(
                TEXT, "the name of the group's assignor; with `cooperative-sticky`, keep what stays"
            ),
            "session_s": MessageField(SECONDS, "the session timeout in seconds"),
        }
    ),
    "metadata": Message(
        Sender.JUDGE,
        "The cluster's metadata, at the start and after each refresh.",
        {"now": NOW, "partitions": MessageField(COUNT, "the topic's number of partitions")},
    ),
    "response": Message(
        Sender.JUDGE,
        "The coordinator's response to one request.",
        {
            "now": NOW,
            "id": MessageField(WHOLE, "the number that the program has given to the request"),
            "error": MessageField(
                {"enum": [one.name for one in Error]}, "`NONE`, or why the request has failed"
            ),
            "member": MessageField(
                TEXT,
                "of `join_group`: the member id, also with the error `MEMBER_ID_REQUIRED`",
                optional=True,
            ),
            "generation": MessageField(WHOLE, "of `join_group`: the generation", optional=True),
            "leader": MessageField(TEXT, "of `join_group`: the leader's member id", optional=True),
            "members": MessageField(
                table_of(COUNTS),
                "of `join_group`, to the leader: each member with the partitions that it owns",
                optional=True,
            ),
            "assignment": MessageField(
                COUNTS, "of `sync_group`: the member's partitions", optional=True
            ),
            "offsets": MessageField(
                _OFFSETS,
                "of `offset_fetch`: the stored offset of each partition that has one",
                optional=True,
            ),
        },
    ),
    "disconnected": Message(
        Sender.JUDGE,
        "The connection to the coordinator is lost. The requests without a response get none; the "
        "coordinator may have executed them. The next request finds the coordinator again.",
        {"now": NOW},
    ),
    "delivered": Message(
        Sender.JUDGE,
        "The user has finished the messages of a partition below an offset.",
        {
            "now": NOW,
            "partition": MessageField(COUNT, "the partition"),
            "offset": MessageField(COUNT, "the offset of the next message, which may be committed"),
        },
    ),
    "tick": TICK,
    "close": Message(
        Sender.JUDGE,
        "The user closes the member. It commits, leaves, and answers `done` with `closed`.",
        {"now": NOW},
    ),
    "request": Message(
        Sender.PROGRAM,
        "A request to the coordinator. Requests are executed in their order.",
        {
            "id": MessageField(WHOLE, "any number; the response has the same"),
            "api": MessageField({"enum": list(_APIS)}, "the kind of request"),
            "member": MessageField(TEXT, "the member id; empty before the first join"),
            "generation": MessageField(
                WHOLE,
                "the generation of the last join; default -1: none. For `join_group` it says how "
                "old `owned` is",
                optional=True,
            ),
            "owned": MessageField(
                COUNTS, "for `join_group`: the partitions that the member delivers", optional=True
            ),
            "assignments": MessageField(
                table_of(COUNTS),
                "for `sync_group` of the leader: each member's partitions",
                optional=True,
            ),
            "offsets": MessageField(
                _OFFSETS, "for `offset_commit`: the offset of each partition", optional=True
            ),
            "partitions": MessageField(COUNTS, "for `offset_fetch`: the partitions", optional=True),
        },
    ),
    "deliver": Message(
        Sender.PROGRAM,
        "From now on the user gets the messages of these partitions, and of no others.",
        {"positions": MessageField(_OFFSETS, "each partition with the offset of its next message")},
    ),
    "done": DONE,
}


def _check(message: JsonObject, line: bytes) -> None:
    for name in _NEEDS.get(message.get("api", ""), ()):
        if name not in message:
            raise wrong(line, f"is a request {message['api']} without {name!r}")
    for name in ("positions", "offsets"):
        if not all(_is_number(one) for one in message.get(name, ())):
            raise wrong(line, f"has a name in {name!r} that is no partition")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


VOCABULARY: Final = Vocabulary(_TYPES, _check)

# ---- requests ------------------------------------------------------------------------------------


def positions_of(table: Mapping[str, Json]) -> dict[TopicPartition, int]:
    """Return a table of offsets by partition."""
    return {TopicPartition(TOPIC, int(one)): offset for one, offset in table.items()}


def _partitions(numbers: list[int]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(TOPIC, one) for one in numbers)


def request_of(
    message: JsonObject, assignor: str, *, session_s: float, rebalance_s: float
) -> msg.Request:
    """Return the request that a `request` message stands for."""
    member, generation = message["member"], message.get("generation", msg.NO_GENERATION)
    match message["api"]:
        case "join_group":
            subscription = Subscription((TOPIC,), _partitions(message.get("owned", [])), generation)
            user_data = wire.encode_cooperative_user_data(generation)
            data = wire.encode_subscription(subscription, user_data)
            protocols = (msg.Protocol(assignor, data),)
            return msg.JoinGroup(GROUP, member, protocols, None, session_s, rebalance_s)
        case "sync_group":
            assignments = {
                name: wire.encode_assignment(_partitions(own))
                for name, own in message.get("assignments", {}).items()
            }
            return msg.SyncGroup(GROUP, member, generation, assignments, protocol=assignor)
        case "heartbeat":
            return msg.Heartbeat(GROUP, member, generation)
        case "leave_group":
            return msg.LeaveGroup(GROUP, (msg.Leaver(member),))
        case "offset_commit":
            offsets = {
                tp: OffsetAndMetadata(at) for tp, at in positions_of(message["offsets"]).items()
            }
            return msg.OffsetCommit(GROUP, offsets, member, generation)
    return msg.OffsetFetch(GROUP, _partitions(message["partitions"]))


# ---- responses -----------------------------------------------------------------------------------


def _numbers(partitions: tuple[TopicPartition, ...]) -> list[int]:
    return [tp.partition for tp in partitions]


def response_of(response: msg.Response) -> JsonObject:
    """Return the fields of a `response` message besides `now` and `id`."""
    found: JsonObject = {"error": response.error.name}
    match response:
        case msg.Joined(error=Error.MEMBER_ID_REQUIRED, member=member):
            found["member"] = member
        case msg.Joined(error=Error.NONE):
            found |= {"member": response.member, "generation": response.generation}
            found["leader"] = response.leader
            if response.members:
                found["members"] = {
                    one.member: _numbers(wire.decode_subscription(one.metadata)[0].owned)
                    for one in response.members
                }
        case msg.Synced(error=Error.NONE, assignment=assignment):
            found["assignment"] = _numbers(wire.decode_assignment(assignment)[0])
        case msg.OffsetsFetched(error=Error.NONE, offsets=offsets):
            found["offsets"] = {str(tp.partition): one.offset for tp, one in offsets.items()}
    return found
