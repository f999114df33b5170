"""Famous runs: faults of consumer groups that users of several clients have reported publicly.

Each one opens a tour, a story or a run of the lab that shows the same kind of fault. The text is
the lab's own; the report describes what its author saw.
"""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import urlencode

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Json


@dataclass(frozen=True)
class FamousRun:
    """A famous run.

    Attributes:
        text: what happens, and why.
        report: the name of the public report; `url` is its address.
        address: what the page opens: the part of its address after `#`.
    """

    title: str
    text: str
    report: str
    url: str
    address: str


def _run(world: dict[str, Json], moves: str) -> str:
    return urlencode({"world": json.dumps(world), "moves": moves, "at": 0})


_JVM: Final[dict[str, Json]] = {"members": 2, "jvm": [0, 1], "spare": 0, "partitions": 2}

FAMOUS: Final = (
    FamousRun(
        "Two owners",
        "A JVM member freezes, and its session ends. Another member takes its partition over. "
        "When the first member runs again, it delivers the partition, too, until it learns that "
        "its session has ended.",
        "pykafka, issue 204",
        "https://github.com/Parsely/pykafka/issues/204",
        _run({**_JVM, "asks": "deliverers(partition) <= 1"}, "freeze:0,90,thaw:0,40"),
    ),
    FamousRun(
        "The lost partition",
        "A member gives up after its last attempt to claim. Its partition stays without an "
        "owner until the group changes, although all members are running.",
        "pykafka, issue 565",
        "https://github.com/Parsely/pykafka/issues/565",
        "scenario=a-jvm-peer-has-given-up",
    ),
    FamousRun(
        "The zombie moves the offset back",
        "A JVM member freezes and loses its session. After it runs again, it commits the position "
        "from before the freeze without a condition, and overwrites the new owner's offset.",
        "reactive-kafka, issue 118",
        "https://github.com/akka/alpakka-kafka/issues/118",
        _run({**_JVM, "asks": "lowered(partition) = 0"}, "freeze:0,150,thaw:0,commit:0,10"),
    ),
    FamousRun(
        "8 seconds of retries are too few",
        "Four attempts with two seconds between them end before an owner that does not answer has "
        "released its partitions, or before a dead owner's session has expired.",
        "Pinot, pull request 97",
        "https://github.com/apache/pinot/pull/97",
        "tour=gives-up",
    ),
    FamousRun(
        "Split brain",
        "Each member computes the assignment from what it reads. Members that read different "
        "states of the group claim the same partition, and leave another one without an owner.",
        "brod, issue 19",
        "https://github.com/DataDog/brod/issues/19",
        "tour=split-brain",
    ),
)
