"""Operations run over a real session in the way in which the member's thread runs them."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

from support.internals import client_of
from support.members.crew import wait_for
from support.zk.client import LIMIT_S, Client, tps
from support.zk.takeover import expire

from zkconsumer.consumer.executor import Executor, Resume
from zkconsumer.member.commands import CommitOffsets
from zkconsumer.member.events import Committed, Event, Finished, Interrupted
from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.member.state import Settings
from zkconsumer.sandbox import ZooKeeperServer

(T0,) = tps(0)
FIRST_COMMIT = CommitOffsets(7, CommitPlan({T0: (5, None)}, {}))


def awaited(op: int) -> bool:
    """Return True: the machine waits for every operation."""
    return True


class Running:
    """An executor and its inbox, without a thread."""

    def __init__(self, client: Client) -> None:
        self.inbox: queue.SimpleQueue[Resume] = queue.SimpleQueue()
        settings = Settings(client.group, client.me.consumer, {"t": 1})
        self.executor = Executor(
            client.session, settings, post=self.inbox.put, clock=time.monotonic
        )

    def end(self) -> Event:
        """Run the only operation to its end."""
        while (event := self.executor.resume(self.inbox.get(timeout=LIMIT_S), awaited)) is None:
            pass
        return event


def test_an_operation_takes_as_many_batches_as_it_needs(client: Client) -> None:
    """The first commit creates the parent znodes, and then writes the offsets."""
    running = Running(client)
    running.executor.start(FIRST_COMMIT, client.me.session)
    ended = running.end()
    assert isinstance(ended, Finished)
    assert (ended.op, type(ended.outcome)) == (7, Committed)
    assert client.peer.get(client.offset(T0))[0] == b"5"
    assert running.executor.requests > 1


def test_an_operation_does_not_continue_in_the_next_session(
    client: Client, zookeeper: ZooKeeperServer
) -> None:
    """A commit that was interrupted when its session expired does not continue in the next one."""
    running = Running(client)
    running.executor.start(FIRST_COMMIT, client.me.session)
    between = running.inbox.get(timeout=LIMIT_S)
    kazoo = client_of(client.session)
    expire(zookeeper.connect, kazoo.client_id)
    before = client.me.session
    wait_for(lambda: kazoo.connected and kazoo.client_id[0] != before, "a new session")
    client.me = replace(client.me, session=kazoo.client_id[0])
    client.register()
    running.inbox.put(between)
    ended = running.end()
    assert isinstance(ended, Finished)
    assert (ended.op, ended.outcome) == (7, Interrupted())
    assert client.peer.exists(client.offset(T0)) is None


def test_no_operation_starts_in_an_expired_session(
    client: Client, zookeeper: ZooKeeperServer
) -> None:
    """A command of an expired session is interrupted, even if the client has a new session."""
    running = Running(client)
    kazoo = client_of(client.session)
    expire(zookeeper.connect, kazoo.client_id)
    wait_for(lambda: client.session.is_over(client.me.session), "the session to be over")
    running.executor.start(FIRST_COMMIT, client.me.session)
    ended = running.end()
    assert isinstance(ended, Finished)
    assert ended.outcome == Interrupted()
    assert running.executor.requests == 0
