"""librdkafka's settings, from broker registrations and the old consumer's properties."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka import Consumer

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import Brokers, broker_settings, fetch_settings
from zkconsumer.protocol.payloads import Broker

OLD = Broker("a", 9092, 1, ())
NINE = Broker("b", 9092, 2, ("PLAINTEXT://b:9092",))
NEW = Broker("c", 9092, 4, ("SSL://c:9093", "PLAINTEXT://c:9092"))


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ([OLD], ("a:9092", False, "0.8.2.2")),
        ([NINE], ("b:9092", False, "0.9.0.1")),
        ([NEW], ("c:9092", True, None)),
        ([Broker("d", 9, 3, ("PLAINTEXT://d:9",))], ("d:9", True, None)),
        ([NEW, NINE, OLD], ("c:9092,b:9092,a:9092", False, "0.8.2.2")),
        ([NEW, NINE], ("c:9092,b:9092", False, "0.9.0.1")),
    ],
)
def test_the_oldest_broker_decides_the_protocol(
    brokers: list[Broker], expected: tuple[str, bool, str | None]
) -> None:
    """If any broker of the cluster is 0.8 or 0.9, no version request is sent."""
    settings = broker_settings(Brokers(brokers))
    assert (
        settings["bootstrap.servers"],
        settings.get("api.version.request", True),
        settings.get("broker.version.fallback"),
    ) == expected


@pytest.mark.parametrize(
    ("broker", "servers"),
    [
        (Broker("::1", 9092, 1, ()), "[::1]:9092"),
        (Broker(None, -1, 4, ("PLAINTEXT://[::1]:9092",)), "[::1]:9092"),
        (Broker("h", 9092, 4, ("CLIENTS://h:9092",)), "h:9092"),
    ],
)
def test_addresses(broker: Broker, servers: str) -> None:
    """An IPv6 address gets brackets; a renamed listener (KIP-103) is found by host and port."""
    assert broker_settings(Brokers([broker]))["bootstrap.servers"] == servers


def test_without_a_plaintext_endpoint_it_is_a_named_error() -> None:
    """A cluster without any PLAINTEXT endpoint is an error; a single such broker is ignored."""
    only_tls = Broker(None, -1, 4, ("SSL://c:9093",))
    with pytest.raises(FetchError, match=r"PLAINTEXT.*SSL://c:9093"):
        broker_settings(Brokers([only_tls]))
    assert broker_settings(Brokers([only_tls, NEW]))["bootstrap.servers"] == "c:9092"


def test_no_broker_is_not_an_error() -> None:
    """If there is no broker, no error is raised, because the caller waits."""
    assert broker_settings(Brokers())["bootstrap.servers"] == ""


def test_properties_are_translated() -> None:
    """The old properties are translated to the names and units of librdkafka."""
    settings = fetch_settings(
        ConsumerConfig(
            group_id="g",
            zookeeper_connect="z:2181",
            client_id="c",
            socket_timeout_s=12.0,
            socket_receive_buffer_bytes=-1,
            fetch_message_max_bytes=500_000,
            queued_max_message_chunks=10,
            fetch_min_bytes=0,
            fetch_wait_max_s=0.25,
            refresh_leader_backoff_s=0.3,
        )
    )
    assert {
        "client.id": "c",
        "group.id": "g",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "socket.timeout.ms": 12_000,
        "socket.receive.buffer.bytes": 0,
        "fetch.message.max.bytes": 500_000,
        "queued.max.messages.kbytes": 5_000_000 // 1024,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 250,
        "fetch.error.backoff.ms": 300,
    }.items() <= settings.items()


@pytest.mark.parametrize(("given", "passed"), [(-1, 0), (0, 0), (65_536, 0), (65_537, 65_537)])
def test_the_old_default_buffer_is_the_systems_own(given: int, passed: int) -> None:
    """64 KiB, the JVM's default, stands for the operating system's buffer size."""
    config = ConsumerConfig(
        group_id="g", zookeeper_connect="z:2181", socket_receive_buffer_bytes=given
    )
    assert fetch_settings(config)["socket.receive.buffer.bytes"] == passed


@pytest.mark.parametrize(
    "extreme",
    [
        {},
        {
            "socket_timeout_s": 0.001,
            "fetch_wait_max_s": 0.0,
            "fetch_message_max_bytes": 1,
            "refresh_leader_backoff_s": 0.0,
        },
        {
            "socket_timeout_s": 1e6,
            "fetch_wait_max_s": 1e6,
            "fetch_message_max_bytes": 2**31 - 1,
            "fetch_min_bytes": 2**31 - 1,
            "socket_receive_buffer_bytes": 2**31 - 1,
            "refresh_leader_backoff_s": 1e6,
            "queued_max_message_chunks": 2**31 - 1,
        },
    ],
)
def test_librdkafka_takes_every_valid_configuration(extreme: dict[str, Any]) -> None:
    """No valid configuration of the old consumer exceeds the ranges of librdkafka."""
    config = ConsumerConfig(group_id="g", zookeeper_connect="z:2181", **extreme)
    Consumer({**fetch_settings(config), **broker_settings(Brokers([NEW]))}).close()


NAMED = Broker(
    None,
    -1,
    5,
    ("INSIDE://d:1", "OUTSIDE://d:2", "SASL_SSL://d:3"),
    (("INSIDE", "SSL"), ("OUTSIDE", "SASL_SSL"), ("SASL_SSL", "SASL_SSL")),
)


def config_of(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(group_id="g", zookeeper_connect="z:2181", **settings)


@pytest.mark.parametrize(
    ("broker", "settings", "server", "protocol"),
    [
        (NEW, {"broker_listener": "SSL"}, "c:9093", "SSL"),
        (NEW, {"kafka": {"security.protocol": "ssl"}}, "c:9093", "ssl"),
        (NAMED, {"broker_listener": "inside"}, "d:1", "SSL"),
        (NAMED, {"broker_listener": "OUTSIDE"}, "d:2", "SASL_SSL"),
        (NAMED, {"broker_listener": "SASL_SSL"}, "d:3", "SASL_SSL"),
        (NAMED, {"broker_listener": "SSL"}, "d:1", "SSL"),
        (NAMED, {"kafka": {"security.protocol": "SSL"}}, "d:1", "SSL"),
    ],
)
def test_the_listener_by_name_or_protocol(
    broker: Broker, settings: dict[str, Any], server: str, protocol: str
) -> None:
    """A listener is found by its name or its protocol; the client uses the listener's protocol."""
    found = broker_settings(Brokers([broker], config_of(**settings)))
    assert found["bootstrap.servers"] == server
    assert found["security.protocol"].upper() == protocol.upper()


def test_the_error_lists_the_offered_listeners() -> None:
    """FetchError lists the offered listeners, or names the listener's different protocol."""
    with pytest.raises(FetchError) as caught:
        broker_settings(Brokers([NAMED], config_of(broker_listener="EXTERNAL")))
    assert str(caught.value) == (
        "no broker has a listener with the name or security protocol EXTERNAL (/brokers/ids; "
        "offered: INSIDE://d:1 (SSL), OUTSIDE://d:2 (SASL_SSL), SASL_SSL://d:3): "
        "set broker.listener to a listener that the brokers have"
    )
    both = config_of(broker_listener="INSIDE", kafka={"security.protocol": "SASL_SSL"})
    with pytest.raises(FetchError, match="INSIDE has the security protocol SSL, and"):
        broker_settings(Brokers([NAMED], both))


def test_the_properties_of_librdkafka_reach_every_client() -> None:
    """`kafka.` properties are part of the settings, and survive pickling with the brokers."""
    config = config_of(kafka={"client.rack": "r1", "reconnect.backoff.max.ms": "77"})
    brokers = pickle.loads(pickle.dumps(Brokers([NEW], config)))
    found = {**fetch_settings(config), **broker_settings(brokers)}
    assert (found["client.rack"], found["reconnect.backoff.max.ms"]) == ("r1", "77")


@pytest.mark.parametrize(
    ("brokers", "is_refused"),
    [([NEW], False), ([NINE, OLD], False), ([NEW, NINE], True), ([NEW, OLD], True)],
)
def test_transactions_are_not_read_in_an_old_protocol(
    brokers: list[Broker], is_refused: bool
) -> None:
    """Newer brokers that are asked in the protocol of 0.9 would return aborted messages."""
    config = ConsumerConfig(group_id="g", zookeeper_connect="h:1", isolation_level="read_committed")
    assert fetch_settings(config)["isolation.level"] == "read_committed"
    if is_refused:
        with pytest.raises(FetchError, match=r"needs brokers from 0.11 on.*c:9092"):
            broker_settings(Brokers(brokers, config))
    else:
        assert broker_settings(Brokers(brokers, config))
    assert broker_settings(Brokers(brokers))
