"""Shutdown, logging, error texts, sockets and collections of the Python processes of Spark.

Spark starts one Python process per query and source (`python_streaming_source_runner`). The process
keeps one reader object as long as the query runs, and Spark ends it with SIGTERM. Spark calls
`stop()` only if the process saw its socket close first, or failed.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from zkconsumer.errors import SparkSourceError, ZkConsumerError
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark import too_old

_log = SafeLogger(logging.getLogger(__name__))

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The main module of a query's own process."""

DAEMON: Final = "pyspark.daemon"
"""The main module of a worker that runs several tasks, one after another."""

LEVEL_VARIABLE: Final = "ZKCONSUMER_LOG_LEVEL"
"""Environment variable with the log level of this package in a query; the default is INFO."""

# The format of Spark's own log lines on the same standard error
# (`conf/log4j2.properties.template`).
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%y/%m/%d %H:%M:%S"


def begin(stop: Callable[[], None]) -> None:
    """Set up the process of a query; a reader calls this once on the main thread, before it starts
    threads.

    In a query's own process the package logs to standard error, and `stop` is called when the
    process ends. In any other process, such as a test, the function does nothing. `stop` must allow
    calls from two threads at once.
    """
    if _main_module() == RUNNER:
        log_to_stderr()
        end_on_sigterm(stop)


def _main_module() -> str:
    """Return the module that `python -m` runs in this process, or an empty string."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


def end_on_sigterm(stop: Callable[[], None]) -> None:
    """Call `stop` on a separate thread when this process receives SIGTERM, and then exit.

    Call this function on the main thread. When the signal arrives, the main thread may be inside a
    call that nothing interrupts, so a Python signal handler would run too late. Libraries have
    already started threads, so the signal cannot be blocked in all of them either. But the
    interpreter writes the signal's number to a socket at once, whichever thread receives the
    signal. Spark often sends the signal twice; the second one is ignored.
    """
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)

    def wait() -> None:
        # The reference to `sending` keeps it open while this thread runs: at a signal, the
        # interpreter writes to its descriptor.
        while sending and receiving.recv(1) != bytes([signal.SIGTERM]):
            pass
        try:
            stop()
        finally:
            _exit()

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def end_quietly() -> None:
    """Exit at once if the JVM has closed the socket; call this at the end of `stop`.

    Otherwise Spark's runner would fail to report the end, and print three tracebacks.
    """
    if isinstance(sys.exc_info()[1], EOFError):
        _exit()


def _exit() -> None:
    logging.shutdown()
    os._exit(0)


def log_to_stderr() -> None:
    """Log this package to standard error, which Spark copies to the driver's.

    If the process has configured logging itself, nothing happens. Only errors of kazoo are logged:
    its warnings concern connections, and this package logs their consequences. The lines of each
    rebalance (`consumer.jvm_log_lines`) are logged at level DEBUG only.
    """
    logger = logging.getLogger("zkconsumer")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
    for name, level in (("zkconsumer", os.environ.get(LEVEL_VARIABLE, "INFO")), ("kazoo", "ERROR")):
        one = logging.getLogger(name)
        one.addHandler(handler)
        try:
            one.setLevel(level.upper())
        except ValueError:
            one.setLevel(logging.INFO)
            one.warning("%s=%s is not a log level; INFO is used", LEVEL_VARIABLE, level)
    if not logger.isEnabledFor(logging.DEBUG):
        logging.getLogger("zkconsumer.consumer.journal").setLevel(logging.WARNING)
    log_interpreters()


def log_interpreters() -> None:
    """Log that Spark starts one interpreter for a format, if two of them are configured.

    The executors start it by the name that was used on the driver, which their machines may lack
    (Spark 4.3: `UserDefinedPythonDataSource.createPythonFunction`). The error in a task is Spark's.
    """
    driver, executors = map(os.environ.get, ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"))
    if driver and executors and driver != executors:
        _log.info(
            "Spark starts one interpreter for this format, by the same path on the driver and on"
            " the executors. PYSPARK_DRIVER_PYTHON is %s, and PYSPARK_PYTHON is %s. If a task"
            ' cannot run its program, see "Interpreters at different paths"'
            " (`zkconsumer docs spark`)",
            driver,
            executors,
        )


Hold = socket.socket
"""The result of `hold_name`; the name is held as long as this object and its process exist."""


def hold_name(name: str, *, limit_s: float) -> Hold | None:
    """Acquire a name that only one process of this machine can hold. Wait up to `limit_s` seconds;
    return None if another process still holds the name.

    The name is an abstract Unix address, which the kernel frees when the process ends for whatever
    reason. Other systems than Linux have no such addresses, so on them the name is always acquired.
    """
    if sys.platform != "linux":
        return socket.socket()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deadline = time.monotonic() + limit_s
    while True:
        try:
            made.bind(f"\0{name}")
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                made.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                return None
            time.sleep(0.05)
    return made


@contextmanager
def errors_as_text() -> Iterator[None]:
    """Make Spark show an error of this package as its text only, without Python's traceback.

    Spark sends a worker's traceback to the JVM unless the environment variable
    `SPARK_HIDE_TRACEBACK` is set (`pyspark.util.handle_worker_exception`). The worker ends after
    the error, so the variable hides no other traceback. The context manager also works as a
    decorator of functions, but not of generators.
    """
    try:
        yield
    except ZkConsumerError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error.with_traceback(None) from None


# ---- Prompt TCP acknowledgements -----------------------------------------------------------------


def acknowledge_received_data() -> None:
    """Acknowledge received data on all TCP connections of this process immediately, so that tasks
    start faster.

    Spark's JVM sends a task's command and then its partition in separate writes, without
    `TCP_NODELAY` (Spark 4.3: `org.apache.spark.api.python.BasePythonRunner`). Nagle's algorithm
    delays the partition until the command is acknowledged. Linux delays that acknowledgement for up
    to 40 ms, because no data are sent in the other direction. This delay is most of the duration of
    a short task.

    No interface tells which connection is Spark's, so all of them are acknowledged; this does not
    harm the others. On systems without `TCP_QUICKACK` (tcp(7)) or `/proc`, the function does
    nothing.
    """
    option: int | None = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not os.path.isdir("/proc/self/fd"):
        return
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed in the meantime, or not TCP
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    one.setsockopt(socket.IPPROTO_TCP, option, 1)


# ---- Garbage collections -------------------------------------------------------------------------


@cache
def skip_imports_in_collections() -> None:
    """Exclude all present objects from this worker's later garbage collections, so that tasks end
    faster.

    Spark's worker runs a full garbage collection after each task (Spark 4.3: `pyspark.daemon`). The
    packages that a task imports consist of more than 100,000 objects, which live as long as the
    worker. Each collection would visit them, which takes 40 ms: as long as reading 100,000
    messages. Objects that later tasks create are still collected.

    In processes that do not end tasks in this way, the function does nothing. A task calls it when
    it has imported all packages.
    """
    if _main_module() == DAEMON:
        gc.collect()
        gc.freeze()


# ---- Errors when a format is missing -------------------------------------------------------------


def load(reader: DataFrameReader | DataStreamReader) -> DataFrame:
    """Return `reader.load()` for a format of this package.

    Raises:
        SparkSourceError: Spark did not find the package, or Spark is too old for its formats. This
            error replaces Spark's DATA_SOURCE_NOT_FOUND.
        PySparkException: the format raised an error with its reason.
    """
    try:
        return reader.load()
    except (Py4JJavaError, PySparkException) as error:
        # Spark 4.3 passes this error on with Java's stack trace of 155 lines.
        if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
            raise
    if (reason := too_old()) is not None:
        raise SparkSourceError(reason, remedy="pip install 'zkconsumer[spark]'")
    environ = os.environ  # the same rules as Spark's PythonUtils.defaultPythonExec
    python = environ.get("PYSPARK_DRIVER_PYTHON") or environ.get("PYSPARK_PYTHON") or "python3"
    raise SparkSourceError(
        "Spark does not find the formats of zkconsumer",
        where=f"Spark used the interpreter {python}",
        remedy="set PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON to an interpreter that starts and has "
        "zkconsumer[spark]; if the package was shipped with the job, register its format",
    )
