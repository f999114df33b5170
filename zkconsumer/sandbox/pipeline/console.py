"""Kafka's own console consumer as a JVM member of the group, writing what it reads into a file.

It prints a message's value and nothing else, so values must tell which message they are.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from zkconsumer.sandbox import guard, jars
from zkconsumer.sandbox.java import find_java
from zkconsumer.sandbox.process import Process, Startable, launch

RELEASE = "1.1.1"

# It commits, leaves, and ends within a second. After this many seconds it is SIGKILL.
_STOP_LIMIT_S = 15.0

_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.FileAppender
log4j.appender.out.file={file}
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{{ISO8601}} %p %c - %m%n
"""


class ConsoleConsumer(Startable):
    """`kafka.tools.ConsoleConsumer --zookeeper`: a member of the group GROUP_NAME, by a white list.

    Where the group has stored no offset, it begins at the end of the log.

    Attributes:
        values: the file with the values of its messages, one a line.
    """

    def __init__(
        self, directory: Path, *, zookeeper: str, group: str, topic: str, name: str,
        session_timeout_s: float, progress: jars.Progress = jars.to_stderr,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._zookeeper, self._topic, self._progress = zookeeper, topic, progress
        self._properties = {
            "group.id": group,
            "consumer.id": name,
            # With auto.offset.reset=smallest the program refuses a group that has stored offsets.
            "auto.commit.interval.ms": "500",
            "rebalance.backoff.ms": "500",
            # The default of 4 attempts is up before a killed member's session ends.
            "rebalance.max.retries": "30",
            "zookeeper.session.timeout.ms": f"{session_timeout_s * 1000:.0f}",
        }
        self._process: Process | None = None
        self.values = directory / "values"

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.alive

    def last_words(self) -> str:
        """The end of its output, and of its log."""
        files = [one for one in (self.values, self._directory / "log") if one.exists()]
        return "; ".join(one.read_text(errors="replace")[-500:].strip() for one in files)

    def start(self) -> None:
        """The process is there; it joins within a few seconds. Raises SandboxError: no Java."""
        class_path = jars.resolve(f"kafka-{RELEASE}", progress=self._progress)
        self._directory.mkdir(parents=True)
        log4j, settings = self._directory / "log4j.properties", self._directory / "properties"
        log4j.write_text(_LOG4J.format(file=self._directory / "log"))
        settings.write_text("".join(f"{key}={one}\n" for key, one in self._properties.items()))
        command = [
            str(find_java().executable), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j.configuration=file:{log4j}", f"-Djava.io.tmpdir={self._directory}",
            "kafka.tools.ConsoleConsumer", "--zookeeper", self._zookeeper, "--topic", self._topic,
            "--consumer.config", str(settings),
        ]  # fmt: skip
        environ = {"CLASSPATH": os.pathsep.join(map(str, class_path)), "PATH": os.defpath}
        launch(
            command, directory=self._directory, log=self.values, environ=environ, keep=self._keep
        )

    def stop(self) -> None:
        """A clean leave (SIGTERM), after which all that it has read is in `values`."""
        if self._process is not None:
            self._process.end(patience_s=_STOP_LIMIT_S)
            guard.release(self._process.pid, self._process.birth)
            self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self.stop()

    def _keep(self, process: Process) -> None:
        self._process = process
