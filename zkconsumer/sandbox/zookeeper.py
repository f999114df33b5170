"""A real ZooKeeper 3.8 server, or several that form an ensemble."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import jars
from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.process import Startable, until
from zkconsumer.sandbox.server import START_LIMIT_S, JavaServer

LOCK = "zookeeper-3.8.4"
# The same with Netty, which serves TLS.
TLS_LOCK = "zookeeper-3.8.4-tls"

# The longest session a server grants, in milliseconds: ten times the JVM consumer's default.
_MAX_SESSION_MS = 60_000

# Seconds a follower may take to load the leader's snapshot, and to lag behind it: the JVMs of three
# servers that start at once on two cores take 2.5 s until they form a quorum.
_INIT_S, _SYNC_S = 10.0, 3.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of an ensemble as the others know it: its two ports for them."""

    quorum_port: int
    election_port: int


class ZooKeeperServer(JavaServer):
    """One ZooKeeper server on the loopback interface, without fsync (`forceSync=no`).

    A SIGKILL of the server loses nothing (the system still holds what was written); a power cut
    may. Sessions between 2 ticks and 60 s are granted.
    """

    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
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
            directory: holds configuration, data and log; made if it is not there.
            port: for clients; a free one is chosen if not given.
            tick_time_s: the unit in which sessions expire, 0.1 s at least.
            heap_mb: the JVM's heap in MB.
            server_id: the number within `ensemble`.
            ensemble: the peers by number, this server among them; None: it stands alone.
            settings: further lines of `zoo.cfg`, or other values for its own; with a
                `secureClientPort` the server gets the jars for TLS.
            properties: system properties of the JVM, such as its JAAS file.
            progress: is told, line by line, what takes long.
        """
        if not 0.1 <= tick_time_s <= 60:
            raise SandboxError(f"a tick of {tick_time_s} s", remedy="choose one from 0.1 s to 60 s")
        name = f"ZooKeeper {server_id}" if ensemble else "ZooKeeper"
        self._settings = dict(settings or {})
        lock = TLS_LOCK if "secureClientPort" in self._settings else LOCK
        super().__init__(
            directory, name=name, lock=lock, heap_mb=heap_mb, port=port, progress=progress
        )
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
        """`standalone`, `leader`, `follower`, or empty while the server serves nobody."""
        try:
            answer = self.command("srvr")
        except OSError:
            return ""
        lines = (line.partition(": ") for line in answer.splitlines())
        return next((mode for word, _, mode in lines if word == "Mode"), "")

    def command(self, word: str) -> str:
        """Sends a four letter word (`srvr`, `mntr`, `cons`, ...) and returns the answer.

        Raises:
            OSError: the server does not answer within a second.
        """
        with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def _options(self) -> tuple[str, ...]:
        return (
            "-Dzookeeper.forceSync=no",
            # Peers on the loopback interface answer at once or not at all; the default is 5 s.
            "-Dzookeeper.cnxTimeout=500",
            *(f"-D{name}={value}" for name, value in self._properties.items()),
        )

    def _prepare(self) -> Path:
        tick_ms = round(self.tick_time_s * 1000)
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
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file

    def _is_ready(self) -> bool:
        return bool(self.mode)


class ZooKeeperEnsemble(Startable):
    """Several servers with one leader."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        size: int = 3,
        tick_time_s: float = 0.5,
        heap_mb: int = 128,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        """
        Args:
            directory: holds a directory per server.
            size: how many; 3 survive the loss of one.
            tick_time_s, heap_mb, progress: as for `ZooKeeperServer`.
        """
        peers = {number: Peer(free_port(), free_port()) for number in range(1, size + 1)}
        self.servers = tuple(
            ZooKeeperServer(
                Path(directory) / f"zookeeper-{number}",
                server_id=number,
                ensemble=peers,
                tick_time_s=tick_time_s,
                heap_mb=heap_mb,
                progress=progress,
            )
            for number in peers
        )

    @property
    def connect(self) -> str:
        """The connect string with every server in it."""
        return ",".join(server.address for server in self.servers)

    def leader(self) -> ZooKeeperServer:
        """The server that leads; waits for the end of an election.

        Raises:
            SandboxError: there is none after 60 s: fewer than half of the servers run.
        """
        found: list[ZooKeeperServer] = []

        def look() -> bool:
            found[:] = [s for s in self.servers if s.alive and s.mode == "leader"]
            return bool(found)

        if not until(look, limit_s=START_LIMIT_S):
            alive = sum(server.alive for server in self.servers)
            raise SandboxError(
                f"no leader after {START_LIMIT_S:.0f} s, {alive} of {len(self.servers)} run",
                remedy="start the others",
            )
        return found[0]

    def followers(self) -> tuple[ZooKeeperServer, ...]:
        """The servers that follow at this moment."""
        return tuple(s for s in self.servers if s.alive and s.mode == "follower")

    def start(self) -> None:
        """Starts all servers at once, for one alone never serves; waits until each has its part."""
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops those that run."""
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
