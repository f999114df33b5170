"""A real ZooKeeper server of a release from 3.4.6 to 3.9, or several that form an ensemble."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from zkconsumer.config.properties_file import properties_text
from zkconsumer.errors import SandboxError
from zkconsumer.frozen import dataclass
from zkconsumer.sandbox import jars
from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.process import Startable, until
from zkconsumer.sandbox.server import START_LIMIT_S, JavaServer

ZOOKEEPER_RELEASES = ("3.4.6", "3.4.14", "3.5.10", "3.6.4", "3.8.4", "3.9.6")
"""The available releases. Kafka 0.8.2 to 2.3 shipped with 3.4.6 to 3.4.14, Kafka 2.4 with 3.5, 2.7
with 3.6, and 3.4 to 3.9 with 3.8. The default release is 3.8.4, and the newest one is 3.9.6.
"""

DEFAULT_ZOOKEEPER = "3.8.4"

# Only the default release has two locks: its TLS jars (Netty) are downloaded when TLS is used. The
# locks of the other releases since 3.5 include Netty. ZooKeeper 3.4 has no TLS for clients.
_TLS_LOCKS = {"3.8.4": "zookeeper-3.8.4-tls"}

# The lock with the jars of the admin server (Jetty and Jackson), which only the default release
# has.
_ADMIN_LOCK = f"zookeeper-{DEFAULT_ZOOKEEPER}-admin"

# The longest session timeout that a server grants, in milliseconds: ten times the JVM consumer's
# default.
_MAX_SESSION_MS = 60_000

# Seconds that a follower may take to load the leader's snapshot, and seconds that it may lag
# behind. The JVMs of three servers that start together on two cores need 2.5 s to form a quorum.
_INIT_S, _SYNC_S = 10.0, 3.0


@dataclass(frozen=True, slots=True)
class Peer:
    """The two ports at which the other servers of an ensemble reach a server."""

    quorum_port: int
    election_port: int


class ZooKeeperServer(JavaServer):
    """One ZooKeeper server on the loopback interface, without fsync (`forceSync=no`).

    A SIGKILL of the server loses no data, because the operating system holds what was written; a
    power failure may. Session timeouts are between 2 ticks and 60 s.
    """

    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        release: str = DEFAULT_ZOOKEEPER,
        port: int | None = None,
        tick_time_s: float = 0.5,
        heap_mb: int = 192,
        server_id: int = 1,
        ensemble: Mapping[int, Peer] | None = None,
        settings: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        """
        Args:
            directory: contains configuration, data and log; created if missing.
            release: one of `ZOOKEEPER_RELEASES`.
            port: for clients; by default a free one.
            tick_time_s: the unit in which sessions expire, at least 0.1 s.
            heap_mb: the JVM's heap in MB.
            server_id: this server's number in `ensemble`.
            ensemble: the servers by number, including this one; None: a standalone server.
            settings: additional lines of `zoo.cfg`, which override the settings of this class; with
                a `secureClientPort` the server gets the jars for TLS, which needs release 3.5, and
                with `admin.enableServer=true` the default release gets those of the admin server.
            properties: system properties of the JVM, such as its JAAS file.
            progress: receives a line of text for each step that takes long.

        Raises:
            SandboxError: an unknown release, a tick out of range, or TLS on a release before 3.5.
        """
        if not 0.1 <= tick_time_s <= 60:
            raise SandboxError(
                f"a tick of {tick_time_s} s is not possible", remedy="choose 0.1 s to 60 s"
            )
        name = f"ZooKeeper {server_id}" if ensemble else "ZooKeeper"
        self._settings = dict(settings or {})
        lock = _lock(release, tls="secureClientPort" in self._settings)
        if release == DEFAULT_ZOOKEEPER and self._settings.get("admin.enableServer") == "true":
            lock = _ADMIN_LOCK
        super().__init__(
            directory, name=name, lock=lock, heap_mb=heap_mb, port=port, progress=progress
        )
        self.release = release
        self.tick_time_s = tick_time_s
        self.server_id = server_id
        self._ensemble = dict(ensemble or {})
        self._properties = dict(properties or {})

    @property
    def connect(self) -> str:
        """The connect string, `127.0.0.1:port`."""
        return self.address

    @property
    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while the server accepts no clients."""
        try:
            answer = self.command("srvr")
        except OSError:
            return ""
        lines = (line.partition(": ") for line in answer.splitlines())
        return next((mode for word, _, mode in lines if word == "Mode"), "")

    def command(self, word: str) -> str:
        """Send a four-letter command (`srvr`, `mntr`, `cons`, ...) and return the answer.

        Raises:
            OSError: the server does not answer within a second.
        """
        with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def _options(self) -> tuple[str, ...]:
        return (
            "-Dzookeeper.forceSync=no",
            # The selector's thread also reads and writes: a fifth less processor time per request.
            "-Dzookeeper.nio.numWorkerThreads=0",
            # Other servers on the loopback interface answer at once or not at all; ZooKeeper's
            # default is 5 s.
            "-Dzookeeper.cnxTimeout=500",
            # ZooKeeper 3.4 registers log4j's MBeans, which reload4j does not have.
            "-Dzookeeper.jmx.log4j.disable=true",
            *(f"-D{name}={value}" for name, value in self._properties.items()),
        )

    def _prepare(self) -> Path:
        tick_ms = round(self.tick_time_s * 1000)
        # At the start the server and its purge create this directory at the same time, and the
        # server ends if the purge is first.
        (self.directory / "data" / "version-2").mkdir(exist_ok=True)
        settings: dict[str, object] = {
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": tick_ms,
            "minSessionTimeout": 2 * tick_ms,
            "maxSessionTimeout": _MAX_SESSION_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        if self._ensemble:
            settings["initLimit"] = math.ceil(_INIT_S / self.tick_time_s)
            settings["syncLimit"] = math.ceil(_SYNC_S / self.tick_time_s)
            (self.directory / "data" / "myid").write_text(f"{self.server_id}\n")
        for number, peer in self._ensemble.items():
            settings[f"server.{number}"] = f"{HOST}:{peer.quorum_port}:{peer.election_port}"
        settings |= self._settings
        file = self.directory / "zoo.cfg"
        file.write_text(properties_text(settings))
        return file

    def _is_ready(self) -> bool:
        return bool(self.mode)


def _lock(release: str, *, tls: bool) -> str:
    """Return the name of the lock that lists a release's jars."""
    if release not in ZOOKEEPER_RELEASES:
        raise SandboxError(
            f"there is no ZooKeeper of release {release}",
            remedy=f"choose one of {', '.join(ZOOKEEPER_RELEASES)}",
        )
    if tls and release.startswith("3.4."):
        raise SandboxError(
            f"ZooKeeper {release} has no TLS for clients",
            where="secureClientPort",
            remedy="use release 3.5.10 or later",
        )
    return _TLS_LOCKS.get(release, f"zookeeper-{release}") if tls else f"zookeeper-{release}"


class ZooKeeperEnsemble(Startable):
    """Several servers with one leader."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        size: int = 3,
        release: str = DEFAULT_ZOOKEEPER,
        tick_time_s: float = 0.5,
        heap_mb: int = 128,
        settings: Mapping[str, object] | None = None,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        """Args:
        directory: contains a directory for each server.
        size: the number of servers; 3 servers tolerate the loss of one.
        release, tick_time_s, heap_mb, settings, progress: as for `ZooKeeperServer`.
        """
        peers = {number: Peer(free_port(), free_port()) for number in range(1, size + 1)}
        self.servers = tuple(
            ZooKeeperServer(
                Path(directory) / f"zookeeper-{number}",
                server_id=number,
                ensemble=peers,
                release=release,
                tick_time_s=tick_time_s,
                heap_mb=heap_mb,
                settings=settings,
                progress=progress,
            )
            for number in peers
        )

    @property
    def connect(self) -> str:
        """The connect string with all servers."""
        return ",".join(server.address for server in self.servers)

    def leader(self) -> ZooKeeperServer:
        """Return the leader; wait for the end of an election.

        Raises:
            SandboxError: there is no leader after 60 s, because fewer than half of the servers run.
        """
        found: list[ZooKeeperServer] = []

        def look() -> bool:
            found[:] = [s for s in self.servers if s.alive and s.mode == "leader"]
            return bool(found)

        if not until(look, limit_s=START_LIMIT_S):
            alive = sum(server.alive for server in self.servers)
            raise SandboxError(
                f"no leader after {START_LIMIT_S:.0f} s, {alive} of {len(self.servers)} run",
                remedy="start the other servers",
            )
        return found[0]

    def followers(self) -> tuple[ZooKeeperServer, ...]:
        """Return the servers that are followers now."""
        return tuple(s for s in self.servers if s.alive and s.mode == "follower")

    def start(self) -> None:
        """Start all servers together, because one alone never forms a quorum; wait until each has
        its role.
        """
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the servers that run."""
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
