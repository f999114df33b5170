"""A standalone Spark cluster on this machine: a master and its workers, each a JVM of its own.

The jars are pyspark's; nothing else is fetched. Executors are the workers' children and end with
them: a worker ends its own on SIGTERM, and an executor that loses its worker leaves by itself
(Spark: `ExecutorRunner`, `WorkerWatcher`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard
from zkconsumer.sandbox.process import Process, Startable, launch, until
from zkconsumer.sandbox.spark import environment

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
                    name, "worker.Worker", "--webui-port", "0", "--cores", "1",
                    "--memory", f"{self._memory_mb}m",
                    "--work-dir", str(self.directory / "work" / name), self._url,
                )  # fmt: skip
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
        import pyspark  # noqa: PLC0415 - an optional extra, needed only here
    except ModuleNotFoundError as error:
        raise SandboxError(
            "pyspark is not installed", remedy="pip install 'zkconsumer[sandbox,spark]'"
        ) from error
    return Path(pyspark.__file__).parent
