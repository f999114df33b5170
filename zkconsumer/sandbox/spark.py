"""Spark on this machine: an environment in which its launcher, JVM and workers start, and a
cluster.

Three things stop a plain `pip install pyspark` from running. Its launcher requires a Java module
that small runtimes lack. Its Python workers are the `python3` on PATH. The driver binds to the
address to which the host's name resolves. A fourth thing makes Spark slow: its Python workers
import pyspark from a zip file without compiled modules.

`SparkCluster` is a standalone cluster: a master and its workers, each in a JVM of its own, with
pyspark's jars only. Executors are child processes of the workers and end with them: a worker ends
its executors on SIGTERM, and an executor that loses its worker exits (Spark: `ExecutorRunner`,
`WorkerWatcher`).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard, server
from zkconsumer.sandbox.jars import find_java
from zkconsumer.sandbox.process import Process, Startable, launch, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark's launcher requires this module since 3.5 (`JavaModuleOptions`); only linear algebra
# benefits from it.
_MODULE = "jdk.incubator.vector"

_WITHOUT_MODULE = f"""#!/bin/sh
for word do
    shift
    case $word in --add-modules={_MODULE}) ;; *) set -- "$@" "$word" ;; esac
done
exec "{{java}}" "$@"
"""


def java_home(directory: Path) -> Path:
    """Create a JAVA_HOME for Spark in `directory`; its `java` omits a module that the runtime
    lacks.

    Raises:
        SandboxError: no Java runtime is usable; see `find_java`.
    """
    java = find_java()
    script = directory / "bin" / "java"
    if java.executable == script:  # an earlier call has set JAVA_HOME to this directory
        return directory
    listed = subprocess.run(
        [java.executable, "--list-modules"], capture_output=True, text=True, check=False
    )
    script.parent.mkdir(parents=True, exist_ok=True)
    script.unlink(missing_ok=True)
    if _MODULE in listed.stdout:
        script.symlink_to(java.executable)
    else:
        script.write_text(_WITHOUT_MODULE.format(java=java.executable))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return directory


def spark_home(directory: Path) -> Path:
    """Create a SPARK_HOME in `directory` whose Python workers import the installed pyspark.

    Spark puts `SPARK_HOME/python/lib/pyspark.zip` first on its workers' path. Without that file, a
    worker imports pyspark's compiled modules, and starts with a third of the processor time
    (0.15 s instead of 0.5 s).

    Raises:
        SandboxError: pyspark is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for one in _pyspark().iterdir():
        link = directory / one.name
        if one.name not in ("python", "__pycache__") and not link.is_symlink():
            link.symlink_to(one)
    return directory


def archive() -> Path:
    """Return the path of the class-data archive of Spark's drivers; it may not exist yet.

    A driver loads ten thousand classes. With the archive it needs 4 s less processor time to start
    and to run its first jobs. `session` uses the archive if it exists, and the tests' set-up
    records it. HotSpot accepts an archive only if the jars' paths are the same as during the
    recording, so the archive is valid for `archive_home` only.

    Raises:
        SandboxError: no Java runtime is usable, or pyspark is not installed.
    """
    jars = sorted((one.name, one.stat().st_size) for one in (_pyspark() / "jars").iterdir())
    digest = hashlib.sha256(repr(jars).encode()).hexdigest()[:12]
    return server.archive(find_java(), digest, "spark-driver")


def archive_home(known: Path) -> Path:
    """Return the SPARK_HOME of an archive: a directory beside it, with hard links to pyspark."""
    return known.with_suffix(".home")


def environment(directory: Path) -> dict[str, str]:
    """Return the environment variables that Spark's launcher needs here, besides those of the
    process.

    `directory` contains the files created for it. Raises SandboxError, see `java_home` and
    `spark_home`.
    """
    home = archive_home(archive())
    return {
        "JAVA_HOME": str(java_home(directory / "java")),
        "SPARK_HOME": str(home if home.exists() else spark_home(directory / "home")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # a cluster's processes get no other variable of this process
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }


def session(
    directory: Path, *, master: str = "local[2]", settings: dict[str, str] | None = None
) -> SparkSession:
    """Start a quiet Spark session in this process, bound to the loopback interface; `stop()` ends
    it.

    `directory` contains its temporary files and default checkpoints. The variables of `environment`
    are set for this process, because the launcher and the workers inherit them.

    Raises:
        SandboxError: no Java runtime is usable.
    """
    from pyspark.sql import SparkSession

    os.environ.update(environment(directory))
    # A JVM ignores TMPDIR, and a killed JVM leaves unpacked libraries behind.
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    java_options = [
        f"-Djava.io.tmpdir={temporary.absolute()}",
        *server.options(archive(), record=None),
    ]
    chosen = {
        "spark.driver.defaultJavaOptions": " ".join(f'"{one}"' for one in java_options),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **(settings or {}),
    }
    builder = SparkSession.builder.master(master).appName("zkconsumer")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


# ---- Cluster -------------------------------------------------------------------------------------


# A start takes 3 s on an idle machine. After this many seconds it has failed.
START_LIMIT_S = 120.0
# A worker first ends its executors, within a second. After this many seconds it gets SIGKILL.
STOP_LIMIT_S = 15.0

_DEPLOY = "org.apache.spark.deploy"
# These JVMs do not run long enough to benefit from the second compiler.
_FAST_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
# Log lines of the master, from `Master.onStart` and `Master.receive` (RegisterWorker).
_SERVES = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker ")


class SparkCluster(Startable):
    """A master and workers on 127.0.0.1, on ports that the system chooses.

        with SparkCluster(directory) as cluster:
            spark = sandbox.spark.session(directory, master=cluster.url, settings=cluster.settings)

    Attributes:
        directory: contains their logs and the executors' logs; kept.
        settings: settings of a session with one executor per worker that starts fast.
    """

    def __init__(self, directory: Path, *, workers: int = 2, executor_memory_mb: int = 512) -> None:
        """Args:
        directory: for logs and the executors' directories.
        workers: the number of workers, with one core each.
        executor_memory_mb: the heap of an executor; a worker offers exactly this much.
        """
        self.directory = directory.absolute()
        self.settings = {
            "spark.executor.memory": f"{executor_memory_mb}m",
            "spark.executor.extraJavaOptions": _FAST_JVM,
        }
        self._workers = workers
        self._memory_mb = executor_memory_mb
        self._processes: dict[str, Process] = {}
        self._url = ""

    @property
    def url(self) -> str:
        """The master URL for a session, `spark://127.0.0.1:port`.

        Raises:
            SandboxError: the cluster does not run.
        """
        if not self._url:
            raise SandboxError("the Spark cluster is not running", remedy="start() it")
        return self._url

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, which start the executors."""
        return [one.pid for name, one in self._processes.items() if name.startswith("worker-")]

    def log(self, name: str) -> Path:
        """Return the log of `master`, `worker-0`, ... The executors' logs are in the
        folder `work`.
        """
        return self.directory / f"{name}.log"

    def start(self) -> None:
        """Start the master, then all workers, and wait until they are registered.

        Raises:
            SandboxError: no Java runtime is usable, pyspark is missing, or a process ended; then
                the error contains the last lines of its log.
        """
        try:
            self._launch("master", "master.Master", "--webui-port", "0")
            self._await(lambda: self._logged(_SERVES))
            (self._url,) = self._logged(_SERVES)
            for number in range(self._workers):
                name = f"worker-{number}"
                self._launch(
                    name,
                    "worker.Worker",
                    "--webui-port",
                    "0",
                    "--cores",
                    "1",
                    "--memory",
                    f"{self._memory_mb}m",
                    "--work-dir",
                    str(self.directory / "work" / name),
                    self._url,
                )
            self._await(lambda: self._logged(_REGISTERED)[self._workers - 1 :])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Send SIGTERM to the workers, then to the master, and SIGKILL after 15 s."""
        self._url = ""
        for name, process in reversed(list(self._processes.items())):
            process.end(patience_s=STOP_LIMIT_S)
            guard.release(process.pid, process.birth)
            del self._processes[name]

    # ---- Internals -------------------------------------------------------------------------------

    def _launch(self, name: str, role: str, *arguments: str) -> None:
        environ = self._environ()
        command = [f"{environ['SPARK_HOME']}/bin/spark-class", f"{_DEPLOY}.{role}"]
        command += ["--host", "127.0.0.1", "--port", "0", *arguments]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log(name).unlink(missing_ok=True)
        launch(
            command,
            directory=self.directory,
            log=self.log(name),
            environ=environ,
            keep=lambda process: self._processes.update({name: process}),
        )

    def _environ(self) -> Mapping[str, str]:
        """Return the environment, without the user's own Spark settings (SPARK_CONF_DIR,
        SPARK_DAEMON_MEMORY, ...).
        """
        for folder in ("conf", "tmp"):
            (self.directory / folder).mkdir(exist_ok=True)
        return {
            **environment(self.directory),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.directory),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LAUNCHER_OPTS": _FAST_JVM,
            "SPARK_DAEMON_JAVA_OPTS": f"{_FAST_JVM} -Djava.io.tmpdir={self.directory / 'tmp'}",
        }

    def _logged(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the pattern's matches in the master's log."""
        return pattern.findall(self.log("master").read_text(errors="replace"))

    def _await(self, condition: Callable[[], object]) -> None:
        if until(lambda: bool(self._ended() or condition()), limit_s=START_LIMIT_S):
            ended = self._ended()
        else:
            ended = "master"
        if ended:
            lines = self.log(ended).read_text(errors="replace").split("\n")
            errors = [line.strip() for line in lines if "ERROR" in line or "Exception" in line]
            raise SandboxError(
                f"the Spark cluster's {ended} is not ready",
                where=" | ".join((errors or lines)[-3:])[:900],
                remedy=f"see {self.log(ended)}",
            )

    def _ended(self) -> str:
        """Return the name of a process that has ended, or an empty text."""
        return next((name for name, one in self._processes.items() if not one.alive), "")


def _pyspark() -> Path:
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise SandboxError(
            "pyspark is not installed", remedy="pip install 'zkconsumer[sandbox,spark]'"
        ) from error
    return Path(pyspark.__file__).parent
