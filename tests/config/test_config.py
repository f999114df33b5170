"""The configuration: a JVM consumer's properties file, names, defaults, rejected values."""

from __future__ import annotations

import logging
import pickle
import re
from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _configuration import arguments_docstring, configuration_page
from hypothesis import given
from hypothesis import strategies as st
from support.logged import logged

import zkconsumer
from zkconsumer.config.kafka_properties import ALWAYS_REFUSED
from zkconsumer.config.properties_file import parse_properties, properties_text
from zkconsumer.config.settings import (
    NO_EFFECT,
    SETTINGS,
    ConnectionConfig,
    ConsumerConfig,
    split_connect,
)
from zkconsumer.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NEEDED = {"group.id": "g1", "zookeeper.connect": "h1:2181,h2:2181/kafka"}

# The properties of kafka.consumer.ConsumerConfig 1.1.1, with durations in seconds.
JVM_DEFAULTS: dict[str, Any] = {
    "zookeeper.session.timeout.ms": 6.0,
    "zookeeper.connection.timeout.ms": 6.0,
    "zookeeper.sync.time.ms": 2.0,
    "consumer.id": None,
    "client.id": "g1",
    "socket.timeout.ms": 30.0,
    "socket.receive.buffer.bytes": 65536,
    "fetch.message.max.bytes": 1048576,
    "num.consumer.fetchers": 1,
    "auto.commit.enable": True,
    "auto.commit.interval.ms": 60.0,
    "queued.max.message.chunks": 2,
    "rebalance.max.retries": 4,
    "rebalance.backoff.ms": 2.0,
    "refresh.leader.backoff.ms": 0.2,
    "fetch.min.bytes": 1,
    "fetch.max.bytes": 52428800,
    "fetch.wait.max.ms": 0.1,
    "auto.offset.reset": "largest",
    "consumer.timeout.ms": None,
    "offsets.storage": "zookeeper",
    "dual.commit.enabled": False,
    "offsets.channel.backoff.ms": 1.0,
    "offsets.channel.socket.timeout.ms": 10.0,
    "offsets.commit.max.retries": 5,
    "exclude.internal.topics": True,
    "partition.assignment.strategy": "range",
}


# The other properties of ConsumerConfig in 0.8.0 to 1.1.1: required, or only for the JVM's metrics
# library, or without effect in the JVM, too.
JVM_OTHERS = (
    "group.id",
    "zookeeper.connect",
    "kafka.metrics.reporters",
    "kafka.metrics.polling.interval.secs",
    "kafka.csv.metrics.reporter.enabled",
    "kafka.csv.metrics.dir",
    "mirror.topics.whitelist",
    "mirror.topics.blacklist",
    "mirror.consumer.numthreads",
)


@cache
def modules_that_act() -> list[str]:
    """Return the modules of the package, except those that define the configuration."""
    sources = Path(zkconsumer.__file__).parent.rglob("*.py")
    return [one.read_text(encoding="utf-8") for one in sources if "config" not in one.name]


def config_of(**properties: str) -> ConsumerConfig:
    """Return a configuration with the required properties and others; `_` stands for `.`."""
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return ConsumerConfig.from_properties(NEEDED | named)


def test_the_defaults_are_the_jvms() -> None:
    """Every property of the JVM's consumer exists here, with the JVM's default."""
    config = ConsumerConfig.from_properties(NEEDED)
    attributes = {row.name: row.attribute for row in SETTINGS}
    found = {name: getattr(config, attributes[name]) for name in JVM_DEFAULTS}
    assert found == JVM_DEFAULTS


def test_attributes_are_the_names_in_snake_case() -> None:
    """An attribute is the property's name in snake_case; names of durations end in `_s`."""
    for row in SETTINGS:
        expected = row.name.replace(".", "_")
        assert row.attribute == (
            expected.removesuffix("_ms") + "_s" if expected.endswith("_ms") else expected
        )


def test_defaults_that_another_setting_decides() -> None:
    """Connection timeout, back-off and client id take their defaults from the JVM's properties."""
    config = config_of(zookeeper_session_timeout_ms="4000", zookeeper_sync_time_ms="200")
    assert (config.zookeeper_connection_timeout_s, config.rebalance_backoff_s) == (4.0, 0.2)
    assert replace(config, client_id="c").client_id == "c"


@pytest.mark.parametrize(
    "name",
    [
        "zookeeper.sync.time.ms",
        "rebalance.backoff.ms",
        "refresh.leader.backoff.ms",
        "offsets.channel.backoff.ms",
    ],
)
def test_a_pause_has_a_lower_bound(name: str) -> None:
    """Pauses below 50 ms, which the JVM accepts, are raised to 50 ms in files and in Python."""
    attribute = name.replace(".", "_").removesuffix("_ms") + "_s"
    least = [config_of(**{name.replace(".", "_"): text}) for text in ("0", "49", "50")]
    least.append(replace(least[0], **{attribute: 0.0}))
    assert [getattr(one, attribute) for one in least] == [0.05] * 4
    assert getattr(config_of(**{name.replace(".", "_"): "51"}), attribute) == 0.051
    with pytest.raises(ConfigError, match="allowed: whole milliseconds"):
        config_of(**{name.replace(".", "_"): "-1"})


def test_the_default_back_off_has_a_lower_bound() -> None:
    """With `zookeeper.sync.time.ms=0`, the default of the rebalance back-off is 50 ms."""
    assert config_of(zookeeper_sync_time_ms="0").rebalance_backoff_s == 0.05


def test_keyword_arguments_equal_properties() -> None:
    """Keyword arguments and properties with equal values give equal configurations."""
    assert ConsumerConfig(
        group_id="g1",
        zookeeper_connect="h1:2181,h2:2181/kafka",
        zookeeper_session_timeout_s=4,
        auto_offset_reset="smallest",
        consumer_timeout_s=0.25,
    ) == config_of(
        zookeeper_session_timeout_ms="4000", auto_offset_reset="smallest", consumer_timeout_ms="250"
    )


def test_written_properties() -> None:
    """Java reads the written values again, although it knows only ISO-8859-1 and escapes."""
    settings = {"dataDir": "/tmp/Größe/日本/\U0001f600\x7f\\new", "port": 2181, "empty": ""}
    text = properties_text(settings)
    assert text.isascii() and "\\ud83d\\ude00" in text
    read = {key: value for key, value, _ in parse_properties(text, where="f")}
    assert read == {key: str(value) for key, value in settings.items()}


def test_a_properties_file(tmp_path: Path) -> None:
    """A properties file is read as Java reads it, but values are trimmed."""
    file = tmp_path / "consumer.properties"
    file.write_bytes(
        b"# comment\r\n! comment\r\n\r\n"
        b"zookeeper.connect = h1:2181,\\\r\n    h2:2181/kafka  \r\n"
        b"group.id:g\\u0031\r\n"
        b"  rebalance.max.retries 7\n"
        b"consumer.id=caf\xe9\n"
        b"rebalance.max.retries\t=\t8"
    )
    config = ConsumerConfig.from_properties(file, auto_offset_reset="smallest")
    assert config.zookeeper_connect == "h1:2181,h2:2181/kafka"
    assert (config.group_id, config.consumer_id) == ("g1", "café")
    assert (config.rebalance_max_retries, config.auto_offset_reset) == (8, "smallest")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", ("a", "b")),
        ("a = b ", ("a", "b ")),
        ("a:b=c", ("a", "b=c")),
        ("a b = c", ("a", "b = c")),
        ("a", ("a", "")),
        ("=b", ("", "b")),
        (r"a\ b\=\:c=\#d", ("a b=:c", "#d")),
        (r"a=\t\n\r\f\q\\", ("a", "\t\n\r\fq\\")),
        ("a=b\\\n\n", ("a", "b")),
        ("a=b\\\n  # c", ("a", "b# c")),
        ("a=b\\", ("a", "b")),
        (r"a=\u20AC\u20ac", ("a", "€€")),
        (r"\uD83D\uDE00=\ud83d\ude00", ("\U0001f600", "\U0001f600")),
    ],
)
def test_the_syntax_of_a_line(text: str, expected: tuple[str, str]) -> None:
    """Separators, escapes and continuations work as in java.util.Properties."""
    assert [(key, value) for key, value, _ in parse_properties(text, where="f")] == [expected]


@pytest.mark.parametrize("line", [r"a=\ud83d", r"a=\ude00\ud83d", r"\ud83d=\ude00", r"a=\ud83db"])
def test_half_of_a_surrogate_pair(line: str) -> None:
    """A half of a surrogate pair without the other half is an error that names the line."""
    with pytest.raises(ConfigError, match="surrogate pair") as caught:
        list(parse_properties(f"b=c\n{line}\n", where="f"))
    assert caught.value.where == "f:2"


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """For any text the parser raises no other error than ConfigError."""
    try:
        for key, value, number in parse_properties(text, where="f"):
            assert isinstance(key + value, str)
            assert number >= 1
    except ConfigError as error:
        assert "\\u" in error.what


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("auto.commit.enable", "True", "true or false"),
        ("auto.commit.enable", "yes", "true or false"),
        ("auto.offset.reset", "earliest", "smallest or largest"),
        ("partition.assignment.strategy", "Range", "range or roundrobin"),
        ("offsets.storage", "file", "zookeeper or kafka"),
        ("rebalance.max.retries", "4.0", "a whole number"),
        ("rebalance.max.retries", "1_000", "a whole number"),
        ("rebalance.max.retries", "0", "1 to 2147483647"),
        ("fetch.min.bytes", "2147483648", "0 to 2147483647"),
        ("fetch.min.bytes", "9" * 5000, "0 to 2147483647"),
        ("zookeeper.session.timeout.ms", "6s", "whole milliseconds"),
        ("group.id", "a b", "A-Z a-z 0-9"),
        ("group.id", "", "1 to 249"),
        ("group.id", "..", "except"),
        ("client.id", "a/b", "A-Z a-z 0-9"),
        ("consumer.id", "a/b", "the name of a znode"),
        ("rebalance.mode", "cooperative", "incremental or eager"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, name: str, text: str, allowed: str) -> None:
    """The error for a bad value has its name, its file and line, and the allowed values."""
    file = tmp_path / "c.properties"
    file.write_text("zookeeper.connect=h:1\ngroup.id=g\n" + f"{name}={text}\n")
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.from_properties(file)
    assert f"bad value {text!r} of {name}" in caught.value.what
    assert caught.value.where == f"{file}:3"
    assert allowed in caught.value.remedy


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({"group_id": None}, "group.id"),
        ({"rebalance_max_retries": True}, "rebalance.max.retries"),
        ({"auto_commit_enable": 1}, "auto.commit.enable"),
        ({"zookeeper_session_timeout_s": float("nan")}, "zookeeper.session.timeout.ms"),
        ({"zookeeper_session_timeout_s": "6000"}, "zookeeper.session.timeout.ms"),
        ({"consumer_timeout_s": -1}, "consumer.timeout.ms"),
    ],
)
def test_a_bad_keyword_argument_is_named(keywords: dict[str, Any], name: str) -> None:
    """Keyword arguments of a wrong type or out of range are rejected as properties are."""
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        ConsumerConfig(**({"group_id": "g", "zookeeper_connect": "h:1"} | keywords))


def test_a_missing_property_is_named() -> None:
    """Without group.id or zookeeper.connect the configuration raises ConfigError."""
    for name in NEEDED:
        rest = {key: text for key, text in NEEDED.items() if key != name}
        with pytest.raises(ConfigError, match=f"missing required property {name}"):
            ConsumerConfig.from_properties(rest)


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    """If socket.timeout.ms is below fetch.wait.max.ms, the error has the line in the file."""
    file = tmp_path / "c.properties"
    file.write_text("socket.timeout.ms=99\n")
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.from_properties(NEEDED, file)
    assert caught.value.where == f"{file}:1"
    assert config_of(socket_timeout_ms="100").socket_timeout_s == 0.1


def test_storage_is_folded_and_dual_commit_follows_it() -> None:
    """offsets.storage ignores case; `kafka` makes dual.commit.enabled true by default."""
    config = config_of(offsets_storage="Kafka")
    assert (config.offsets_storage, config.dual_commit_enabled) == ("kafka", True)
    assert not config_of(offsets_storage="kafka", dual_commit_enabled="false").dual_commit_enabled
    assert not config_of(offsets_storage="ZooKeeper").dual_commit_enabled
    assert config_of(offsets_storage="ZooKeeper", dual_commit_enabled="true").dual_commit_enabled


@pytest.mark.parametrize(
    ("text", "release"),
    [("auto", "auto"), ("0.11", "0.11.0.3"), ("1.1.1", "1.1.1"), ("0.8.2-0.11", "0.8.2-0.11")],
)
def test_the_release_of_the_peers(text: str, release: str) -> None:
    """A release is a full number or an unambiguous prefix; other names are rejected."""
    assert config_of(peers_release=text).peers_release == release
    for doubtful in ("1.0", "0.7.2", ""):
        with pytest.raises(ConfigError, match=r"peers\.release"):
            config_of(peers_release=doubtful)


def test_a_release_without_round_robin() -> None:
    """0.8.0 and 0.8.1 have only range, so roundrobin is a contradiction."""
    with pytest.raises(ConfigError, match="no round-robin"):
        config_of(peers_release="0.8.1", partition_assignment_strategy="roundrobin")


def test_the_credential_is_never_shown() -> None:
    """No repr and no error shows the password; scheme, credential and acl need each other."""
    auth = {"zookeeper.auth.scheme": "digest", "zookeeper.auth.credential": "user:secret"}
    here = {"zookeeper.connect": "127.0.0.1:2181"}
    config = ConsumerConfig.from_properties(NEEDED | auth | here | {"zookeeper.acl": "creator"})
    assert config.zookeeper_auth_credential == "user:secret"
    assert "secret" not in repr(config)
    for bad in (
        {"zookeeper.auth.credential": "secret"},
        {"zookeeper.auth.credential": "user:secret"},
        {"zookeeper.auth.scheme": "digest"},
        {"zookeeper.acl": "creator"},
    ):
        with pytest.raises(ConfigError) as caught:
            ConsumerConfig.from_properties(NEEDED | bad)
        assert "secret" not in str(caught.value)


def test_a_secret_in_a_file(tmp_path: Path) -> None:
    """In every source, `@PATH` as a secret means the contents of the file; elsewhere it is text."""
    file = tmp_path / "secret"
    file.write_text("user:secret\n")
    here = {"zookeeper.connect": "127.0.0.1:2181", "zookeeper.auth.scheme": "digest"}
    properties = tmp_path / "consumer.properties"
    properties.write_text(f"zookeeper.auth.credential = @{file}\n")
    for source in (properties, {"zookeeper.auth.credential": f"@{file}"}):
        config = ConsumerConfig.from_properties(NEEDED | here, source)
        assert config.zookeeper_auth_credential == "user:secret"
    passed = ConsumerConfig.from_properties(NEEDED | {"kafka.sasl.password": f"@{file}"})
    assert passed.kafka["sasl.password"] == "user:secret"
    assert ConsumerConfig.from_properties(NEEDED | {"trace.file": "@x"}).trace_file == "@x"
    file.write_text("x" * 70_000)
    for path, why in ((file, "longer than"), (tmp_path / "missing", "No such file")):
        with pytest.raises(ConfigError, match=why):
            ConsumerConfig.from_properties(
                NEEDED | here | {"zookeeper.auth.credential": f"@{path}"}
            )


def test_unknown_properties_warn(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """An unknown name causes a warning with the nearest one; external.* and metrics do not."""
    file = tmp_path / "c.properties"
    file.write_text(
        "auto.ofset.reset=smallest\nexternal.x=1\nkafka.metrics.reporters=a\nzk.connect=h\n"
    )
    with caplog.at_level(logging.WARNING, logger="zkconsumer.config"):
        ConsumerConfig.from_properties(NEEDED, file)
    first, second = logged(caplog, "zkconsumer.config")
    assert first.startswith("Property auto.ofset.reset is not valid")
    assert f"{file}:1" in first
    assert "did you mean auto.offset.reset?" in first
    assert "did you mean zookeeper.connect?" in second


def test_a_set_property_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each property that is set is logged at INFO in the words of the JVM; secrets are masked."""
    set_ = {
        "fetch.max.bytes": "2",
        "auto.offset.reset": "smallest",
        "mirror.x": "1",
        "zookeeper.auth.scheme": "digest",
        "zookeeper.auth.credential": "me:geheim",
        "zookeeper.ssl.enable": "true",
    }
    with caplog.at_level(logging.INFO, logger="zkconsumer.config"):
        ConsumerConfig.from_properties(NEEDED, set_)
    assert "Property auto.offset.reset is overridden to smallest" in caplog.messages
    (unused,) = [one for one in caplog.messages if "fetch.max.bytes" in one]
    assert "No effect in zkconsumer" in unused
    assert any(one.startswith("Property mirror.x has no effect in") for one in caplog.messages)
    assert "geheim" not in caplog.text


@pytest.mark.parametrize("name", [*JVM_DEFAULTS, *JVM_OTHERS])
def test_no_property_of_the_jvm_is_ignored_in_silence(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Either a module uses a property, or the log and the page say that it has no effect."""
    default = JVM_DEFAULTS.get(name, "x")
    text = "30000" if isinstance(default, float) else str(default).lower().replace("none", "1")
    with caplog.at_level(logging.INFO, logger="zkconsumer.config"):
        ConsumerConfig.from_properties(NEEDED, {name: NEEDED.get(name, text)})
    told = [one for one in caplog.messages if one.startswith(f"Property {name} ")][-1]
    row = next((row for row in SETTINGS if row.name == name), None)
    if row is None:
        assert "has no effect in zkconsumer" in told
        (start,) = [start for start in NO_EFFECT if name.startswith(start)]
        assert f"`{start}*`" in PAGE.read_text()
    elif not any(re.search(rf"\.{row.attribute}\b", module) for module in modules_that_act()):
        assert (
            "Used only as the default of rebalance.backoff.ms" in row.effect
            or "No effect in zkconsumer" in told
        )


def test_later_sources_win() -> None:
    """Later sources override earlier sources, and keyword arguments override all."""
    sources = (NEEDED, {"group.id": "g2"})
    assert ConsumerConfig.from_properties(*sources).group_id == "g2"
    assert ConsumerConfig.from_properties(*sources, group_id="g3").group_id == "g3"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """If a file cannot be read, the error names the file."""
    with pytest.raises(ConfigError, match="cannot read the properties file"):
        ConsumerConfig.from_properties(tmp_path / "none.properties")


def test_a_configuration_is_frozen() -> None:
    """A configuration is immutable."""
    config = ConsumerConfig.from_properties(NEEDED)
    with pytest.raises(FrozenInstanceError):
        config.group_id = "other"  # type: ignore[misc]  # refused at run time


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("h", ("h:2181", "")),
        ("h:1,i:2", ("h:1,i:2", "")),
        ("h:1, i", ("h:1,i:2181", "")),
        ("h:1,", ("h:1", "")),
        ("h:1,/a", ("h:1", "/a")),
        ("h:1/", ("h:1", "")),
        ("h:1,i:2/a/b", ("h:1,i:2", "/a/b")),
        ("[::1]:2181/a", ("[::1]:2181", "/a")),
    ],
)
def test_a_connect_string(connect: str, expected: tuple[str, str]) -> None:
    """A connect string has servers, and a chroot after the last server."""
    assert split_connect(connect) == expected


@pytest.mark.parametrize(
    "connect",
    ["", "/kafka", "h:0", "h:65536", "h:x", ",h:1", "h:1/a/", "h:1//a", "h:1/../a", "h:1/a,i:2/a"],
)
def test_a_bad_connect_string(connect: str) -> None:
    """A connect string without a server or port, or with two chroots, is rejected."""
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        split_connect(connect)


def test_the_page_is_the_table() -> None:
    """docs/configuration.md is the output of `scripts/configuration`."""
    assert PAGE.read_text() == configuration_page()


def test_help_describes_each_argument() -> None:
    """The docstring of ConsumerConfig is the output of `scripts/configuration`."""
    assert ConsumerConfig.__doc__ == arguments_docstring()
    described = re.findall(r"^        (\w+): ", ConsumerConfig.__doc__, re.MULTILINE)
    assert described == ["properties", "kafka", *(row.attribute for row in SETTINGS)]


def test_a_connection_ignores_the_settings_of_a_consumer(caplog: pytest.LogCaptureFixture) -> None:
    """ConnectionConfig reads its own properties from a consumer's file, without warnings."""
    source = {"zookeeper.connect": "h:1/c", "group.id": "g", "auto.offset.reset": "smallest"}
    with caplog.at_level(logging.INFO, logger="zkconsumer.config"):
        found = ConnectionConfig.from_properties(source)
    assert (found.zookeeper_connect, found.zookeeper_chroot) == ("h:1/c", "/c")
    assert logged(caplog, "zkconsumer.config") == [
        "Property zookeeper.connect is overridden to h:1/c"
    ]


def test_a_connection_becomes_a_consumer_of_a_group() -> None:
    """`for_group` keeps a connection's settings, and a consumer's settings except the group."""
    connection = ConnectionConfig(zookeeper_connect="h:1", zookeeper_session_timeout_s=9.0)
    one = connection.for_group("g")
    assert (one.group_id, one.zookeeper_session_timeout_s, one.client_id) == ("g", 9.0, "g")
    consumer = ConsumerConfig(zookeeper_connect="h:1", group_id="g", auto_offset_reset="smallest")
    assert consumer.for_group("h") == replace(consumer, group_id="h")
    with pytest.raises(ConfigError):
        connection.for_group("a/b")


def test_a_mapping_of_properties_as_in_confluent_kafka() -> None:
    """Properties may have Python values; a keyword argument overrides a property."""
    properties = NEEDED | {
        "auto.commit.enable": False,
        "consumer.timeout.ms": 250,
        "client.id": None,
        "kafka.sasl.password": "canary",
        "external.x": 1,
    }
    config = ConsumerConfig(properties, auto_offset_reset="smallest")
    assert (config.auto_commit_enable, config.consumer_timeout_s) == (False, 0.25)
    assert (config.client_id, config.auto_offset_reset) == ("g1", "smallest")
    assert config.kafka == {"sasl.password": "canary"}
    assert config == pickle.loads(pickle.dumps(config))
    assert hash(config) == hash(replace(config))
    assert ConnectionConfig(properties).for_group("g1").kafka == config.kafka
    assert "canary" not in repr(config)


@pytest.mark.parametrize(
    ("properties", "keywords", "told"),
    [
        (NEEDED, {"consumer_timeout_ms": 5}, r"consumer_timeout_ms .*use consumer_timeout_s, in s"),
        (NEEDED, {"group": "g"}, "unknown keyword argument group .*use group_id"),
        (NEEDED, {"bootstrap_servers": "h"}, "brokers are found in ZooKeeper"),
        ({**NEEDED, "group.instance.id": "a"}, {}, "has no static members"),
        ({**NEEDED, "isolation.level": "x"}, {}, "read_uncommitted or read_committed"),
        ({**NEEDED, "kafka.isolation.level": "x"}, {}, "without the prefix"),
        ({**NEEDED, 7: "x"}, {}, "7 is not the name of a property"),
        (NEEDED, {"kafka": "ssl.ca.location=/ca"}, "kafka is a mapping .*, not str"),
        (NEEDED, {"ssl_ca_location": "f"}, r'kafka=\{"ssl.ca.location": ...\}'),
        (NEEDED | {"enable.auto.commit": False}, {}, "set auto.commit.enable"),
        (NEEDED | {"sasl.username": "u"}, {}, "set kafka.sasl.username"),
        (NEEDED | {"auto.ofset.reset": "x"}, {}, "did you mean auto.offset.reset"),
        (NEEDED | {"auto.commit.interval.ms": 1.5}, {}, "bad value 1.5 of auto.commit.interval.ms"),
        ("consumer.properties", {}, r"not str: read a properties file with .*from_properties"),
        ({"group.id": "g"}, {}, "missing required property zookeeper.connect"),
        ({}, {}, "missing required property zookeeper.connect"),
    ],
)
def test_a_wrong_argument_is_a_config_error(
    properties: Any, keywords: dict[str, Any], told: str
) -> None:
    """A wrong name raises ConfigError, never TypeError; the error names the right spelling."""
    with pytest.raises(ConfigError, match=told):
        ConsumerConfig(properties, **keywords)


def test_librdkafka_s_properties_are_passed_on(tmp_path: Path) -> None:
    """`kafka.` properties of files and of the keyword argument are merged, without the prefix."""
    file = tmp_path / "c.properties"
    file.write_text("kafka.security.protocol=SSL\nkafka.ssl.ca.location=/a\n")
    config = ConsumerConfig.from_properties(NEEDED, file, kafka={"ssl.ca.location": "/b"})
    assert config.kafka == {"security.protocol": "SSL", "ssl.ca.location": "/b"}
    assert ConnectionConfig.from_properties(NEEDED, file).kafka["security.protocol"] == "SSL"


@pytest.mark.parametrize("name", [*ALWAYS_REFUSED, "error_cb", "on_commit"])
def test_librdkafka_s_properties_that_break_a_promise(name: str, tmp_path: Path) -> None:
    """If a property is refused, ConfigError has the reason and the place, wherever it is set."""
    file = tmp_path / "c.properties"
    file.write_text(f"kafka.{name}=1\n")
    with pytest.raises(ConfigError, match=f"kafka.{name} is not passed on to librdkafka: ") as one:
        ConsumerConfig.from_properties(NEEDED, file)
    assert one.value.where == f"{file}:1"
    assert one.value.remedy
    with pytest.raises(ConfigError, match="is not passed on"):
        ConsumerConfig(NEEDED, kafka={name: "1"})


def test_a_value_for_librdkafka_has_a_plain_type() -> None:
    """A value may be text, a number or a truth value; a function only for `oauth_cb`."""
    assert ConsumerConfig(NEEDED, kafka={"oauth_cb": len}).kafka["oauth_cb"] is len
    for bad in ({"oauth_cb": "x"}, {"ssl.ca.location": None}, {"debug": ["security"]}, {3: "x"}):
        with pytest.raises(ConfigError, match=r"bad value|not the name"):
            ConsumerConfig(NEEDED, kafka=bad)  # type: ignore[arg-type]  # a wrong type
