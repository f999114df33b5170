"""One real JVM member of a group as a program, in JPype: no compiler is needed, and no Java code.

    python program.py '{"libjvm": ..., "jars": [...], "properties": {...}, ...}'

Each line of standard output is one JSON object with `event` and `t`, as `members/program.py` has
it: `booted` when the JVM stands (it joins at the word `join`), `joined` (consumer), `session` (id,
password), `delivered` (runs: [topic, partition, 0, offsets]), `listener` (call, and what it was
given; from 0.9 on), `committed`, `error` (kind, text), `left`. What the JVM logs is standard error.

Commands are words on standard input, one a line: `join`, `session`, `commit`, `consume N` (from now
on no more than N messages, over all streams; `consume` alone: without end), `leave`. Its end is
`leave`.
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

# The parts of the way from a connector to its ZooKeeper handle: where each is kept is private, and
# has another name in each release, so they are known by their types.
WAY_TO_ZOOKEEPER = (
    "kafka.consumer.ZookeeperConsumerConnector",
    "kafka.utils.ZkUtils",
    "org.I0Itec.zkclient.ZkClient",
    "org.I0Itec.zkclient.IZkConnection",
    "org.I0Itec.zkclient.ZkConnection",
    "org.apache.zookeeper.ZooKeeper",
)


class Budget:
    """How many messages may still be taken; None: any number."""

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
    """The connector and a thread for each of its streams."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._out = threading.Lock()
        self._budget = Budget(request["consume"])
        self._threads: list[threading.Thread] = []
        self._connector: Any = None

    @property
    def records(self) -> bool:
        """Whether the end of the JVM is waited for, at which it writes an archive."""
        return bool(self._request["record"])

    def boot(self) -> None:
        """Start the JVM, with everything loaded that a join needs."""
        jpype.startJVM(
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Xrs",  # signals are Python's
            "-XX:+DisableAttachMechanism",  # with -Xrs, a killed JVM leaves a socket in /tmp
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
        """Register, and begin to consume."""
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
        """A clean leave, or the end of a member that never joined."""
        if self._connector is not None:
            self._connector.shutdown()
            self._budget.allow(None)
            for thread in self._threads:
                thread.join(5)
        self.emit("left")

    def tell_session(self) -> None:
        """Tell the session's id and password, by which another client can take it over."""
        found = self._connector
        for step in WAY_TO_ZOOKEEPER:
            wanted = jpype.JClass(step).class_
            found = _field(found, wanted) or found
        password = bytes(found.getSessionPasswd()).hex()
        self.emit("session", id=int(found.getSessionId()), password=password)

    def emit(self, event: str, **more: Any) -> None:
        t = time.clock_gettime(time.CLOCK_BOOTTIME)
        line = json.dumps({"event": event, "t": t, **more})
        with self._out:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    # ---- its parts -------------------------------------------------------------------------------

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
            self.emit("error", kind=str(error.__javaclass__.getName()), text=str(error))

    def _listen(self) -> None:
        try:
            interface = jpype.JClass("kafka.javaapi.consumer.ConsumerRebalanceListener")
        except TypeError:
            return  # 0.8 has none
        listener = jpype.JProxy(interface, inst=Listener(self))
        self._connector.setConsumerRebalanceListener(listener)


class Listener:
    """A ConsumerRebalanceListener. What it raises would make the connector rebalance for ever."""

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
    """KAFKA-2284: the values are Scala's collections, whatever their declared type says."""
    return {
        str(topic): sorted(int(str(p)) for p in _each(ownership.get(topic)))
        for topic in _each(ownership.keySet())
    }


def _each(collection: Any) -> Iterator[Any]:
    walk = collection.iterator()
    while walk.hasNext():
        yield walk.next()


def _field(owner: Any, wanted: Any) -> Any:
    """The value of the owner's field whose type is `wanted`, also of a parent class; None: none."""
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
            kind = str(error.__javaclass__.getName())
            connector.emit("error", kind=kind, text=str(error))
    connector.leave()
    if connector.records:
        jpype.shutdownJVM()
    os._exit(0)  # the JVM's own threads would hold the process


if __name__ == "__main__":
    main()
