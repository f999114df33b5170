"""What a reader must see to in the processes that Spark makes for it: its end, its log, its errors.

Spark starts one Python process per query and source (`python_streaming_source_runner`), which keeps
one reader object as long as the query runs, and then ends it by SIGTERM: `stop()` is called only
where the process saw its socket close first, or failed.

What lets Spark's JVM go on with a task at once.

It sends a task's command and then its partition, each in a write of its own and without
`TCP_NODELAY` (Spark 4.3: `org.apache.spark.api.python.BasePythonRunner`). So Nagle's algorithm
holds the partition back until the command is acknowledged, and Linux puts that off for up to 40 ms,
as nothing is sent the other way meanwhile: most of what a short task takes.

What Spark says of a format that it does not find, in one sentence.
"""

from __future__ import annotations

import errno
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
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from zkconsumer.errors import SparkSourceError, ZkConsumerError

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""What runs as the main module of a query's own process."""

LEVEL_VARIABLE: Final = "ZKCONSUMER_LOG_LEVEL"
"""A level of `logging` for what this package tells of a query; INFO where it is not set."""

# As Spark's own lines on the same standard error (`conf/log4j2.properties.template`).
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%y/%m/%d %H:%M:%S"


def begin(stop: Callable[[], None]) -> None:
    """To be called once by a reader, on the main thread, before it starts any thread.

    In a query's own process its log goes to standard error, and `stop` is called at its end; in
    any other, such as a test, nothing happens. `stop` may be called by two threads at once.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        log_to_stderr()
        end_on_sigterm(stop)


def end_on_sigterm(stop: Callable[[], None]) -> None:
    """Have `stop` called, on a thread of its own, when this process gets a SIGTERM; then exit.

    To be called on the main thread. That may be in a call which nothing interrupts when the signal
    comes, so Python's own handlers would come too late; and libraries have threads from before, so
    the signal cannot be kept from all. But at once, on whatever thread it reaches, the interpreter
    writes its number to a socket. Spark often sends it twice: the second is not read any more.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)

    def wait() -> None:
        # `told` lives as long as this thread: the signal needs its number.
        while told and heard.recv(1) != bytes([signal.SIGTERM]):
            pass
        try:
            stop()
        finally:
            _exit()

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def end_quietly() -> None:
    """To be called at the end of `stop`: exit at once where the JVM has closed the socket.

    Spark's runner would find nobody to tell of it, and print three traces about that.
    """
    if isinstance(sys.exc_info()[1], EOFError):
        _exit()


def _exit() -> None:
    logging.shutdown()
    os._exit(0)


def log_to_stderr() -> None:
    """Write this package's lines to standard error, which Spark copies to the driver's.

    Nothing is done where the process has a logging of its own. Of kazoo only errors are told: its
    warnings are of connections, and ours say what follows from them. The lines of every rebalance
    (`consumer.jvm_log_lines`) come with the level DEBUG.
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
            one.warning("%s=%s is no level of logging; taken for INFO", LEVEL_VARIABLE, level)
    if not logger.isEnabledFor(logging.DEBUG):
        logging.getLogger("zkconsumer.consumer.journal").setLevel(logging.WARNING)


Hold = socket.socket
"""What `hold` returns: as long as the object and its process live, the name is held."""


def hold(name: str, *, limit_s: float) -> Hold | None:
    """Hold this name among the processes of this machine; None if another holds it for `limit_s`.

    The name is an abstract Unix address, which the kernel frees when the process ends, however that
    happens. Other systems than Linux have none: there nothing is checked.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deadline = time.monotonic() + limit_s
    while sys.platform == "linux":
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
def one_sentence() -> Iterator[None]:
    """Let an error of this package reach the user as its text, without Python's trace.

    Spark sends a worker's whole trace to the JVM unless this variable is set
    (`pyspark.util.handle_worker_exception`), and the worker ends then; so it hides nobody else's.
    Also a decorator, but not of a generator.
    """
    try:
        yield
    except ZkConsumerError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error.with_traceback(None) from None


# ---- acknowledging -------------------------------------------------------------------------------


def acknowledge() -> None:
    """Have this process's TCP connections acknowledge now what they have received.

    Which of them is Spark's no interface tells; others are none the worse for it. Where there is no
    `TCP_QUICKACK` (tcp(7)) or no `/proc`, nothing is done.
    """
    option: int | None = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not os.path.isdir("/proc/self/fd"):
        return
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or no TCP
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    one.setsockopt(socket.IPPROTO_TCP, option, 1)


# ---- loading -------------------------------------------------------------------------------------


def load(reader: DataFrameReader | DataStreamReader) -> DataFrame:
    """`reader.load()`, of a format of this package.

    Raises:
        SparkSourceError: Spark has not found the package, in place of DATA_SOURCE_NOT_FOUND.
        PySparkException: the format itself refuses, with its reason.
    """
    try:
        return reader.load()
    except (Py4JJavaError, PySparkException) as error:
        # Spark 4.3 leaves this one as it comes from Java, with 155 lines of its own.
        if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
            raise
    environ = os.environ  # looked at as by Spark's PythonUtils.defaultPythonExec
    python = environ.get("PYSPARK_DRIVER_PYTHON") or environ.get("PYSPARK_PYTHON") or "python3"
    raise SparkSourceError(
        "Spark does not find the formats of zkconsumer",
        where=f"it looked with {python}",
        remedy="let PYSPARK_DRIVER_PYTHON, or else PYSPARK_PYTHON, name an interpreter that starts "
        "and has zkconsumer[spark]; if the package came with the job, register its format",
    )
