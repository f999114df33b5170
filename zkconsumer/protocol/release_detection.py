"""Which release's rules explain who owns what, and who goes by other rules than the rest.

Nothing in ZooKeeper says which release a member is of. But where releases deal differently, the
owner nodes of a settled group show it: a member owns what its own rules give it, neither more nor
less. Range without wildcards is the same in all releases, and then there is nothing to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from zkconsumer.errors import MalformedZnodeError, shown
from zkconsumer.protocol.assignors import KeyForm, Strategy
from zkconsumer.protocol.group_assignment import (
    Failure,
    GroupInput,
    MemberAssignment,
    assign_each_member,
)
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.registrations import Pattern, Registration, read_registration
from zkconsumer.protocol.releases import DEFAULT, Parser, Profile

# What owner nodes can tell apart; in the rest they are like DEFAULT, whose registrations every
# release reads, and which reads those of every release.
_FORMS: Final = (
    DEFAULT,
    replace(DEFAULT, release="0.8.2-0.10", internal_topics=frozenset({"__consumer_offsets"})),
    replace(DEFAULT, release="1.0-1.1", key_form=KeyForm.DASH),
)


@dataclass(frozen=True, slots=True)
class DetectedRelease:
    """What the owner nodes say.

    Attributes:
        profile: to use with `peers.release=auto`.
        reason: why this one, in a sentence.
        quarrels: member -> why it cannot agree with others (or with us), in a sentence.
    """

    profile: Profile
    reason: str
    quarrels: Mapping[ConsumerId, str]


@dataclass(frozen=True, slots=True)
class Rules:
    """One way to deal, and what it gives to each member (`parts`)."""

    profile: Profile
    strategy: Strategy
    exclude_internal: bool
    parts: Mapping[ConsumerId, MemberAssignment | Failure]

    def __str__(self) -> str:
        rules = f"{self.strategy.value} of {self.profile.release}"
        if self.exclude_internal:
            return rules
        return f"{rules} with internal topics (exclude.internal.topics=false, or 0.8.0-0.8.1)"


def detect(
    group: GroupInput, owners: Mapping[TopicPartition, ThreadId], *, own: Profile = DEFAULT
) -> DetectedRelease:
    """Find the rules that explain the owner nodes, and the members that go by others.

    `group` says our own settings and holds everybody's registration, ours as well if we have one;
    `own` is how we deal now, if we do. Where the nodes do not tell, the profile is DEFAULT. A group
    that is not at rest may look like one that cannot agree: ask again before you say so.
    """
    payloads = group.registrations
    registered = {one: _read(payload, DEFAULT.parser) for one, payload in payloads.items()}
    quarrels = {one: why for one, payload in payloads.items() if (why := _misread(payload))}
    held: dict[ConsumerId, MemberAssignment] = {consumer: {} for consumer in registered}
    for tp, thread in owners.items():
        held.setdefault(consumer_of(thread), {})[tp] = thread
    if not owners:
        unknown = "nobody owns a partition"
    elif None in registered.values():
        unreadable = (shown(one) for one, found in registered.items() if found is None)
        unknown = f"the registration of {', '.join(unreadable)} cannot be read"
    elif len(held) > len(registered):
        unknown = "some owners are not registered"
    else:
        return _explained(group, held, _forms(own), registered.values(), quarrels)
    return DetectedRelease(DEFAULT, f"default: {unknown}", quarrels)


def nearest(group: GroupInput, owners: Mapping[TopicPartition, ThreadId]) -> Rules:
    """The rules that explain the owner nodes: all of them, or else those of most members.

    Of several that do as well the first counts, and that is what `group` says, of DEFAULT.
    """
    held: dict[ConsumerId, MemberAssignment] = {consumer: {} for consumer in group.registrations}
    for tp, thread in owners.items():
        held.setdefault(consumer_of(thread), {})[tp] = thread
    registered = (_read(payload, DEFAULT.parser) for payload in group.registrations.values())
    has_patterns = any(one and one.pattern is not Pattern.STATIC for one in registered)
    best, most = None, -1
    for rules in _all_rules(group, _FORMS, has_patterns):
        explained = sum(rules.parts.get(one) == part for one, part in held.items())
        if explained > most:
            best, most = rules, explained
        if explained == len(held):
            break
    assert best is not None, "there are always some"
    return best


def _forms(own: Profile) -> Sequence[Profile]:
    """How members may deal, we first."""
    mine = own.key_form, own.internal_topics
    return own, *(one for one in _FORMS if (one.key_form, one.internal_topics) != mine)


def _explained(
    group: GroupInput,
    held: Mapping[ConsumerId, MemberAssignment],
    forms: Sequence[Profile],
    registered: Iterable[Registration | None],
    quarrels: dict[ConsumerId, str],
) -> DetectedRelease:
    has_patterns = any(one and one.pattern is not Pattern.STATIC for one in registered)
    rules = _all_rules(group, forms, has_patterns)
    ours = list(islice(rules, len(forms)))
    fitting = [one for one in ours if one.parts == held]
    if len(fitting) == len(ours):
        return DetectedRelease(DEFAULT, "default: all releases would own the same", quarrels)
    if fitting:
        releases = " and ".join(one.profile.release for one in fitting)
        return DetectedRelease(
            fitting[0].profile, f"the owner nodes are those of {releases}", quarrels
        )
    quarrels |= _quarrels(ours[0], [*ours, *rules], held)
    return DetectedRelease(DEFAULT, "default: no release explains all owner nodes", quarrels)


def _all_rules(group: GroupInput, forms: Sequence[Profile], has_patterns: bool) -> Iterator[Rules]:
    """All there are, those of our own settings first; without patterns nothing internal counts."""
    mine = group.exclude_internal
    for strategy in (group.strategy, *(one for one in Strategy if one is not group.strategy)):
        for exclude in (mine, not mine) if has_patterns else (True,):
            changed = replace(group, strategy=strategy, exclude_internal=exclude)
            for profile in forms:
                yield Rules(profile, strategy, exclude, assign_each_member(changed, profile))


def _quarrels(
    own: Rules, rules: list[Rules], held: Mapping[ConsumerId, MemberAssignment]
) -> Iterator[tuple[ConsumerId, str]]:
    """Members whose nodes other rules explain than the rest's.

    The rest is what most members go by, of several rules the nearest to ours. A member may hold a
    part of its share alone (`rebalance.mode=incremental`), which tells only where another holds all
    of its own. One that owns nothing is suspect if it lets free partitions lie that the rest's
    rules give it, and other rules give it what others hold: it tried, and gave up.
    """
    owning = [consumer for consumer, part in held.items() if part]
    common = max(rules, key=lambda r: sum(r.parts[one] == held[one] for one in owning))
    known = any(common.parts[one] == held[one] for one in owning)
    taken = {tp for part in held.values() for tp in part}
    if common is not own and common.parts != own.parts:
        for consumer in owning:
            if common.parts[consumer] == held[consumer] != own.parts[consumer]:
                yield consumer, f"it owns what {common} gives it, where ours is {own}"
    for consumer, part in held.items():
        due = common.parts[consumer]
        if part == due or isinstance(due, Failure):
            continue
        for other in rules:
            wanted = other.parts[consumer]
            if isinstance(wanted, Failure) or wanted == due:
                continue
            partly = known and part.items() <= wanted.items() and not part.items() <= due.items()
            if part and (part == wanted or partly):
                yield consumer, f"it owns what {other} gives it, where others go by {common}"
                break
            if not part and taken.isdisjoint(due) and not taken.isdisjoint(wanted):
                yield (
                    consumer,
                    (
                        f"it claims nothing of what {common} gives it, by which others go; if "
                        "it goes"
                        f" by {other}, others own what it wants"
                    ),
                )
                break


def _misread(payload: bytes | None) -> str:
    """Why a registration means nothing, or not the same to everybody; "" if it does."""
    scala, jackson = _read(payload, Parser.SCALA), _read(payload, Parser.JACKSON_TWICE)
    if scala is None or jackson is None:
        return ""  # then it fails some members, who throw and own nothing
    if (scala.pattern, scala.subscription) != (jackson.pattern, jackson.subscription):
        return "its registration means one thing to 0.8-0.11 and another to 1.0-1.1"
    if scala.pattern is not Pattern.STATIC and any(r"\\" in regex for regex in scala.subscription):
        return (
            "its regex asks for a backslash, which no topic has: 1.0.1 and later write regexes"
            " escaped twice"
        )
    return ""


def _read(payload: bytes | None, parser: Parser) -> Registration | None:
    try:
        return read_registration(payload, where="", profile=replace(DEFAULT, parser=parser))
    except MalformedZnodeError:
        return None
