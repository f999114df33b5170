"""Blocking look-ups of the partitions' leaders, and of the first and next offsets of their logs."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns import requests
from zkconsumer.kafka.columns.connection import AuthenticationError, Connection, connect
from zkconsumer.kafka.columns.requests import MalformedError, Metadata
from zkconsumer.kafka.fetcher import RESOLVE_S, Answers, AutoOffsetReset, descriptors_error
from zkconsumer.protocol.model import TopicPartition

T = TypeVar("T")

# Errors of Kafka's protocol that occur in responses to a reader.
NAMES: Final = {
    -1: "an unexpected error of the broker",
    1: "the offset is not in the log",
    2: "the broker found a corrupt message",
    3: "the broker does not know the partition",
    5: "the partition has no leader",
    6: "the broker is not the leader",
    9: "the replica is not available",
    29: "access to the topic is denied",
    31: "access to the cluster is denied",
    35: "the broker does not support the version of the request",
    56: "the broker cannot read its disk",
    74: "the leader has changed",
    75: "the broker does not know the leader's epoch yet",
    76: "the broker does not support the compression",
    78: "the new leader does not know the log's end yet",
}

TOPIC_DENIED: Final = 29
OUT_OF_RANGE: Final = 1
CORRUPT: Final = 2
# Errors that no retry solves.
PERMANENT: Final = frozenset({CORRUPT, TOPIC_DENIED, 31, 35, 76})

# The errors that a connection can raise. A `ssl.SSLError` is an OSError.
LOST: Final = (OSError, MalformedError)


def name_of(error: int) -> str:
    return NAMES.get(error, f"error {error} of Kafka's protocol")


def addresses_of(settings: Settings) -> list[tuple[str, int]]:
    """Return the addresses in `bootstrap.servers`."""
    found = []
    for server in str(settings.get("bootstrap.servers", "")).split(","):
        host, _, port = server.strip().rpartition(":")
        if host:
            found.append((host.strip("[]"), int(port)))
    return found


def why(error: BaseException) -> str:
    """Return the reason of a failed connection as text."""
    if text := descriptors_error():
        return text
    if isinstance(error, TimeoutError):
        return "the broker did not answer in time"
    if isinstance(error, (ConnectionResetError, ssl.SSLEOFError)):
        return f"{error}; a listener of another security protocol does this too"
    return str(error)


def isolation_of(settings: Settings) -> requests.Isolation:
    """Return the value of librdkafka's `isolation.level`."""
    return requests.Isolation[str(settings.get("isolation.level", "read_uncommitted")).upper()]


class Lookup:
    """A client for look-ups, for one thread at a time; it keeps its connections."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._addresses = addresses_of(settings)
        self._isolation = isolation_of(settings)
        self._connections: dict[tuple[str, int], Connection] = {}

    def close(self) -> None:
        for one in self._connections.values():
            one.close()
        self._connections.clear()

    def metadata(self, topics: Iterable[str], timeout_s: float) -> Metadata:
        """Return the metadata from the first broker that answers; raise FetchError if none does."""
        reasons = []
        wanted = sorted(set(topics))
        for address in random.sample(self._addresses, len(self._addresses)):
            try:
                return self._ask(
                    address,
                    requests.METADATA,
                    lambda version: requests.metadata_request(version, wanted),
                    requests.metadata,
                    timeout_s,
                )
            except LOST as error:
                reasons.append(f"{address[0]}:{address[1]}: {why(error)}")
        raise FetchError(
            "no broker answers: " + "; ".join(reasons or ["no broker is known"]),
            where=str(self._settings.get("bootstrap.servers", "")),
            remedy="check the addresses and that the brokers run; the reader retries",
        )

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
            known = self.metadata({tp.topic for tp in tps}, timeout_s)
        except AuthenticationError as error:
            raise error.error from error
        except FetchError as error:
            if text := descriptors_error():
                raise FetchError(
                    text, where=", ".join(map(str, tps[:10])), remedy="retry"
                ) from error
            return dict.fromkeys(tps, str(error))
        answers: Answers = dict.fromkeys(tps, "no leader is known to the brokers")
        for leader in sorted(set(known.leaders.values())):
            wanted = [tp for tp in tps if known.leaders.get(tp) == leader]
            if wanted:
                answers |= self._ends_at(known.addresses[leader], wanted, reset, timeout_s)
        return answers

    def _ends_at(
        self,
        address: tuple[str, int],
        tps: list[TopicPartition],
        reset: AutoOffsetReset,
        timeout_s: float,
    ) -> Answers:
        try:
            found = self._ask(
                address,
                requests.LIST_OFFSETS,
                lambda version: requests.offsets_request(version, tps, reset.spec, self._isolation),
                requests.offsets,
                timeout_s,
            )
        except (*LOST, AuthenticationError) as error:
            return dict.fromkeys(tps, why(error))
        none = (-1, -1)
        pairs = {tp: found.get(tp, none) for tp in tps}
        return {
            tp: offset if error == 0 and offset >= 0 else name_of(error)
            for tp, (error, offset) in pairs.items()
        }

    def _ask(
        self,
        address: tuple[str, int],
        api: int,
        write: Callable[[int], bytes],
        read: Callable[[int, requests.Reader], T],
        timeout_s: float,
    ) -> T:
        """Send a request over the kept connection; if it is missing or lost, connect again."""
        deadline = time.monotonic() + timeout_s
        kept = self._connections.pop(address, None)
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            one = kept or connect(address, self._settings, left_s)
            try:
                version = one.versions.get(api, 0)
                answer = read(version, one.ask(api, write(version), left_s))
            except LOST:
                one.close()
                if kept is None:
                    raise
                kept = None
                continue
            self._connections[address] = one
            return answer
