"""Which reader a stream gets, by `fetch.engine`, the brokers' releases and the properties."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.kafka.engines import StreamClients
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.protocol.payloads import Broker

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
    ("settings", "kind"),
    [
        ({}, RecordFetcher),
        ({"fetch_engine": "columns"}, RecordFetcher),
        ({"fetch_engine": "librdkafka"}, KafkaFetcher),
        ({"kafka": ONLY_LIBRDKAFKA_S}, KafkaFetcher),
        ({"kafka": {"sasl.mechanism": "OAUTHBEARER"}}, KafkaFetcher),
    ],
)
def test_librdkafka_reads_what_only_it_can(settings: dict[str, Any], kind: type) -> None:
    """With `auto`, librdkafka reads messages only if a property is not honoured otherwise."""
    assert kind_of(clients_of(4, **settings)) is kind


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
