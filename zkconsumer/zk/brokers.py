"""Asking for the registered brokers outside of a rebalance, which no broker's death causes."""

from __future__ import annotations

import queue
from collections.abc import Generator, Sequence

from zkconsumer.core import paths
from zkconsumer.core.records import Broker
from zkconsumer.zk import requests as rq
from zkconsumer.zk.requests import Batch, Code, Reply
from zkconsumer.zk.session import ZooKeeperSession
from zkconsumer.zk.viewing import read_brokers

Running = Generator[Batch, Sequence[Reply], tuple[Broker, ...]]


def registered_brokers(session: ZooKeeperSession, *, limit_s: float) -> tuple[Broker, ...]:
    """Those registered now, as the JVM's leader finder looks for them; none if it cannot be known.

    Waits for each of ZooKeeper's two answers, at most `limit_s`. Not for the session's own threads.
    """
    running = _listed_and_read()
    batch = next(running)
    while True:
        answer: queue.SimpleQueue[Sequence[Reply]] = queue.SimpleQueue()
        session.submit(batch, answer.put)
        try:
            replies = answer.get(timeout=limit_s)
            if any(reply.code is Code.BROKEN for reply in replies):
                return ()
            batch = running.send(replies)
        except queue.Empty:
            return ()
        except StopIteration as end:
            found: tuple[Broker, ...] = end.value
            return found


def _listed_and_read() -> Running:
    (listing,) = yield [rq.Children(paths.BROKER_IDS)]
    return (yield from read_brokers(listing.value if listing.code is Code.OK else ()))
