"""The configuration of a consumer: the JVM consumer's properties, typed and validated.

The fields of `ConsumerConfig` are the table of all properties: name, attribute, type, default,
allowed values, effect. `scripts/configuration` writes docs/configuration.md from it. Tools that
need no group use the base class, `ConnectionConfig`. Rules and defaults are those of
`kafka.consumer.ConsumerConfig` and `kafka.utils.VerifiableProperties` in Kafka 0.9 to 1.1. The
functions at the end check properties together: the connect string, authentication and TLS.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from zkconsumer.config import kafka_properties
from zkconsumer.config.kafka_properties import KafkaProperties
from zkconsumer.config.properties_file import read_properties
from zkconsumer.config.property_types import (
    CLIENT,
    GROUP,
    HOSTS,
    ID_SUFFIX,
    LISTENER,
    PATH,
    PORT,
    RELEASE,
    REQUIRED,
    SECRET,
    SERVICE,
    TOKEN,
    Backoff,
    DerivedDefault,
    Flag,
    Integer,
    Millis,
    MillisOrNever,
    OneOf,
    Required,
    Setting,
    Text,
    Unset,
    in_seconds,
    setting,
    settings_of,
    unset,
)
from zkconsumer.config.secrets import reveal
from zkconsumer.errors import ConfigError
from zkconsumer.protocol import arguments
from zkconsumer.protocol.model import Storage
from zkconsumer.protocol.releases import DEFAULT
from zkconsumer.safe_logger import SafeLogger

_log = SafeLogger(logging.getLogger("zkconsumer.config"))

# Prefixes of properties that have no effect and are reported at INFO. They belong to the JVM's
# metrics reporters, or name constants that the JVM never uses.
NO_EFFECT: Final = ("kafka.metrics.", "kafka.csv.metrics.", "mirror.")
# Prefix of properties for the user's own code. From 0.8.2 on, the JVM also ignores them silently.
EXEMPT: Final = "external"

_NONE = "No effect in zkconsumer"


class _NamedArguments:
    """Names wrong keyword arguments: raises ConfigError instead of TypeError."""

    def __new__(cls, *_: object, **given: object) -> Self:
        known = {"properties", "kafka", *(row.attribute for row in settings_of(cls))}
        for name in given:
            if name not in known:
                raise _unknown_keyword(name)
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig(_NamedArguments):
    """The connection to ZooKeeper and to the brokers: servers, authentication, TLS; immutable.

    The constructor takes a mapping of properties, `{"zookeeper.connect": "zk1:2181"}`, or keyword
    arguments, or both; a keyword argument overrides the property. Keyword arguments are the
    properties' names in snake_case. Durations are float seconds, and their names end in `_s`. The
    constructor resolves defaults that depend on other properties. The docstring of `ConsumerConfig`
    describes each argument. Raises ConfigError with name, value and allowed values (JVM:
    InvalidConfigException, IllegalArgumentException).
    """

    properties: InitVar[Mapping[str, object] | None] = field(default=None, kw_only=False)
    zookeeper_connect: str = setting(
        "zookeeper.connect",
        HOSTS,
        REQUIRED,
        "The ZooKeeper servers and the optional chroot. The chroot must exist.",
    )
    zookeeper_session_timeout_s: float = setting(
        "zookeeper.session.timeout.ms",
        Millis(1),
        6.0,
        "If ZooKeeper receives no heartbeat from the consumer for this time, the session expires,"
        " and the consumer loses its partitions.",
    )
    zookeeper_connection_timeout_s: float = setting(
        "zookeeper.connection.timeout.ms",
        Millis(1),
        DerivedDefault("zookeeper.session.timeout.ms"),
        "The maximum time that the client waits for the first connection to ZooKeeper.",
    )
    zookeeper_auth_scheme: Literal["digest", "sasl"] | None = setting(
        "zookeeper.auth.scheme",
        OneOf(("digest", "sasl")),
        None,
        "zkconsumer only. How to authenticate to ZooKeeper. digest needs TLS, or a server on this"
        " machine.",
    )
    zookeeper_auth_credential: str | None = setting(
        "zookeeper.auth.credential",
        TOKEN,
        None,
        "zkconsumer only. User and password for digest and DIGEST-MD5, or `@PATH` of a file that"
        " contains them. Logs and errors never show them.",
    )
    zookeeper_auth_insecure_plaintext: bool = setting(
        "zookeeper.auth.insecure.plaintext",
        Flag(),
        False,
        "zkconsumer only. Allow a digest password to be sent over the network in clear text.",
    )
    zookeeper_sasl_mechanism: Literal["DIGEST-MD5", "GSSAPI"] = setting(
        "zookeeper.sasl.mechanism",
        OneOf(("DIGEST-MD5", "GSSAPI")),
        "DIGEST-MD5",
        "zkconsumer only. The mechanism for zookeeper.auth.scheme=sasl. GSSAPI uses the Kerberos"
        " ticket cache of the process.",
    )
    zookeeper_sasl_service: str = setting(
        "zookeeper.sasl.service",
        SERVICE,
        "zookeeper",
        "zkconsumer only. The service name of ZooKeeper's Kerberos principal.",
    )
    zookeeper_ssl_enable: bool = setting(
        "zookeeper.ssl.enable",
        Flag(),
        False,
        "zkconsumer only. Connect to ZooKeeper with TLS 1.2 or later, and verify the certificate"
        " and the host name.",
    )
    zookeeper_ssl_ca: str | None = setting(
        "zookeeper.ssl.ca",
        PATH,
        None,
        "zkconsumer only. PEM file of the certificate authorities to trust instead of the"
        " system's.",
    )
    zookeeper_ssl_certificate: str | None = setting(
        "zookeeper.ssl.certificate",
        PATH,
        None,
        "zkconsumer only. PEM file of the client's certificate.",
    )
    zookeeper_ssl_key: str | None = setting(
        "zookeeper.ssl.key", PATH, None, "zkconsumer only. PEM file of the client's private key."
    )
    zookeeper_ssl_key_password: str | None = setting(
        "zookeeper.ssl.key.password",
        SECRET,
        None,
        "zkconsumer only. The password of the private key. Logs and errors never show it.",
    )
    zookeeper_ssl_insecure_skip_hostname: bool = setting(
        "zookeeper.ssl.insecure.skip.hostname",
        Flag(),
        False,
        "zkconsumer only. Accept a server certificate that is valid for another host.",
    )
    zookeeper_ssl_insecure_skip_verify: bool = setting(
        "zookeeper.ssl.insecure.skip.verify",
        Flag(),
        False,
        "zkconsumer only. Accept any server certificate. An attacker between client and server can"
        " then impersonate ZooKeeper.",
    )
    zookeeper_acl: Literal["open", "creator"] = setting(
        "zookeeper.acl",
        OneOf(("open", "creator")),
        "open",
        "zkconsumer only. Who may change the znodes that the consumer creates: all clients (open),"
        " or only the authenticated user (creator, needs zookeeper.auth.scheme).",
    )
    broker_listener: str | None = setting(
        "broker.listener",
        LISTENER,
        None,
        "zkconsumer only. The brokers' listener to connect to: the name of a listener, or a"
        " security protocol. The default is kafka.security.protocol if set, or else PLAINTEXT.",
    )
    isolation_level: Literal["read_uncommitted", "read_committed"] = setting(
        "isolation.level",
        OneOf(("read_uncommitted", "read_committed")),
        "read_uncommitted",
        "zkconsumer only. read_uncommitted: read all messages, as the JVM's old consumer does."
        " read_committed: leave out the messages of aborted transactions; each log ends at its last"
        " stable offset, before the first open transaction. Brokers before 0.11 have no"
        " transactions.",
    )
    kafka: Mapping[str, object] = unset(KafkaProperties())
    """librdkafka's own properties; in a file, their names have the prefix `kafka.`."""

    def __post_init__(self, properties: Mapping[str, object] | None) -> None:
        given = _typed(type(self), properties or {})
        if isinstance(self.kafka, Unset):
            object.__setattr__(self, "kafka", given.get("kafka", {}))
        object.__setattr__(self, "kafka", KafkaProperties(self.kafka))
        for row in settings_of(type(self)):
            value = getattr(self, row.attribute)
            if isinstance(value, Unset):
                value = given.get(row.attribute, value.default)
            if isinstance(value, Required):
                raise _missing(row, "")
            if value is not None or row.default is REQUIRED:
                value = _checked(row, value)
            object.__setattr__(self, row.attribute, value)
        for attribute, value in self._derived().items():
            if getattr(self, attribute) is None:
                object.__setattr__(self, attribute, value)
        self._check_together()

    def _derived(self) -> dict[str, object]:
        """Return the defaults that depend on other properties, by attribute."""
        return {"zookeeper_connection_timeout_s": self.zookeeper_session_timeout_s}

    def _check_together(self) -> None:
        split_connect(self.zookeeper_connect)
        check_security(self)

    @property
    def zookeeper_hosts(self) -> str:
        """The servers in `zookeeper_connect`, without the chroot: `h1:2181,h2:2181`."""
        return split_connect(self.zookeeper_connect)[0]

    @property
    def zookeeper_chroot(self) -> str:
        """The chroot in `zookeeper_connect`: `/kafka`, or empty."""
        return split_connect(self.zookeeper_connect)[1]

    @classmethod
    def from_properties(
        cls,
        *sources: str | PathLike[str] | Mapping[str, str],
        **overrides: Any,  # Any: as `__init__`
    ) -> Self:
        """Read a JVM consumer's properties file, or a mapping of property names to text.

        Later sources override earlier ones. `overrides` are keyword arguments of the class and
        override all sources. An unknown name causes a warning with the most similar known name.
        `ConnectionConfig` ignores the properties of a consumer. Raises ConfigError with name,
        value, file, line and allowed values.
        """
        table = settings_of(cls)
        own = {row.attribute for row in table}
        values: dict[str, object] = {}
        places: dict[str, str] = {}
        kafka: dict[str, object] = {}
        for source in sources:
            for name, text, place in _entries(source):
                if _is_librdkafkas(name):
                    kafka[name.removeprefix(kafka_properties.PREFIX)] = text
                    _log.info("Property %s is passed on to librdkafka (%s)", name, place)
                    places[name] = place
                    continue
                row = _BY_NAME.get(name)
                if row is None:
                    _warn_unknown(name, place)
                    continue
                if row.attribute not in own:
                    continue
                values[row.attribute] = _parsed(row, text, place)
                _log_override(row, text)
                places[name] = place
        values.update(overrides)
        values["kafka"] = {**kafka, **overrides.get("kafka", {})}
        places |= {row.name: row.name for row in table if row.attribute in overrides}
        for row in table:
            if row.attribute in REQUIRED_ATTRIBUTES and row.attribute not in values:
                raise _missing(row, _names(sources))
        try:
            return cls(**cast(Any, values))  # Any: `__init__` checks each value
        except ConfigError as error:
            place = places.get(error.where, error.where)
            raise ConfigError(error.what, where=place, remedy=error.remedy) from None

    def for_group(self, group_id: str) -> ConsumerConfig:
        """Return the configuration of a consumer of this group with the same connection.

        All other properties have their defaults. Raises ConfigError for an invalid group name.
        """
        names = ["kafka", *(row.attribute for row in settings_of(ConnectionConfig))]
        return ConsumerConfig(group_id=group_id, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ConnectionConfig):
    """The configuration of one consumer and of its connections; immutable.

    The constructor is that of `ConnectionConfig`. Each argument is followed by its
    property in a JVM consumer's file, its unit and its default.

    Args:
        properties: A mapping of the properties' names, such as `group.id`, to values.
        kafka: A mapping of librdkafka's own properties, such as `ssl.ca.location`.
        zookeeper_connect: The ZooKeeper servers and the optional chroot. The chroot must exist.
            (zookeeper.connect; required)
        zookeeper_session_timeout_s: If ZooKeeper receives no heartbeat from the consumer for this
            time, the session expires, and the consumer loses its partitions.
            (zookeeper.session.timeout.ms; in seconds, default: 6.0)
        zookeeper_connection_timeout_s: The maximum time that the client waits for the first
            connection to ZooKeeper. (zookeeper.connection.timeout.ms; in seconds, default: the
            value of zookeeper_session_timeout_s)
        zookeeper_auth_scheme: zkconsumer only. How to authenticate to ZooKeeper. digest needs TLS,
            or a server on this machine. (zookeeper.auth.scheme; default: None)
        zookeeper_auth_credential: zkconsumer only. User and password for digest and DIGEST-MD5, or
            `@PATH` of a file that contains them. Logs and errors never show them.
            (zookeeper.auth.credential; default: None)
        zookeeper_auth_insecure_plaintext: zkconsumer only. Allow a digest password to be sent over
            the network in clear text. (zookeeper.auth.insecure.plaintext; default: False)
        zookeeper_sasl_mechanism: zkconsumer only. The mechanism for zookeeper.auth.scheme=sasl.
            GSSAPI uses the Kerberos ticket cache of the process. (zookeeper.sasl.mechanism;
            default: 'DIGEST-MD5')
        zookeeper_sasl_service: zkconsumer only. The service name of ZooKeeper's Kerberos principal.
            (zookeeper.sasl.service; default: 'zookeeper')
        zookeeper_ssl_enable: zkconsumer only. Connect to ZooKeeper with TLS 1.2 or later, and
            verify the certificate and the host name. (zookeeper.ssl.enable; default: False)
        zookeeper_ssl_ca: zkconsumer only. PEM file of the certificate authorities to trust instead
            of the system's. (zookeeper.ssl.ca; default: None)
        zookeeper_ssl_certificate: zkconsumer only. PEM file of the client's certificate.
            (zookeeper.ssl.certificate; default: None)
        zookeeper_ssl_key: zkconsumer only. PEM file of the client's private key.
            (zookeeper.ssl.key; default: None)
        zookeeper_ssl_key_password: zkconsumer only. The password of the private key. Logs and
            errors never show it. (zookeeper.ssl.key.password; default: None)
        zookeeper_ssl_insecure_skip_hostname: zkconsumer only. Accept a server certificate that is
            valid for another host. (zookeeper.ssl.insecure.skip.hostname; default: False)
        zookeeper_ssl_insecure_skip_verify: zkconsumer only. Accept any server certificate. An
            attacker between client and server can then impersonate ZooKeeper.
            (zookeeper.ssl.insecure.skip.verify; default: False)
        zookeeper_acl: zkconsumer only. Who may change the znodes that the consumer creates: all
            clients (open), or only the authenticated user (creator, needs zookeeper.auth.scheme).
            (zookeeper.acl; default: 'open')
        broker_listener: zkconsumer only. The brokers' listener to connect to: the name of a
            listener, or a security protocol. The default is kafka.security.protocol if set, or else
            PLAINTEXT. (broker.listener; default: None)
        isolation_level: zkconsumer only. read_uncommitted: read all messages, as the JVM's old
            consumer does. read_committed: leave out the messages of aborted transactions; each log
            ends at its last stable offset, before the first open transaction. Brokers before 0.11
            have no transactions. (isolation.level; default: 'read_uncommitted')
        group_id: The name of the consumer group. (group.id; required)
        zookeeper_sync_time_s: Used only as the default of rebalance.backoff.ms.
            (zookeeper.sync.time.ms; in seconds, default: 2.0)
        consumer_id: The suffix of the consumer id, for tests. By default it is generated from the
            host, the time and a random part. (consumer.id; default: None)
        client_id: The client id that is sent to the brokers with each request. (client.id; default:
            the value of group_id)
        socket_timeout_s: The timeout of a request to a broker; must be at least fetch.wait.max.ms.
            (socket.timeout.ms; in seconds, default: 30.0)
        socket_receive_buffer_bytes: The size of the sockets' receive buffer. The system chooses the
            size if the value is 65536, or 0 or less. (socket.receive.buffer.bytes; in bytes,
            default: 65536)
        fetch_message_max_bytes: The number of bytes to fetch per partition in one request.
            zkconsumer raises it for a larger message; the JVM does not. (fetch.message.max.bytes;
            in bytes, default: 1048576)
        num_consumer_fetchers: The number of broker clients of a connector with more than four
            streams. Such a connector uses at least two. (num.consumer.fetchers; default: 1)
        auto_commit_enable: Commit the offsets of finished messages periodically, and before each
            partition is released. (auto.commit.enable; default: True)
        auto_commit_interval_s: The time between two automatic commits. (auto.commit.interval.ms; in
            seconds, default: 60.0)
        queued_max_message_chunks: A stream prefetches at most this number times
            fetch.message.max.bytes, in bytes; with the columnar reader, from each broker.
            (queued.max.message.chunks; default: 2)
        rebalance_max_retries: A JVM member gives up after this number of attempts to claim a
            partition. zkconsumer keeps retrying, and reports the blocking owner after this number
            times the back-off. (rebalance.max.retries; default: 4)
        rebalance_backoff_s: The maximum back-off before the next attempt to claim a partition that
            another member owns. (rebalance.backoff.ms; in seconds, default: the value of
            zookeeper_sync_time_s)
        rebalance_mode: zkconsumer only. In a rebalance, release only the partitions that are
            reassigned (incremental), or all partitions as the JVM does (eager). (rebalance.mode;
            default: 'incremental')
        release_grace_s: zkconsumer only. The maximum time that a release waits for the user to ask
            for the next message. The release then waits for the rebalance listener, if any, for at
            most the same time. (release.grace.ms; in seconds, default: 1.0)
        peers_nudge: zkconsumer only. While another member does not claim its partitions, register
            again once a minute, which makes the group rebalance. (peers.nudge; default: False)
        peers_release: zkconsumer only. The Kafka release of the group's JVM members, whose rules
            the consumer follows. With auto, it detects the release from the owner znodes of a
            settled group (see `zkconsumer docs releases`). (peers.release; default: '0.8.2-0.11')
        refresh_leader_backoff_s: The back-off after a failed fetch or leader lookup.
            (refresh.leader.backoff.ms; in seconds, default: 0.2)
        fetch_min_bytes: The minimum number of bytes in the response to a fetch. The broker waits
            for them for at most fetch.wait.max.ms. (fetch.min.bytes; in bytes, default: 1)
        fetch_max_bytes: No effect in zkconsumer; the JVM parses it but never uses it.
            (fetch.max.bytes; in bytes, default: 52428800)
        fetch_wait_max_s: The maximum time that a broker waits for fetch.min.bytes.
            (fetch.wait.max.ms; in seconds, default: 0.1)
        fetch_engine: zkconsumer only. What fetches messages. librdkafka: always librdkafka.
            columns: always zkconsumer's own columnar reader. auto: the columnar reader if the extra
            fast is installed and the reader honours all properties of librdkafka that are set
            (`zkconsumer docs configuration`); otherwise librdkafka. (fetch.engine; default: 'auto')
        auto_offset_reset: Where to start if a partition has no stored offset, or one that is out of
            range. (auto.offset.reset; default: 'largest')
        consumer_timeout_s: If no message arrives for this time, the stream raises
            ConsumerTimeoutError and remains usable. (consumer.timeout.ms; in seconds, default:
            None)
        partition_assignment_strategy: How partitions are assigned to consumer threads. All members
            of a group must have the same value. (partition.assignment.strategy; default: 'range')
        offsets_storage: Where offsets are stored: in ZooKeeper, or in Kafka (brokers 0.8.2 and
            later). (offsets.storage; default: 'zookeeper')
        dual_commit_enabled: With offsets.storage=kafka: also commit to ZooKeeper, and start at the
            higher of the two offsets. (dual.commit.enabled; default: true if offsets.storage is
            kafka)
        offsets_channel_backoff_s: With offsets.storage=kafka: the back-off before a failed offset
            request is retried. (offsets.channel.backoff.ms; in seconds, default: 1.0)
        offsets_channel_socket_timeout_s: With offsets.storage=kafka: the timeout of one commit or
            fetch of offsets. (offsets.channel.socket.timeout.ms; in seconds, default: 10.0)
        offsets_commit_max_retries: With offsets.storage=kafka: how often a failed commit is
            retried. The commit before a release is never retried. (offsets.commit.max.retries;
            default: 5)
        exclude_internal_topics: Exclude Kafka's internal topics from the filters of all members.
            All members of a group must have the same value. (exclude.internal.topics; default:
            True)
        metrics_port: zkconsumer only. The port of the Prometheus endpoint; needs
            `zkconsumer[metrics]` (`zkconsumer docs metrics`). (metrics.port; default: None)
        metrics_host: zkconsumer only. The address on which metrics.port listens. 0.0.0.0 gives
            other machines access, without authentication. (metrics.host; default: '127.0.0.1')
        trace_file: zkconsumer only. Write one JSON line per event of the member to this file.
            (trace.file; default: None)
    """

    group_id: str = setting("group.id", GROUP, REQUIRED, "The name of the consumer group.")
    zookeeper_sync_time_s: float = setting(
        "zookeeper.sync.time.ms",
        Backoff(),
        2.0,
        "Used only as the default of rebalance.backoff.ms.",
    )
    consumer_id: str | None = setting(
        "consumer.id",
        ID_SUFFIX,
        None,
        "The suffix of the consumer id, for tests. By default it is generated from the host, the"
        " time and a random part.",
    )
    client_id: str = setting(
        "client.id",
        CLIENT,
        DerivedDefault("group.id"),
        "The client id that is sent to the brokers with each request.",
    )
    socket_timeout_s: float = setting(
        "socket.timeout.ms",
        Millis(1),
        30.0,
        "The timeout of a request to a broker; must be at least fetch.wait.max.ms.",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        Integer(-1, "bytes"),
        65536,
        "The size of the sockets' receive buffer. The system chooses the size if the value is"
        " 65536, or 0 or less.",
    )
    fetch_message_max_bytes: int = setting(
        "fetch.message.max.bytes",
        Integer(1, "bytes"),
        1048576,
        "The number of bytes to fetch per partition in one request. zkconsumer raises it for a"
        " larger message; the JVM does not.",
    )
    num_consumer_fetchers: int = setting(
        "num.consumer.fetchers",
        Integer(1),
        1,
        "The number of broker clients of a connector with more than four streams. Such a connector"
        " uses at least two.",
    )
    auto_commit_enable: bool = setting(
        "auto.commit.enable",
        Flag(),
        True,
        "Commit the offsets of finished messages periodically, and before each partition is"
        " released.",
    )
    auto_commit_interval_s: float = setting(
        "auto.commit.interval.ms", Millis(1), 60.0, "The time between two automatic commits."
    )
    queued_max_message_chunks: int = setting(
        "queued.max.message.chunks",
        Integer(1),
        2,
        "A stream prefetches at most this number times fetch.message.max.bytes, in bytes;"
        " with the columnar reader, from each broker.",
    )
    rebalance_max_retries: int = setting(
        "rebalance.max.retries",
        Integer(1),
        4,
        "A JVM member gives up after this number of attempts to claim a partition. zkconsumer keeps"
        " retrying, and reports the blocking owner after this number times the back-off.",
    )
    rebalance_backoff_s: float = setting(
        "rebalance.backoff.ms",
        Backoff(),
        DerivedDefault("zookeeper.sync.time.ms"),
        "The maximum back-off before the next attempt to claim a partition that another member"
        " owns.",
    )
    rebalance_mode: Literal["incremental", "eager"] = setting(
        "rebalance.mode",
        OneOf(("incremental", "eager")),
        "incremental",
        "zkconsumer only. In a rebalance, release only the partitions that are reassigned"
        " (incremental), or all partitions as the JVM does (eager).",
    )
    release_grace_s: float = setting(
        "release.grace.ms",
        Millis(0),
        1.0,
        "zkconsumer only. The maximum time that a release waits for the user to ask for the next"
        " message. The release then waits for the rebalance listener, if any, for at most the same"
        " time.",
    )
    peers_nudge: bool = setting(
        "peers.nudge",
        Flag(),
        False,
        "zkconsumer only. While another member does not claim its partitions, register again once a"
        " minute, which makes the group rebalance.",
    )
    peers_release: str = setting(
        "peers.release",
        RELEASE,
        DEFAULT.release,
        "zkconsumer only. The Kafka release of the group's JVM members, whose rules the consumer"
        " follows. With auto, it detects the release from the owner znodes of a settled group (see"
        " [releases.md](releases.md)).",
    )
    refresh_leader_backoff_s: float = setting(
        "refresh.leader.backoff.ms",
        Backoff(),
        0.2,
        "The back-off after a failed fetch or leader lookup.",
    )
    fetch_min_bytes: int = setting(
        "fetch.min.bytes",
        Integer(0, "bytes"),
        1,
        "The minimum number of bytes in the response to a fetch. The broker waits for them for at"
        " most fetch.wait.max.ms.",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        Integer(0, "bytes"),
        52428800,
        f"{_NONE}; the JVM parses it but never uses it.",
    )
    fetch_wait_max_s: float = setting(
        "fetch.wait.max.ms",
        Millis(0),
        0.1,
        "The maximum time that a broker waits for fetch.min.bytes.",
    )
    fetch_engine: Literal["auto", "librdkafka", "columns"] = setting(
        "fetch.engine",
        OneOf(("auto", "librdkafka", "columns")),
        "auto",
        "zkconsumer only. What fetches messages. librdkafka: always librdkafka. columns: always "
        "zkconsumer's own columnar reader. auto: the columnar reader if the extra fast is "
        "installed and the reader honours all properties of librdkafka that are set "
        "([configuration.md](configuration.md)); otherwise librdkafka.",
    )
    auto_offset_reset: Literal["smallest", "largest"] = setting(
        "auto.offset.reset",
        OneOf(("smallest", "largest")),
        "largest",
        "Where to start if a partition has no stored offset, or one that is out of range.",
    )
    consumer_timeout_s: float | None = setting(
        "consumer.timeout.ms",
        MillisOrNever(),
        None,
        "If no message arrives for this time, the stream raises ConsumerTimeoutError and remains"
        " usable.",
    )
    partition_assignment_strategy: Literal["range", "roundrobin"] = setting(
        "partition.assignment.strategy",
        OneOf(("range", "roundrobin")),
        "range",
        "How partitions are assigned to consumer threads. All members of a group must have the same"
        " value.",
    )
    offsets_storage: Literal["zookeeper", "kafka"] = setting(
        "offsets.storage",
        OneOf(("zookeeper", "kafka"), str.lower),
        "zookeeper",
        "Where offsets are stored: in ZooKeeper, or in Kafka (brokers 0.8.2 and later).",
    )
    dual_commit_enabled: bool = setting(
        "dual.commit.enabled",
        Flag(),
        DerivedDefault("true if offsets.storage is kafka"),
        "With offsets.storage=kafka: also commit to ZooKeeper, and start at the higher of the two"
        " offsets.",
    )
    offsets_channel_backoff_s: float = setting(
        "offsets.channel.backoff.ms",
        Backoff(),
        1.0,
        "With offsets.storage=kafka: the back-off before a failed offset request is retried.",
    )
    offsets_channel_socket_timeout_s: float = setting(
        "offsets.channel.socket.timeout.ms",
        Millis(1),
        10.0,
        "With offsets.storage=kafka: the timeout of one commit or fetch of offsets.",
    )
    offsets_commit_max_retries: int = setting(
        "offsets.commit.max.retries",
        Integer(0),
        5,
        "With offsets.storage=kafka: how often a failed commit is retried. The commit before a"
        " release is never retried.",
    )
    exclude_internal_topics: bool = setting(
        "exclude.internal.topics",
        Flag(),
        True,
        "Exclude Kafka's internal topics from the filters of all members. All members of a group"
        " must have the same value.",
    )
    metrics_port: int | None = setting(
        "metrics.port",
        PORT,
        None,
        "zkconsumer only. The port of the Prometheus endpoint; needs `zkconsumer[metrics]`"
        " ([metrics.md](metrics.md)).",
    )
    metrics_host: str = setting(
        "metrics.host",
        Text("an address of this machine", bool),
        "127.0.0.1",
        "zkconsumer only. The address on which metrics.port listens. 0.0.0.0 gives other machines"
        " access, without authentication.",
    )
    trace_file: str | None = setting(
        "trace.file",
        Text("a path"),
        None,
        "zkconsumer only. Write one JSON line per event of the member to this file.",
    )

    def _derived(self) -> dict[str, object]:
        return super()._derived() | {
            "client_id": self.group_id,
            "rebalance_backoff_s": self.zookeeper_sync_time_s,
            "dual_commit_enabled": self.offsets_storage == "kafka",
        }

    def _check_together(self) -> None:
        super()._check_together()
        if self.socket_timeout_s < self.fetch_wait_max_s:
            raise ConfigError(
                "socket.timeout.ms is below fetch.wait.max.ms, so fetches would time out",
                where="socket.timeout.ms",
                remedy=f"set it to at least {round(self.fetch_wait_max_s * 1000)}",
            )
        if self.peers_release.startswith(("0.8.0", "0.8.1")) and (
            self.partition_assignment_strategy == "roundrobin"
        ):
            raise ConfigError(
                f"Kafka {self.peers_release} has no round-robin: its members always use range",
                where="partition.assignment.strategy",
                remedy="use range, or another peers.release",
            )

    @property
    def storage(self) -> Storage:
        """Where offsets are stored; dual commit has no effect with ZooKeeper as storage."""
        if self.offsets_storage == "zookeeper":
            return Storage.ZOOKEEPER
        return Storage.DUAL if self.dual_commit_enabled else Storage.KAFKA

    def for_group(self, group_id: str) -> ConsumerConfig:
        """Return the same configuration for another group, or raise ConfigError."""
        return replace(self, group_id=group_id)


SETTINGS: Final[tuple[Setting, ...]] = settings_of(ConsumerConfig)
_BY_NAME: Final = {row.name: row for row in SETTINGS}
REQUIRED_ATTRIBUTES: Final = frozenset(row.attribute for row in SETTINGS if row.default is REQUIRED)


def _entries(
    source: str | PathLike[str] | Mapping[str, str],
) -> Iterator[tuple[str, str, str]]:
    """Yield each (name, value, place) of one source, with secrets read from their files."""
    if isinstance(source, Mapping):
        for name, text in source.items():
            yield name, reveal(name, text, name), name
        return
    for name, text, number in read_properties(Path(source)):
        place = f"{source}:{number}"
        yield name, reveal(name, text, place), place


def _parsed(row: Setting, text: str, place: str) -> object:
    # As `String.trim`, remove all characters up to U+0020 and no others, unlike str.strip.
    trimmed = text.strip("".join(map(chr, range(0x21))))
    try:
        return row.kind.check(row.kind.from_text(trimmed))
    except ValueError:
        raise _bad_value(row, trimmed, place) from None


def _checked(row: Setting, value: object) -> object:
    allowed = in_seconds(row.kind)
    # A file's times are floats here.
    if allowed and type(value) is int and value > arguments.LONG_S:
        text = f"{row.attribute}={value} means {value / 3600:.3g} hours; the unit is seconds"
        warnings.warn(text, UserWarning, stacklevel=4)
    try:
        return row.kind.check(value)
    except ValueError:
        if allowed:
            raise _bad_value(row, value, row.attribute, allowed) from None
        raise _bad_value(row, value, row.name) from None


def _bad_value(row: Setting, value: object, place: str, allowed: str = "") -> ConfigError:
    shown = "(not shown)" if row.kind in (TOKEN, SECRET) else repr(value)
    reason = " (the JVM accepts it, but no tool can name such a group)" if value == "" else ""
    return ConfigError(
        f"bad value {shown} of {row.name}{reason if row.kind is GROUP else ''}",
        where=place,
        remedy=f"allowed: {allowed or row.kind.allowed}",
    )


def _typed(cls: type, properties: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes that a program's properties set; None leaves a default.

    A file may contain properties of other clients, so an unknown name in a file causes a warning.
    Only this class reads a program's mapping, so an unknown name in a mapping is an error. Raises
    ConfigError.
    """
    if not isinstance(properties, Mapping):
        raise ConfigError(
            f"{cls.__name__} takes a mapping of properties, not {type(properties).__name__}",
            remedy=f"read a properties file with {cls.__name__}.from_properties",
        )
    own = {row.attribute for row in settings_of(cls)}
    values: dict[str, object] = {}
    kafka: dict[str, object] = {}
    for name, value in properties.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"{name!r} is not the name of a property", remedy="use names such as group.id"
            )
        if value is None or name.startswith((*NO_EFFECT, EXEMPT)):
            continue
        if _is_librdkafkas(name):
            kafka[name.removeprefix(kafka_properties.PREFIX)] = value
            continue
        row = _BY_NAME.get(name)
        if row is None:
            raise ConfigError(f"unknown property {name}", where=name, remedy=_advice(name))
        if row.attribute in own:
            values[row.attribute] = _parsed(row, _as_text(row, value), name)
    return {**values, **({"kafka": kafka} if kafka else {})}


def _as_text(row: Setting, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int):
        raise _bad_value(row, value, row.name)
    return str(value)


# Properties of confluent-kafka and of the new Java consumer -> the remedy.
_ELSEWHERE: Final = {
    "bootstrap.servers": "set zookeeper.connect; the brokers are found in ZooKeeper",
    "enable.auto.commit": "set auto.commit.enable",
    "session.timeout.ms": "set zookeeper.session.timeout.ms",
    "max.poll.interval.ms": "remove it; a slow loop does not end the membership",
    "max.poll.records": "remove it, and call stream.poll(max_messages=...)",
    "max.partition.fetch.bytes": "set fetch.message.max.bytes",
    "fetch.max.wait.ms": "set fetch.wait.max.ms",
    "receive.buffer.bytes": "set socket.receive.buffer.bytes",
    "request.timeout.ms": "set socket.timeout.ms",
    "key.deserializer": "remove it, and pass key_decoder to create_message_streams",
    "value.deserializer": "remove it, and pass value_decoder to create_message_streams",
    "group.instance.id": "remove it; the old consumer has no static members",
}
# The beginnings of librdkafka's properties for secured brokers.
_SECURITY: Final = ("ssl.", "sasl.", "security.protocol", "enable.ssl.", "oauth_cb")


def _advice(name: str) -> str:
    """Return the remedy for an unknown property."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name.startswith(_SECURITY):
        return f'set {kafka_properties.PREFIX}{name}, or kafka={{"{name}": ...}} in Python'
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    return (
        f"did you mean {near[0]}?"
        if near
        else "`zkconsumer docs configuration` lists the properties"
    )


def _unknown_keyword(name: str) -> ConfigError:
    """Return the error for a keyword argument that is not an attribute."""
    attributes = {row.attribute: row for row in SETTINGS}
    dotted = name.replace("_", ".")
    meant = _BY_NAME.get(dotted)
    if meant is None and dotted not in _ELSEWHERE and not dotted.startswith(_SECURITY):
        near = difflib.get_close_matches(name, attributes, n=1)
        meant = attributes[near[0]] if near else None
    if meant is None:
        remedy = _advice(dotted)
    else:
        unit = ", in seconds" if meant.attribute.endswith("_s") else ""
        remedy = f"use {meant.attribute}{unit}"
    return ConfigError(f"unknown keyword argument {name}", where=name, remedy=remedy)


def _missing(row: Setting, where: str) -> ConfigError:
    return ConfigError(f"missing required property {row.name}", where=where, remedy="set it")


def _is_librdkafkas(name: str) -> bool:
    return name.startswith(kafka_properties.PREFIX) and not name.startswith(NO_EFFECT)


def _log_override(row: Setting, text: str) -> None:
    shown = "(not shown)" if row.kind in (TOKEN, SECRET) else text
    note = f"; {row.effect}" if row.effect.startswith(_NONE) else ""
    _log.info("Property %s is overridden to %s%s", row.name, shown, note)


def _warn_unknown(name: str, place: str) -> None:
    if name.startswith(NO_EFFECT):
        _log.info("Property %s has no effect in zkconsumer (%s)", name, place)
    if name.startswith((*NO_EFFECT, EXEMPT)):
        return
    hint = f"; {_advice(name)}"
    # The text begins like the JVM's text, so that one search of the logs finds both texts.
    _log.warning("Property %s is not valid, and has no effect (%s)%s", name, place, hint)


def _names(sources: tuple[object, ...]) -> str:
    return ", ".join(str(one) for one in sources if not isinstance(one, Mapping))


# ---- zookeeper.connect ---------------------------------------------------------------------------


def split_connect(connect: str) -> tuple[str, str]:
    """Split a ZooKeeper connect string into (hosts, chroot); the chroot may be empty.

    A host without a port gets port 2181, and empty parts at the end of the list of hosts are left
    out, as in the Java client. Raises ConfigError.
    """
    hosts, slash, path = connect.partition("/")
    named = hosts.rstrip(",") or hosts
    servers = [_server(one.strip(), connect) for one in named.split(",")]
    if not path:
        return ",".join(servers), ""
    if re.search(r",[^/,]+:[0-9]+", path):
        raise _bad_connect(connect, "write the chroot once, after the last server")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise _bad_connect(connect, "the chroot must be a path without empty parts, `.` and `..`")
    return ",".join(servers), slash + path


def _server(text: str, connect: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?", text, re.ASCII)
    if match is None:
        raise _bad_connect(connect, f"{text!r} is not host:port")
    port = int(match[2] or 2181)
    if not 0 < port < 65536:
        raise _bad_connect(connect, f"{port} is not a port")
    return f"{match[1]}:{port}"


def _bad_connect(connect: str, why: str) -> ConfigError:
    return ConfigError(
        f"bad value {connect!r} of zookeeper.connect: {why}",
        where="zookeeper.connect",
        remedy=f"allowed: {HOSTS.allowed}",
    )


# ---- authentication and TLS ----------------------------------------------------------------------


def check_security(config: ConnectionConfig) -> None:
    """Raise ConfigError for properties that contradict each other, or that are unsafe together."""
    _check_auth(config)
    _check_tls(config)


def _check_auth(config: ConnectionConfig) -> None:
    scheme, credential = config.zookeeper_auth_scheme, config.zookeeper_auth_credential
    needs = scheme == "digest" or (
        scheme == "sasl" and config.zookeeper_sasl_mechanism == "DIGEST-MD5"
    )
    if needs != (credential is not None):
        raise ConfigError(
            "zookeeper.auth.scheme and zookeeper.auth.credential must be set together (GSSAPI needs"
            " no credential)",
            where="zookeeper.auth.scheme",
            remedy="set both, or neither",
        )
    if config.zookeeper_acl == "creator" and scheme is None:
        raise ConfigError(
            "zookeeper.acl=creator without authentication: ZooKeeper would refuse every new znode",
            where="zookeeper.acl",
            remedy="set zookeeper.auth.scheme and zookeeper.auth.credential as well",
        )
    in_clear = scheme == "digest" and not config.zookeeper_ssl_enable
    if in_clear and not config.zookeeper_auth_insecure_plaintext:
        hosts = split_connect(config.zookeeper_connect)[0].split(",")
        far = [host for host in hosts if not _is_loopback(host.rpartition(":")[0])]
        if far:
            raise ConfigError(
                f"the digest password would be sent in clear text over the network, to {far[0]}",
                where="zookeeper.auth.scheme",
                remedy="set zookeeper.ssl.enable=true; or, if you trust the network, "
                "zookeeper.auth.insecure.plaintext=true",
            )


def _check_tls(config: ConnectionConfig) -> None:
    if not config.zookeeper_ssl_enable:
        idle = {
            "zookeeper.ssl.ca": config.zookeeper_ssl_ca,
            "zookeeper.ssl.certificate": config.zookeeper_ssl_certificate,
            "zookeeper.ssl.key": config.zookeeper_ssl_key,
            "zookeeper.ssl.key.password": config.zookeeper_ssl_key_password,
            "zookeeper.ssl.insecure.skip.hostname": config.zookeeper_ssl_insecure_skip_hostname,
            "zookeeper.ssl.insecure.skip.verify": config.zookeeper_ssl_insecure_skip_verify,
        }
        for name, value in idle.items():
            if value:
                raise ConfigError(
                    f"{name} without zookeeper.ssl.enable: nothing would be encrypted",
                    where=name,
                    remedy="set zookeeper.ssl.enable=true",
                )
    if (config.zookeeper_ssl_certificate is None) != (config.zookeeper_ssl_key is None):
        raise ConfigError(
            "zookeeper.ssl.certificate and zookeeper.ssl.key must be set together",
            where="zookeeper.ssl.certificate",
            remedy="set both, or neither",
        )
    if config.zookeeper_ssl_key_password is not None and config.zookeeper_ssl_key is None:
        raise ConfigError(
            "zookeeper.ssl.key.password without a key",
            where="zookeeper.ssl.key.password",
            remedy="set zookeeper.ssl.key as well",
        )


def _is_loopback(host: str) -> bool:
    """Return whether the host is this machine; of all names, only `localhost` is."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
