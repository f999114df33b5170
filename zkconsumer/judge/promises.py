"""What a program promises besides the promises of every member (`sim.promises`).

P1 to P3 concern the conversation with the judge. P4 is for members of a group in ZooKeeper. C
promises are those of single challenges.
"""

from __future__ import annotations

from typing import Final

from zkconsumer.errors import MalformedZnodeError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import decode_offset
from zkconsumer.sim.kernel.promises import Promise, Reason, promise


@promise("P1")
def program_lives(name: str, why: str) -> Reason:
    """The program answers every message, within the limits of time and memory."""
    return f"{name} {why}"


@promise("P2")
def speaks_the_protocol(name: str, why: str) -> Reason:
    """The program sends only the messages of docs/judge.md, and not too many of them."""
    return f"{name}: {why}"


@promise("P3")
def is_deterministic(name: str, why: str) -> Reason:
    """After a `reset`, equal messages have equal answers."""
    return f"{name} is not deterministic: {why}"


@promise("P4")
def writes_readable_offsets(tp: TopicPartition, data: bytes | None) -> Reason:
    """A member writes an offset as a decimal number, which the other members can read."""
    try:
        decode_offset(data, where="")
    except MalformedZnodeError as error:
        return f"the offset znode of {tp}: {error.what}"
    return None


CONVERSATION: Final[tuple[Promise[...], ...]] = (
    program_lives,
    speaks_the_protocol,
    is_deterministic,
)
