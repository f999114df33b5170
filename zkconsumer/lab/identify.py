"""Tells which program a member runs, from what the member has written to ZooKeeper.

zkconsumer writes its registration, its consumer id and its owner znodes byte for byte as Kafka's
consumer (JVM) does. So the program of a member is often unknown. Three facts are evidence:

- Neither program writes such a consumer id or such a registration: another client wrote it.
- Only the JVM writes such a registration. For example, Kafka 1.0.1 and later escape a regular
  expression twice, and all members misread it. zkconsumer refuses to write what members misread.
- One transaction created two owner znodes, so their czxids are equal: zkconsumer claims free
  partitions in one transaction. The JVM creates each owner znode in a request of its own.

The converse of the third fact proves nothing: zkconsumer claims partitions separately if they
become free one after the other. The age of an owner znode proves nothing either: after an
exception, a JVM member keeps an owner znode from an earlier rebalance. The time and the UUID in a
consumer id, and the time in a registration, have the same form in both programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from zkconsumer.admin.findings import ExaminedGroup
from zkconsumer.admin.groups import read_all_topic_payloads, read_groups
from zkconsumer.errors import ConfigError, escaped_and_cut
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import owner_of
from zkconsumer.protocol.group_znodes import MEMBERS, OWNERS
from zkconsumer.protocol.model import ConsumerId, TopicPartition
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    encode_registration,
    validate_registration,
)
from zkconsumer.protocol.release_detection import detect
from zkconsumer.protocol.releases import DEFAULT, RELEASES, Layout, Profile, profile
from zkconsumer.zk.client import ZooKeeperClient


class MemberProgram(Enum):
    """The program of a member. The values appear in the lab's JSON."""

    ZKCONSUMER = "zk"
    JVM = "jvm"
    OTHER = "another client"
    UNKNOWN = "unknown"


class Identity(NamedTuple):
    """The program of a member.

    Attributes:
        session: the session that registered the member.
        releases: Kafka's releases that write such a registration, such as "0.8.1-1.1.1"; "" if
            there is none or if they are unknown.
        why: the evidence in a few sentences.
    """

    program: MemberProgram
    session: int
    releases: str
    why: str


SHOWN = 200
"""Maximum number of characters of a partition's name in the evidence."""

NOT_READ = "The lab has not read the registration of this member yet."


def read_identities(connection: ZooKeeperClient, group: str) -> dict[ConsumerId, Identity]:
    """Read a group, and return the identity of each registered member."""
    images = read_groups(connection, [group], directories=(MEMBERS, OWNERS))
    if group not in images:
        return {}
    return identities(ExaminedGroup(images[group], read_all_topic_payloads(connection)))


def identities(examined: ExaminedGroup) -> dict[ConsumerId, Identity]:
    """Return the identity of each registered member of a group that was read."""
    image, rules = examined.image, _rules(examined)
    found = {}
    for name, payload in image.registrations.items():
        session = examined.session_of(paths.member(image.name, name))
        together = _created_together(name, session, image.owners)
        program, releases, words = (
            _judge(payload, together)
            if name.startswith(f"{image.name}_")
            else (MemberProgram.OTHER, "", f"its id does not begin with {image.name}_.")
        )
        if releases:
            words += f" Its registration has the format of Kafka {releases}."
        if releases and program is not MemberProgram.ZKCONSUMER:
            words += rules
        found[name] = Identity(program, session, releases, f"{_NAMES[program]}: {words}")
    return found


_NAMES = {
    MemberProgram.ZKCONSUMER: "zkconsumer",
    MemberProgram.JVM: "Kafka's consumer (JVM)",
    MemberProgram.OTHER: "Another client",
    MemberProgram.UNKNOWN: "Unknown",
}


def _judge(
    payload: bytes | None, together: Sequence[TopicPartition]
) -> tuple[MemberProgram, str, str]:
    """Return program, releases and evidence for a registration.

    `together`: partitions whose owner znodes one transaction of the member created.
    """
    forms = formats(payload)
    if forms is None:
        return (
            MemberProgram.UNKNOWN,
            "",
            "the subscription in its registration has an unusual form.",
        )
    if not forms:
        words = "neither Kafka's consumer nor zkconsumer writes such a registration."
        return MemberProgram.OTHER, "", words
    releases = _ranges(one.release for one in forms)
    may_be_ours = any(_is_read_as_written(one, form) for form, one in forms.items())
    listed = " and ".join(escaped_and_cut(str(tp), SHOWN) for tp in together[:2])
    if together and may_be_ours:
        words = (
            f"one transaction created its owner znodes of {listed}. Kafka's consumer creates each"
            " owner znode in a request of its own."
        )
        return MemberProgram.ZKCONSUMER, releases, words
    if together:
        words = (
            f"one transaction created its owner znodes of {listed}, which Kafka's consumer does"
            " not do, and zkconsumer does not write such a registration."
        )
        return MemberProgram.OTHER, releases, words
    if may_be_ours:
        words = (
            "Kafka's consumer and zkconsumer both write such a registration, and no two owner"
            " znodes of the member come from one transaction."
        )
        return MemberProgram.UNKNOWN, releases, words
    words = (
        "zkconsumer refuses to write such a registration, because members misread it or fail at it."
    )
    return MemberProgram.JVM, releases, words


def _created_together(
    name: ConsumerId, session: int, owners: Mapping[TopicPartition, OwnerZnode]
) -> list[TopicPartition]:
    """Return partitions whose owner znodes one transaction of this member created; or none."""
    of_transaction: dict[int, list[TopicPartition]] = {}
    for tp, znode in owners.items():
        if znode.session == session and owner_of(znode.thread, (name,)) == name:
            of_transaction.setdefault(znode.czxid, []).append(tp)
    most = max(of_transaction.values(), key=len, default=[])
    return most if session and len(most) > 1 else []


def _rules(examined: ExaminedGroup) -> str:
    """Return the releases whose assignment explains all owner znodes; "" if they do not differ."""
    if not examined.owners or examined.wanted.faults:
        return ""
    rules = examined.rules
    live = replace(examined.live, strategy=rules.strategy, exclude_internal=rules.exclude_internal)
    reason = detect(live, examined.owners).reason
    return "" if reason.startswith("default") else f" In this group, {reason}."


# ---- registrations -------------------------------------------------------------------------------

_COMPACT = re.compile(
    r'\{"version":1,"subscription":\{(?P<entries>.*)\},'
    r'"pattern":"(?P<pattern>\w+)","timestamp":"(?P<time>\d{1,19})"\}',
    re.DOTALL,
)
_SORTED = re.compile(
    r'\{ "pattern":"(?P<pattern>\w+)", "subscription":\{ (?P<entries>.*) \},'
    r' "timestamp":"(?P<time>\d{1,19})", "version":1 \}',
    re.DOTALL,
)
_TOPIC = re.compile(r'"([^"\\]*)": ?(\d{1,10})(?:,|$)')
_REGEX = re.compile(r'"((?:[^"\\]|\\.)*)" ?: ?(\d{1,10})', re.DOTALL)
_PATTERNS = frozenset(one.value for one in Pattern)


def formats(payload: bytes | None) -> dict[Profile, Registration] | None:
    """Return each release whose members write exactly these bytes, and for which registration.

    Returns None if the fields have Kafka's format, but the subscription is neither one regular
    expression nor a list of topics without quotes and backslashes.
    """
    try:
        text = (payload or b"").decode()
    except UnicodeDecodeError:
        return {}
    found = _COMPACT.fullmatch(text) or _SORTED.fullmatch(text)
    if found is None or found["pattern"] not in _PATTERNS:
        return {}
    pattern = Pattern(found["pattern"])
    entries = _entries(found["entries"], pattern)
    if entries is None:
        return None
    written = {}
    for release in map(profile, RELEASES):
        try:
            names = {_unescaped(raw, release, pattern): count for raw, count in entries}
            one = Registration(names, pattern, int(found["time"]))
            if encode_registration(one, profile=release) == payload:
                written[release] = one
        except ValueError:
            continue  # this release would have escaped the name in another way
    return written


def _entries(text: str, pattern: Pattern) -> list[tuple[str, int]] | None:
    """Return the names, escaped as in the text, with their numbers of streams."""
    if pattern is not Pattern.STATIC:
        one = _REGEX.fullmatch(text)
        return [(one[1], int(one[2]))] if one else None
    found = list(_TOPIC.finditer(text))
    is_whole = sum(len(one[0]) for one in found) == len(text)
    return [(one[1], int(one[2])) for one in found] if is_whole else None


def _unescaped(raw: str, release: Profile, pattern: Pattern) -> str:
    """Return the name that a release writes as `raw`. Raises ValueError if there is none."""
    is_regex = pattern is not Pattern.STATIC
    times = {Layout.ESCAPED: is_regex, Layout.ESCAPED_TWICE: 1 + is_regex}.get(release.layout, 0)
    for _ in range(times):
        raw = json.loads(f'"{raw}"', strict=False)
    return raw


def _is_read_as_written(one: Registration, release: Profile) -> bool:
    try:
        validate_registration(one, profile=release)
    except ConfigError:
        return False
    return True


def _ranges(releases: Iterable[str]) -> str:
    """Return releases as ranges, such as "0.8.1-1.1.1" or "0.8.0 or 1.0.1-1.1.1"."""
    places = enumerate(sorted(RELEASES.index(one) for one in releases if one != DEFAULT.release))
    runs = [
        [RELEASES[place] for _, place in run]
        for _, run in groupby(places, key=lambda pair: pair[1] - pair[0])
    ]
    return " or ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
