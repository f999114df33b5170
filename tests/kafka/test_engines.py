"""Which reader a stream gets, by `fetch.engine`, the brokers' releases and the properties."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.columns.fetcher import ColumnFetcher
from zkconsumer.kafka.engines import StreamClients
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.protocol.payloads import Broker
from zkconsumer.sandbox import Sandbox

NOBODY = "127.0.0.1:1"
ONLY_LIBRDKAFKA_S = {"ssl.curves.list": "P-256"}


def clients_of(version: int, server: str = NOBODY, **settings: Any) -> StreamClients:
    """Return the clients of a stream whose brokers have registrations of this version."""
    host, _, port = server.partition(":")
    endpoints = (f"PLAINTEXT://{server}",) if version > 1 else ()
    broker = Broker(host, int(port), version, endpoints)
    config = ConsumerConfig(group_id="g", zookeeper_connect="unused:1", **settings)
    return StreamClients(config, lambda: Brokers([broker, broker], config))


def kind_of(clients: StreamClients) -> type:
    made = clients.messages()
    assert made is not None
    with closing(made):
        return type(made)


@pytest.mark.parametrize(
    ("version", "settings", "kind", "is_shared"),
    [
        (1, {}, ColumnFetcher, False),
        (3, {}, ColumnFetcher, False),
        (4, {}, ColumnFetcher, False),
        (5, {}, KafkaFetcher, True),
        (1, {"fetch_engine": "librdkafka"}, KafkaFetcher, True),
        (5, {"fetch_engine": "columns"}, ColumnFetcher, False),
        (1, {"kafka": ONLY_LIBRDKAFKA_S}, KafkaFetcher, True),
    ],
)
def test_librdkafka_reads_no_brokers_that_create_topics(
    version: int, settings: dict[str, Any], kind: type, is_shared: bool
) -> None:
    """With `auto`, librdkafka reads messages only from brokers that are surely 0.11 or later."""
    assert kind_of(clients_of(version, **settings)) is kind
    assert clients_of(version, **settings).may_share() is is_shared


def test_a_broker_is_asked_if_its_registration_does_not_tell(sandbox: Sandbox) -> None:
    """A broker of 0.11 or later that registers with version 4 is read through librdkafka."""
    assert kind_of(clients_of(4, sandbox.bootstrap)) is KafkaFetcher


MODULES = (
    "aio",
    "admin.api",
    "admin.doctor",
    "admin.lag",
    "admin.legacy",
    "cli.consume",
    "cli.lag",
    "consumer.connector",
    "kafka.columns.fetcher",
    "spark.group_stream",
    "spark.task_reader",
)


def test_modules_are_imported_without_librdkafka() -> None:
    """Members, tools and Spark load librdkafka only when a client needs it."""
    program = "import importlib, sys\nsys.modules['confluent_kafka'] = None\n"
    program += "".join(f"importlib.import_module('zkconsumer.{one}')\n" for one in MODULES)
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_brokers_have_not_moved_before_the_first_client() -> None:
    """Without a client no address is known, so no broker has moved."""
    clients = clients_of(5)
    assert not clients.have_brokers_moved()
    kind_of(clients)
    assert not clients.have_brokers_moved()
