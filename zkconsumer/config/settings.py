"""The settings of a consumer: the JVM's property names, typed and validated.

The fields of `ConsumerConfig` are the one table: property name, attribute, type, default, what is
allowed, effect. `zkconsumer.config.page` writes docs/configuration.md from it. Tools that concern
no group use the base class, `ConnectionConfig`.
Rules and defaults: `kafka.consumer.ConsumerConfig` and `kafka.utils.VerifiableProperties`,
Kafka 0.9 to 1.1.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from zkconsumer.config.properties_file import read_properties
from zkconsumer.config.property_types import (
    CLIENT,
    GROUP,
    HOSTS,
    ID_SUFFIX,
    PATH,
    PORT,
    RELEASE,
    REQUIRED,
    SECRET,
    SERVICE,
    TOKEN,
    Choice,
    DerivedDefault,
    Flag,
    Integer,
    Millis,
    MillisOrNever,
    Pause,
    Setting,
    Text,
    setting,
    settings_of,
)
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.releases import DEFAULT

_log = logging.getLogger("zkconsumer.config")

# Accepted, and said at INFO: reporters of the JVM's metrics, and constants that it never uses.
NO_EFFECT: Final = ("kafka.metrics.", "kafka.csv.metrics.", "mirror.")
# The JVM, too, is silent about these from 0.8.2 on: they belong to the user's own code.
EXEMPT: Final = "external"

_NONE = "No effect here"


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """Where ZooKeeper is, and how a client logs in; immutable.

    Keyword arguments have the property's name in snake_case; durations are float seconds and end
    in `_s`. A default that another setting decides is resolved at construction. Raises ConfigError
    with name, value and what is allowed (JVM: InvalidConfigException, IllegalArgumentException).
    """

    zookeeper_connect: str = setting(
        "zookeeper.connect",
        HOSTS,
        REQUIRED,
        "ZooKeeper servers, and the chroot, which must exist: it is never created.",
    )
    zookeeper_session_timeout_s: float = setting(
        "zookeeper.session.timeout.ms",
        Millis(1),
        6.0,
        "After so long without a word ZooKeeper counts this member as dead.",
    )
    zookeeper_connection_timeout_s: float = setting(
        "zookeeper.connection.timeout.ms",
        Millis(1),
        DerivedDefault("zookeeper.session.timeout.ms"),
        "How long to wait for the first connection.",
    )
    zookeeper_auth_scheme: Literal["digest", "sasl"] | None = setting(
        "zookeeper.auth.scheme",
        Choice(("digest", "sasl")),
        None,
        "Ours. Authenticate to ZooKeeper; digest only over TLS or to this machine.",
    )
    zookeeper_auth_credential: str | None = setting(
        "zookeeper.auth.credential",
        TOKEN,
        None,
        "Ours. User and password, for digest and DIGEST-MD5; never shown in logs or errors.",
    )
    zookeeper_auth_insecure_plaintext: bool = setting(
        "zookeeper.auth.insecure.plaintext",
        Flag(),
        False,
        "Ours. Send a digest password in clear text over the network.",
    )
    zookeeper_sasl_mechanism: Literal["DIGEST-MD5", "GSSAPI"] = setting(
        "zookeeper.sasl.mechanism",
        Choice(("DIGEST-MD5", "GSSAPI")),
        "DIGEST-MD5",
        "Ours. For zookeeper.auth.scheme=sasl; GSSAPI uses the ticket cache of the process.",
    )
    zookeeper_sasl_service: str = setting(
        "zookeeper.sasl.service",
        SERVICE,
        "zookeeper",
        "Ours. The service name of ZooKeeper's Kerberos principal.",
    )
    zookeeper_ssl_enable: bool = setting(
        "zookeeper.ssl.enable",
        Flag(),
        False,
        "Ours. TLS 1.2 or later to ZooKeeper; certificate and host name are checked.",
    )
    zookeeper_ssl_ca: str | None = setting(
        "zookeeper.ssl.ca",
        PATH,
        None,
        "Ours. PEM file of the authorities to trust, instead of the system's.",
    )
    zookeeper_ssl_certificate: str | None = setting(
        "zookeeper.ssl.certificate", PATH, None, "Ours. PEM file of our own certificate."
    )
    zookeeper_ssl_key: str | None = setting(
        "zookeeper.ssl.key", PATH, None, "Ours. PEM file of its key."
    )
    zookeeper_ssl_key_password: str | None = setting(
        "zookeeper.ssl.key.password",
        SECRET,
        None,
        "Ours. Decrypts the key; never shown in logs or errors.",
    )
    zookeeper_ssl_insecure_skip_hostname: bool = setting(
        "zookeeper.ssl.insecure.skip.hostname",
        Flag(),
        False,
        "Ours. Take a certificate that is valid for another host.",
    )
    zookeeper_ssl_insecure_skip_verify: bool = setting(
        "zookeeper.ssl.insecure.skip.verify",
        Flag(),
        False,
        "Ours. Take any certificate, so that anybody in between can be ZooKeeper.",
    )
    zookeeper_acl: Literal["open", "creator"] = setting(
        "zookeeper.acl",
        Choice(("open", "creator")),
        "open",
        "Ours. Who may change the owner and offset nodes we create; needs zookeeper.auth.scheme.",
    )

    def __post_init__(self) -> None:
        for row in settings_of(type(self)):
            value = getattr(self, row.attribute)
            if value is not None or row.attribute in REQUIRED_ATTRIBUTES:
                object.__setattr__(self, row.attribute, _checked(row, value))
        for attribute, value in self._derived().items():
            if getattr(self, attribute) is None:
                object.__setattr__(self, attribute, value)
        self._check_together()

    def _derived(self) -> dict[str, Any]:
        """Attribute -> the value that other settings give it when it is not set."""
        return {"zookeeper_connection_timeout_s": self.zookeeper_session_timeout_s}

    def _check_together(self) -> None:
        split_connect(self.zookeeper_connect)
        check_security(self)

    @property
    def zookeeper_hosts(self) -> str:
        """The servers of `zookeeper_connect`, without the chroot: `h1:2181,h2:2181`."""
        return split_connect(self.zookeeper_connect)[0]

    @property
    def zookeeper_chroot(self) -> str:
        """The chroot of `zookeeper_connect`: `/kafka`, or empty."""
        return split_connect(self.zookeeper_connect)[1]

    @classmethod
    def from_properties(
        cls, *sources: str | PathLike[str] | Mapping[str, str], **overrides: Any
    ) -> Self:
        """The settings of a JVM consumer's file, or of a mapping of property names to text.

        Later sources win over earlier ones; `overrides` are keyword arguments of the class and win
        over all sources. An unknown name gives a warning with the nearest known name.
        `ConnectionConfig` ignores the properties of a consumer. Raises ConfigError with name,
        value, file and line, and what is allowed.
        """
        table = settings_of(cls)
        own = {row.attribute for row in table}
        values: dict[str, object] = {}
        places: dict[str, str] = {}
        for source in sources:
            for name, text, place in _entries(source):
                row = _BY_NAME.get(name)
                if row is None:
                    _warn_unknown(name, place)
                    continue
                if row.attribute not in own:
                    continue
                values[row.attribute] = _parsed(row, text, place)
                _tell(row, text)
                places[name] = place
        values.update(overrides)
        places |= {row.name: row.name for row in table if row.attribute in overrides}
        for row in table:
            if row.attribute in REQUIRED_ATTRIBUTES and row.attribute not in values:
                raise ConfigError(
                    f"missing required property {row.name}", where=_names(sources), remedy="set it"
                )
        try:
            return cls(**cast(Any, values))
        except ConfigError as error:
            place = places.get(error.where, error.where)
            raise ConfigError(error.what, where=place, remedy=error.remedy) from None

    def for_group(self, group_id: str) -> ConsumerConfig:
        """The settings of a consumer of this group over the same connection.

        Every other setting has its default. Raises ConfigError for a group name that is not valid.
        """
        names = [row.attribute for row in settings_of(ConnectionConfig)]
        return ConsumerConfig(group_id=group_id, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ConnectionConfig):
    """The settings of one consumer; immutable. As `ConnectionConfig`, with the member's own."""

    group_id: str = setting("group.id", GROUP, REQUIRED, "The group to be a member of.")
    zookeeper_sync_time_s: float = setting(
        "zookeeper.sync.time.ms", Pause(), 2.0, "Only the default of rebalance.backoff.ms."
    )
    consumer_id: str | None = setting(
        "consumer.id",
        ID_SUFFIX,
        None,
        "Suffix of the consumer id; by default host, time and a random part. For tests.",
    )
    client_id: str = setting(
        "client.id",
        CLIENT,
        DerivedDefault("group.id"),
        "The name by which the brokers know the client.",
    )
    socket_timeout_s: float = setting(
        "socket.timeout.ms",
        Millis(1),
        30.0,
        "Time limit of a request to a broker; at least fetch.wait.max.ms.",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        Integer(-1, "bytes"),
        65536,
        "The socket's receive buffer; 65536, 0 and less: the system's own, which grows as needed.",
    )
    fetch_message_max_bytes: int = setting(
        "fetch.message.max.bytes",
        Integer(1, "bytes"),
        1048576,
        "Bytes to ask for per partition and request; grows for a larger message (JVM: never).",
    )
    num_consumer_fetchers: int = setting(
        "num.consumer.fetchers",
        Integer(1),
        1,
        "Broker clients of a connector with more than four streams; it has two at least.",
    )
    auto_commit_enable: bool = setting(
        "auto.commit.enable",
        Flag(),
        True,
        "Commit finished messages from time to time, and at each rebalance.",
    )
    auto_commit_interval_s: float = setting(
        "auto.commit.interval.ms", Millis(1), 60.0, "How often."
    )
    queued_max_message_chunks: int = setting(
        "queued.max.message.chunks",
        Integer(1),
        2,
        "With fetch.message.max.bytes: the bytes that a stream fetches ahead.",
    )
    rebalance_max_retries: int = setting(
        "rebalance.max.retries",
        Integer(1),
        4,
        "Attempts before the blocker is reported; we go on trying (JVM: gives up).",
    )
    rebalance_backoff_s: float = setting(
        "rebalance.backoff.ms",
        Pause(),
        DerivedDefault("zookeeper.sync.time.ms"),
        "Longest wait between two attempts to claim a partition that is held.",
    )
    rebalance_mode: Literal["incremental", "eager"] = setting(
        "rebalance.mode",
        Choice(("incremental", "eager")),
        "incremental",
        "Ours. Release only what moves, or everything as the JVM does.",
    )
    release_grace_s: float = setting(
        "release.grace.ms",
        Millis(0),
        1.0,
        "Ours. How long a release waits for the user to ask for the next message, and then as"
        " long for the rebalance listener, if there is one.",
    )
    peers_nudge: bool = setting(
        "peers.nudge",
        Flag(),
        False,
        "Ours. Register anew once a minute while a peer leaves its share unclaimed, to wake it.",
    )
    peers_release: str = setting(
        "peers.release",
        RELEASE,
        DEFAULT.release,
        "Ours. The Kafka release of the JVM members, whose ways we then have; auto: as the owner"
        " nodes of a settled group show (see [releases.md](releases.md)).",
    )
    refresh_leader_backoff_s: float = setting(
        "refresh.leader.backoff.ms",
        Pause(),
        0.2,
        "Pause after a failed fetch or look-up of a leader.",
    )
    fetch_min_bytes: int = setting(
        "fetch.min.bytes", Integer(0, "bytes"), 1, "The broker answers a fetch when it has so much."
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        Integer(0, "bytes"),
        52428800,
        f"{_NONE}; the JVM parses it and never uses it, either.",
    )
    fetch_wait_max_s: float = setting(
        "fetch.wait.max.ms", Millis(0), 0.1, "The broker answers a fetch after so long in any case."
    )
    auto_offset_reset: Literal["smallest", "largest"] = setting(
        "auto.offset.reset",
        Choice(("smallest", "largest")),
        "largest",
        "Where to begin without a stored offset, or with one that is out of range.",
    )
    consumer_timeout_s: float | None = setting(
        "consumer.timeout.ms",
        MillisOrNever(),
        None,
        "ConsumerTimeoutError when no message came for so long; the stream stays usable.",
    )
    partition_assignment_strategy: Literal["range", "roundrobin"] = setting(
        "partition.assignment.strategy",
        Choice(("range", "roundrobin")),
        "range",
        "Who gets which partition; must be the same in the whole group.",
    )
    offsets_storage: Literal["zookeeper", "kafka"] = setting(
        "offsets.storage",
        Choice(("zookeeper", "kafka"), str.lower),
        "zookeeper",
        "Where offsets are kept: in znodes, or in the brokers (0.8.2 and later).",
    )
    dual_commit_enabled: bool = setting(
        "dual.commit.enabled",
        Flag(),
        DerivedDefault("true if offsets.storage is kafka"),
        "With offsets.storage=kafka: commit to ZooKeeper as well, and begin at the larger of both.",
    )
    offsets_channel_backoff_s: float = setting(
        "offsets.channel.backoff.ms",
        Pause(),
        1.0,
        "With offsets.storage=kafka: pause before the brokers are asked again.",
    )
    offsets_channel_socket_timeout_s: float = setting(
        "offsets.channel.socket.timeout.ms",
        Millis(1),
        10.0,
        "With offsets.storage=kafka: time limit of one commit or look-up.",
    )
    offsets_commit_max_retries: int = setting(
        "offsets.commit.max.retries",
        Integer(0),
        5,
        "With offsets.storage=kafka: how often a commit is tried again; at a hand-over never.",
    )
    exclude_internal_topics: bool = setting(
        "exclude.internal.topics",
        Flag(),
        True,
        "No filter matches Kafka's own topics, anybody's; must be the same in the whole group.",
    )
    metrics_port: int | None = setting(
        "metrics.port",
        PORT,
        None,
        "Ours. Answer Prometheus here; needs `zkconsumer[metrics]` ([metrics.md](metrics.md)).",
    )
    metrics_host: str = setting(
        "metrics.host",
        Text("an address of this machine", bool),
        "127.0.0.1",
        "Ours. Where metrics.port listens; 0.0.0.0 lets others ask, without any authentication.",
    )
    trace_file: str | None = setting(
        "trace.file",
        Text("a path"),
        None,
        "Ours. Write one JSON line per event of the group to this file.",
    )

    def _derived(self) -> dict[str, Any]:
        return super()._derived() | {
            "client_id": self.group_id,
            "rebalance_backoff_s": self.zookeeper_sync_time_s,
            "dual_commit_enabled": self.offsets_storage == "kafka",
        }

    def _check_together(self) -> None:
        super()._check_together()
        if self.socket_timeout_s < self.fetch_wait_max_s:
            raise ConfigError(
                "socket.timeout.ms is below fetch.wait.max.ms, so that fetches would time out",
                where="socket.timeout.ms",
                remedy=f"at least {round(self.fetch_wait_max_s * 1000)}",
            )
        if self.peers_release.startswith(("0.8.0", "0.8.1")) and (
            self.partition_assignment_strategy == "roundrobin"
        ):
            raise ConfigError(
                f"Kafka {self.peers_release} has no round-robin: its members do range in any case",
                where="partition.assignment.strategy",
                remedy="range, or another peers.release",
            )

    def for_group(self, group_id: str) -> ConsumerConfig:
        """The same settings for another group. Raises ConfigError for a name that is not valid."""
        return replace(self, group_id=group_id)


TABLE: Final[tuple[Setting, ...]] = settings_of(ConsumerConfig)
_BY_NAME: Final = {row.name: row for row in TABLE}
REQUIRED_ATTRIBUTES: Final = frozenset(row.attribute for row in TABLE if row.default is REQUIRED)


def _entries(
    source: str | PathLike[str] | Mapping[str, str],
) -> Iterator[tuple[str, str, str]]:
    """Each (name, value, place) of one source."""
    if isinstance(source, Mapping):
        for name, text in source.items():
            yield name, text, name
        return
    for name, text, number in read_properties(Path(source)):
        yield name, text, f"{source}:{number}"


def _parsed(row: Setting, text: str, place: str) -> object:
    # `String.trim`: everything up to U+0020, and nothing else, unlike str.strip.
    trimmed = text.strip("".join(map(chr, range(0x21))))
    try:
        return row.kind.check(row.kind.from_text(trimmed))
    except ValueError:
        raise _bad_value(row, trimmed, place) from None


def _checked(row: Setting, value: object) -> object:
    try:
        return row.kind.check(value)
    except ValueError:
        raise _bad_value(row, value, row.name) from None


def _bad_value(row: Setting, value: object, place: str) -> ConfigError:
    shown = "(not shown)" if row.kind in (TOKEN, SECRET) else repr(value)
    reason = " (the JVM takes it, and makes nodes that no tool can name)" if value == "" else ""
    return ConfigError(
        f"bad value {shown} of {row.name}{reason if row.kind is GROUP else ''}",
        where=place,
        remedy=f"allowed: {row.kind.allowed}",
    )


def _tell(row: Setting, text: str) -> None:
    shown = "(not shown)" if row.kind in (TOKEN, SECRET) else text
    vain = f"; {row.effect}" if row.effect.startswith(_NONE) else ""
    _log.info("Property %s is overridden to %s%s", row.name, shown, vain)


def _warn_unknown(name: str, place: str) -> None:
    if name.startswith(NO_EFFECT):
        _log.info("Property %s has no effect here (%s)", name, place)
    if name.startswith((*NO_EFFECT, EXEMPT)):
        return
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    # The beginning as in the JVM, for those who look for it.
    _log.warning("Property %s is not valid, and has no effect (%s)%s", name, place, hint)


def _names(sources: tuple[object, ...]) -> str:
    return ", ".join(str(one) for one in sources if not isinstance(one, Mapping))


# ---- zookeeper.connect ---------------------------------------------------------------------------


def split_connect(connect: str) -> tuple[str, str]:
    """(hosts, chroot) of a ZooKeeper connect string; the chroot is empty or begins with `/`.

    A host without a port gets 2181, as in the Java client. Raises ConfigError.
    """
    hosts, slash, path = connect.partition("/")
    servers = [_server(one.strip(), connect) for one in hosts.split(",")]
    if not path:
        return ",".join(servers), ""
    if re.search(r",[^/,]+:[0-9]+", path):
        raise _bad_connect(connect, "the chroot stands once, after the last server")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise _bad_connect(connect, "the chroot is a path without empty parts, `.` and `..`")
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


# ---- what must fit together ----------------------------------------------------------------------


def check_security(config: ConnectionConfig) -> None:
    """Raises ConfigError for settings that contradict each other or that are unsafe together."""
    _check_auth(config)
    _check_tls(config)


def _check_auth(config: ConnectionConfig) -> None:
    scheme, credential = config.zookeeper_auth_scheme, config.zookeeper_auth_credential
    needs = scheme == "digest" or (
        scheme == "sasl" and config.zookeeper_sasl_mechanism == "DIGEST-MD5"
    )
    if needs != (credential is not None):
        raise ConfigError(
            "zookeeper.auth.scheme and zookeeper.auth.credential need each other (GSSAPI: none)",
            where="zookeeper.auth.scheme",
            remedy="set both, or neither",
        )
    if config.zookeeper_acl == "creator" and scheme is None:
        raise ConfigError(
            "zookeeper.acl=creator without authentication: ZooKeeper would refuse every node",
            where="zookeeper.acl",
            remedy="set zookeeper.auth.scheme and zookeeper.auth.credential as well",
        )
    in_clear = scheme == "digest" and not config.zookeeper_ssl_enable
    if in_clear and not config.zookeeper_auth_insecure_plaintext:
        hosts = split_connect(config.zookeeper_connect)[0].split(",")
        far = [host for host in hosts if not _is_loopback(host.rpartition(":")[0])]
        if far:
            raise ConfigError(
                f"the digest password would go over the network in clear text, to {far[0]}",
                where="zookeeper.auth.scheme",
                remedy="set zookeeper.ssl.enable=true, or, where the network is trusted, "
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
            "zookeeper.ssl.certificate and zookeeper.ssl.key need each other",
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
    """Whether what is sent there stays on this machine; any name but localhost may not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
