"""One real JVM member of a group as a program, through JPype, without any Java code.

    python program.py '{"libjvm": ..., "jars": [...], "properties": {...}, ...}'

Each line of standard output is one JSON object with `event` and `t`, as in `members/program.py`:
`booted` when the JVM has started (it joins at the command `join`), `joined` (consumer), `session`
(id, password), `delivered` (runs: [topic, partition, 0, offsets]), `listener` (call, partitions;
from 0.9 on), `committed`, `error` (kind, text), `left`. The JVM logs to standard error.

Each line of standard input is a command: `join`, `session`, `commit`, `consume N` (take at most N
more messages from all streams; without N: no limit), `leave`. The end of the input is also `leave`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jpype

# The classes of the fields that lead from a connector to its ZooKeeper handle. The fields are
# private, and their names differ between releases, so they are found by their types.
WAY_TO_ZOOKEEPER = (
    "kafka.consumer.ZookeeperConsumerConnector",
    "kafka.utils.ZkUtils",
    "org.I0Itec.zkclient.ZkClient",
    "org.I0Itec.zkclient.IZkConnection",
    "org.I0Itec.zkclient.ZkConnection",
    "org.apache.zookeeper.ZooKeeper",
)


class Budget:
    """The number of messages that the member may still take; None means no limit."""

    def __init__(self, left: int | None) -> None:
        self._left, self._changed = left, threading.Condition()

    def allow(self, left: int | None) -> None:
        with self._changed:
            self._left = left
            self._changed.notify_all()

    def take(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._left != 0)
            if self._left is not None:
                self._left -= 1


class JvmConnector:
    """The connector, and a thread for each of its streams."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._out = threading.Lock()
        self._budget = Budget(request["consume"])
        self._threads: list[threading.Thread] = []
        self._connector: Any = None
        self.has_joined = False

    @property
    def records(self) -> bool:
        """Return whether the JVM writes an archive at its end, for which this process must wait."""
        return bool(self._request["record"])

    def boot(self) -> None:
        """Start the JVM, and load all classes that are needed to join."""
        jpype.startJVM(
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Xrs",  # Python handles signals, instead of the JVM.
            "-XX:+DisableAttachMechanism",  # With -Xrs, a killed JVM leaves a socket in /tmp.
            "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j.configuration=file:{self._request['log4j']}",
            *self._request["options"],
            jvmpath=self._request["libjvm"],
            classpath=self._request["jars"],
            convertStrings=True,
        )
        jpype.JClass("kafka.consumer.ZookeeperConsumerConnector")
        version = jpype.JClass("java.lang.System").getProperty("java.version")
        self.emit("booted", java=str(version))

    def join(self) -> None:
        """Register the consumer, and begin to consume messages."""
        properties = jpype.JClass("java.util.Properties")()
        for key, value in self._request["properties"].items():
            properties.put(key, value)
        config = jpype.JClass("kafka.consumer.ConsumerConfig")(properties)
        factory = jpype.JClass("kafka.consumer.Consumer")
        self._connector = factory.createJavaConsumerConnector(config)
        self._listen()
        streams = self._streams()
        for stream in streams:
            thread = threading.Thread(target=self._consume, args=(stream,), daemon=True)
            self._threads.append(thread)
            thread.start()
        self.has_joined = True
        self.emit("joined", consumer=str(self._request["consumer"]))
        self.tell_session()

    def obey(self, line: str) -> None:
        match line.split():
            case ["join"]:
                self.join()
            case ["session"]:
                self.tell_session()
            case ["commit"]:
                self._connector.commitOffsets()
                self.emit("committed")
            case ["consume"]:
                self._budget.allow(None)
            case ["consume", count]:
                self._budget.allow(int(count))
            case _:
                self.emit("error", kind="Command", text=f"no command {line!r}")

    def leave(self) -> None:
        """Shut the connector down, if there is one."""
        if self._connector is not None:
            self._connector.shutdown()
            self._budget.allow(None)
            for thread in self._threads:
                thread.join(5)
        self.emit("left")

    def tell_session(self) -> None:
        """Emit the session's id and password, by which another client can take it over."""
        found = self._connector
        for step in WAY_TO_ZOOKEEPER:
            wanted = jpype.JClass(step).class_
            found = _field(found, wanted) or found
        password = bytes(found.getSessionPasswd()).hex()
        self.emit("session", id=int(found.getSessionId()), password=password)

    def fail(self, error: jpype.JException) -> None:
        """Emit an exception of the connector."""
        self.emit("error", kind=type(error).__name__, text=str(error))

    def emit(self, event: str, **more: Any) -> None:
        t = time.clock_gettime(time.CLOCK_BOOTTIME)
        line = json.dumps({"event": event, "t": t, **more})
        with self._out:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    # ---- the parts of a join ---------------------------------------------------------------------

    def _streams(self) -> list[Any]:
        streams, pattern = self._request["streams"], self._request["pattern"]
        if pattern is not None:
            kind, regex = pattern
            topic_filter = jpype.JClass(f"kafka.consumer.{kind}")(regex)
            return list(self._connector.createMessageStreamsByFilter(topic_filter, streams))
        counts = jpype.JClass("java.util.HashMap")()
        integer = jpype.JClass("java.lang.Integer")
        for topic in self._request["topics"]:
            counts.put(topic, integer(streams))
        found = self._connector.createMessageStreams(counts)
        return [stream for topic in self._request["topics"] for stream in found.get(topic)]

    def _consume(self, stream: Any) -> None:
        iterator = stream.iterator()
        try:
            while True:
                self._budget.take()
                if not iterator.hasNext():
                    return
                one = iterator.next()
                run = [str(one.topic()), int(one.partition()), 0, [int(one.offset())]]
                self.emit("delivered", runs=[run])
        except jpype.JException as error:
            self.fail(error)

    def _listen(self) -> None:
        try:
            interface = jpype.JClass("kafka.javaapi.consumer.ConsumerRebalanceListener")
        except TypeError:
            return  # 0.8 has no rebalance listener.
        listener = jpype.JProxy(interface, inst=Listener(self))
        self._connector.setConsumerRebalanceListener(listener)


class Listener:
    """A ConsumerRebalanceListener. The listener never raises an exception, because the connector
    would then never settle."""

    def __init__(self, connector: JvmConnector) -> None:
        self._connector = connector

    def beforeReleasingPartitions(self, ownership: Any) -> None:
        self._tell("releasing", lambda: _plain(ownership))

    def beforeStartingFetchers(self, consumer: Any, assignment: Any) -> None:
        self._tell(
            "starting",
            lambda: {
                str(topic): {str(p): str(assignment.get(topic).get(p)) for p in of_topic.keySet()}
                for topic in assignment.keySet()
                for of_topic in [assignment.get(topic)]
            },
        )

    def _tell(self, call: str, read: Any) -> None:
        try:
            self._connector.emit("listener", call=call, partitions=read())
        except Exception as error:  # noqa: BLE001 - a thread's boundary
            self._connector.emit("error", kind=type(error).__name__, text=f"{call}: {error}")


def _plain(ownership: Any) -> dict[str, list[int]]:
    """Return the partitions by topic; the values are Scala's collections (KAFKA-2284)."""
    return {
        str(topic): sorted(int(str(p)) for p in _each(ownership.get(topic)))
        for topic in _each(ownership.keySet())
    }


def _each(collection: Any) -> Iterator[Any]:
    walk = collection.iterator()
    while walk.hasNext():
        yield walk.next()


def _field(owner: Any, wanted: Any) -> Any:
    """Return the value of the field whose type is `wanted`, also of a parent class, or None."""
    kind = owner.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if field.getType().equals(wanted):
                field.setAccessible(True)
                return field.get(owner)
        kind = kind.getSuperclass()
    return None


def main() -> None:
    connector = JvmConnector(json.loads(sys.argv[1]))
    connector.boot()
    for line in sys.stdin:
        if line.strip() == "leave":
            break
        try:
            connector.obey(line.strip())
        except jpype.JException as error:
            connector.fail(error)
            if not connector.has_joined:
                break  # like a program whose main thread ends
    connector.leave()
    if connector.records:
        jpype.shutdownJVM()
    os._exit(0)  # The JVM's own threads would keep the process alive.


if __name__ == "__main__":
    main()
