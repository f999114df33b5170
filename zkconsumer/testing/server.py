"""Fake servers on loopback ports: one thread, its event loop, and connections that carry frames.

ZooKeeper's protocol and Kafka's both send frames: four bytes with the length, then the content. One
thread runs all servers of a fake cluster, so their state needs no lock. `ServerEngine.call` runs a
function of another thread on this thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import ClassVar, TypeVar, cast

from zkconsumer.errors import FakeServerError
from zkconsumer.safe_logger import SafeLogger

HOST = "127.0.0.1"

logger = SafeLogger(logging.getLogger(__name__))

Result = TypeVar("Result")


class ServerEngine:
    """The thread on which fake servers run; several servers can share one engine.

    `start` and `stop` are counted: the thread ends when the last server stops. A forked process has
    no thread of its parent. There, `call` raises FakeServerError, and `stop` does nothing.

    Attributes:
        ports: the ports of the servers, open or closed.
    """

    def __init__(self, name: str = "fake servers") -> None:
        """`name` is the thread's name."""
        self._name = name
        self.ports: list[Port] = []
        self._users = 0
        self._process = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop; only the engine's thread may use it."""
        assert self._loop is not None, "the engine has not been started"
        return self._loop

    def start(self) -> None:
        """Start the thread, unless it runs."""
        self.check_process()
        self._users += 1
        if self._thread is None:
            self._process = os.getpid()
            _running.add(self)
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread if no other server needs it."""
        if self.is_of_parent:
            return
        self._users -= 1
        if self._users == 0 and self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self._thread = self._loop = None
            _running.discard(self)

    @property
    def is_of_parent(self) -> bool:
        """Whether the thread runs in the process from which this one was forked."""
        return self._thread is not None and self._process != os.getpid()

    def check_process(self) -> None:
        """Raise FakeServerError if the thread runs in the parent of this process."""
        if self.is_of_parent:
            raise FakeServerError(
                "the fake servers run in the process that has started them, and this is a fork",
                where=self._name,
                remedy="in the fork, only connect to their ports, or start others",
            )

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the engine's thread; return its result, or raise what it raises.

        Without a thread, before `start` and after `stop`, the function runs on the caller's.

        Raises:
            FakeServerError: this process is a fork of the one in which the thread runs.
        """
        self.check_process()
        if self._thread is None or self._thread is threading.current_thread():
            return function()
        result: Future[Result] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
                result.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return result.result()

    def _run(self) -> None:
        loop = self.loop
        try:
            loop.run_forever()
        finally:
            # Transports close their sockets in callbacks.
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


_running: weakref.WeakSet[ServerEngine] = weakref.WeakSet()


def _leave_sockets_to_parent() -> None:
    """Replace the copies of the servers' sockets in a forked process.

    Otherwise a client notices no end of a connection, and no port can be opened again, as long as
    the fork lives. The numbers stay in use, because the copied objects close them at their end.
    """
    with suppress(OSError), open(os.devnull, "rb") as nothing:
        for engine in _running:
            for port in engine.ports:
                for number in port.descriptors():
                    os.dup2(nothing.fileno(), number)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_sockets_to_parent)


class FramedConnection(asyncio.Protocol):
    """A client's connection to a fake server. A subclass answers the frames.

    Frames wait, in both directions, as long as the port is paused. All methods are called on the
    engine's thread.
    """

    max_frame_bytes: ClassVar[int]
    """A longer frame ends the connection, as on a real server."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.is_silent = False
        """Whether nothing more is sent to the client; its frames are still received."""
        self._input = bytearray()
        self._frames: deque[bytes] = deque()
        self._output: deque[tuple[float, bytes]] = deque()
        self._transport: asyncio.Transport | None = None
        self._has_begun = self._closes_after_output = False

    @abstractmethod
    def received(self, frame: bytes) -> None:
        """Handle a frame, which comes without its length."""

    def begins(self, _start: bytes) -> bytes | None:
        """Return the answer to a client that sends no frame but a word; None for a frame.

        The argument is the first four bytes of the connection. The connection ends after the
        answer.
        """
        return None

    def ended(self) -> None:
        """The connection has ended."""

    # ---- what a subclass calls -------------------------------------------------------------------

    @property
    def peer(self) -> tuple[str, int]:
        """The client's address and port."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return cast(tuple[str, int], name or (HOST, 0))

    def descriptor(self) -> int:
        """Return the number of the connection's socket; -1 if it is closed."""
        sock = self._transport.get_extra_info("socket") if self._transport else None
        return -1 if sock is None else int(sock.fileno())

    @property
    def is_open(self) -> bool:
        """Whether the connection has not ended."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *parts: bytes, delay_s: float = 0.0) -> None:
        """Send one frame. Frames keep their order: a delayed frame delays those after it."""
        size = sum(map(len, parts))
        self._put(b"".join((struct.pack(">i", size), *parts)), delay_s)

    def close(self) -> None:
        """End the connection when everything has been sent."""
        if self._output:
            self._closes_after_output = True
        elif self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection at once; the client gets a reset."""
        if self._transport is not None:
            self._transport.abort()
            self._forget()

    # ---- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection."""
        self._transport = cast(asyncio.Transport, transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port.connections.append(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection, unless `cut` has done so."""
        if self._transport is not None:
            self._forget()

    def _forget(self) -> None:
        self._transport = None
        self.port.connections.remove(self)
        self.ended()

    def data_received(self, data: bytes) -> None:
        """Take the frames from the bytes that have arrived."""
        self._input += data
        if not self._has_begun and len(self._input) >= 4 and not self._begin():
            return
        while len(self._input) >= 4:
            (size,) = struct.unpack_from(">i", self._input)
            if not 0 <= size <= self.max_frame_bytes:
                logger.warning("a frame of %d bytes ends the connection of %s", size, self.peer)
                self.cut()
                return
            if len(self._input) < 4 + size:
                return
            self._frames.append(bytes(self._input[4 : 4 + size]))
            del self._input[: 4 + size]
            self.work()

    def _begin(self) -> bool:
        """Return whether the connection carries frames; answer and end it otherwise."""
        self._has_begun = True
        answer = self.begins(bytes(self._input[:4]))
        if answer is None:
            return True
        self._put(answer, 0.0)
        self.close()
        return False

    def work(self) -> None:
        """Handle the frames that have arrived, unless the port is paused."""
        while self._frames and not self.port.is_paused and self.is_open:
            self.received(self._frames.popleft())

    # ---- output ----------------------------------------------------------------------------------

    def _put(self, data: bytes, delay_s: float) -> None:
        if self.is_silent or self._transport is None:
            return
        if not self._output and not delay_s:
            self._transport.write(data)
            return
        loop = self.port.engine.loop
        due = loop.time() + delay_s
        if self._output:
            due = max(due, self._output[-1][0])
        self._output.append((due, data))
        loop.call_at(due, self._flush)

    def _flush(self) -> None:
        now = self.port.engine.loop.time()
        while self._output and self._output[0][0] <= now:
            _, data = self._output.popleft()
            if self._transport is not None and not self.is_silent:
                self._transport.write(data)
        if self._closes_after_output and not self._output and self._transport is not None:
            self._transport.close()


class Port:
    """A loopback port of a fake server, with the connections of its clients.

    Attributes:
        connections: the open connections, the oldest first.
        is_paused: whether frames wait, as if the server's process were stopped.
    """

    def __init__(
        self, engine: ServerEngine, connection: Callable[[Port], FramedConnection], port: int = 0
    ) -> None:
        """`connection` makes the object of a new connection; `port` 0 means any free port."""
        self.engine = engine
        self.connections: list[FramedConnection] = []
        self.is_paused = False
        self._connection = connection
        self._number = port
        self._server: asyncio.Server | None = None
        engine.ports.append(self)

    def descriptors(self) -> list[int]:
        """Return the numbers of the open sockets."""
        listening = self._server.sockets if self._server is not None else ()
        numbers = [one.fileno() for one in listening]
        numbers += [one.descriptor() for one in self.connections]
        return [one for one in numbers if one >= 0]

    @property
    def address(self) -> str:
        """The `host:port`; the port is 0 before the first `open`."""
        return f"{HOST}:{self._number}"

    @property
    def number(self) -> int:
        """The port's number; 0 before the first `open`."""
        return self._number

    @property
    def is_listening(self) -> bool:
        """Whether clients can connect."""
        return self._server is not None

    def open(self) -> None:
        """Listen, at the same port as before; the engine must run.

        Raises:
            OSError: another program listens at the port.
            FakeServerError: this process is a fork of the one in which the engine runs.
        """
        self.engine.check_process()
        listener = socket.create_server((HOST, self._number), backlog=128)
        self._number = listener.getsockname()[1]
        ready: Future[asyncio.Server] = asyncio.run_coroutine_threadsafe(
            self.engine.loop.create_server(lambda: self._connection(self), sock=listener),
            self.engine.loop,
        )
        self._server = ready.result()

    def close(self) -> None:
        """Stop to listen, and end all connections."""
        self.engine.call(self._close)

    def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.cut()

    def cut(self) -> None:
        """End all connections; clients can connect again."""
        for connection in list(self.connections):
            connection.cut()

    def resume(self) -> None:
        """Handle the frames that arrived while the port was paused."""
        self.is_paused = False
        for connection in list(self.connections):
            connection.work()
