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
from zkconsumer.sandbox.process import Process, launch, until
from zkconsumer.sandbox.proxy import Proxy
from zkconsumer.sandbox.real_group import JVM_RELEASE, MemberKind, MemberProcess, ProcessState

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
# The JVM consumer commits, leaves, and ends within a second. After this time it gets SIGKILL.
_CONSOLE_STOP_LIMIT_S = 15.0
# The default of 4 attempts is used up before a killed member's session expires.
_JVM_PROPERTIES = {
    "auto.commit.interval.ms": 500,
    "rebalance.backoff.ms": 500,
    "rebalance.max.retries": 30,
}
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
            self._prepare(directory, stack)
            stack.callback(self._end_all)
            self._run_events()
            return Result(self._drain_and_judge(), tuple(self._events))

    # ---- Events ----------------------------------------------------------------------------------

    def _prepare(self, directory: Path, stack: ExitStack) -> None:
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
        jars.resolve(f"kafka-{JVM_RELEASE}", progress=self._view.note)
        values = directory / "values"
        self._console = MemberProcess(
            "jvm",
            MemberKind.JVM,
            group=GROUP,
            topic=TOPIC,
            proxy=stack.enter_context(Proxy(connect)),
            session_s=SESSION_TIMEOUT_S,
            directory=directory,
            properties=_JVM_PROPERTIES,
            out=values,
        )
        self._ledger = Ledger(self._query, values, partitions=self._partitions)

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
        self._console.leave()
        until(lambda: self._console.state is ProcessState.LEFT, limit_s=_CONSOLE_STOP_LIMIT_S)
        self._console.end()
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
        self._console.end()

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
        if self._console.state is ProcessState.DEAD:
            log = Path(self._query.directory, f"{self._console.name}.log")
            raise SandboxError("the JVM consumer ended", where=log.read_text()[-500:].strip())
        self._view.draw(
            Frame(
                owners=self._watcher.owner_names(),
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
