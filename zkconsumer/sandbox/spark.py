"""Spark on this machine: an environment in which its launcher, its JVM and its workers start.

Three things stop a plain `pip install pyspark` from running: its launcher always asks for a Java
module that small runtimes leave out, its Python workers are whatever `python3` is on PATH, and the
driver binds to whatever the host's name resolves to.

A standalone Spark cluster on this machine: a master and its workers, each a JVM of its own.

The jars are pyspark's; nothing else is fetched. Executors are the workers' children and end with
them: a worker ends its own on SIGTERM, and an executor that loses its worker leaves by itself
(Spark: `ExecutorRunner`, `WorkerWatcher`).
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard
from zkconsumer.sandbox.jars import Java, find_java
from zkconsumer.sandbox.process import Process, Startable, launch, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark's launcher asks for it since 3.5 (`JavaModuleOptions`); only linear algebra is faster by it.
_MODULE = "jdk.incubator.vector"

_WITHOUT_MODULE = f"""#!/bin/sh
for word do
    shift
    case $word in --add-modules={_MODULE}) ;; *) set -- "$@" "$word" ;; esac
done
exec "{{java}}" "$@"
"""

# Where the two top-level modules lie in a checkout; an installed package has them beside itself.
DISCOVERY = Path(__file__).resolve().parent.parent / "spark" / "discovery"


def java_home(directory: Path, java: Java | None = None) -> Path:
    """A JAVA_HOME for Spark, made in `directory`: its `java` leaves out a module it has not got.

    Raises:
        SandboxError: no Java runtime fits; see `find_java`.
    """
    java = java or find_java()
    script = directory / "bin" / "java"
    if java.executable == script:  # made before, and in our own JAVA_HOME since
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


def environment(directory: Path) -> dict[str, str]:
    """The variables with which Spark's launcher runs here, beside those of the process.

    `directory` keeps what is made for it. Raises SandboxError as `java_home`.
    """
    before = os.environ.get("PYTHONPATH")
    return {
        "JAVA_HOME": str(java_home(directory / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(DISCOVERY), *([before] if before else [])]),
    }


def session(
    directory: Path, *, master: str = "local[2]", settings: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session of this process, quiet and bound to loopback; `stop()` ends it.

    Its temporary files and default checkpoints lie in `directory`. The variables of `environment`
    are set for this process, since the launcher and the workers inherit them.

    Raises:
        SandboxError: no Java runtime fits.
    """
    from pyspark.sql import SparkSession

    os.environ.update(environment(directory))
    # A JVM does not look at TMPDIR, and one that is killed leaves libraries that it has unpacked.
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    chosen = {
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={temporary.absolute()}"',
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


# ---- cluster -------------------------------------------------------------------------------------


# A start takes 3 s on a quiet machine. After this many seconds it counts as failed.
START_LIMIT_S = 120.0
# A worker first ends its executors, within a second. After this many seconds it is SIGKILL.
STOP_LIMIT_S = 15.0

_DEPLOY = "org.apache.spark.deploy"
# None of these JVMs lives long enough for more than the first compiler to pay.
_FAST_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
# As the master logs them, in `Master.onStart` and `Master.receive` (RegisterWorker).
_SERVES = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker ")


class SparkCluster(Startable):
    """A master and workers on 127.0.0.1, on ports of the system's choice.

        with SparkCluster(directory) as cluster:
            spark = sandbox.spark.session(directory, master=cluster.url, settings=cluster.settings)

    Attributes:
        directory: where their logs, and the executors', lie; kept.
        settings: of a session whose executors fit, one on each worker, and start quickly.
    """

    def __init__(self, directory: Path, *, workers: int = 2, executor_memory_mb: int = 512) -> None:
        """
        Args:
            directory: for logs and the executors' directories.
            workers: how many, with one core each.
            executor_memory_mb: the heap of an executor; a worker offers just so much.
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
        """What a session takes as its master, `spark://127.0.0.1:port`.

        Raises:
            SandboxError: the cluster does not run.
        """
        if not self._url:
            raise SandboxError("the Spark cluster does not run", remedy="start() it")
        return self._url

    def log(self, name: str) -> Path:
        """What `master`, `worker-0`, ... said. Executors' logs lie in the folder `work`."""
        return self.directory / f"{name}.log"

    def start(self) -> None:
        """Starts the master, then all workers, and waits until they are registered.

        Raises:
            SandboxError: no Java runtime fits, pyspark is missing, or one of them ended: with the
                last lines of its log.
        """
        try:
            self._launch("master", "master.Master", "--webui-port", "0")
            self._await(lambda: self._said(_SERVES))
            (self._url,) = self._said(_SERVES)
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
            self._await(lambda: self._said(_REGISTERED)[self._workers - 1 :])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM to the workers, then to the master; SIGKILL after 15 s."""
        self._url = ""
        for name, process in reversed(list(self._processes.items())):
            process.end(patience_s=STOP_LIMIT_S)
            guard.release(process.pid, process.birth)
            del self._processes[name]

    # ---- inside ---------------------------------------------------------------------------------

    def _launch(self, name: str, role: str, *arguments: str) -> None:
        home = _spark_home()
        command = [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{role}"]
        command += ["--host", "127.0.0.1", "--port", "0", *arguments]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log(name).unlink(missing_ok=True)
        launch(
            command,
            directory=self.directory,
            log=self.log(name),
            environ=self._environ(home),
            keep=lambda process: self._processes.update({name: process}),
        )

    def _environ(self, home: Path) -> Mapping[str, str]:
        """Nothing of the user's own Spark (SPARK_CONF_DIR, SPARK_DAEMON_MEMORY, ...) is read."""
        for folder in ("conf", "tmp"):
            (self.directory / folder).mkdir(exist_ok=True)
        return {
            **environment(self.directory),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.directory),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LAUNCHER_OPTS": _FAST_JVM,
            "SPARK_DAEMON_JAVA_OPTS": f"{_FAST_JVM} -Djava.io.tmpdir={self.directory / 'tmp'}",
        }

    def _said(self, pattern: re.Pattern[str]) -> list[str]:
        """What the pattern finds in the master's log."""
        return pattern.findall(self.log("master").read_text(errors="replace"))

    def _await(self, condition: Callable[[], object]) -> None:
        if until(lambda: bool(self._fallen() or condition()), limit_s=START_LIMIT_S):
            fallen = self._fallen()
        else:
            fallen = "master"
        if fallen:
            lines = self.log(fallen).read_text(errors="replace").split("\n")
            told = [line.strip() for line in lines if "ERROR" in line or "Exception" in line]
            raise SandboxError(
                f"the Spark cluster's {fallen} does not serve",
                where=" | ".join((told or lines)[-3:])[:900],
                remedy=f"see {self.log(fallen)}",
            )

    def _fallen(self) -> str:
        """The name of one that has ended, or nothing."""
        return next((name for name, one in self._processes.items() if not one.alive), "")


def _spark_home() -> Path:
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise SandboxError(
            "pyspark is not installed", remedy="pip install 'zkconsumer[sandbox,spark]'"
        ) from error
    return Path(pyspark.__file__).parent
