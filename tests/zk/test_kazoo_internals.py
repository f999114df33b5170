"""The private parts of kazoo that the package uses: after an upgrade, these tests fail first."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Exists

from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.kazoo_transport import BulkHandler

ROOT = Path(__file__).parents[2]

PRIVATE: Mapping[str, str] = {
    "_call": "KazooClient: queues a request; the result goes to any object with the two setters",
    "_connection": "KazooClient: its ConnectionHandler",
    "_session_id": "KazooClient: the session's number, also while there is no connection",
    "_data_watchers": "KazooClient: path -> functions that get the next event of its payload",
    "_invoke": "ConnectionHandler: sends a request during the connect and reads its answer",
    "_connect": "ConnectionHandler: opens the socket, begins the session and authenticates",
    "_read": "ConnectionHandler: reads this number of bytes from the socket",
    "_expand_client_hosts": "ConnectionHandler: returns (name, address, port) of each server",
}
"""Every private attribute of kazoo that the package uses -> its purpose."""

HOME = "zkconsumer/zk/kazoo_transport.py"
"""The only module that may use these attributes."""


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in (ROOT / "zkconsumer").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "kazoo" in text:
            yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def _imports_kazoo(module: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kazoo")
        for node in ast.walk(module)
    )


def test_the_list_is_complete() -> None:
    """Only one module uses kazoo's private attributes, and `PRIVATE` lists all of them."""
    used = {
        (path, node.attr)
        for path, module in _modules()
        if _imports_kazoo(module)
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    assert used == {(HOME, name) for name in PRIVATE}


def test_the_pin_is_the_tested_release() -> None:
    """`setup.cfg` accepts the releases of the installed minor version, and no others."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options"]["install_requires"].splitlines()
    (pin,) = [line.strip() for line in lines if line.strip().startswith("kazoo")]
    major, minor = version("kazoo").split(".")[:2]
    assert pin == f"kazoo~={major}.{minor}.0"


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    one = KazooClient(zookeeper.connect, timeout=10.0, handler=BulkHandler())
    one.start(60)
    yield one
    one.stop()
    one.close()


class Slot:
    """The part of an async result that `_call` uses."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def set(self, value: Any) -> None:
        self.found.append(value)

    def set_exception(self, error: Exception) -> None:
        self.found.append(error)


def test_call_sets_the_result_of_any_object(client: KazooClient) -> None:
    """`_call` sets its result on any object that has `set` and `set_exception`, in order."""
    slot = Slot()
    client._call(Exists("/zookeeper", None), slot)
    client.exists("/")
    (stat,) = slot.found
    assert stat.ephemeralOwner == 0


def test_the_session_and_the_watches_are_where_they_were(client: KazooClient) -> None:
    """`_session_id` is the session, and `_data_watchers` holds sets of functions by full path."""
    assert client._session_id == client.client_id[0]
    watchers, events = client._data_watchers, list[Any]()
    assert isinstance(watchers, defaultdict)
    client.exists("/zookeeper", watch=events.append)
    assert watchers["/zookeeper"] == {events.append}


def test_the_connection_is_made_of_the_same_calls(client: KazooClient) -> None:
    """The wrapped methods have known arguments, and kazoo looks them up on the object."""
    assert isinstance(client._connection, ConnectionHandler)
    parameters = {
        name: list(inspect.signature(getattr(ConnectionHandler, name)).parameters)
        for name in ("_connect", "_expand_client_hosts", "_invoke", "_read", "zk_loop")
    }
    assert parameters == {
        "_connect": ["self", "host", "hostip", "port"],
        "_expand_client_hosts": ["self"],
        "_invoke": ["self", "timeout", "request", "xid"],
        "_read": ["self", "length", "timeout"],
        "zk_loop": ["self"],
    }
    calls: list[str] = []
    other = KazooClient(f"{client.hosts[0][0]}:{client.hosts[0][1]}", handler=BulkHandler())
    connection: Any = other._connection

    def noting(name: str) -> None:
        call = getattr(connection, name)

        def noted(*args: Any) -> Any:
            calls.append(name)
            return call(*args)

        setattr(connection, name, noted)

    for name in parameters:
        noting(name)
    other.start(60)
    other.stop()
    other.close()
    assert calls[:6] == [
        "zk_loop",
        "_expand_client_hosts",
        "_connect",
        "_invoke",
        "_read",  # the length of the answer
        "_read",  # the answer
    ]


def test_the_handler_overrides_what_kazoo_calls() -> None:
    """Every method that this package's handler overrides exists in kazoo's handler."""
    for name in ("create_socket_pair", "dispatch_callback", "select", "create_connection"):
        assert callable(getattr(SequentialThreadingHandler, name)), name
        assert name in vars(BulkHandler) or name in vars(BulkHandler.__mro__[1]), name
    handler = SequentialThreadingHandler()
    assert (handler.running, hasattr(handler.completion_queue, "put")) == (False, True)
