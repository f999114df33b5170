"""What a program promises besides the promises of every member (`sim.promises`).

P1 to P3 concern the conversation with the judge. P4 and P5 are for members of a group in ZooKeeper.
C promises are those of single challenges.
"""

from __future__ import annotations

from typing import Final

from zkconsumer.errors import MalformedZnodeError
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.payloads import decode_offset
from zkconsumer.protocol.registrations import Pattern, decode_registration
from zkconsumer.protocol.releases import profile
from zkconsumer.protocol.requests import Node
from zkconsumer.sim.kernel.promises import Promise, Reason, promise

READERS: Final = tuple(map(profile, ("0.11", "1.0.0", "1.1.1")))
"""One release for each JSON parser with which JVM members read registrations."""


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


@promise("P5")
def registers_for_every_release(settings: Settings, path: str, node: Node) -> Reason:
    """A member registers only itself, in a form that JVM members of every release read correctly.

    Each write must keep this promise, because JVM members read a registration as soon as it exists,
    and set no watch on it. If it is incomplete, their rebalance fails. A later change goes
    unnoticed.
    """
    at = paths.locate(path)
    if at.kind is not ZnodeKind.MEMBER:
        if node.stat.owner and _is_parent(settings.group, path):
            return f"{path} is ephemeral, so no member can create a znode below it"
        return None
    if at.name != settings.consumer:
        return f"{settings.consumer} writes {path}, which the others count as another member"
    if not node.stat.owner:
        return f"{path} is not ephemeral, so the others count the member after it has ended"
    for reader in READERS:
        try:
            found = decode_registration(node.data, where=path, profile=reader)
        except MalformedZnodeError as error:
            return f"JVM members of release {reader.release} cannot read {path}: {error.what}"
        if found.subscription != settings.subscription or found.pattern is not Pattern.STATIC:
            meaning = f"{found.pattern.value} {dict(found.subscription)}"
            wanted = f"{Pattern.STATIC.value} {dict(settings.subscription)}"
            return f"{path} means {meaning} to the others, not {wanted}"
    return None


def _is_parent(group: str, path: str) -> bool:
    """Return whether members create znodes below this one."""
    parents = (paths.group(group), paths.ids(group), paths.owners(group), paths.offsets(group))
    return path in parents or paths.locate(path).kind in (
        ZnodeKind.OWNERS_OF,
        ZnodeKind.OFFSETS_OF,
    )


CONVERSATION: Final[tuple[Promise[...], ...]] = (
    program_lives,
    speaks_the_protocol,
    is_deterministic,
)
