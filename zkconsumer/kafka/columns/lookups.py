"""Blocking look-ups of the partitions' leaders, and of the first and next offsets of their logs."""

from __future__ import annotations

import math
import random
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import starmap
from typing import Final, NamedTuple, TypeVar

from zkconsumer.errors import FetchError, first_few
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns import requests
from zkconsumer.kafka.columns.batch_headers import has_no_message
from zkconsumer.kafka.columns.connection import AuthenticationError, Connection, connect
from zkconsumer.kafka.columns.fetch_sessions import FetchSession, SessionRequest, Wanted
from zkconsumer.kafka.columns.requests import FetchLimits, Metadata
from zkconsumer.kafka.fetcher import RESOLVE_S, Answers, AutoOffsetReset, descriptors_error
from zkconsumer.kafka.log_answers import unanswered, unknown_offsets_topic
from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError
from zkconsumer.protocol.model import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    TopicPartition,
    coordinator_partition,
)

T = TypeVar("T")

# Errors of Kafka's protocol that occur in responses to a reader.
NAMES: Final = {
    -1: "an unexpected error of the broker",
    1: "the offset is not in the log",
    2: "the broker found a corrupt message",
    3: "the broker does not know the partition",
    5: "the partition has no leader",
    6: "the broker is not the leader",
    14: "the broker is still loading the group's offsets",
    15: "no broker stores the group's offsets at present",
    16: "the group's offsets have moved to another broker",
    24: "the brokers reject the group's name",
    9: "the replica is not available",
    29: "access to the topic is denied",
    30: "access to the group is denied",
    31: "access to the cluster is denied",
    35: "the broker does not support the version of the request",
    56: "the broker cannot read its disk",
    74: "the leader has changed",
    75: "the broker does not know the leader's epoch yet",
    76: "the broker does not support the compression",
    78: "the new leader does not know the log's end yet",
}

TOPIC_DENIED: Final = 29
GROUP_DENIED: Final = 30
OUT_OF_RANGE: Final = 1
NO_COORDINATOR: Final = 15
NOT_COORDINATOR: Final = 16
CORRUPT: Final = 2
# Errors that no retry solves.
PERMANENT: Final = frozenset({CORRUPT, TOPIC_DENIED, 31, 35, 76})

# Errors of a group's coordinator that pass; the request is repeated after this pause in seconds.
_PASSING: Final = frozenset({14, NO_COORDINATOR, NOT_COORDINATOR})
_PAUSE_S: Final = 0.1

# The factor by which `Lookup.ends` raises the time limit of a metadata request that no broker has
# answered, up to the most. Brokers continue to process a request that its client has given up. If
# hundreds of clients ask for a topic of 20,000 partitions, each attempt would add to the load.
_SLOWER: Final = 2.0
_SLOWEST: Final = 8.0

# Maximum number of leaders that are asked at the same time.
_MOST_THREADS: Final = 32

# Maximum number of bytes that `Lookup.without_messages` reads from a partition. A transaction
# marker has 78 bytes.
TAIL_BYTES: Final = 4096

# The errors that a connection can raise. A `ssl.SSLError` is an OSError.
LOST: Final = (OSError, MalformedError)


def name_of(error: int) -> str:
    return NAMES.get(error, f"error {error} of Kafka's protocol")


def addresses_of(settings: Settings) -> list[tuple[str, int]]:
    """Return the addresses in `bootstrap.servers`, without those whose port is not a number."""
    found = []
    for server in str(settings.get("bootstrap.servers", "")).split(","):
        host, _, port = server.strip().rpartition(":")
        if host and port.isdecimal():
            found.append((host.strip("[]"), int(port)))
    return found


def why(error: BaseException) -> str:
    """Return the reason of a failed connection as text."""
    if text := descriptors_error():
        return text
    if isinstance(error, TimeoutError):
        return "the broker did not answer in time"
    if isinstance(error, socket.gaierror):
        return f"its host name cannot be resolved here: {error.strerror}"
    if isinstance(error, (ConnectionResetError, ssl.SSLEOFError)):
        return f"{error}; a listener of another security protocol does this too"
    return str(error)


def time_shares(
    addresses: Sequence[tuple[str, int]], deadline: float
) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield each address with its share, in seconds, of the time that is left when it is asked.

    However many brokers there are, a share is at least a second, or a fifth of the time: a
    connection with TLS and a login needs some time.
    """
    least = min(1.0, (deadline - time.monotonic()) / 5)
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        left_s = deadline - time.monotonic()
        yield address, max(0.001, min(left_s, max(least, left_s / left)))


def isolation_of(settings: Settings) -> requests.Isolation:
    """Return the value of librdkafka's `isolation.level`."""
    return requests.Isolation[str(settings.get("isolation.level", "read_uncommitted")).upper()]


Stored = dict[TopicPartition, OffsetAndMetadata | str | None]
"""Partition -> its offset in Kafka; None: none is stored; a string: why it is unknown."""

_FetchedOffsets = Mapping[TopicPartition, requests.FetchedOffset]


def _passes(found: _FetchedOffsets | FetchError) -> bool:
    """Return whether a coordinator reports an error that passes."""
    return not isinstance(found, FetchError) and any(
        one.error in _PASSING for one in found.values()
    )


def _has_moved(found: _FetchedOffsets | FetchError) -> bool:
    return not isinstance(found, FetchError) and any(
        one.error == NOT_COORDINATOR for one in found.values()
    )


def _all_stored(
    found: _FetchedOffsets | FetchError, tps: Collection[TopicPartition]
) -> Stored | FetchError:
    return found if isinstance(found, FetchError) else {tp: _stored(found.get(tp)) for tp in tps}


def _stored(found: requests.FetchedOffset | None) -> OffsetAndMetadata | str | None:
    if found is None:
        return "Kafka: the group's coordinator left the partition out of its answer"
    if found.error == requests.UNKNOWN_TOPIC:
        return None  # 0.8.2 reports a partition without an offset as unknown
    if found.error:
        return f"Kafka: {name_of(found.error)}"
    if found.offset < 0:
        return None
    return OffsetAndMetadata(found.offset, found.metadata.removesuffix("\0"))


def _no_coordinator(address: tuple[str, int], lost: OSError | MalformedError) -> FetchError:
    return FetchError(
        f"the group's coordinator does not answer: {why(lost)}",
        where=f"{address[0]}:{address[1]}",
        remedy="check that the broker runs; another broker may take its place",
    )


def _fetch_request(limits: FetchLimits, request: SessionRequest, version: int) -> bytes:
    return requests.fetch_request(version, limits, request)


class StoredSet(NamedTuple):
    """Batches of a partition as its leader stores them; the last one may be incomplete.

    Attributes:
        error: the error of Kafka's protocol; 0 if there is none.
        end: the high watermark.
    """

    error: int
    end: int
    data: memoryview


def _fetched(version: int, response: FieldReader) -> dict[TopicPartition, StoredSet]:
    data = response.data
    return {
        one.tp: StoredSet(one.error, one.high_watermark, data[one.at : one.at + one.size])
        for one in requests.fetched(version, response).partitions
    }


class Lookup:
    """A client for look-ups, for one thread at a time; it keeps its connections."""

    def __init__(
        self,
        settings: Settings,
        unanswered: Callable[[str], object] = lambda _: None,
        has_offsets_topic: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """
        Args:
            unanswered: called by `ends` with the reason if no broker answers.
            has_offsets_topic: returns whether ZooKeeper has the topic of the groups' offsets; None
                if this is unknown. It is called only if the brokers do not show the topic.
        """
        self._settings, self._unanswered = settings, unanswered
        self._has_offsets_topic = has_offsets_topic
        self._addresses = addresses_of(settings)
        self._isolation = isolation_of(settings)
        self._connections: dict[tuple[str, int], Connection] = {}
        # The number of partitions of the topic of the groups' offsets: 0 if the brokers do not show
        # the topic to this client; None if it has not been found yet.
        self._offsets_partitions: int | None = None
        self._coordinators: dict[str | int, tuple[str, int]] = {}  # by `_coordinator_key`
        # The addresses that have failed in this reading; None: failed addresses are asked again.
        self._failed: dict[tuple[str, int], OSError | MalformedError] | None = None
        self._has_waited = False  # whether a coordinator was not ready in time in this reading
        # For `ends`: the leaders that have answered or were not asked yet, and what multiplies the
        # time limit of a metadata request.
        self._leaders: dict[TopicPartition, tuple[str, int]] = {}
        self._slowness = 1.0

    def close(self) -> None:
        for one in self._connections.values():
            one.close()
        self._connections.clear()

    def begin_reading(self) -> None:
        """Ask each address that fails only once until the next call.

        Without this rule, a broker that is silent would use up the time limit for each of many
        groups.
        """
        self._failed, self._has_waited = {}, False
        self._coordinators.clear()
        self._offsets_partitions = None

    def metadata(self, topics: Collection[str], timeout_s: float) -> Metadata:
        """Return the metadata from the first broker that answers; raise FetchError if none does.

        No broker creates a topic because of the request.
        """
        found = self._metadata(sorted(set(topics)), timeout_s)
        if found.topics.keys() <= set(topics):
            return found
        return found._replace(
            leaders={tp: one for tp, one in found.leaders.items() if tp.topic in topics}
        )

    def all_topics(self, timeout_s: float) -> Metadata:
        """Return the metadata of all topics. Raises FetchError as `metadata` does, and if the
        brokers refuse the login."""
        try:
            return self._metadata(None, timeout_s)
        except AuthenticationError as error:
            raise error.error from error

    def _metadata(
        self,
        wanted: Sequence[str] | None,
        timeout_s: float = math.inf,
        deadline: float = math.inf,
    ) -> Metadata:
        return self._any(
            requests.METADATA,
            lambda version: [requests.metadata_request(version, wanted)],
            requests.metadata,
            timeout_s,
            deadline,
        )[0]

    def _any(
        self,
        api: int,
        write: Callable[[int], Iterable[bytes]],
        read: Callable[[int, FieldReader], T],
        timeout_s: float = math.inf,
        deadline: float = math.inf,
    ) -> list[T]:
        """Return the responses of the first broker that answers.

        Each broker has `timeout_s` seconds, but at most its share of the time until `deadline`.
        Raises BrokersUnreachableError if none does.
        """
        reasons = []
        addresses = random.sample(self._addresses, len(self._addresses))
        for address, share_s in time_shares(addresses, deadline):
            try:
                return self._ask_all(address, api, write, read, min(timeout_s, share_s))
            except LOST as error:
                reasons.append(f"{address[0]}:{address[1]}: {why(error)}")
        if reasons:
            raise unanswered("; ".join(reasons))
        servers = str(self._settings.get("bootstrap.servers", ""))
        raise unanswered("no broker is known", servers=servers)

    def committed(
        self, wanted: Mapping[str, Collection[TopicPartition]], timeout_s: float
    ) -> dict[str, Stored | FetchError]:
        """Return the offset in Kafka of each group and partition: None if none is stored, or a
        string that says why it is unknown. An error stands for a group whose coordinator does not
        answer.

        The metadata are the text that the committer sent, without the NUL that confluent-kafka
        appends. If the topic of the offsets does not exist, no offset is stored; the request for
        a group's coordinator would create it. `timeout_s` is the time limit in seconds of the
        requests for one group, and of the wait for coordinators that are not ready.

        Raises FetchError if no broker answers, if the brokers refuse the login, or if it is unknown
        whether the topic of the offsets exists.
        """
        deadline = time.monotonic() + timeout_s
        try:
            if not self._finds_offsets_topic(deadline):
                return {group: dict.fromkeys(tps) for group, tps in wanted.items()}
            found: dict[str, _FetchedOffsets | FetchError] = {}
            asked = dict(wanted)
            while True:
                found |= self._committed_once(asked, deadline)
                asked = {group: wanted[group] for group in asked if _passes(found[group])}
                # After the pause, the brokers need some time to answer.
                if not asked or self._has_waited or time.monotonic() + 2 * _PAUSE_S > deadline:
                    break
                if any(_has_moved(found[group]) for group in asked):
                    # Or brokers of 0.8.2 were configured with another number of partitions.
                    self._coordinators.clear()
                    self._offsets_partitions = 0
                time.sleep(_PAUSE_S)
            self._has_waited = bool(asked) and self._failed is not None
            return {group: _all_stored(found[group], tps) for group, tps in wanted.items()}
        except AuthenticationError as error:
            raise error.error from error

    def _finds_offsets_topic(self, deadline: float) -> bool:
        """Return whether the topic exists. ZooKeeper decides if the brokers do not show it."""
        if self._offsets_partitions is None:
            topics = self._metadata([OFFSETS_TOPIC], deadline=deadline).topics
            if OFFSETS_TOPIC in topics:
                self._offsets_partitions = len(topics[OFFSETS_TOPIC])
            elif (exists := self._has_offsets_topic()) is None:
                raise unknown_offsets_topic()
            elif exists:
                self._offsets_partitions = 0
        return self._offsets_partitions is not None

    def _coordinator_key(self, group: str) -> str | int:
        """Return what groups with the same coordinator share: the partition that stores their
        offsets, or only the name if the number of partitions is unknown."""
        count = self._offsets_partitions
        return coordinator_partition(group, count) if count else group

    def _committed_once(
        self, wanted: Mapping[str, Collection[TopicPartition]], deadline: float
    ) -> dict[str, _FetchedOffsets | FetchError]:
        """Ask the groups' coordinators once; an error of a coordinator holds for all partitions of
        its groups.

        Raises FetchError if no broker answers.
        """
        found: dict[str, _FetchedOffsets | FetchError] = {}
        errors = self._find_coordinators(wanted, deadline)
        by_address: dict[tuple[str, int], list[str]] = {}
        for group, tps in wanted.items():
            key = self._coordinator_key(group)
            if key in errors:
                found[group] = dict.fromkeys(tps, requests.FetchedOffset(errors[key], -1, ""))
            else:
                by_address.setdefault(self._coordinators[key], []).append(group)
        for address, share_s in time_shares(list(by_address), deadline):
            theirs = {one: wanted[one] for one in by_address[address]}
            found |= self._ask_coordinator(address, theirs, share_s)
        return found

    def _ask_coordinator(
        self,
        address: tuple[str, int],
        wanted: Mapping[str, Collection[TopicPartition]],
        timeout_s: float,
    ) -> dict[str, _FetchedOffsets | FetchError]:
        try:
            answers = self._ask_all(
                address,
                requests.OFFSET_FETCH,
                lambda version: starmap(requests.committed_request, wanted.items()),
                requests.committed,
                timeout_s,
            )
            return dict(zip(wanted, answers, strict=True))
        except LOST as lost:
            self._coordinators.clear()
            return dict.fromkeys(wanted, _no_coordinator(address, lost))

    def _find_coordinators(self, groups: Iterable[str], deadline: float) -> dict[str | int, int]:
        """Look up the coordinators that are not known; return the error of each that stays
        unknown."""
        missing = {
            key: group
            for group in groups
            if (key := self._coordinator_key(group)) not in self._coordinators
        }
        if not missing:
            return {}
        answers = self._any(
            requests.FIND_COORDINATOR,
            lambda version: map(requests.coordinator_request, missing.values()),
            requests.coordinator,
            deadline=deadline,
        )
        errors = {}
        for key, (error, address) in zip(missing, answers, strict=True):
            if error:
                errors[key] = error
            else:
                self._coordinators[key] = address
        return errors

    def members(self, group: str, timeout_s: float) -> list[str]:
        """Return the group's members of Kafka's own protocol; brokers before 0.9 have none.

        `timeout_s` is the time limit in seconds. Raises FetchError if the brokers do not answer, if
        they refuse to, or if it is unknown whether the topic of the offsets exists.
        """
        deadline = time.monotonic() + timeout_s
        try:
            if not self._finds_offsets_topic(deadline):
                return []  # the request for the group's coordinator would create it
            while True:
                error, members = self._members_once(group, max(0.001, deadline - time.monotonic()))
                if error not in _PASSING or time.monotonic() + _PAUSE_S > deadline:
                    break
                self._coordinators.clear()
                time.sleep(_PAUSE_S)
        except AuthenticationError as refusal:
            raise refusal.error from refusal
        if error:
            raise FetchError(f"Kafka: {name_of(error)}", where=group, remedy="try again")
        return members

    def _members_once(self, group: str, timeout_s: float) -> tuple[int, list[str]]:
        """Ask the group's coordinator once; return the error, and the members."""
        deadline = time.monotonic() + timeout_s
        for error in self._find_coordinators([group], deadline).values():
            return error, []
        address = self._coordinators[self._coordinator_key(group)]
        try:
            if address not in self._connections:
                self._connections[address] = connect(address, self._settings, timeout_s)
            if requests.DESCRIBE_GROUPS not in self._connections[address].versions:
                return 0, []
            return self._ask(
                address,
                requests.DESCRIBE_GROUPS,
                lambda version: requests.members_request(group),
                requests.members,
                timeout_s,
            )
        except LOST as lost:
            raise _no_coordinator(address, lost) from lost

    def ends(
        self,
        tps: Sequence[TopicPartition],
        reset: AutoOffsetReset,
        timeout_s: float = RESOLVE_S,
    ) -> Answers:
        """Return the first or the next offset of each partition, or the reason why it is unknown.

        `timeout_s` is the time limit of each request in seconds.

        Raises FetchError if the brokers refuse the login, or if no file descriptor is left.
        """
        try:
            self._learn_leaders({tp.topic for tp in tps if tp not in self._leaders}, timeout_s)
        except AuthenticationError as error:
            raise error.error from error
        except FetchError as error:
            self._slowness = min(_SLOWEST, _SLOWER * self._slowness)
            if text := descriptors_error():
                raise FetchError(text, where=first_few(tps, 10), remedy="retry") from error
            self._unanswered(str(error))
            return dict.fromkeys(tps, str(error))
        answers: Answers = dict.fromkeys(tps, "no leader is known to the brokers")
        asked: dict[tuple[str, int], list[TopicPartition]] = {}
        for tp in tps:
            if tp in self._leaders:
                asked.setdefault(self._leaders[tp], []).append(tp)
        (found,) = self.offsets_at(asked, (reset.spec,), timeout_s)
        for tp, one in found.items():
            if isinstance(one, str):
                del self._leaders[tp]  # it may have moved
            answers[tp] = (
                one if isinstance(one, str) or one >= 0 else "the broker returned no offset"
            )
        return answers

    def _learn_leaders(self, topics: Collection[str], timeout_s: float) -> None:
        """Read the addresses of the leaders of these topics. Raises as `metadata` does."""
        if topics:
            known = self.metadata(topics, timeout_s * self._slowness)
            self._leaders |= {tp: known.addresses[one] for tp, one in known.leaders.items()}

    def without_messages(
        self, tails: Mapping[TopicPartition, tuple[int, int]], timeout_s: float
    ) -> dict[TopicPartition, bool]:
        """Return for each partition whether its log has no message from the first offset up to the
        second.

        Such offsets belong to transaction markers, or to messages that compaction has removed. The
        call reads at most `TAIL_BYTES` bytes of each partition. Partitions that have an error are
        left out. `timeout_s` is the time limit of each request in seconds.

        Raises FetchError, AuthenticationError, OSError and MalformedError.
        """
        known = self.metadata({tp.topic for tp in tails}, timeout_s)
        found: dict[TopicPartition, bool] = {}
        for leader in sorted(set(known.leaders.values())):
            wanted = [
                (tp, first, TAIL_BYTES)
                for tp, (first, _) in sorted(tails.items())
                if known.leaders.get(tp) == leader
            ]
            if wanted:
                fetched = self.fetch(known.addresses[leader], wanted, timeout_s)
                found |= {
                    tp: has_no_message(one.data, *tails[tp])
                    for tp, one in fetched.items()
                    if not one.error
                }
        return found

    def fetch(
        self, leader: tuple[str, int], wanted: Sequence[Wanted], timeout_s: float
    ) -> dict[TopicPartition, StoredSet]:
        """Return the batches of partitions, with those of aborted and open transactions.

        The leader waits for no message. `timeout_s` is the time limit in seconds. Raises OSError,
        MalformedError and AuthenticationError.
        """
        request = FetchSession().request_without(wanted)
        most = sum(size for _, _, size in wanted)
        limits = FetchLimits(wait_ms=0, min_bytes=0, max_bytes=most)
        write = partial(_fetch_request, limits, request)
        return self._ask(leader, requests.FETCH, write, _fetched, timeout_s)

    def offsets_at(
        self,
        asked: Mapping[tuple[str, int], Collection[TopicPartition]],
        times_ms: Sequence[int],
        timeout_s: float,
    ) -> list[Answers]:
        """Ask each leader for the offsets of its partitions at each time, or at a special time.

        The leaders are asked at the same time. An offset is negative if the log has no message at
        or after the time. The result contains a reason for each partition whose offset is unknown.
        `timeout_s` is the time limit in seconds of each request.
        """

        def ask(address: tuple[str, int]) -> list[Answers]:
            return self._offsets_of(address, sorted(asked[address]), times_ms, timeout_s)

        if len(asked) > 1:
            with ThreadPoolExecutor(min(len(asked), _MOST_THREADS)) as pool:
                parts = list(pool.map(ask, asked))
        else:
            parts = list(map(ask, asked))
        return [
            {tp: one for part in parts for tp, one in part[at].items()}
            for at in range(len(times_ms))
        ]

    def _offsets_of(
        self,
        leader: tuple[str, int],
        tps: Sequence[TopicPartition],
        times_ms: Sequence[int],
        timeout_s: float,
    ) -> list[Answers]:
        """Return the offsets that one leader reports, or why it reports none."""

        def write(version: int) -> list[bytes]:
            return [
                requests.offsets_request(version, tps, time_ms, self._isolation)
                for time_ms in times_ms
            ]

        try:
            reports = self._ask_all(
                leader, requests.LIST_OFFSETS, write, requests.offsets, timeout_s
            )
        except LOST as error:
            reason = f"the leader {leader[0]}:{leader[1]} does not answer: {why(error)}"
            return [dict.fromkeys(tps, reason) for _ in times_ms]
        except AuthenticationError as error:
            return [dict.fromkeys(tps, why(error)) for _ in times_ms]
        none = (-1, -1)
        return [
            {
                tp: f"the leader returns no offset: {name_of(error)}" if error else offset
                for tp in tps
                for error, offset in (report.get(tp, none),)
            }
            for report in reports
        ]

    def _ask(
        self,
        address: tuple[str, int],
        api: int,
        write: Callable[[int], bytes],
        read: Callable[[int, FieldReader], T],
        timeout_s: float,
    ) -> T:
        """Send one request, as `_ask_all` does."""
        return self._ask_all(address, api, lambda version: [write(version)], read, timeout_s)[0]

    def _ask_all(
        self,
        address: tuple[str, int],
        api: int,
        write: Callable[[int], Iterable[bytes]],
        read: Callable[[int, FieldReader], T],
        timeout_s: float,
    ) -> list[T]:
        """Send requests over the kept connection; if it is missing or lost, connect again.

        `timeout_s` is the time limit in seconds of the connection and the first response, and of
        each further response.
        """
        if self._failed and address in self._failed:
            raise self._failed[address]
        deadline = time.monotonic() + timeout_s
        kept = self._connections.pop(address, None)
        while True:
            try:
                left_s = max(0.001, deadline - time.monotonic())
                one = kept or connect(address, self._settings, left_s)
            except LOST as error:
                self._note(address, error)
                raise
            try:
                left_s = max(0.001, deadline - time.monotonic())
                version = one.versions.get(api, 0)
                answers = [
                    read(version, response) for response in one.ask_all(api, write(version), left_s)
                ]
            except LOST as error:
                one.close()
                if kept is None:
                    self._note(address, error)
                    raise
                kept = None
                continue
            self._connections[address] = one
            return answers

    def _note(self, address: tuple[str, int], error: OSError | MalformedError) -> None:
        if self._failed is not None:
            self._failed[address] = error
