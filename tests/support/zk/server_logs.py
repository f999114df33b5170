"""Real logs of ZooKeeper servers of each release, and what their clients know about themselves.

`python -m support.zk.server_logs` in `tests/` rewrites `tests/golden/server_logs`. An archive
contains the server's log, its audit log, its answer to `cons`, its transaction log, and
`truth.json`: for each session the address of each of its connections, with the user.

The layouts of the log lines are those of the configuration files that ZooKeeper's distributions
contain (`conf/log4j.properties` to 3.7, `conf/logback.xml` since 3.8).
"""

from __future__ import annotations

import json
import socket
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler

from support.wait import LIMIT_S
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZOOKEEPER_RELEASES, jars
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.zookeeper import ZooKeeperServer

from .corpus import _is_over, abandoned_session
from .servers import release_number

GOLDEN = Path(__file__).parents[2] / "golden" / "server_logs"
RELEASES = ("3.3.6", *ZOOKEEPER_RELEASES)
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC")

_LAYOUT = "%d{ISO8601} [myid:%X{myid}] - %-5p [%t:%C{1}@%L] - %m%n"
_LAYOUT_OF_3_3 = "%d{ISO8601} - %-5p [%t:%C{1}@%L] - %m%n"
_AUDIT_LAYOUT = "%d{ISO8601} %p %c{2}: %m%n"

LOG4J = """\
log4j.rootLogger=INFO, out
{detail}
log4j.appender.out=org.apache.log4j.FileAppender
log4j.appender.out.File={folder}/zookeeper.log
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern={layout}
log4j.logger.org.apache.zookeeper.audit.Log4jAuditLogger=INFO, audit
log4j.additivity.org.apache.zookeeper.audit.Log4jAuditLogger=false
log4j.appender.audit=org.apache.log4j.FileAppender
log4j.appender.audit.File={folder}/zookeeper_audit.log
log4j.appender.audit.layout=org.apache.log4j.PatternLayout
log4j.appender.audit.layout.ConversionPattern={audit_layout}
"""
LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.FileAppender">
    <file>{folder}/zookeeper.log</file>
    <encoder><pattern>{layout}</pattern></encoder>
  </appender>
  <appender name="audit" class="ch.qos.logback.core.FileAppender">
    <file>{folder}/zookeeper_audit.log</file>
    <encoder><pattern>{audit_layout}</pattern></encoder>
  </appender>
  <logger name="org.apache.zookeeper.audit.Slf4jAuditLogger" additivity="false" level="INFO">
    <appender-ref ref="audit" />
  </logger>
  {detail}
  <root level="INFO"><appender-ref ref="out" /></root>
</configuration>
"""
_DETAILED = ("ZooKeeperServer", "NIOServerCnxn")  # the loggers of the lines about clients

_ZOOKEEPER_3_3 = (
    jars.Jar(
        "d57d32dbb2696ec634df906a387c04500f4e70d7d3ea9ff45fbbf5bfb85f2465",
        "org.apache.zookeeper",
        "zookeeper",
        "3.3.6",
    ),
    jars.Jar(
        "1d31696445697720527091754369082a6651bd49781b6005deb94e56753406f9",
        "log4j",
        "log4j",
        "1.2.17",
    ),
)
_LOGBACK = {
    "1.2.13": (
        "937afb220b91d8a394d78befdbf587c71aeed289d582e2a91e72a7d92172371d",
        "07b1586faf220c05821d0f3ed8e2e417e214c83f40641f76e8a90b134c31ff6b",
    ),
    "1.3.15": (
        "06c68fb7468143c3c6512d13bb8eb6676724b019330de3a5ab493e267dde2084",
        "90b72ec457f30f8f42a280a409ab2bc4499fec16983005d1d91015199be7047b",
    ),
}


class LoggingServer(ZooKeeperServer):
    """A server that writes its logs as ZooKeeper's distribution does."""

    def __init__(self, directory: Path, *, release: str, zone: str, is_detailed: bool) -> None:
        known = release if release in ZOOKEEPER_RELEASES else ZOOKEEPER_RELEASES[0]
        properties = {
            "zookeeper.audit.enable": "true",
            "zookeeper.preAllocSize": 64,  # in KB, the size of an empty log
            "user.timezone": zone,
            "logback.configurationFile": directory / "logback.xml",
        }
        super().__init__(directory, release=known, properties=properties)
        self._is_detailed, self._is_old = is_detailed, release.startswith("3.3.")
        self._has_logback = release_number(release) >= (3, 8)

    def _class_path(self) -> tuple[Path, ...]:
        if self._is_old:
            return jars.resolve_jars(_ZOOKEEPER_3_3, title="ZooKeeper 3.3.6")
        found = super()._class_path()
        if not self._has_logback:
            return found
        version = "1.2.13" if any("slf4j-api-1." in one.name for one in found) else "1.3.15"
        names = zip(_LOGBACK[version], ("logback-classic", "logback-core"), strict=True)
        logback = [jars.Jar(sha, "ch.qos.logback", name, version) for sha, name in names]
        kept = (one for one in found if "reload4j" not in one.name)
        return (*kept, *jars.resolve_jars(logback, title="logback"))

    def _prepare(self) -> Path:
        loggers = [f"org.apache.zookeeper.server.{name}" for name in _DETAILED]
        values = {
            "folder": self.directory,
            "layout": _LAYOUT_OF_3_3 if self._is_old else _LAYOUT,
            "audit_layout": _AUDIT_LAYOUT,
        }
        of_log4j = "\n".join(f"log4j.logger.{name}=DEBUG" for name in loggers)
        of_logback = "".join(f'<logger name="{name}" level="DEBUG" />' for name in loggers)
        for name, text, detail in (
            ("log4j.properties", LOG4J, of_log4j),
            ("logback.xml", LOGBACK, of_logback),
        ):
            content = text.format(detail=detail if self._is_detailed else "", **values)
            (self.directory / name).write_text(content)
        return super()._prepare()


class _Handler(SequentialThreadingHandler):
    """Connects from one address of the loopback interface, and notes each connection."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host, self.ports = host, list[int]()
        self.last: socket.socket | None = None

    def create_connection(self, address: Any, timeout: Any = None, **options: Any) -> socket.socket:
        self.last = socket.create_connection(address, timeout, source_address=(self.host, 0))
        self.ports.append(self.last.getsockname()[1])
        return self.last


class Client:
    """A kazoo client at an address, and what it knows about itself."""

    def __init__(self, connect: str, host: str, user: str | None = None) -> None:
        self._handler = _Handler(host)
        self.kazoo = KazooClient(connect, timeout=6, handler=self._handler, randomize_hosts=False)
        self.kazoo.start(60)
        self.session, self.user = self.kazoo.client_id[0], user
        if user is not None:
            self.kazoo.add_auth("digest", f"{user}:secret")

    def reconnect(self) -> None:
        """Break the connection, and wait until the session has another one."""
        before = len(self._handler.ports)
        assert self._handler.last is not None
        self._handler.last.shutdown(socket.SHUT_RDWR)

        def is_back() -> bool:
            try:
                return len(self._handler.ports) > before and bool(self.kazoo.exists("/"))
            except KazooException:
                return False

        assert until(is_back, limit_s=30)

    @property
    def ports(self) -> list[int]:
        """The ports of the connections, oldest first."""
        return self._handler.ports

    def close(self) -> None:
        self.kazoo.stop()
        self.kazoo.close()

    def truth(self) -> dict[str, object]:
        return {
            "session": f"0x{self.session & (1 << 64) - 1:x}",
            "host": self._handler.host,
            "ports": self.ports,
            "user": self.user,
        }


@contextmanager
def clients(connect: str) -> Iterator[list[Client]]:
    """Yield a member with a user, a client whose connection breaks, and a tool."""
    found = [
        Client(connect, "127.0.0.2", "alice"),
        Client(connect, "127.0.0.3"),
        Client(connect, "127.0.0.4"),
    ]
    try:
        yield found
    finally:
        for one in found:
            one.close()


def act(member: Client, broken: Client, tool: Client) -> None:
    """Let the member and the other client register and commit, and the tool set an offset."""
    partition = TopicPartition("orders", 0)
    for one, name in ((member, "billing_a"), (broken, "billing_b")):
        data = encode_registration(Registration({"orders": 1}, timestamp_ms=1))
        one.kazoo.create(paths.member("billing", name), data, ephemeral=True, makepath=True)
    thread = b"billing_a-0"
    member.kazoo.create(paths.owner("billing", partition), thread, ephemeral=True, makepath=True)
    member.kazoo.create(paths.offset("billing", partition), b"7", makepath=True)
    member.kazoo.set(paths.offset("billing", partition), b"8")
    broken.reconnect()
    broken.kazoo.create(paths.offset("billing", TopicPartition("orders", 1)), b"5", makepath=True)
    tool.kazoo.set(paths.offset("billing", partition), b"3")


def shorten(log: Path) -> None:
    """Leave out the lines about the machine, and about the commands that wait for the server."""
    about = ("environment:", str(log.parent), "srvr command", "no session established", "Accepted")
    kept = [line for line in log.open() if not any(one in line for one in about)]
    log.write_text("".join(kept))


def record(release: str, level: str) -> None:
    """Record what a server of a release logs."""
    zone = ZONES[RELEASES.index(release) % len(ZONES)]
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        server = LoggingServer(folder, release=release, zone=zone, is_detailed=level == "debug")
        with server:
            lone = abandoned_session(server.port)
            with clients(server.connect) as found:
                act(*found)
                (folder / "cons.txt").write_text(server.command("cons"))
                truth = [one.truth() for one in found]
            logs = folder / "data" / "version-2"
            assert until(partial(_is_over, logs, lone), limit_s=LIMIT_S)
        (folder / "truth.json").write_text(json.dumps(truth))
        shorten(folder / "zookeeper.log")
        GOLDEN.mkdir(exist_ok=True)
        with tarfile.open(GOLDEN / f"{release}-{level}.tar.gz", "w:gz") as archive:
            for file in sorted(logs.glob("log.*")):
                archive.add(file, f"version-2/{file.name}")
            for name in ("zookeeper.log", "zookeeper_audit.log", "cons.txt", "truth.json"):
                archive.add(folder / name, name)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RELEASES:
        for level in ("info", "debug"):
            record(wanted, level)
