"""The pipeline demo: a Spark query and a JVM consumer in one group, and its course of events.

The JVM consumer is Kafka's own console consumer, which writes message values to a file. The
consumer prints nothing but the values, so each value must identify its message.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from _pipeline_judge import Verdict, judge
from _pipeline_ledger import Ledger, whole_log
from _pipeline_query import Query

from zkconsumer.demo.group import Frame, View
from zkconsumer.demo.group_scene import BackgroundProducer, watching
from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import Sandbox, guard, jars
from zkconsumer.sandbox.jars import find_java
from zkconsumer.sandbox.process import Process, Startable, launch

# ---- The JVM consumer ----------------------------------------------------------------------------


RELEASE = "1.1.1"

# The consumer commits, leaves, and ends within a second. After this many seconds it gets SIGKILL.
_CONSOLE_STOP_LIMIT_S = 15.0

_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.FileAppender
log4j.appender.out.file={file}
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{{ISO8601}} %p %c - %m%n
"""


class ConsoleConsumer(Startable):
    """`kafka.tools.ConsoleConsumer --zookeeper`: a member of the group `group`, with a white list.

    If the group has no stored offset, it starts at the end of the log.

    Attributes:
        values: the file with the values of its messages, one per line.
    """

    def __init__(
        self,
        directory: Path,
        *,
        zookeeper: str,
        group: str,
        topic: str,
        name: str,
        session_timeout_s: float,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        self._directory = directory
        self._zookeeper, self._topic, self._progress = zookeeper, topic, progress
        self._properties = {
            "group.id": group,
            "consumer.id": name,
            # With auto.offset.reset=smallest the program refuses a group that has stored offsets,
            # so the property is not set.
            "auto.commit.interval.ms": "500",
            "rebalance.backoff.ms": "500",
            # The default of 4 attempts is used up before a killed member's session expires.
            "rebalance.max.retries": "30",
            "zookeeper.session.timeout.ms": f"{session_timeout_s * 1000:.0f}",
        }
        self._process: Process | None = None
        self.values = directory / "values"

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.alive

    def log_tail(self) -> str:
        """Return the end of its output and of its log."""
        files = [one for one in (self.values, self._directory / "log") if one.exists()]
        return "; ".join(one.read_text(errors="replace")[-500:].strip() for one in files)

    def start(self) -> None:
        """Start the process; it joins within a few seconds. Raises SandboxError if there is no
        Java.
        """
        class_path = jars.resolve(f"kafka-{RELEASE}", progress=self._progress)
        self._directory.mkdir(parents=True)
        log4j, settings = self._directory / "log4j.properties", self._directory / "properties"
        log4j.write_text(_LOG4J.format(file=self._directory / "log"))
        settings.write_text("".join(f"{key}={one}\n" for key, one in self._properties.items()))
        command = [
            str(find_java().executable),
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j.configuration=file:{log4j}",
            f"-Djava.io.tmpdir={self._directory}",
            "kafka.tools.ConsoleConsumer",
            "--zookeeper",
            self._zookeeper,
            "--topic",
            self._topic,
            "--consumer.config",
            str(settings),
        ]
        environ = {"CLASSPATH": os.pathsep.join(map(str, class_path)), "PATH": os.defpath}
        launch(
            command, directory=self._directory, log=self.values, environ=environ, keep=self._keep
        )

    def stop(self) -> None:
        """Let the consumer leave cleanly (SIGTERM). Then `values` contains everything that
        it read.
        """
        if self._process is not None:
            self._process.end(patience_s=_CONSOLE_STOP_LIMIT_S)
            guard.release(self._process.pid, self._process.birth)
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self.stop()

    def _keep(self, process: Process) -> None:
        self._process = process


# ---- Course of events ----------------------------------------------------------------------------


GROUP, TOPIC = "pipeline", "orders"
# The session timeout in seconds. The timeout is half the JVM's default, so that the killed query's
# session expires sooner.
SESSION_TIMEOUT_S = 3.0
# Seconds from batch to batch: the duration of a batch on an idle machine with two cores.
TRIGGER_S = 0.5
# Seconds after which a step that normally takes 10 s (Spark's start, a rebalance) counts as stuck.
_PATIENCE_S = 300.0
# Number of batches that the query finishes before the next event.
_BATCHES = 3
# Seconds between two reads of the files, and between two refreshes of the view.
_UPDATE_S = 0.1
# A line that names an exception of Python or of the JVM.
_FAILURE = re.compile(r"(Caused by: )?[\w.]+(Error|Exception): ")
# Seconds within which the query must stop by itself.
_DRIVER_STOP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the group, and the seconds until the owners had settled."""

    name: str
    text: str
    settled_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The demo's result."""

    verdict: Verdict
    events: tuple[Event, ...]


class _SteadyProducer(BackgroundProducer):
    """Produces messages at a rate that keeps both members busy."""

    SLOW_PER_S = 1000


class DemoRun:
    """One run of the demo. When it ends, even by Ctrl-C, it ends all processes and removes all
    files.
    """

    def __init__(self, *, messages: int, partitions: int, view: View) -> None:
        self._messages = messages
        self._partitions = partitions
        self._view = view
        self._events: list[Event] = []
        self._driver: Process | None = None
        self._has_console = False
        self._updated_s = 0.0

    def run(self) -> Result:
        """Run the demo. Raises SandboxError if a part of the demo itself fails."""
        with ExitStack() as stack:
            self._sandbox = stack.enter_context(Sandbox(progress=self._view.note))
            directory = self._sandbox.directory / "pipeline"
            directory.mkdir()
            self._view.note(f"creating topic {TOPIC} with {self._partitions} partitions")
            self._sandbox.create_topic(TOPIC, partitions=self._partitions)
            connect = self._sandbox.zookeeper_connect
            self._watcher = stack.enter_context(watching(connect, GROUP, TOPIC, self._partitions))
            self._prepare(directory)
            stack.callback(self._end_all)
            self._run_events()
            return Result(self._drain_and_judge(), tuple(self._events))

    # ---- Events ----------------------------------------------------------------------------------

    def _prepare(self, directory: Path) -> None:
        connect = self._sandbox.zookeeper_connect
        self._query = Query(
            zookeeper=connect,
            group=GROUP,
            topic=TOPIC,
            name="spark",
            directory=str(directory),
            session_timeout_s=SESSION_TIMEOUT_S,
            trigger_s=TRIGGER_S,
        )
        self._console = ConsoleConsumer(
            directory / "jvm",
            zookeeper=connect,
            group=GROUP,
            topic=TOPIC,
            name="jvm",
            session_timeout_s=SESSION_TIMEOUT_S,
            progress=self._view.note,
        )
        self._ledger = Ledger(self._query, self._console.values, partitions=self._partitions)

    def _run_events(self) -> None:
        self._view.note(f"producing {self._messages:,} messages, and more during the demo")
        self._producer = _SteadyProducer(
            self._sandbox.bootstrap, TOPIC, partitions=self._partitions, messages=self._messages
        )
        with self._event("query", "a Spark query warms up and serves the group alone", members=1):
            self._start_query()
        self._finish_batches()
        with self._event("join", "a JVM consumer of Kafka 1.1.1 joins", members=2):
            self._console.start()
            self._has_console = True
        self._finish_batches()
        killed = self._kill_in_a_batch()
        text = f"the query is killed in batch {killed} (SIGKILL to all of its processes)"
        with self._event("kill", text, members=1):
            pass
        self._killed = killed
        with self._event("restart", "the query is restarted on its checkpoint", members=2):
            self._start_query()
        self._finish_batches()
        # While the query started, the JVM consumer served the group alone. The query catches up,
        # because it has three of four partitions.
        self._wait(
            lambda: 2 * self._ledger.rows >= sum(self._producer.acknowledged),
            "the query to have half of the messages",
            progress=lambda: self._ledger.rows,
        )

    def _finish_batches(self) -> None:
        goal = len(self._ledger.ended) + _BATCHES
        self._wait(lambda: len(self._ledger.ended) >= goal, f"{_BATCHES} more batches")

    def _kill_in_a_batch(self) -> int:
        """Kill the query and all processes that Spark started for it, once it has started
        a batch.
        """
        before = len(self._ledger.began)
        self._wait(lambda: len(self._ledger.began) > before, "the next batch", interval_s=0.005)
        assert self._driver is not None
        # The query leads its own process session, which contains its JVM and Python processes.
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._end_query()
        self._ledger.read_new()
        return self._ledger.began[-1]

    def _drain_and_judge(self) -> Verdict:
        """Stop producing, wait until the group has read everything, stop the members, and judge
        their files.
        """
        self._view.event("producing has ended; the group reads the remaining messages")
        counts = self._producer.finish()
        seen = self._ledger.seen
        self._wait(
            lambda: [len(one) for one in seen] == counts,
            "every message to be read",
            progress=lambda: sum(map(len, seen)),
        )
        # Stop the JVM consumer first: the query commits a batch at the next trigger, and the JVM
        # consumer would read again what the query has not committed when it stops.
        self._console.stop()
        self._end_query()
        self._ledger.read_new()
        self._view.note("comparing what was written with the topic")
        return judge(
            whole_log(self._sandbox.zookeeper_connect, TOPIC, counts),
            batches={number: self._ledger.batch(number) for number in set(self._ledger.ended)},
            windows=self._ledger.windows(),
            jvm=self._ledger.jvm,
            killed=self._killed,
        )

    @contextmanager
    def _event(self, name: str, text: str, *, members: int) -> Iterator[None]:
        """Run the body as the cause of an event, and wait until this number of `members` has
        settled.
        """
        self._view.event(text)
        began_s = time.monotonic()
        yield
        self._wait(lambda: self._watcher.settled(members), f"the group to settle after: {text}")
        took_s = self._watcher.last_change_s - began_s
        self._events.append(Event(name, text, round(took_s, 3)))
        self._view.event(f"settled after {took_s:.2f} s")

    # ---- Processes -------------------------------------------------------------------------------

    def _start_query(self) -> None:
        launch(
            self._query.command(),
            directory=Path(self._query.directory),
            log=self._log,
            environ=os.environ,
            keep=self._keep,
        )

    def _keep(self, process: Process) -> None:
        self._driver = process

    @property
    def _log(self) -> Path:
        return Path(self._query.directory, "query.log")

    def _end_query(self) -> None:
        if self._driver is not None:
            self._driver.end(patience_s=_DRIVER_STOP_LIMIT_S)
            guard.release(self._driver.pid, self._driver.birth)
            self._driver = None

    def _end_all(self) -> None:
        """End all processes at once: their results are not needed any more."""
        if self._driver is not None and self._driver.alive:
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._end_query()
        self._console.kill()

    # ---- Waiting ---------------------------------------------------------------------------------

    def _wait(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        interval_s: float = _UPDATE_S,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until `condition` holds. The time limit restarts whenever `progress` changes."""
        before, limit_s = progress(), time.monotonic() + _PATIENCE_S
        while True:
            with self._watcher.changed:
                if condition():
                    return
                self._watcher.changed.wait(interval_s)
            self._update(interval_s)
            if (now := progress()) != before:
                before, limit_s = now, time.monotonic() + _PATIENCE_S
            if time.monotonic() > limit_s:
                raise SandboxError(
                    f"gave up waiting for {what} after {_PATIENCE_S:g} s",
                    where=self._log_tail(),
                    remedy="the machine may be very busy: run the demo again",
                )

    def _update(self, interval_s: float) -> None:
        """Read the files and draw. Raise errors of background threads and processes."""
        if time.monotonic() < self._updated_s + interval_s:
            return
        self._updated_s = time.monotonic()
        self._ledger.read_new()
        for line in self._ledger.progress:
            self._view.note(line)
        self._ledger.progress.clear()
        if self._watcher.error is not None:
            raise self._watcher.error
        if self._producer.failed:
            raise SandboxError("a message was not accepted", where=self._producer.failed)
        if self._driver is not None and not self._driver.alive:
            raise SandboxError(
                f"the query ended with exit code {self._driver.exit_code}",
                where=self._log_tail(),
                remedy="correct that and run the demo again",
            )
        if self._has_console and not self._console.alive:
            raise SandboxError("the JVM consumer ended", where=self._console.log_tail())
        owners = {one: owner.thread for one, owner in dict(self._watcher.owners).items()}
        self._view.draw(
            Frame(
                owners={one: thread.split("_")[1].split("-")[0] for one, thread in owners.items()},
                members=["jvm", "spark"],
                delivered=[len(one) for one in self._ledger.seen],
                produced=tuple(self._producer.acknowledged),
            )
        )

    def _log_tail(self) -> str:
        """Return the exceptions that the query's process logged last, or else its last line."""
        if not self._log.exists():
            return ""
        lines = self._log.read_text(errors="replace").splitlines()
        failures = [one.strip() for one in lines if _FAILURE.match(one)]
        return (failures or lines or [""])[-1][-900:]
