"""A real group: servers, members as processes behind proxies, and a producer.

Members are `zkconsumer consume` and Kafka's own console consumer of release 1.1.1, which uses the
old ZooKeeper-based consumer. Each member reaches ZooKeeper through a proxy of its own, so that its
connection can be cut without touching the others.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Self

from zkconsumer.config.properties_file import properties_text
from zkconsumer.errors import RefusedError
from zkconsumer.protocol.payloads import encode_offset
from zkconsumer.protocol.requests import Code, Delete, SetData
from zkconsumer.sandbox import guard, jars, topics
from zkconsumer.sandbox.process import Process, launch
from zkconsumer.sandbox.proxy import Proxy
from zkconsumer.sandbox.sandbox import Sandbox
from zkconsumer.sandbox.server import FAST_JVM, LOG4J

JVM_RELEASE = "1.1.1"
"""Kafka's release of the JVM members: the last one that contains the ZooKeeper consumer."""

BACKOFF_S, COMMIT_S = 2.0, 5.0
"""The back-off, and also the commit interval, of all members in seconds. The simulator uses the
same value."""


class MemberKind(Enum):
    """The program that a member runs. The values appear in the lab's JSON."""

    ZKCONSUMER = "zk"
    JVM = "jvm"


class ProcessState(Enum):
    """The state of a member's process. The values appear in the lab's JSON."""

    AWAY = "away"
    UP = "up"
    FROZEN = "frozen"
    DEAD = "dead"
    LEFT = "left"


class MemberProcess:
    """One member: its process, which can be started several times, and the proxy between it and
    ZooKeeper.

    Args:
        consumer_id: the property `consumer.id`.
        properties: further properties of the consumer; they take precedence.
        out: the file to which the program appends the values of its messages, one per line.

    Attributes:
        name: the consumer id in ZooKeeper.
        proxy: forwards the connection of the member to ZooKeeper.
    """

    def __init__(
        self,
        consumer_id: int | str,
        kind: MemberKind,
        *,
        group: str,
        topic: str,
        proxy: Proxy,
        session_s: float,
        directory: Path,
        properties: Mapping[str, object] = MappingProxyType({}),
        out: Path = Path(os.devnull),
    ) -> None:
        self.name, self.kind, self.proxy = f"{group}_{consumer_id}", kind, proxy
        self._topic, self._directory, self._out = topic, directory, out
        self._process: Process | None = None
        self._frozen = self._leaving = False
        session_ms = round(session_s * 1000)
        self._properties: dict[str, object] = {
            "zookeeper.connect": proxy.address,
            "group.id": group,
            "consumer.id": consumer_id,
            "zookeeper.session.timeout.ms": session_ms,
            "zookeeper.connection.timeout.ms": 30_000,
            "auto.commit.interval.ms": round(COMMIT_S * 1000),
            "rebalance.backoff.ms": round(BACKOFF_S * 1000),
        }
        if kind is MemberKind.ZKCONSUMER:
            # With `smallest`, the console consumer refuses a group that has offsets.
            self._properties["auto.offset.reset"] = "smallest"
        self._properties |= properties

    @property
    def state(self) -> ProcessState:
        if self._process is None:
            return ProcessState.AWAY
        if self._process.alive:
            return ProcessState.FROZEN if self._frozen else ProcessState.UP
        return ProcessState.LEFT if self._leaving else ProcessState.DEAD

    def start(self) -> None:
        """Start the process, which joins the group. Raises RefusedError if the process is running
        already."""
        if self.state in (ProcessState.UP, ProcessState.FROZEN):
            raise RefusedError(f"{self.name} is already running")
        self._release()
        self._frozen = self._leaving = False
        file = self._directory / f"{self.name}.properties"
        file.write_text(properties_text(self._properties))
        is_jvm = self.kind is MemberKind.JVM
        command, environ = self._jvm(file) if is_jvm else self._zkconsumer(file)
        launch(
            command,
            directory=Path.cwd(),
            log=self._directory / f"{self.name}.log",
            out=self._out,
            environ=environ,
            keep=self._keep,
        )

    def leave(self) -> None:
        """Send SIGTERM: the process leaves the group and ends, which takes about a second."""
        self._running(ProcessState.UP).signal(signal.SIGTERM)
        self._leaving = True

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        self._running(ProcessState.UP, ProcessState.FROZEN).kill()
        self._leaving = False

    def freeze(self) -> None:
        """Send SIGSTOP and wait until the process is stopped."""
        self._running(ProcessState.UP).pause()
        self._frozen = True

    def thaw(self) -> None:
        """Send SIGCONT to the frozen process."""
        self._running(ProcessState.FROZEN).signal(signal.SIGCONT)
        self._frozen = False

    def end(self) -> None:
        """End the process, even if it is frozen or does not respond."""
        if self._process is not None:
            self._process.kill()
        self._release()

    def _keep(self, process: Process) -> None:
        self._process = process

    def _release(self) -> None:
        if self._process is not None:
            guard.release(self._process.pid, self._process.birth)

    def _running(self, *states: ProcessState) -> Process:
        if self.state not in states or self._process is None:
            words = {ProcessState.UP: "does not run", ProcessState.FROZEN: "is not frozen"}
            raise RefusedError(f"{self.name} {words[states[0]]}")
        return self._process

    def _zkconsumer(self, file: Path) -> tuple[Sequence[str], dict[str, str]]:
        command = [sys.executable, "-m", "zkconsumer", "consume", "--config", str(file)]
        return [*command, "--topic", self._topic], dict(os.environ)

    def _jvm(self, file: Path) -> tuple[Sequence[str], dict[str, str]]:
        java = jars.find_java()
        class_path = jars.resolve(f"kafka-{JVM_RELEASE}")
        log4j = self._directory / "members-log4j.properties"
        # The log goes to standard error, because standard output contains the messages.
        log4j.write_text(f"{LOG4J}log4j.appender.out.target=System.err\n")
        command = [
            *(str(java.executable), "-Xmx96m", *FAST_JVM),
            *(f"-Dlog4j.configuration=file:{log4j}", "kafka.tools.ConsoleConsumer"),
            *("--zookeeper", self.proxy.address, "--topic", self._topic),
            *("--consumer.config", str(file)),
        ]
        environ = {"CLASSPATH": os.pathsep.join(map(str, class_path)), "PATH": os.defpath}
        return command, environ | {"LANG": "C.UTF-8", "HOME": str(self._directory)}


class PeriodicProducer:
    """A thread that produces one message to each partition every second, until `stop`."""

    EVERY_S = 1.0

    def __init__(self, zookeeper_connect: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Producer

        settings = topics.client_settings(zookeeper_connect)
        # If a broker is stopped, messages are dropped after ten seconds, so the queue stays small.
        more = {"log_level": 0, "message.timeout.ms": 10_000}
        self._producer = Producer({**settings, **more})
        self.topic, self.partitions = topic, partitions
        self._number = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def produce(self, messages: int) -> None:
        """Produce this number of messages to each partition."""
        with self._lock:
            for _ in range(messages):
                self._number += 1
                for partition in range(self.partitions):
                    value = b"%d" % self._number
                    self._producer.produce(self.topic, value, partition=partition)
            self._producer.poll(0)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.EVERY_S):
            self.produce(1)


class RealGroup:
    """A context manager for a ZooKeeper server, a broker, a producer, and members.

    Its `with` statement starts all of them except the members. At the end of the block, or if this
    process dies, all processes are ended.
    """

    def __init__(
        self,
        kinds: Sequence[MemberKind],
        *,
        group: str,
        topic: str,
        partitions: int,
        session_s: float,
    ) -> None:
        self.kinds, self.group, self.topic = tuple(kinds), group, topic
        self.partitions, self.session_s = partitions, session_s
        self.members: list[MemberProcess] = []
        self.sandbox = Sandbox()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            jars.to_stderr("starting ZooKeeper and a broker")
            stack.enter_context(self.sandbox)
            if MemberKind.JVM in self.kinds:
                jars.resolve(f"kafka-{JVM_RELEASE}")
            self.sandbox.create_topic(self.topic, partitions=self.partitions)
            self.producer = PeriodicProducer(self.connect, self.topic, self.partitions)
            stack.callback(self.producer.stop)
            for number, kind in enumerate(self.kinds):
                member = MemberProcess(
                    number,
                    kind,
                    group=self.group,
                    topic=self.topic,
                    proxy=stack.enter_context(Proxy(self.connect)),
                    session_s=self.session_s,
                    directory=self.sandbox.directory,
                )
                stack.callback(member.end)
                self.members.append(member)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def connect(self) -> str:
        return self.sandbox.zookeeper_connect

    # ---- what happens to the servers and the znodes ----------------------------------------------

    def add_partition(self) -> None:
        """Add a partition to the topic."""
        self.partitions += 1
        self.sandbox.add_partitions(self.topic, partitions=self.partitions)
        self.producer.partitions = self.partitions

    def delete(self, path: str) -> None:
        """Delete a znode as another client. Raises RefusedError if the znode is missing."""
        self._write(Delete(path))

    def write_offset(self, path: str, offset: int) -> None:
        """Write an offset as another client. Raises RefusedError if the znode is missing."""
        self._write(SetData(path, encode_offset(offset), -1))

    def _write(self, change: Delete | SetData) -> None:
        with topics.session(self.connect) as client:
            reply = client.write([change])
        if reply.code is Code.NO_NODE:
            raise RefusedError("there is no such znode", where=change.path)
        if reply.code is not Code.OK:
            raise RefusedError(
                f"ZooKeeper has not answered OK: {reply.code.name}", where=change.path
            )
