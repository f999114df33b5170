"""The operations that read the group: a rebalance sets watches, a diagnosis sets none."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, overload

from zkconsumer.errors import InvalidFilterError, MalformedZnodeError, UnsupportedFilterError
from zkconsumer.member.events import Denied, Diagnosed, Event, MemberNodeGone, Outcome, ViewRead
from zkconsumer.member.operations import MemberIdentity, Replies, reason
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.filters import MatchTopics
from zkconsumer.protocol.group_assignment import GroupInput, Subscriptions, filter_of
from zkconsumer.protocol.group_snapshot import GroupView, Known, Topic, needed_topics
from zkconsumer.protocol.model import ThreadId, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.payloads import decode_owner
from zkconsumer.protocol.registrations import Pattern, Registration, decode_registration
from zkconsumer.protocol.release_detection import detect
from zkconsumer.protocol.releases import Profile
from zkconsumer.protocol.requests import Code, Reply, Requests

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

Brokers = tuple[tuple[payloads.Broker, ...], dict[str, str]]
"""The brokers that can be read, and broker id -> why its registration cannot be read."""


def read_view(
    member: MemberIdentity, known: Known | None = None
) -> Generator[Requests | MatchTopics, Replies, Outcome]:
    """Read the group, and watch everything that the assignment depends on.

    Independent requests are sent in one batch, because a slow member blocks the JVM members: they
    back off until the slow member has read the group and released its partitions. With `known`, a
    member reads one listing and the new registrations only, so a join costs a group of n members 2n
    reads, not n x n. The JVM reads every registration at every rebalance.

    A registration that cannot be decoded is read a second time, with a watch, because another
    client may write its payload with a second request.

    Args:
        known: what an earlier read in the same connection found; None: read everything.
    """
    ids, own, brokers = yield from together(
        _ask(rq.Listing(paths.ids(member.group), watch=True)),
        _own_node(member, known),
        _list_brokers(known),
    )
    if known is not None and ids.code is Code.OK and not known.has_same_registrations(ids.value):
        known = None
        own, brokers = yield from together(_own_node(member, None), _list_brokers(None))
    for reply, where in ((ids, paths.ids(member.group)), (brokers, paths.BROKER_IDS)):
        if reply is not None and reply.code not in (Code.OK, Code.NO_NODE):
            return Denied(where, reason(reply))
    if ids.code is Code.NO_NODE or member.consumer not in ids.value.names or own is False:
        return MemberNodeGone()
    static = member.pattern is Pattern.STATIC
    mine = member.subscription if static else {}
    (readable, unreadable), listed, (topics, bad) = yield from together(
        _read_cluster(brokers, known),
        _read_members(member, ids.value.names, known),
        _read_topics(sorted(mine), member.profile, known),
    )
    if isinstance(listed, Denied):
        return listed
    members, malformed = listed
    view = GroupView(members, malformed, {}, {}, readable, malformed_brokers=unreadable)
    expanded = yield from _expand_and_watch(member, view)
    if isinstance(expanded, Denied):
        return expanded
    view = expanded
    mine = mine or view.matched.get(member.consumer, {})
    needed = needed_topics(view.counts().values(), mine, member.strategy)
    others = [name for name in needed if not static or name not in mine]
    if others:
        more, more_bad = yield from _read_topics(others, member.profile, known)
        topics, bad = dict(sorted({**topics, **more}.items())), bad | more_bad
    return ViewRead(replace(view, topics=topics, malformed_topics=bad), ids.value)


def _ask(request: rq.Request) -> Generator[Requests, Replies, Reply]:
    (reply,) = yield [request]
    return reply


def _own_node(member: MemberIdentity, known: Known | None) -> Generator[Requests, Replies, bool]:
    """Return whether the member's id znode belongs to this session, and watch it.

    If `known` has a listing whose watch has not fired, the id znode has not changed since.
    """
    if known is not None:
        return True
    own = yield from _ask(rq.Exists(member.path, watch=True))
    return own.value is not None and own.value.owner == member.session


def _list_brokers(known: Known | None) -> Generator[Requests, Replies, Reply | None]:
    """List the brokers with a watch; None if the watch of an earlier listing has not fired.

    As in the JVM, the death of a broker causes no rebalance. The watch only makes the next
    rebalance read the brokers again.
    """
    if known is not None and paths.BROKER_IDS in known.watched:
        return None
    return (yield from _ask(rq.Children(paths.BROKER_IDS, watch=True)))


@overload
def together(
    one: Generator[Requests, Replies, A], two: Generator[Requests, Replies, B], /
) -> Generator[Requests, Replies, tuple[A, B]]: ...
@overload
def together(
    one: Generator[Requests, Replies, A],
    two: Generator[Requests, Replies, B],
    three: Generator[Requests, Replies, C],
    /,
) -> Generator[Requests, Replies, tuple[A, B, C]]: ...
def together(
    *running: Generator[Requests, Replies, object],
) -> Generator[Requests, Replies, tuple[object, ...]]:
    """Run generators together, with their requests in common batches; return their results."""
    results: list[object] = [None] * len(running)
    batches: dict[int, Requests] = {}

    def resume(number: int, replies: Replies | None) -> None:
        try:
            one = running[number]
            batches[number] = next(one) if replies is None else one.send(replies)
        except StopIteration as end:
            results[number] = end.value

    for number in range(len(running)):
        resume(number, None)
    while batches:
        asked, batches = batches, {}
        replies = yield [request for batch in asked.values() for request in batch]
        for number, batch in asked.items():
            resume(number, replies[: len(batch)])
            replies = replies[len(batch) :]
    return tuple(results)


Registrations = tuple[dict[str, Registration], dict[str, str]]
"""The registrations that can be decoded, and consumer id -> why its registration cannot be."""


def _read_members(
    member: MemberIdentity, consumers: Sequence[str], known: Known | None
) -> Generator[Requests, Replies, Denied | Registrations]:
    """Return the registrations; those that were readable before are not read again."""
    before = known.view.members if known else {}
    members = {one: before[one] for one in consumers if one in before}
    new = [rq.Get(paths.member(member.group, one)) for one in consumers if one not in members]
    found = yield from _read_registrations(member, new)
    if isinstance(found, Denied):
        return found
    return members | found[0], found[1]


def _read_registrations(
    member: MemberIdentity, requests: Sequence[rq.Get]
) -> Generator[Requests, Replies, Denied | Registrations]:
    members: dict[str, Registration] = {}
    malformed: dict[str, str] = {}
    replies = (yield requests) if requests else ()
    for request, reply in zip(requests, replies, strict=True):
        consumer = request.path.rpartition("/")[2]
        if reply.code is Code.NO_NODE:
            continue  # the member left after the listing; a watch reports the departure
        if reply.code is not Code.OK:
            return Denied(request.path, reason(reply))
        try:
            members[consumer] = decode_registration(
                reply.value.data, where=consumer, profile=member.profile
            )
        except MalformedZnodeError as error:
            malformed[consumer] = error.what
    return members, malformed


def _expand_and_watch(
    member: MemberIdentity, view: GroupView
) -> Generator[Requests | MatchTopics, Replies, Denied | GroupView]:
    """Return the view with the topics of each pattern, and watch the malformed registrations.

    A malformed registration is read again with a watch. So the member does not overlook a payload
    that another client has written since the first read.
    """
    topics: Sequence[str] | None = None
    watched: set[str] = set()
    while True:
        if any(one.pattern is not Pattern.STATIC for one in view.members.values()):
            topics = (yield from _list_topics()) if topics is None else topics
            view = yield from _expand(view, topics, member.internal)
        again = sorted(view.malformed.keys() - watched)
        if not again:
            return view
        watched.update(again)
        requests = [rq.Get(paths.member(member.group, one), watch=True) for one in again]
        found = yield from _read_registrations(member, requests)
        if isinstance(found, Denied):
            return found
        kept = {one: why for one, why in view.malformed.items() if one not in again}
        view = replace(view, members={**view.members, **found[0]}, malformed=kept | found[1])
        if not found[0]:
            return view


def _expand(
    view: GroupView, topics: Sequence[str], internal: frozenset[str]
) -> Generator[MatchTopics, Replies, GroupView]:
    """Return the view with the topics that each member's pattern matches.

    If Java refuses a regex, every JVM member fails, as with any other malformed registration.
    """
    patterns = [one for one in view.members.values() if one.pattern is not Pattern.STATIC]
    filters = tuple(dict.fromkeys(filter_of(one)[0] for one in patterns))
    (answer,) = yield MatchTopics(filters, tuple(topics), internal)
    members, malformed = dict(view.members), dict(view.malformed)
    matched: dict[str, Mapping[str, int]] = {}
    unevaluated: dict[str, str] = {}
    subscriptions = Subscriptions(topics, internal=internal, matched=answer.value)
    for name, one in view.members.items():
        if one.pattern is Pattern.STATIC:
            continue
        try:
            matched[name] = subscriptions.of(one)
        except UnsupportedFilterError as error:
            unevaluated[name] = error.what
        except InvalidFilterError as error:
            malformed[name] = error.what
            del members[name]
    return replace(
        view, members=members, malformed=malformed, matched=matched, unevaluated=unevaluated
    )


def _list_topics() -> Generator[Requests, Replies, list[str]]:
    """Return all topics, sorted. A watch reports topics that are created later."""
    for _ in range(2):  # try twice: the list may be created before the watch is armed
        (listing,) = yield [rq.Children(paths.TOPICS, watch=True)]
        if listing.code is Code.OK:
            return sorted(listing.value)
        (there,) = yield [rq.Exists(paths.TOPICS, watch=True)]
        if there.value is None:
            break
    return []


def _read_cluster(ids: Reply | None, known: Known | None) -> Generator[Requests, Replies, Brokers]:
    """Return the brokers; if no listed broker exists, list the brokers again with a watch."""
    if ids is None and known is not None:
        return known.view.brokers, dict(known.view.malformed_brokers)
    found = yield from _read_and_watch_brokers((ids.value if ids else None) or ())
    if found[0]:
        return found
    return (yield from _read_and_watch_brokers((yield from _watch_brokers())))


def _read_and_watch_brokers(ids: Sequence[str]) -> Generator[Requests, Replies, Brokers]:
    """Return the brokers; watch those whose registration cannot be read."""
    found = yield from read_brokers(ids)
    malformed = [number for number, one in found.items() if isinstance(one, MalformedZnodeError)]
    if malformed:
        found |= yield from read_brokers(malformed, watch=True)
    why = {
        number: one.what for number, one in found.items() if not isinstance(one, payloads.Broker)
    }
    return tuple(payloads.readable_brokers(dict(sorted(found.items())))), why


def _watch_brokers() -> Generator[Requests, Replies, Sequence[str]]:
    """List the brokers with a watch, even if the list's znode does not exist yet."""
    listing, _ = yield [
        rq.Children(paths.BROKER_IDS, watch=True),
        rq.Exists(paths.BROKER_IDS, watch=True),
    ]
    return listing.value if listing.code is Code.OK else ()


def read_registered_brokers() -> Generator[Requests, Replies, tuple[payloads.Broker, ...]]:
    """Read the brokers that are registered now, without watches.

    A member also reads them outside of a rebalance, because the death of a broker causes no
    rebalance.
    """
    found = yield from read_brokers((yield from _list(paths.BROKER_IDS)))
    return tuple(payloads.readable_brokers(found))


def read_brokers(
    ids: Sequence[str], *, watch: bool = False
) -> Generator[Requests, Replies, dict[str, payloads.Broker | MalformedZnodeError]]:
    """Return the listed brokers whose registration exists, or the error of each malformed one.

    The JVM also reads the brokers' registrations at every rebalance.
    """
    numbers = sorted(ids)
    replies = yield [rq.Get(paths.broker(number), watch=watch) for number in numbers]
    return payloads.decode_brokers(
        {
            number: reply.value.data
            for number, reply in zip(numbers, replies, strict=True)
            if reply.code is Code.OK
        }
    )


def _read_topics(
    names: Sequence[str], profile: Profile, known: Known | None
) -> Generator[Requests, Replies, tuple[dict[str, Topic], dict[str, str]]]:
    topics: dict[str, Topic] = {}
    bad: dict[str, str] = {}
    if known is not None:
        unchanged = [one for one in names if paths.topic(one) in known.watched]
        topics = {one: known.view.topics[one] for one in unchanged}
        names = [one for one in names if one not in topics]
    # Try twice, because a topic may be created before the watch is armed.
    for _ in range(2 if names else 0):
        replies = yield [rq.Get(paths.topic(name), watch=True) for name in names]
        for name, reply in zip(names, replies, strict=True):
            if reply.code is Code.NO_NODE:
                continue
            if reply.code is not Code.OK:
                bad[name] = reason(reply)
                continue
            try:
                numbers = payloads.decode_topic(
                    reply.value.data, where=paths.topic(name), profile=profile
                )
                topics[name] = Topic(numbers, reply.value.stat.czxid)
            except MalformedZnodeError as error:
                bad[name] = error.what
        absent = [name for name in names if name not in topics and name not in bad]
        if not absent:
            break
        waits = yield [rq.Exists(paths.topic(name), watch=True) for name in absent]
        names = [name for name, reply in zip(absent, waits, strict=True) if reply.value]
        if not names:
            break
    return topics, bad


# ---- diagnosing ----------------------------------------------------------------------------------


Diagnosis = Callable[[float], Event] | None


def diagnose(member: MemberIdentity) -> Generator[Requests, Replies, Diagnosis]:
    """Find members whose owner znodes show that they follow other rules; return None if there are
    none.

    This operation sets no watch. The state machine starts it when the group has not settled for a
    while.
    """
    group, owners = yield from read_raw_group(
        member.group, member.strategy, exclude_internal=bool(member.internal)
    )
    found = detect(group, owners, own=member.profile).disagreements
    return (lambda now: Diagnosed(now=now, disagreements=found)) if found else None


def read_raw_group(
    group: str, strategy: Strategy, *, exclude_internal: bool
) -> Generator[Requests, Replies, tuple[GroupInput, dict[TopicPartition, ThreadId]]]:
    """Read the payloads from which members compute the assignment, and the owner znodes.

    Sets no watch. The read is not atomic: a znode is left out if it is deleted after its listing,
    or if this client may not read it.
    """
    consumers = yield from _list(paths.ids(group))
    listing = yield from _list(paths.TOPICS)
    owning = yield from _list(paths.owners(group))
    registrations = yield from _read([paths.member(group, one) for one in consumers])
    topics = yield from _read([paths.topic(one) for one in listing])
    owners = yield from _read_owners(group, owning)
    found = GroupInput(
        strategy,
        {path.rpartition("/")[2]: data for path, data in registrations.items()},
        {path.rpartition("/")[2]: data for path, data in topics.items()},
        exclude_internal=exclude_internal,
    )
    return found, owners


def _list(path: str) -> Generator[Requests, Replies, Sequence[str]]:
    (listing,) = yield [rq.Children(path)]
    return sorted(listing.value) if listing.code is Code.OK else ()


def _read(names: Sequence[str]) -> Generator[Requests, Replies, dict[str, bytes | None]]:
    """Return the payloads of the znodes that exist and that this client may read."""
    replies = yield [rq.Get(path) for path in names]
    return {
        path: reply.value.data
        for path, reply in zip(names, replies, strict=True)
        if reply.code is Code.OK
    }


def _read_owners(
    group: str, topics: Sequence[str]
) -> Generator[Requests, Replies, dict[TopicPartition, ThreadId]]:
    listings = yield [rq.Children(paths.owners_of(group, topic)) for topic in topics]
    nodes = [
        f"{paths.owners_of(group, topic)}/{name}"
        for topic, listing in zip(topics, listings, strict=True)
        if listing.code is Code.OK
        for name in listing.value
    ]
    owners: dict[TopicPartition, ThreadId] = {}
    for path, data in (yield from _read(nodes)).items():
        at = paths.locate(path)
        if at.kind is ZnodeKind.OWNER:
            try:
                owners[TopicPartition(at.name, at.partition)] = decode_owner(data, where=path)
            except MalformedZnodeError:
                continue  # an unreadable owner cannot show any rules
    return owners
