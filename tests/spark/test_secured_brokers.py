"""Queries on brokers that require TLS and SASL, with real Spark and a real 3.9.1 broker."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.kafka.secure_brokers import PASSWORD, SecureBroker

MESSAGES = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secured"), release="3.9.1") as started:
        yield started


@pytest.fixture
def topic(server: SecureBroker, unique: Callable[[str], str]) -> str:
    name = unique("secured")
    server.sandbox.create_topic(name, partitions=2)
    server.sandbox.produce(name, MESSAGES)
    return name


def load(
    spark: SparkSession, server: SecureBroker, listener: str, topic: str, **kafka: str
) -> DataFrame:
    given = server.settings(listener)
    options = {f"kafka.{name}": str(value) for name, value in {**given["kafka"], **kafka}.items()}
    options |= {"broker.listener": listener, "zookeeper": given["zookeeper_connect"]}
    return spark.read.format("zkconsumer").options(**options).option("subscribe", topic).load()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that contains the password and a newline, as editors save it."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return file


@pytest.mark.parametrize("listener", ["SCRAM", "MTLS"])
def test_a_query_reads(
    spark: SparkSession, server: SecureBroker, topic: str, secret: Path, listener: str
) -> None:
    """Driver and tasks log in; a password may come from a file, and no plan shows it."""
    kafka = {"sasl.password": f"@{secret}"} if listener == "SCRAM" else {}
    frame = load(spark, server, listener, topic, **kafka)
    assert frame.count() == MESSAGES
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        frame.explain(extended=True)
    assert "Physical Plan" in plan.getvalue()
    assert PASSWORD not in plan.getvalue()


def test_a_wrong_password_fails_the_query(
    spark: SparkSession, server: SecureBroker, topic: str
) -> None:
    """If the password is wrong, the query fails with the same error text as a stream."""
    with pytest.raises(PySparkException, match=r"refuses the login.*check kafka\.sasl\.username"):
        load(spark, server, "SCRAM", topic, **{"sasl.password": "wrong"}).count()
