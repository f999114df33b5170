"""One consumer of a later group protocol as a program: confluent-kafka's, or the JVM's.

Its argument is a JSON object: `client` ("confluent" or "jvm"), `topic`, `properties`, for the JVM
`libjvm`, `jars` and `log4j`, and optionally `stops_when_assigned` (the process stops itself in the
first call of the listener with partitions) and `reports_messages`. Each line of standard output is
an event: `owned` (the partitions after a change), `lost` (the group has removed the member),
`delivered` (runs: [topic, partition, 0, offsets]; only with `reports_messages`), `error` (the name
of Kafka's error), `raised` (an error after which the program polls again), `left`. Events have the
time `t`, as in `program.py`. The word `leave`, or the end of standard input, closes the consumer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

POLL_S = 0.1

NOT_FATAL = "UnknownMemberIdException"
"""A KIP-848 member raises this if its session ends before it reads new partitions' offsets.

The member joins the group again at a later call of `poll`.
"""


class ListenerCalls:
    """The calls of the listener, each with its partitions."""

    def __init__(self, *, stops: bool) -> None:
        self._owned: set[int] = set()
        self._stops = stops

    def change(self, added: list[int], removed: list[int]) -> None:
        self._owned = (self._owned | set(added)) - set(removed)
        emit("owned", partitions=sorted(self._owned))
        if added and self._stops:
            self._stops = False
            os.kill(os.getpid(), signal.SIGSTOP)


class Messages:
    """Reports the messages of each poll, if the request asks for them."""

    def __init__(self, topic: str, *, reports: bool) -> None:
        self._topic, self._reports = topic, reports

    def take(self, messages: Iterable[tuple[int, int]]) -> None:
        """Report messages, each as partition and offset."""
        found: dict[int, list[int]] = defaultdict(list)
        for partition, offset in messages:
            found[partition].append(offset)
        if self._reports and found:
            emit("delivered", runs=[[self._topic, one, 0, at] for one, at in found.items()])


def emit(event: str, **fields: Any) -> None:
    t = time.clock_gettime(time.CLOCK_BOOTTIME)
    sys.stdout.write(json.dumps({"event": event, "t": t, **fields}) + "\n")
    sys.stdout.flush()


def confluent(
    request: dict[str, Any], calls: ListenerCalls, messages: Messages, ended: threading.Event
) -> None:
    """Consume with confluent-kafka."""
    from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - the JVM client does not need it

    properties = request["properties"]
    is_cooperative = properties.get("group.protocol") == "consumer" or (
        "cooperative" in properties["partition.assignment.strategy"]
    )

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        take = consumer.incremental_assign if is_cooperative else consumer.assign
        take(partitions)
        calls.change([one.partition for one in partitions], [])

    def revoked(consumer: Any, partitions: list[Any]) -> None:
        if is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()
        calls.change([], [one.partition for one in partitions])

    def lost(consumer: Any, partitions: list[Any]) -> None:
        emit("lost")
        revoked(consumer, partitions)

    consumer = Consumer(properties)
    consumer.subscribe([request["topic"]], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    try:
        while not ended.is_set():
            message = consumer.poll(POLL_S)
            if message is None:
                continue
            if message.error():
                emit("error", name=message.error().name())
            else:
                messages.take([(message.partition(), message.offset())])
    except KafkaException as error:
        emit("error", name=error.args[0].name())
    consumer.close()


def jvm(
    request: dict[str, Any], calls: ListenerCalls, messages: Messages, ended: threading.Event
) -> None:
    """Consume with `KafkaConsumer`."""
    import jpype  # noqa: PLC0415 - confluent-kafka does not need it

    jpype.startJVM(
        *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xrs"),
        f"-Dlog4j.configuration=file:{request['log4j']}",
        jvmpath=request["libjvm"],
        classpath=request["jars"],
        convertStrings=True,
    )

    class Listener:
        def onPartitionsAssigned(self, partitions: Any) -> None:
            calls.change([int(one.partition()) for one in partitions], [])

        def onPartitionsRevoked(self, partitions: Any) -> None:
            calls.change([], [int(one.partition()) for one in partitions])

        def onPartitionsLost(self, partitions: Any) -> None:
            emit("lost")
            self.onPartitionsRevoked(partitions)

    properties = jpype.JClass("java.util.Properties")()
    for key, value in request["properties"].items():
        properties.put(key, value)
    java = "org.apache.kafka.clients.consumer"
    consumer = jpype.JClass(f"{java}.KafkaConsumer")(properties)
    listener = jpype.JProxy(f"{java}.ConsumerRebalanceListener", inst=Listener())
    consumer.subscribe(jpype.JClass("java.util.List").of(request["topic"]), listener)
    timeout = jpype.JClass("java.time.Duration").ofMillis(int(POLL_S * 1000))
    while not ended.is_set():
        try:
            polled = consumer.poll(timeout)
            messages.take((int(one.partition()), int(one.offset())) for one in polled)
        except jpype.JException as error:
            name = type(error).__name__.rpartition(".")[2]
            if name == NOT_FATAL:
                emit("raised", name=name)
                continue
            emit("error", name=name)
            break
    consumer.close()


def main() -> None:
    request, ended = json.loads(sys.argv[1]), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    calls = ListenerCalls(stops=request.get("stops_when_assigned", False))
    messages = Messages(request["topic"], reports=request.get("reports_messages", False))
    (jvm if request["client"] == "jvm" else confluent)(request, calls, messages, ended)
    emit("left")


if __name__ == "__main__":
    main()
