"""A consumer of a later group protocol in its own process, which runs `later_program`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.jvm.kafka_391 import CLASSES
from support.jvm.member import libjvm
from support.members.crew import Program
from zkconsumer.sandbox import jars

_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_STRATEGY = "partition.assignment.strategy"


class LaterMember(Program):
    """A consumer of confluent-kafka (`client` "confluent"), or Kafka 3.9.1's own ("jvm").

    Args:
        properties: the client's properties; assignors have librdkafka's names for both clients.
        log4j: the JVM's log configuration; by default it logs nothing.
        more: further fields of the request that `later_program` describes.
    """

    def __init__(
        self,
        name: str,
        *,
        client: str,
        topic: str,
        properties: Mapping[str, object],
        directory: Path,
        log4j: str = "log4j.rootLogger=OFF\n",
        **more: Any,
    ) -> None:
        request = {"client": client, "topic": topic, "properties": properties, **more}
        if client == "jvm":
            file = directory / "later-log4j.properties"
            file.write_text(log4j)
            request |= {
                "properties": _of_java(properties),
                "jars": [str(jar) for jar in jars.resolve("kafka-3.9.1")],
                "libjvm": str(libjvm(jars.find_java().executable)),
                "log4j": str(file),
            }
        super().__init__(name, Path(__file__).with_name("later_program.py"), request, directory)


def _of_java(properties: Mapping[str, object]) -> dict[str, str]:
    """Return the properties as texts, with Java's assignors and with deserializers."""
    found = {key: str(value) for key, value in properties.items()}
    if _STRATEGY in found:
        found[_STRATEGY] = ",".join(CLASSES[name] for name in found[_STRATEGY].split(","))
    return {**found, "key.deserializer": _BYTES, "value.deserializer": _BYTES}
