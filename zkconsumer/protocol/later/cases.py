"""The input of an assignor (topics and members) as one JSON object, and the resulting assignment.

    {"case": 1, "assignor": "sticky",
     "topics": {"t0": {"partitions": 3, "racks": null}},
     "members": {"m1": {"topics": ["t0"], "instance": null, "rack": null,
                        "owned": {"t0": [0, 2]}, "generation": 5}}}

`racks` is null or one list of racks for each partition. All fields of a member but `topics` may be
null or left out. For `uniform` and `server-range`, `owned` is the previous target assignment, and
`generation` is ignored. A topic for these two assignors can have an `id`, the 22 characters that
Kafka prints. If it has no `id`, the first topic gets the id AAAAAAAAAAEAAAAAAAAAAA, and each
further topic gets the next id.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping

from zkconsumer.errors import ConfigError, quoted
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.java.text import MAX_INT32, MIN_INT32
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.subscriptions import (
    NO_GENERATION,
    Subscription,
    Topic,
)
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition

MAX_PARTITIONS = 200_000
"""Maximum number of partitions of one case; a larger case is an error.

A cluster of Kafka 3.9 has at most 200,000 partitions with ZooKeeper, and a balanced assignment of
more partitions takes minutes.
"""

_REMEDY = "see `zkconsumer assign --help` for the format of a case"


@dataclass(frozen=True, slots=True)
class Case:
    """The input of an assignor, and the name (`case`) that the result repeats."""

    name: object
    assignor: Assignor
    topics: Mapping[str, Topic]
    members: Mapping[str, Subscription]

    def result(self) -> JsonObject:
        """Return the result as a JSON object: the assignment, or the Java exception's class."""
        try:
            found = assign(self.assignor, self.topics, self.members)
        except JavaError as error:
            return {"case": self.name, "error": error.kind}
        assignment: dict[str, dict[str, list[int]]] = {}
        for member in self.members:
            of_member = assignment[member] = {}
            for topic, partition in sorted(found.get(member, ())):
                of_member.setdefault(topic, []).append(partition)
        return {"case": self.name, "assignment": assignment}


def read_case(document: Mapping[str, Json], where: str, default: Assignor | None = None) -> Case:
    """Return the case that a JSON object describes.

    Args:
        document: the JSON object.
        where: the file and the line, for errors.
        default: the assignor of a case that names no assignor.

    Raises:
        ConfigError: the object does not have the format of a case, has no members, or has more than
            `MAX_PARTITIONS` partitions.
    """
    reader = _Reader(where)
    topics = {
        name: reader.topic(name, topic, place)
        for place, (name, topic) in enumerate(reader.documents(document, "topics").items())
    }
    total = sum(topic.partitions for topic in topics.values())
    if total > MAX_PARTITIONS:
        raise reader.error(
            f"the case has {total} partitions, and at most {MAX_PARTITIONS} are allowed"
        )
    members = {
        name: reader.member(name, member)
        for name, member in reader.documents(document, "members").items()
    }
    if not members:
        raise reader.error("the case has no members")
    return Case(document.get("case"), reader.assignor(document, default), topics, members)


def _as_written(text: str) -> str:
    """Return a text as another member reads it: Java writes `?` for half a surrogate pair."""
    return text.encode(errors="replace").decode()


class _Reader:
    """Checks the parts of a case; every error names the file and the line."""

    def __init__(self, where: str) -> None:
        self._where = where

    def error(self, what: str) -> ConfigError:
        return ConfigError(what, where=self._where, remedy=_REMEDY)

    def assignor(self, document: Mapping[str, Json], default: Assignor | None) -> Assignor:
        name = document.get("assignor", default.value if default else None)
        try:
            return Assignor(name)
        except ValueError as error:
            known = ", ".join(one.value for one in Assignor)
            raise self.error(f"assignor {quoted(str(name))} is none of {known}") from error

    def documents(self, document: Mapping[str, Json], field: str) -> JsonObject:
        found = document.get(field)
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise self.error(f"{field} is not an object of objects")
        return found

    def topic(self, name: str, document: Mapping[str, Json], place: int) -> Topic:
        count = document.get("partitions")
        if not isinstance(count, int) or not _is_int32(count) or count < 0:
            raise self.error(
                f"the partitions of topic {quoted(name)} are not a number of 0 or more"
            )
        racks = document.get("racks")
        if racks is None:
            return Topic(count, id=self._id(name, document.get("id"), place))
        if not isinstance(racks, list) or len(racks) != count:
            raise self.error(
                f"the racks of topic {quoted(name)} are not one list for each partition"
            )
        if not all(
            isinstance(one, list) and all(rack is None or isinstance(rack, str) for rack in one)
            for one in racks
        ):
            raise self.error(f"the racks of topic {quoted(name)} are not lists of names")
        sets = tuple(frozenset(rack for rack in one if rack is not None) for one in racks)
        return Topic(count, sets, self._id(name, document.get("id"), place))

    def _id(self, name: str, text: object, place: int) -> tuple[int, int]:
        if text is None:
            return 1, place
        try:
            raw = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
            high, low = struct.unpack(">qq", raw)
        except (binascii.Error, struct.error, ValueError) as error:
            raise self.error(f"the id of topic {quoted(name)} is not a topic id") from error
        return high, low

    def member(self, name: str, document: Mapping[str, Json]) -> Subscription:
        topics = document.get("topics")
        if not isinstance(topics, list) or not all(isinstance(one, str) for one in topics):
            raise self.error(f"the topics of member {quoted(name)} are not a list of names")
        generation = document.get("generation")
        generation = NO_GENERATION if generation is None else generation
        if not _is_int32(generation):
            raise self.error(f"the generation of member {quoted(name)} is not a number of 32 bits")
        rack, instance = document.get("rack"), document.get("instance")
        if not all(one is None or isinstance(one, str) for one in (rack, instance)):
            raise self.error(f"the rack or the instance of member {quoted(name)} is not a name")
        return Subscription(
            tuple(sorted(map(_as_written, topics))),
            tuple(self._owned(name, document.get("owned") or {})),
            generation,
            _as_written(rack) if rack else None,
            instance,
        )

    def _owned(self, name: str, document: object) -> list[TopicPartition]:
        if not isinstance(document, dict) or not all(
            isinstance(numbers, list) and all(map(_is_int32, numbers))
            for numbers in document.values()
        ):
            raise self.error(
                f"owned of member {quoted(name)} is not an object of lists of partitions"
            )
        return [
            TopicPartition(_as_written(topic), number)
            for topic, numbers in document.items()
            for number in numbers
        ]


def _is_int32(value: object) -> bool:
    return type(value) is int and MIN_INT32 <= value <= MAX_INT32
