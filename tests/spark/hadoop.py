"""A real HDFS and a real YARN on the loopback interface, each server in a JVM of its own.

One jar of Hadoop has the servers' classes. The jars of pyspark, which has the same release of
Hadoop, have the client's classes and all other libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import guard, jars
from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.process import Process, Startable, launch, until
from zkconsumer.sandbox.spark import environment

# The servers, and the cryptography that the ResourceManager needs.
SERVERS = [
    jars.Jar(
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
        "org.apache.hadoop",
        "hadoop-client-minicluster",
        "3.5.0",
    ),
    jars.Jar(
        "add5915e6acfc6ab5836e1fd8a5e21c6488536a8c1f21f386eeb3bf280b702d7",
        "org.bouncycastle",
        "bcprov-jdk18on",
        "1.78.1",
    ),
    jars.Jar(
        "4b48ea084e5232b9d79ebca1887b9de037b124931807cd60710748c2aee08cc9",
        "org.bouncycastle",
        "bcpkix-jdk18on",
        "1.78.1",
    ),
    jars.Jar(
        "d9fa56f97b0f761ce3bc8d9d74c5d7137a987bf5bd3abfe1003f9bafa45a1d2f",
        "org.bouncycastle",
        "bcutil-jdk18on",
        "1.78.1",
    ),
]
# A start takes 35 s on a busy machine.
LIMIT_S = 120.0
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that runs briefly: without the second compiler."""
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# Fewer jars let the servers start sooner, because they search each of them.
_LIBRARIES = ("hadoop-client", "jcl-over", "log4j-", "slf4j-api")
# The default scheduler needs a file that lists queues.
_FIFO = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
# The servers must also use a disk that is nearly full.
_FULL_DISK = "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage"
_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


class HadoopServers(Startable):
    """Servers of Hadoop that share a directory of settings.

    Attributes:
        directory: contains the settings (`conf`), the data and the logs; kept.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._processes: dict[str, Process] = {}

    @property
    def conf(self) -> Path:
        """The directory that clients take as HADOOP_CONF_DIR."""
        return self.directory / "conf"

    def log(self, name: str) -> Path:
        """Return the log of a server, such as `NameNode`."""
        return self.directory / f"{name}.log"

    def end(self, name: str) -> None:
        """Stop one server."""
        process = self._processes.pop(name)
        process.end(patience_s=5.0)
        guard.release(process.pid, process.birth)

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self.end(name)

    def _configure(self, file: str, settings: Mapping[str, object]) -> None:
        """Write a file of settings, such as `hdfs-site.xml`."""
        self.conf.mkdir(parents=True, exist_ok=True)
        lines = [
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
            for name, value in settings.items()
        ]
        text = "\n".join(["<configuration>", *lines, "</configuration>", ""])
        (self.conf / file).write_text(text)
        (self.conf / "log4j2.properties").write_text(_LOG4J)

    def _launch(self, main: str, *arguments: str) -> None:
        """Start a server in a JVM of its own."""
        name = main.rpartition(".")[2]
        servers = jars.resolve_jars(SERVERS, title="Hadoop")
        found = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
        libraries = [one for one in found if one.name.startswith(_LIBRARIES)]
        classes = os.pathsep.join(map(str, (self.conf, *servers, *libraries)))
        environ = {**os.environ, **environment(self.directory), "HOME": str(self.directory)}
        environ |= {"HADOOP_CONF_DIR": str(self.conf), "LANG": "C.UTF-8"}
        java = f"{environ['JAVA_HOME']}/bin/java"
        temporary = self.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        launch(
            [java, *_JVM, f"-Djava.io.tmpdir={temporary}", "-cp", classes, main, *arguments],
            directory=self.directory,
            log=self.log(name),
            environ=environ,
            keep=lambda process: self._processes.update({name: process}),
        )

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; raise SandboxError if a server ends before it holds."""
        until(lambda: bool(self._ended()) or condition(), limit_s=LIMIT_S)
        if (ended := self._ended()) or not condition():
            name = ended or next(reversed(self._processes))
            text = self.log(name).read_text(errors="replace")
            raise SandboxError(
                f"{name} is not ready", where=text[-900:], remedy=str(self.log(name))
            )

    def _logged(self, name: str, text: str) -> bool:
        return text in self.log(name).read_text(errors="replace")

    def _ended(self) -> str:
        return next((name for name, one in self._processes.items() if not one.alive), "")


class Hdfs(HadoopServers):
    """A NameNode and a DataNode.

    Attributes:
        url: `hdfs://127.0.0.1:port`.
        web: `webhdfs://127.0.0.1:port`, the same files over HTTP.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._port, self._http = free_port(), free_port()
        self.url = f"hdfs://{HOST}:{self._port}"
        self.web = f"webhdfs://{HOST}:{self._http}"

    def start(self) -> None:
        self._configure("core-site.xml", {"fs.defaultFS": self.url})
        data = self.directory / "hdfs"
        self._configure(
            "hdfs-site.xml",
            {
                "dfs.namenode.name.dir": f"file://{data}/name",
                "dfs.datanode.data.dir": f"file://{data}/data",
                "dfs.namenode.http-address": f"{HOST}:{self._http}",
                "dfs.datanode.address": f"{HOST}:0",
                "dfs.datanode.http.address": f"{HOST}:0",
                "dfs.datanode.ipc.address": f"{HOST}:0",
                "dfs.datanode.hostname": HOST,
                "dfs.replication": 1,
                "dfs.namenode.safemode.extension": 0,
                "dfs.namenode.fs-limits.min-block-size": 1024,
                "dfs.namenode.edits.noeditlogchannelflush": "true",
            },
        )
        try:
            package = "org.apache.hadoop.hdfs.server"
            if not data.exists():
                self._launch(f"{package}.namenode.NameNode", "-format", "-nonInteractive")
                until(lambda: not self._processes["NameNode"].alive, limit_s=LIMIT_S)
                self.end("NameNode")
            self._launch(f"{package}.namenode.NameNode")
            self._launch(f"{package}.datanode.DataNode")
            self._await(lambda: self._logged("DataNode", "successfully registered with NN"))
        except BaseException:
            self.stop()
            raise


class Yarn(HadoopServers):
    """A ResourceManager and a NodeManager, which runs containers as processes of this machine."""

    def __init__(self, directory: Path, *, files: str, memory_mb: int = 4096) -> None:
        """Args:
        files: the default filesystem, for example `Hdfs.url`.
        memory_mb: memory of all containers together.
        """
        super().__init__(directory)
        self._files, self._memory_mb = files, memory_mb

    def start(self) -> None:
        ports = {name: f"{HOST}:{free_port()}" for name in ("", ".scheduler", ".admin")}
        ports |= {name: f"{HOST}:{free_port()}" for name in (".resource-tracker", ".webapp")}
        addresses = {
            f"yarn.resourcemanager{name}.address": address for name, address in ports.items()
        }
        self._configure("core-site.xml", {"fs.defaultFS": self._files})
        self._configure(
            "yarn-site.xml",
            addresses
            | {
                "yarn.resourcemanager.hostname": HOST,
                "yarn.resourcemanager.scheduler.class": _FIFO,
                "yarn.nodemanager.hostname": HOST,
                "yarn.nodemanager.address": f"{HOST}:0",
                "yarn.nodemanager.localizer.address": f"{HOST}:0",
                "yarn.nodemanager.webapp.address": f"{HOST}:0",
                "yarn.nodemanager.local-dirs": self.directory / "local",
                "yarn.nodemanager.log-dirs": self.directory / "containers",
                "yarn.nodemanager.delete.debug-delay-sec": 600,
                "yarn.nodemanager.resource.memory-mb": self._memory_mb,
                "yarn.nodemanager.resource.cpu-vcores": 8,
                "yarn.scheduler.minimum-allocation-mb": 256,
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.pmem-check-enabled": "false",
                _FULL_DISK: 100,
            },
        )
        try:
            package = "org.apache.hadoop.yarn.server"
            self._launch(f"{package}.resourcemanager.ResourceManager")
            self._launch(f"{package}.nodemanager.NodeManager")
            self._await(lambda: self._logged("NodeManager", "Registered with ResourceManager"))
        except BaseException:
            self.stop()
            raise

    def tails(self) -> str:
        """Return the last lines of the containers' logs, for the error of a failed test."""
        logs = sorted((self.directory / "containers").rglob("std*"))
        return "\n".join(f"{log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
