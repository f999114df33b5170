"""From a group's owner znodes, detect the rules that the group follows, and members that differ.

ZooKeeper does not store the releases of members. If the rules of two releases give different
assignments, the owner znodes of a settled group show the release: a member owns exactly the
partitions that its rules assign to it. Range without patterns is the same in all releases, so
zkconsumer cannot detect the release of such a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from zkconsumer.errors import MalformedZnodeError, quoted
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.assignors import PartitionFormat, Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    MemberAssignment,
    assign_each_member,
)
from zkconsumer.protocol.group_health import as_threads
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.registrations import Pattern, Registration, read_registration
from zkconsumer.protocol.releases import DEFAULT, Parser, Profile

# The profiles that owner znodes can distinguish. In all other respects they equal DEFAULT: every
# release can read the registrations that DEFAULT writes, and DEFAULT reads the registrations of
# every release.
_FORMS: Final = (
    DEFAULT,
    replace(DEFAULT, release="0.8.2-0.10", internal_topics=frozenset({"__consumer_offsets"})),
    replace(DEFAULT, release="1.0-1.1", key_form=PartitionFormat.DASH),
)


class DetectedRelease(NamedTuple):
    """The result of `detect`.

    Attributes:
        profile: the profile to use with `peers.release=auto`.
        reason: one sentence that gives the reason for this profile.
        disagreements: member -> why it disagrees with the other members or with this one, in one
            sentence.
    """

    profile: Profile
    reason: str
    disagreements: Mapping[ConsumerId, str]


@dataclass(frozen=True, slots=True)
class Rules:
    """One set of assignment rules, and the partitions that they assign to each member (`parts`)."""

    profile: Profile
    strategy: Strategy
    exclude_internal: bool
    parts: Mapping[ConsumerId, MemberAssignment | AssignmentFailure]

    def __str__(self) -> str:
        rules = f"{self.strategy.value} of {self.profile.release}"
        if self.exclude_internal:
            return rules
        return f"{rules} with internal topics (exclude.internal.topics=false, or 0.8.0-0.8.1)"


def detect(
    group: GroupInput, owners: Mapping[TopicPartition, ThreadId], *, own: Profile = DEFAULT
) -> DetectedRelease:
    """Return the rules that explain the owner znodes, and the members that follow other rules.

    During a rebalance, the members of a group may seem to disagree. So detect again before you
    report a disagreement.

    Args:
        group: this member's settings, and the registrations of all members, including its own if it
            is registered.
        owners: the thread id in each owner znode.
        own: the rules that this member follows now.

    Returns:
        The detected release. Its profile is DEFAULT if the owner znodes fit no release or all.
    """
    payloads = group.registrations
    registered = {one: _read(payload, DEFAULT.parser) for one, payload in payloads.items()}
    disagreements = {one: why for one, payload in payloads.items() if (why := ambiguity(payload))}
    held = held_by_each(registered, owners)
    if not owners:
        unknown = "no member owns a partition yet"
    elif None in registered.values():
        unreadable = (quoted(one) for one, found in registered.items() if found is None)
        unknown = f"the registration of {', '.join(unreadable)} cannot be read"
    elif len(held) > len(registered):
        unknown = "some owners are not registered"
    else:
        return _detected(group, held, _candidates(own), registered.values(), disagreements)
    return DetectedRelease(DEFAULT, f"default: {unknown}", disagreements)


def nearest(group: GroupInput, owners: Mapping[TopicPartition, ThreadId]) -> Rules:
    """Return the rules that explain the owner znodes of all members, or of most members.

    If several rules are equally good, the function returns the first of them. The rules in `group`
    with the DEFAULT release come first.
    """
    held = held_by_each(group.registrations, owners)
    registered = (_read(payload, DEFAULT.parser) for payload in group.registrations.values())
    has_patterns = any(one and one.pattern is not Pattern.STATIC for one in registered)
    best, most = None, -1
    for rules in _all_rules(group, _FORMS, has_patterns):
        explained = sum(rules.parts.get(one) == part for one, part in held.items())
        if explained > most:
            best, most = rules, explained
        if explained == len(held):
            break
    assert best is not None, "there are always rules"
    return best


def held_by_each(
    registered: Collection[ConsumerId], owners: Mapping[TopicPartition, ThreadId]
) -> dict[ConsumerId, MemberAssignment]:
    """Return consumer id -> the partitions that it owns, with an entry for each registered id."""
    held: dict[ConsumerId, MemberAssignment] = {consumer: {} for consumer in registered}
    for tp, thread in as_threads(owners, registered).items():
        held.setdefault(consumer_of(thread), {})[tp] = thread
    return held


def _candidates(own: Profile) -> Sequence[Profile]:
    """Return the profiles to try, this member's own first."""
    known = own.key_form, own.internal_topics
    return own, *(one for one in _FORMS if (one.key_form, one.internal_topics) != known)


def _detected(
    group: GroupInput,
    held: Mapping[ConsumerId, MemberAssignment],
    forms: Sequence[Profile],
    registered: Iterable[Registration | None],
    disagreements: dict[ConsumerId, str],
) -> DetectedRelease:
    has_patterns = any(one and one.pattern is not Pattern.STATIC for one in registered)
    rules = _all_rules(group, forms, has_patterns)
    ours = list(islice(rules, len(forms)))
    matching_rules = [one for one in ours if one.parts == held]
    if len(matching_rules) == len(ours):
        same = "default: members of all releases would own the same partitions"
        return DetectedRelease(DEFAULT, same, disagreements)
    if matching_rules:
        releases = " and ".join(one.profile.release for one in matching_rules)
        return DetectedRelease(
            matching_rules[0].profile, f"the owner znodes match {releases}", disagreements
        )
    disagreements |= _disagreements(ours[0], [*ours, *rules], held)
    return DetectedRelease(DEFAULT, "default: no release explains all owner znodes", disagreements)


def _all_rules(group: GroupInput, forms: Sequence[Profile], has_patterns: bool) -> Iterator[Rules]:
    """Yield all rules, beginning with the rules of this member's settings.

    Without patterns the internal topics make no difference.
    """
    mine = group.exclude_internal
    for strategy in (group.strategy, *(one for one in Strategy if one is not group.strategy)):
        for exclude in (mine, not mine) if has_patterns else (True,):
            changed = replace(group, strategy=strategy, exclude_internal=exclude)
            for profile in forms:
                yield Rules(profile, strategy, exclude, assign_each_member(changed, profile))


def _disagreements(
    own: Rules, rules: list[Rules], held: Mapping[ConsumerId, MemberAssignment]
) -> Iterator[tuple[ConsumerId, str]]:
    """Yield the members whose owner znodes fit other rules than the common rules of the group.

    The common rules are the rules that explain most members. If several rules are equally good, the
    rules nearest to this member's rules are chosen. A member with `rebalance.mode=incremental` may
    own only a part of its share. Such a part counts only if another member owns all of its share. A
    member that owns no partition is reported if both are true: partitions that the common rules
    assign to it are free, and other rules assign to it partitions that other members own. It has
    probably tried to claim these owned partitions, and failed.
    """
    owning = [consumer for consumer, part in held.items() if part]
    common = max(rules, key=lambda r: sum(r.parts[one] == held[one] for one in owning))
    known = any(common.parts[one] == held[one] for one in owning)
    taken = {tp for part in held.values() for tp in part}
    if common is not own and common.parts != own.parts:
        for consumer in owning:
            if common.parts[consumer] == held[consumer] != own.parts[consumer]:
                yield (
                    consumer,
                    f"it owns the partitions that {common} assigns to it, but this member follows"
                    f" {own}",
                )
    for consumer, part in held.items():
        due = common.parts[consumer]
        if part == due or isinstance(due, AssignmentFailure):
            continue
        for other in rules:
            wanted = other.parts[consumer]
            if isinstance(wanted, AssignmentFailure) or wanted == due:
                continue
            partly = known and part.items() <= wanted.items() and not part.items() <= due.items()
            if part and (part == wanted or partly):
                yield (
                    consumer,
                    f"it owns the partitions that {other} assigns to it, but the other members"
                    f" follow {common}",
                )
                break
            if not part and taken.isdisjoint(due) and not taken.isdisjoint(wanted):
                yield (
                    consumer,
                    # The stories in tests/traces contain this text.
                    f"it claims nothing of what {common} gives it, by which others go; if it goes"
                    f" by {other}, others own what it wants",
                )
                break


def ambiguity(payload: bytes | None) -> str:
    """Return why releases read a registration differently, or why it matches no topic; else ""."""
    if is_escaped_twice(payload):
        return (
            "its regular expression matches only topics with a backslash, and no topic has one:"
            " Kafka 1.0.1 and later write regular expressions escaped twice"
        )
    scala, jackson = _read(payload, Parser.SCALA), _read(payload, Parser.JACKSON_TWICE)
    if scala is None or jackson is None:
        return ""  # some releases throw an exception for it, and their members own nothing
    if (scala.pattern, scala.subscription) != (jackson.pattern, jackson.subscription):
        return "its registration means one thing to 0.8-0.11 and another to 1.0-1.1"
    return ""


def is_escaped_twice(payload: bytes | None) -> bool:
    """Return whether a registration has a topic filter whose backslashes were doubled, as Kafka
    1.0.1 and later write it. The same filter without a backslash, such as `[.]` instead of `\\.`,
    is written correctly."""
    scala, jackson = _read(payload, Parser.SCALA), _read(payload, Parser.JACKSON_TWICE)
    return (
        scala is not None
        and jackson is not None
        and (scala.pattern, scala.subscription) == (jackson.pattern, jackson.subscription)
        and scala.pattern is not Pattern.STATIC
        and any(r"\\" in regex for regex in scala.subscription)
    )


def _read(payload: bytes | None, parser: Parser) -> Registration | None:
    try:
        return read_registration(payload, where="", profile=replace(DEFAULT, parser=parser))
    except MalformedZnodeError:
        return None
