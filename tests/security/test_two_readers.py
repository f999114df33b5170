"""Each property of librdkafka is in one table, and both readers agree at real TLS brokers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
from support.kafka.secure_brokers import STORE_PASSWORD, SecureBroker, pkcs12_of
from support.wait import LIMIT_S

from zkconsumer import ConfigError, ConsumerConfig, ConsumerConnector
from zkconsumer.config.kafka_properties import ALWAYS_REFUSED, BY_BOTH, BY_LIBRDKAFKA
from zkconsumer.kafka.client_settings import Brokers, broker_settings, fetch_settings
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.kafka.fetcher import Fetcher, FetchFaultKind
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker

MESSAGES = 5
TOPIC = "two-readers"
KEY_PASSWORD = "canary-key-0b12"


# ---- the table -----------------------------------------------------------------------------------


def librdkafka_s_properties() -> set[str]:
    """Return the names in librdkafka's own list, which it prints to a C stream."""
    found = [one for one in files("confluent-kafka") or () if "librdkafka" in one.name]
    program = (
        "import ctypes, sys\n"
        "library, c = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)\n"
        "c.fdopen.restype = ctypes.c_void_p\n"
        "stream = ctypes.c_void_p(c.fdopen(1, b'w'))\n"
        "library.rd_kafka_conf_properties_show(stream)\n"
        "c.fflush(stream)\n"
    )
    path = found[0].locate()
    shown = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, check=True, text=True
    ).stdout
    rows = [line.split("|") for line in shown.splitlines()]
    names = {row[0].strip() for row in rows if len(row) > 4}
    return names - {"Property"} - {one for one in names if one.startswith("-")}


def test_each_property_of_librdkafka_is_in_one_table() -> None:
    """The three tables contain each property of the installed librdkafka once, and no other one."""
    tables = [set(BY_BOTH), set(BY_LIBRDKAFKA), set(ALWAYS_REFUSED)]
    known = [name for table in tables for name in table]
    assert len(known) == len(set(known))
    # `KafkaProperties` refuses all callbacks; confluent-kafka adds `oauth_cb`, and librdkafka does
    # not print its properties for tests.
    shown = {name for name in librdkafka_s_properties() if not name.endswith("_cb")}
    extra = {name for name in known if name.startswith("test.mock.") or name == "oauth_cb"}
    assert set(known) - extra == shown


@pytest.mark.parametrize("name", [*sorted(BY_LIBRDKAFKA - {"oauth_cb"}), "ssl.ca.lokation"])
def test_the_columnar_reader_refuses_by_name(name: str) -> None:
    """With fetch.engine=columns, a property that it does not honour is refused, even if unknown."""
    config = ConsumerConfig(
        group_id="g", zookeeper_connect="127.0.0.1:1", fetch_engine="columns", kafka={name: "1"}
    )
    with pytest.raises(ConfigError, match=f"columns does not honour kafka.{name}") as caught:
        ConsumerConnector(config)
    assert "fetch.engine=librdkafka or auto" in caught.value.remedy


@pytest.mark.parametrize(
    ("kafka", "told"),
    [
        ({"ssl.ca.location": "/none.pem"}, "kafka.ssl.ca.location cannot be used: .*No such file"),
        ({"ssl.ca.pem": "x"}, "kafka.ssl.ca.pem cannot be used"),
        ({"ssl.crl.location": "/none.pem"}, "kafka.ssl.crl.location cannot be used"),
        ({"ssl.cipher.suites": "x"}, "kafka.ssl.cipher.suites cannot be used"),
        ({"ssl.certificate.pem": "x", "ssl.key.pem": "y"}, "kafka.ssl.certificate.pem and kafka.s"),
        ({"enable.ssl.certificate.verification": "maybe"}, "verification=maybe"),
    ],
)
def test_the_columnar_reader_checks_values_at_once(kafka: dict[str, str], told: str) -> None:
    """A wrong value is found before the first connection, and the error does not show a key."""
    config = ConsumerConfig(
        group_id="g", zookeeper_connect="127.0.0.1:1", fetch_engine="columns", kafka=kafka
    )
    with pytest.raises(ConfigError, match=told):
        ConsumerConnector(config)


# ---- real brokers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker with TLS listeners and a topic with messages."""
    with SecureBroker(tmp_path_factory.mktemp("two-readers"), release="3.9.1") as server:
        server.sandbox.create_topic(TOPIC)
        server.sandbox.produce(TOPIC, MESSAGES)
        yield server


def _crl(server: SecureBroker, *certificates: Path, days: int = 1) -> str:
    file = server.authority.file.with_name(f"crl-{len(certificates)}-{days}.pem")
    return str(server.authority.revoke(file, *certificates, days=days))


def _texts(certificate: Path) -> dict[str, str]:
    return {
        "ssl.certificate.pem": certificate.read_text(),
        "ssl.key.pem": certificate.with_suffix(".key").read_text(),
    }


def _files(certificate: Path) -> dict[str, str]:
    return {
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(certificate.with_suffix(".key")),
    }


# Each case: listener, the properties without `ssl.ca.location` of the right authority, and whether
# the messages are read. A property with the value None is removed.
CASES: dict[str, tuple[str, Callable[[SecureBroker], dict[str, Any]], bool]] = {
    "trusted": ("TLS", lambda one: {}, True),
    "ca-text": (
        "TLS",
        lambda one: {"ssl.ca.location": None, "ssl.ca.pem": one.authority.file.read_text()},
        True,
    ),
    "system-s-authorities": ("TLS", lambda one: {"ssl.ca.location": None}, False),
    "wrong-ca": ("TLS", lambda one: {"ssl.ca.location": str(one.stranger.file)}, False),
    "wrong-ca-text": (
        "TLS",
        lambda one: {"ssl.ca.location": None, "ssl.ca.pem": one.stranger.file.read_text()},
        False,
    ),
    "unverified": (
        "TLS",
        lambda one: {
            "ssl.ca.location": str(one.stranger.file),
            "enable.ssl.certificate.verification": "F",
        },
        True,
    ),
    "revoked": ("TLS", lambda one: {"ssl.crl.location": _crl(one, one.server)}, False),
    "another-one-revoked": ("TLS", lambda one: {"ssl.crl.location": _crl(one)}, True),
    "old-list": ("TLS", lambda one: {"ssl.crl.location": _crl(one, days=-1)}, False),
    "list-of-another-authority": (
        "TLS",
        lambda one: {
            "ssl.crl.location": str(one.stranger.revoke(one.stranger.file.with_suffix(".crl")))
        },
        False,
    ),
    "another-host": ("OTHER", lambda one: {}, False),
    "another-host-allowed": (
        "OTHER",
        lambda one: {"ssl.endpoint.identification.algorithm": "none"},
        True,
    ),
    "cipher": (
        "TLS12",
        lambda one: {"ssl.cipher.suites": "ECDHE-ECDSA-AES128-GCM-SHA256"},
        True,
    ),
    "cipher-that-the-broker-lacks": (
        "TLS12",
        lambda one: {"ssl.cipher.suites": "ECDHE-ECDSA-AES256-GCM-SHA384"},
        False,
    ),
    "client-files": ("MTLS", lambda one: _files(one.client), True),
    "client-texts": ("MTLS", lambda one: _texts(one.client), True),
    "client-text-with-password": (
        "MTLS",
        lambda one: {
            **_texts(one.authority.issue("locked", password=KEY_PASSWORD)),
            "ssl.key.password": KEY_PASSWORD,
        },
        True,
    ),
    "no-client": ("MTLS", lambda one: {}, False),
    "unknown-client": ("MTLS", lambda one: _texts(one.unknown_client), False),
}


def settings_of(
    server: SecureBroker, listener: str, changes: dict[str, Any], **more: Any
) -> ConsumerConfig:
    kafka = {"ssl.ca.location": str(server.authority.file), **changes}
    return ConsumerConfig(
        group_id="two-readers",
        zookeeper_connect=server.sandbox.zookeeper_connect,
        broker_listener=listener,
        auto_offset_reset="smallest",
        kafka={name: value for name, value in kafka.items() if value is not None},
        **more,
    )


def outcome(fetcher: Fetcher) -> tuple[int, str]:
    """Return the number of messages, or the first fault that a user would see."""
    with closing(fetcher):
        fetcher.assign({TopicPartition(TOPIC, 0): 0})
        deadline, count = time.monotonic() + LIMIT_S, 0
        while count < MESSAGES and time.monotonic() < deadline:
            count += sum(map(len, fetcher.fetch(0.1)))
            for fault in fetcher.faults:
                if fault.kind in (FetchFaultKind.REFUSED, FetchFaultKind.PERMANENT):
                    return count, fault.text
            fetcher.faults.clear()
        return count, ""


@pytest.mark.parametrize("reader", [KafkaFetcher, RecordFetcher])
@pytest.mark.parametrize("case", CASES)
def test_both_readers_accept_the_same_brokers(
    secured: SecureBroker, case: str, reader: type[KafkaFetcher | RecordFetcher]
) -> None:
    """Each property has the same effect in both readers; a refusal is an error, not a retry."""
    listener, changes, is_read = CASES[case]
    config = settings_of(secured, listener, changes(secured))
    address = f"{listener}://{secured.addresses[listener]}"
    broker = Broker(None, -1, 5, (address,), ((listener, "SSL"),))
    settings = {**fetch_settings(config), **broker_settings(Brokers([broker], config))}
    count, fault = outcome(reader(settings))
    assert count == (MESSAGES if is_read else 0), fault
    assert bool(fault) is not is_read
    assert KEY_PASSWORD not in fault


def test_a_keystore_makes_librdkafka_read_columns(
    secured: SecureBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """With a keystore, `poll_arrow` reads through librdkafka, and a line of the log says why."""
    keystore = {
        "ssl.keystore.location": str(pkcs12_of(secured.client)),
        "ssl.keystore.password": STORE_PASSWORD,
    }
    caplog.set_level("INFO")
    with ConsumerConnector(settings_of(secured, "MTLS", keystore)) as connector:
        (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
        assert stream.poll_arrow(timeout_s=LIMIT_S).num_rows
    assert "through librdkafka, because fetch.engine=columns does not honour kafka.s" in caplog.text
    assert STORE_PASSWORD not in caplog.text
