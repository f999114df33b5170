"""librdkafka's own properties, which a configuration contains under the prefix `kafka.`.

`kafka.ssl.ca.location` becomes librdkafka's `ssl.ca.location`. zkconsumer refuses the properties
that would break one of its guarantees; `REFUSED` gives the reason for each of these properties.
librdkafka checks the names and values of all other properties when the first broker client is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from zkconsumer.errors import ConfigError

PREFIX: Final = "kafka."


# Parts of the names of properties whose values are secrets.
_SECRET: Final = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config|_cb$")


class Refusal(NamedTuple):
    """The reason why zkconsumer refuses a property, and the remedy."""

    reason: str
    remedy: str


def _each(names: str, reason: str, remedy: str) -> dict[str, Refusal]:
    return dict.fromkeys(names.split(), Refusal(reason, remedy))


def _own(name: str) -> Refusal:
    return Refusal("the old consumer has a property for it", f"set {name} instead")


REFUSED: Final[Mapping[str, Refusal]] = {
    **_each(
        "bootstrap.servers metadata.broker.list",
        "zkconsumer finds the brokers in ZooKeeper",
        "set zookeeper.connect, and broker.listener to choose the brokers' listener",
    ),
    **_each(
        "group.id group.instance.id group.protocol group.protocol.type group.remote.assignor "
        "partition.assignment.strategy session.timeout.ms heartbeat.interval.ms "
        "max.poll.interval.ms coordinator.query.interval.ms",
        "membership and assignment of the group are in ZooKeeper",
        "remove it; group.id, partition.assignment.strategy and zookeeper.session.timeout.ms have "
        "no prefix",
    ),
    **_each(
        "enable.auto.commit auto.commit.enable auto.commit.interval.ms enable.auto.offset.store "
        "offset.store.method offset.store.path offset.store.sync.interval.ms",
        "zkconsumer commits the offsets itself, so that no commit covers an unfinished message",
        "set auto.commit.enable and auto.commit.interval.ms without the prefix",
    ),
    **_each(
        "auto.offset.reset",
        "zkconsumer resets positions itself, so that it knows the new position and commits it",
        "set auto.offset.reset without the prefix",
    ),
    **_each(
        "enable.partition.eof",
        "the end of a log would be reported as an error",
        "remove it; connector.lag() says how far the end is",
    ),
    **_each(
        "isolation.level",
        "the group's JVM members read the messages of open and aborted transactions too",
        "remove it",
    ),
    **_each("check.crcs", "a damaged message would be delivered", "remove it"),
    **_each("allow.auto.create.topics", "a consumer never creates a topic", "remove it"),
    **_each(
        "api.version.request api.version.request.timeout.ms api.version.fallback.ms "
        "broker.version.fallback",
        "zkconsumer chooses the protocol from the brokers' registrations",
        "remove it",
    ),
    **_each(
        "queued.min.messages queued.max.messages.kbytes fetch.queue.backoff.ms fetch.max.bytes "
        "receive.message.max.bytes",
        "it changes the upper bound of a stream's memory",
        "set queued.max.message.chunks and fetch.message.max.bytes",
    ),
    **_each(
        "plugin.library.paths",
        "it would load native code into the process",
        "load the library in your program",
    ),
    **_each(
        "test.mock.num.brokers test.mock.broker.rtt",
        "the messages would come from a simulated cluster",
        "use zkconsumer.sandbox for tests",
    ),
    "client.id": _own("client.id"),
    "socket.timeout.ms": _own("socket.timeout.ms"),
    "socket.receive.buffer.bytes": _own("socket.receive.buffer.bytes"),
    "fetch.message.max.bytes": _own("fetch.message.max.bytes"),
    "max.partition.fetch.bytes": _own("fetch.message.max.bytes"),
    "fetch.min.bytes": _own("fetch.min.bytes"),
    "fetch.wait.max.ms": _own("fetch.wait.max.ms"),
    "fetch.error.backoff.ms": _own("refresh.leader.backoff.ms"),
    "topic.metadata.refresh.fast.interval.ms": _own("refresh.leader.backoff.ms"),
}
"""librdkafka's property -> why a configuration with it is refused."""

_CALLBACK: Final = Refusal("zkconsumer needs librdkafka's callbacks itself", "remove it")


class KafkaProperties(Mapping[str, object]):
    """librdkafka's properties without the prefix; immutable, and its repr shows no secrets."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        """Check the properties; raise ConfigError for a refused name or a value of a wrong type."""
        if not isinstance(values, Mapping | None):
            raise ConfigError(
                f"kafka is a mapping of librdkafka's properties, not {type(values).__name__}",
                where=PREFIX + "*",
                remedy='give a dictionary, such as {"ssl.ca.location": "/etc/kafka/ca.pem"}',
            )
        for name, value in (values or {}).items():
            _check(name, value)
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr({name: shown(name, value) for name, value in self._values.items()})


def shown(name: str, value: object) -> object:
    """Return a property's value for a log or a repr; `***` for a secret."""
    return "***" if _SECRET.search(name) else value


def _check(name: object, value: object) -> None:
    where = f"{PREFIX}{name}"
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{name!r} is not the name of a property",
            where=PREFIX + "*",
            remedy="use librdkafka's name",
        )
    refused = REFUSED.get(name)
    if refused is None and name != "oauth_cb" and (name.endswith("_cb") or name == "on_commit"):
        refused = _CALLBACK
    if refused is not None:
        raise ConfigError(
            f"{where} is not passed on to librdkafka: {refused.reason}",
            where=where,
            remedy=refused.remedy,
        )
    if callable(value) if name == "oauth_cb" else isinstance(value, str | int | float):
        return
    kind = "a function" if name == "oauth_cb" else "a text, a number, True or False"
    raise ConfigError(f"bad value of {where}", where=where, remedy=f"allowed: {kind}")
