"""librdkafka's own properties, which a configuration contains under the prefix `kafka.`.

`kafka.ssl.ca.location` becomes librdkafka's `ssl.ca.location`. Each property of librdkafka is in
one of three tables:

- `BY_BOTH`: librdkafka and the columnar reader honour the property in the same way.
- `BY_LIBRDKAFKA`: only librdkafka honours the property. With `fetch.engine=auto` librdkafka then
  reads, and `fetch.engine=columns` refuses the property by its name.
- `ALWAYS_REFUSED`: zkconsumer refuses the property, because it would break a guarantee or has no
  effect on a consumer.

A property that is in none of the tables counts as one that only librdkafka honours: librdkafka
checks its name and value when the first broker client is made.
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


def _set_instead(name: str) -> Refusal:
    return Refusal("the old consumer has a property for it", f"set {name} instead")


_BOOLEANS: Final = frozenset({"true", "t", "1", "false", "f", "0"})

BY_BOTH: Final[Mapping[str, frozenset[str] | None]] = {
    "security.protocol": None,
    "ssl.ca.location": None,
    "ssl.ca.pem": None,
    "ssl.crl.location": None,
    "ssl.certificate.location": None,
    "ssl.certificate.pem": None,
    "ssl.key.location": None,
    "ssl.key.pem": None,
    "ssl.key.password": None,
    "ssl.cipher.suites": None,
    "ssl.endpoint.identification.algorithm": frozenset({"https", "none"}),
    "enable.ssl.certificate.verification": _BOOLEANS,
    **dict.fromkeys(
        ("sasl.mechanism", "sasl.mechanisms"),
        frozenset({"plain", "scram-sha-256", "scram-sha-512", "gssapi"}),
    ),
    "sasl.username": None,
    "sasl.password": None,
    "sasl.kerberos.service.name": None,
    "sasl.kerberos.principal": None,
    "sasl.kerberos.keytab": None,
    # The columnar reader sends no metrics, tries all addresses of a name, and sends small packets
    # at once.
    "enable.metrics.push": frozenset({"false", "f", "0"}),
    "client.dns.lookup": frozenset({"use_all_dns_ips"}),
    "broker.address.family": frozenset({"any"}),
    "socket.nagle.disable": frozenset({"true", "t", "1"}),
    "socket.keepalive.enable": _BOOLEANS,
}
"""librdkafka's property -> the values that the columnar reader also honours, in lower case; None:
all values. Only librdkafka honours the other values."""

BY_LIBRDKAFKA: Final = frozenset(
    """
    broker.address.ttl builtin.features client.rack connections.max.idle.ms debug
    enable.random.seed enable.sasl.oauthbearer.unsecure.jwt https.ca.location https.ca.pem
    log.connection.close log.queue log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection
    message.copy.max.bytes message.max.bytes
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    oauth_cb reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    socket.connection.setup.timeout.ms socket.max.fails socket.send.buffer.bytes
    ssl.ca.certificate.stores ssl.curves.list ssl.engine.id ssl.engine.location
    ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
    statistics.interval.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """.split()  # noqa: SIM905 - the lines are shorter
)
"""The properties that only librdkafka honours."""

ALWAYS_REFUSED: Final[Mapping[str, Refusal]] = {
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
        "zkconsumer sets it itself, so that positions move over transaction markers",
        "remove it; connector.lag() says how far away the end of the log is",
    ),
    **_each(
        "isolation.level",
        "it also decides at which offset the tools see the end of a log",
        "set isolation.level without the prefix",
    ),
    **_each("check.crcs", "a damaged message would be delivered", "remove it"),
    **_each(
        "allow.auto.create.topics",
        "zkconsumer sets it to false, so that reading creates no topic",
        "remove it",
    ),
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
    **_each(
        "acks batch.num.messages batch.size compression.codec compression.level compression.type "
        "delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee "
        "enable.idempotence linger.ms message.send.max.retries message.timeout.ms partitioner "
        "produce.offset.report queue.buffering.backpressure.threshold "
        "queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms "
        "queuing.strategy request.required.acks request.timeout.ms retries "
        "sticky.partitioning.linger.ms transaction.timeout.ms transactional.id",
        "it is a producer's property, and has no effect on a consumer",
        "remove it",
    ),
    **_each(
        "consume.callback.max.messages max.poll.records share.acknowledgement.mode",
        "it belongs to an interface of librdkafka that zkconsumer does not use",
        "remove it; poll(max_messages=...) limits a batch",
    ),
    **_each(
        "reconnect.backoff.jitter.ms socket.blocking.max.ms topic.metadata.refresh.fast.cnt",
        "librdkafka no longer uses it",
        "remove it",
    ),
    **_each(
        "default_topic_conf enabled_events interceptors internal.termination.signal msg_order_cmp "
        "opaque ssl_ca ssl_certificate ssl_engine_callback_data ssl_key",
        "only a C program can set it",
        "remove it; ssl.ca.pem, ssl.certificate.pem and ssl.key.pem take the text of a PEM file",
    ),
    "client.id": _set_instead("client.id"),
    "socket.timeout.ms": _set_instead("socket.timeout.ms"),
    "socket.receive.buffer.bytes": _set_instead("socket.receive.buffer.bytes"),
    "fetch.message.max.bytes": _set_instead("fetch.message.max.bytes"),
    "max.partition.fetch.bytes": _set_instead("fetch.message.max.bytes"),
    "fetch.min.bytes": _set_instead("fetch.min.bytes"),
    "fetch.wait.max.ms": _set_instead("fetch.wait.max.ms"),
    "fetch.error.backoff.ms": _set_instead("refresh.leader.backoff.ms"),
    "topic.metadata.refresh.fast.interval.ms": _set_instead("refresh.leader.backoff.ms"),
}
"""librdkafka's property -> why a configuration with it is refused."""

_CALLBACK: Final = Refusal("zkconsumer needs librdkafka's callbacks itself", "remove it")


def only_for_librdkafka(properties: Mapping[str, object]) -> list[str]:
    """Return the names of the properties that the columnar reader does not honour, in order."""
    return sorted(name for name, value in properties.items() if not _by_both(name, value))


def _by_both(name: str, value: object) -> bool:
    if name not in BY_BOTH:
        return False
    allowed = BY_BOTH[name]
    return allowed is None or str(value).lower() in allowed


def is_true(value: object) -> bool:
    """Return whether librdkafka reads the value of a property as true."""
    return str(value).lower() in ("true", "t", "1")


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
    refused = ALWAYS_REFUSED.get(name)
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
