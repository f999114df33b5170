"""Members on brokers that require TLS and SASL; for each mistake, the error is one sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.kafka.secure_brokers import PASSWORD, SecureBroker
from support.wait import LIMIT_S, eventually
from typer.testing import CliRunner

from zkconsumer import (
    BrokerAccessError,
    ConfigError,
    ConsumerConfig,
    ConsumerConnector,
    FetchError,
    Message,
    ZooKeeperUnreachableError,
)
from zkconsumer.cli import app
from zkconsumer.consumer.stream import reader_of
from zkconsumer.errors import SparkSourceError
from zkconsumer.kafka import client_settings
from zkconsumer.kafka.columns.lookups import Lookup
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.task_reader import ReadSettings, read_ranges

Secured = Callable[[str], SecureBroker]

RELEASES = {
    "SSL": "0.9.0.1",
    "SASL_PLAINTEXT": "0.10.2.2",
    "SCRAM": "3.9.1",
    "MTLS": "3.9.1",
    "OAUTH": "3.9.1",
}
PARTITIONS, MESSAGES = 2, 10


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Return the broker with this listener; each broker starts when a test requests it."""
    with ExitStack() as stack:

        @cache
        def started(release: str) -> SecureBroker:
            made = SecureBroker(tmp_path_factory.mktemp(f"secured-{release}"), release=release)
            return stack.enter_context(made)

        yield lambda listener: started(RELEASES[listener])


def read(
    server: SecureBroker, listener: str, topic: str, kafka: dict[str, Any], **settings: Any
) -> list[Message[bytes, bytes]]:
    """Return all messages of a topic, after a group of the same name has committed them."""
    given = server.settings(listener)
    given["kafka"] = {**given["kafka"], **kafka}
    config = ConsumerConfig(
        **{**given, "group_id": topic, "auto_offset_reset": "smallest", **settings}
    )
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        found = []
        while len(found) < MESSAGES:
            more = stream.poll(timeout_s=LIMIT_S)
            assert more
            found += more
        connector.commit_offsets()
    return found


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    return unique("secured")


def filled(server: SecureBroker, topic: str) -> SecureBroker:
    server.sandbox.create_topic(topic, partitions=PARTITIONS)
    server.sandbox.produce(topic, MESSAGES)
    return server


@pytest.mark.parametrize("listener", RELEASES)
def test_a_member_reads_and_commits(
    secured: Secured, listener: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On every listener all messages are read, and offsets are committed, even to Kafka."""
    server = filled(secured(listener), topic)
    with caplog.at_level(logging.DEBUG):
        found = read(server, listener, topic, {}, offsets_storage="kafka")
    assert len(found) == MESSAGES
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("listener", RELEASES)
def test_columns_are_read_on_every_listener(secured: Secured, listener: str, topic: str) -> None:
    """`poll_arrow` reads all messages; if columns lack the mechanism, librdkafka reads them."""
    server = filled(secured(listener), topic)
    given = server.settings(listener)
    config = ConsumerConfig(group_id=topic, auto_offset_reset="smallest", **given)
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert reader_of(stream).has_columns is (listener != "OAUTH")
        count = 0
        while count < MESSAGES:
            more = stream.poll_arrow(timeout_s=LIMIT_S).num_rows
            assert more
            count += more


@pytest.mark.parametrize("call", ["poll", "poll_arrow"])
def test_a_revoked_broker_is_refused(
    secured: Secured, call: str, topic: str, tmp_path: Path
) -> None:
    """Whichever reader a call uses, it refuses a broker whose certificate is revoked."""
    server = filled(secured("SCRAM"), topic)
    revoked = str(server.authority.revoke(tmp_path / "crl.pem", server.server))
    given = server.settings("SCRAM")
    given["kafka"]["ssl.crl.location"] = revoked
    config = ConsumerConfig(group_id=topic, auto_offset_reset="smallest", **given)
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with pytest.raises(BrokerAccessError, match="is not trusted") as caught:
            eventually(lambda: len(getattr(stream, call)(timeout_s=1.0)))
    assert caught.value.where.endswith(f"kafka.ssl.crl.location={revoked}")


def test_columns_are_read_with_certificates_from_texts(secured: Secured, topic: str) -> None:
    """The columnar reader takes the authority, the certificate and the key from properties."""
    server = filled(secured("MTLS"), topic)
    given = server.settings("MTLS")
    given["kafka"] = {
        "ssl.ca.pem": server.authority.file.read_text(),
        "ssl.certificate.pem": server.client.read_text(),
        "ssl.key.pem": server.client.with_suffix(".key").read_text(),
    }
    config = ConsumerConfig(
        group_id=topic, auto_offset_reset="smallest", fetch_engine="columns", **given
    )
    with ConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert stream.poll_arrow(timeout_s=LIMIT_S).num_rows


def test_columns_refuse_a_mechanism_in_one_sentence(secured: Secured, topic: str) -> None:
    """With fetch.engine=columns, the error of an unsupported mechanism names the supported ones."""
    server = filled(secured("OAUTH"), topic)
    given = server.settings("OAUTH")
    told = "do not support the SASL mechanism OAUTHBEARER.*use PLAIN, SCRAM.*or auto"
    config = ConsumerConfig(group_id=topic, fetch_engine="columns", **given)
    with pytest.raises(ConfigError, match=told):
        ConsumerConnector(config)
    settings = ReadSettings(client=given["kafka"], patience_s=1.0, engine="columns")
    with pytest.raises(SparkSourceError, match=told):
        list(read_ranges([OffsetRange(topic, 0, 0, 1)], ["value"], settings))


def test_a_tls_port_is_named_to_a_client_without_tls(secured: Secured) -> None:
    """A client that speaks no TLS to a TLS port reads in the error that the port requires it."""
    lookup = Lookup({"bootstrap.servers": secured("SCRAM").addresses["TLS"]})
    with pytest.raises(FetchError, match="this port requires TLS"):
        lookup.all_topics(LIMIT_S)
    lookup.close()


@pytest.mark.parametrize(
    ("listener", "kafka", "told"),
    [
        ("SASL_PLAINTEXT", {"sasl.password": "wrong"}, "refuses the login: .*check kafka.sasl.us"),
        ("SCRAM", {"sasl.password": "wrong"}, r"refuses the login: .*username=alice\): check"),
        ("SSL", {"ssl.ca.location": "stranger"}, "is not trusted.*stranger.pem"),
        ("MTLS", {"ssl.ca.location": "stranger"}, "is not trusted.*stranger.pem"),
        ("MTLS", {"ssl.certificate.location": "unknown"}, "refuses the certificate of this client"),
    ],
)
def test_a_mistake_is_one_sentence(
    secured: Secured, listener: str, kafka: dict[str, str], told: str, topic: str
) -> None:
    """After a wrong password, authority or certificate the stream raises BrokerAccessError."""
    server = filled(secured(listener), topic)
    wrong = {}
    for name, value in kafka.items():
        file = {"stranger": server.stranger.file, "unknown": server.unknown_client}.get(value)
        wrong[name] = str(file or value)
        if value == "unknown":
            wrong["ssl.key.location"] = str(server.unknown_client.with_suffix(".key"))
    with pytest.raises(BrokerAccessError, match=told) as caught:
        read(server, listener, topic, wrong)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_streams_that_share_clients_get_the_error_too(secured: Secured, topic: str) -> None:
    """If its password is wrong, a stream that shares clients gets the error and the remedy."""
    server = filled(secured("SCRAM"), topic)
    given = server.settings("SCRAM")
    given["kafka"]["sasl.password"] = "wrong"
    config = ConsumerConfig(group_id=topic, auto_offset_reset="smallest", **given)
    with (
        ConsumerConnector(config) as connector,
        pytest.raises(BrokerAccessError, match="refuses the login") as caught,
    ):
        stream = connector.create_message_streams({topic: 6})[topic][0]
        eventually(lambda: stream.poll(timeout_s=1.0))
    assert caught.value.remedy == "check kafka.sasl.username and kafka.sasl.password"


def test_the_error_lists_the_offered_listeners(secured: Secured, topic: str) -> None:
    """If no broker has the configured listener, the error lists the brokers' listeners."""
    server = filled(secured("SCRAM"), topic)
    with pytest.raises(FetchError, match=r"listener .* EXTERNAL .*MTLS://.* \(SSL\)"):
        read(server, "SCRAM", topic, {}, broker_listener="EXTERNAL")


@pytest.mark.parametrize(
    ("password", "told"),
    [(PASSWORD, "no offset is committed (2 rows)"), ("wrong", "refuses the login")],
    ids=["right", "wrong"],
)
def test_the_command_line(
    secured: Secured, tmp_path: Path, topic: str, password: str, told: str
) -> None:
    """The tools accept `kafka.` properties in a `--config` file, and name a wrong password."""
    server = filled(secured("SCRAM"), topic)
    kafka = {**server.settings("SCRAM")["kafka"], "sasl.password": password}
    file = tmp_path / "consumer.properties"
    lines = [f"kafka.{name}={value}\n" for name, value in kafka.items()]
    file.write_text("".join([*lines, "broker.listener=SCRAM\n", f"group.id={topic}\n"]))
    connect = server.sandbox.zookeeper_connect
    with ConsumerConnector(ConsumerConfig(zookeeper_connect=connect, group_id=topic)) as connector:
        connector.create_message_streams({topic: 1})
        arguments = ["lag", "-g", topic, "-z", connect, "--config", str(file)]
        result = CliRunner().invoke(app, [*arguments, "--timeout", str(LIMIT_S)])
    assert told in result.output
    assert ("refuses the login" in result.output) is (password == "wrong")
    assert PASSWORD not in result.output


@pytest.mark.parametrize(
    ("kafka", "told"),
    [
        ({"ssl.ca.lokation": "x"}, 'No such configuration property: "ssl.ca.lokation"'),
        ({"ssl.ca.location": "/none.pem"}, "ssl.ca.location failed"),
        ({"sasl.mechanism": "GSSAPI"}, "zkconsumer.fast,kerberos.*fetch.engine=columns.*or build"),
        ({"security.protocol": "TLS"}, 'Invalid value "TLS"'),
    ],
)
def test_a_wrong_property_is_found_at_once(kafka: dict[str, str], told: str) -> None:
    """If a property is wrong, the connector raises ConfigError before it connects."""
    config = ConsumerConfig(group_id="g", zookeeper_connect="127.0.0.1:1", kafka=kafka)
    with pytest.raises(ConfigError, match=told):
        ConsumerConnector(config)


def test_kerberos_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """With GSSAPI and fetch.engine=columns, the connector names the extra to install."""
    monkeypatch.setattr(client_settings, "find_spec", lambda name: None)
    config = ConsumerConfig(
        group_id="g",
        zookeeper_connect="127.0.0.1:1",
        fetch_engine="columns",
        kafka={"sasl.mechanism": "GSSAPI"},
    )
    with pytest.raises(
        ConfigError, match=r"needs the package gssapi .*zkconsumer\[fast,kerberos\]"
    ):
        ConsumerConnector(config)


def test_kerberos_does_not_hide_other_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with GSSAPI in the columnar reader, the other properties are checked."""
    monkeypatch.setattr(client_settings, "find_spec", lambda name: "found")
    config = ConsumerConfig(
        group_id="g",
        zookeeper_connect="127.0.0.1:1",
        fetch_engine="columns",
        kafka={"sasl.mechanism": "GSSAPI", "ssl.ca.lokation": "x"},
    )
    with pytest.raises(ConfigError, match=r"does not honour kafka\.ssl\.ca\.lokation"):
        ConsumerConnector(config)


def test_insecure_properties_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If certificates are not verified, each start logs a warning."""
    kafka = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    with pytest.raises(ZooKeeperUnreachableError):
        ConsumerConnector(
            ConsumerConfig(
                group_id="g",
                zookeeper_connect="127.0.0.1:1",
                zookeeper_connection_timeout_s=0.1,
                kafka=kafka,
            )
        )
    assert "TLS to the brokers: no certificate is checked (insecure)" in caplog.text
