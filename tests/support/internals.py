"""The private parts of zkconsumer and Spark that tests use, with a reason for each.

Where a public interface exists, a test uses it. tests/static/test_repository_rules.py counts the
uses of private parts outside this module.
"""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient

from support.wait import LIMIT_S
from zkconsumer import ConsumerConnector
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.zk.session import ZooKeeperSession

if TYPE_CHECKING:
    import pytest

    from zkconsumer import aio
    from zkconsumer.cli.top_app import Top
    from zkconsumer.consumer.group_member import GroupMember
    from zkconsumer.consumer.member_thread import MemberThread
    from zkconsumer.kafka.librdkafka import KafkaFetcher
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.observer import Observer


def member_of(connector: ConsumerConnector) -> GroupMember:
    """Return the member: users have no access to its gate, its session or its thread."""
    return connector._member


def thread_of(connector: ConsumerConnector) -> MemberThread:
    """Return the member's thread of a connector that has streams."""
    thread = member_of(connector).thread
    assert thread is not None
    return thread


def client_of(owner: ConsumerConnector | ZooKeeperSession | Observer) -> KazooClient:
    """Return the kazoo client, because a test ends its session, which users cannot do."""
    inner = member_of(owner).session if isinstance(owner, ConsumerConnector) else owner
    return inner._client


def session_of(client: ZooKeeperClient) -> Any:
    """Return the session of a tool's connection, because a test sets the server's release."""
    return client._session


def let_zookeeper_answer_late(patch: pytest.MonkeyPatch) -> None:
    """Let connections wait for a ZooKeeper that listens, however short their time limit is.

    The limit of a command applies to the brokers, too. Tests whose brokers do not answer give a
    short one, and a busy ZooKeeper may need longer for a session.
    """
    make = ZooKeeperSession.__init__

    def patiently(session: ZooKeeperSession, config: ConnectionConfig, **more: Any) -> None:
        host, _, port = config.zookeeper_hosts.partition(",")[0].rpartition(":")
        with suppress(OSError, ValueError), socket.create_connection((host, int(port)), LIMIT_S):
            config = replace(config, zookeeper_connection_timeout_s=LIMIT_S)
        make(session, config, **more)

    patch.setattr(ZooKeeperSession, "__init__", patiently)


def sender_of(client: ZooKeeperClient) -> Any:
    """Return the part that sends requests, because a test changes what the server reported."""
    return session_of(client)._sender


def observers_of(connector: ConsumerConnector) -> dict[str, Any]:
    """Return the functions that see each step, because a test acts on the member's own thread."""
    return thread_of(connector)._observers


def librdkafka_of(fetcher: KafkaFetcher) -> Any:
    """Return librdkafka's consumer, because a test has it fetch nothing, without an error."""
    return fetcher._consumer


def text_of(top: Top) -> str:
    """Return the text of the screen, for which Textual has no public call."""
    return "\n".join(strip.text.rstrip() for strip in top.screen._compositor.render_strips())


def crash(connector: ConsumerConnector) -> None:
    """Crash the member's thread as a bug would: it finds an unknown item in its inbox."""
    thread_of(connector)._inbox.put("no such thing")  # type: ignore[arg-type]  # as a bug


def wait_of(stream: aio.Stream[Any, Any]) -> Future[Any]:
    """Return the wait that a cancelled call left behind; the next call gets the wait's result."""
    waiting = stream._waiting
    assert waiting is not None
    return waiting


def connector_of(connector: aio.ConsumerConnector) -> ConsumerConnector | None:
    """Return the connector that runs on threads, if it exists already."""
    return connector._core


def driver_of(spark: Any) -> int:
    """Return the process id of the JVM of Spark's driver, which Spark does not report."""
    return int(spark.sparkContext._gateway.proc.pid)


def idle_readers() -> dict[Any, Any]:
    """Return the readers that this process keeps for the next Spark task."""
    from zkconsumer.spark import task_reader  # noqa: PLC0415 - only Spark's tests have pyarrow

    return task_reader.CACHE._kept


def let_another_thread_close(patch: pytest.MonkeyPatch) -> None:
    """Let the next task start a thread that closes idle readers with the present settings."""
    from zkconsumer.spark import task_reader  # noqa: PLC0415 - only Spark's tests have pyarrow

    patch.setattr(task_reader.CACHE, "_is_closing", False)


def descriptor_of(path: Path) -> int:
    """Return this process's descriptor of an open file."""
    links = (one for one in Path("/proc/self/fd").iterdir() if re.fullmatch(r"\d+", one.name))
    (found,) = (one for one in links if one.is_symlink() and os.readlink(one) == str(path))
    return int(found.name)
