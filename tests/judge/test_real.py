"""`judge --sandbox`: the same programs on a real ZooKeeper and a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Consumer
from judge.examples import EXAMPLES, example
from judge.test_registrations import Filled, Persistent, Plain, Rewritten, Twice, Unnamed
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.judge.program import LocalProgram
from zkconsumer.judge.promises import registers_for_every_release
from zkconsumer.judge.real import GROUP, TOPIC, RealMember, Run
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Session, TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import session
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.testing import FakeZooKeeper


@pytest.mark.parametrize(
    ("name", "course", "code", "words"),
    [
        ("solution.py", "", 0, "sandbox: passed"),
        ("naive.py", "", 6, "sandbox: FAILED"),
        ("solution.py", "session", 0, "sandbox: passed"),
        ("solution.py", "zombie", 0, "sandbox: passed"),
        ("late_commit.py", "zombie", 6, "goes back from"),
        ("solution.py", "mixed", 0, "sandbox: passed"),
    ],
)
def test_on_real_servers(name: str, course: str, code: int, words: str) -> None:
    """On real servers, the solution passes each course; the naive and the late member fail."""
    challenge = ["--challenge", course] if course else []
    result = CliRunner().invoke(app, ["judge", str(EXAMPLES / name), "--sandbox", *challenge])
    assert words in result.output
    assert result.exit_code == code


def test_an_offset_that_nobody_can_read() -> None:
    """An offset that is no decimal number is the broken promise of a verdict, and no error."""
    with FakeZooKeeper() as fake, session(fake.connect) as client, ExitStack() as stack:
        node = paths.offset(GROUP, TopicPartition(TOPIC, 0))
        fake.create(node, b'{"offset": 3}')
        run = Run([], cast(Sandbox, fake), client, cast(Consumer, None), say=print, stack=stack)
        with pytest.raises(InvariantViolation, match="is not an offset"):
            run.check_offsets()


class InTransactions(Plain):
    """Registers without a pattern, in a transaction."""

    async def register(self, me: str, payload: str) -> None:
        wrong = payload.replace('"static"', "null")
        await self.multi(self.create(me, data=wrong, ephemeral=True))


@pytest.mark.parametrize("kind", [InTransactions, Persistent, Filled, Rewritten, Twice, Unnamed])
def test_a_registration_that_misleads_the_others(kind: type[Plain]) -> None:
    """Each write of a registration is checked, even if a later write corrects it."""
    with FakeZooKeeper() as fake, session(fake.connect) as client, ExitStack() as stack:
        servers = SimpleNamespace(zookeeper_connect=fake.connect, produce=lambda *_, **__: None)
        fake.create(paths.ids(GROUP))
        run = Run(
            [LocalProgram("g_0", kind)],
            cast(Sandbox, servers),
            client,
            cast(Consumer, None),
            say=print,
            stack=stack,
        )
        with pytest.raises(InvariantViolation) as found:
            run.join(0)
    assert found.value.promise == registers_for_every_release.name


def test_a_delivery_while_the_session_lives() -> None:
    """Without a connection, a member may deliver what its session still owns."""
    tp, program = TopicPartition(TOPIC, 0), LocalProgram("g_0", example("solution").Solution)
    with FakeZooKeeper() as fake, session(fake.connect) as client, ExitStack() as stack:
        servers = cast(Sandbox, SimpleNamespace(zookeeper_connect=fake.connect))
        member = RealMember(0, program, servers, lambda _: None, on_write=lambda *_: None)
        stack.callback(member.proxy.__exit__)
        run = Run([], servers, client, cast(Consumer, None), say=print, stack=stack)
        own, other = fake.session(), fake.session()
        path = paths.owner(GROUP, tp)
        fake.create(paths.owners_of(GROUP, TOPIC))
        own.request(rq.Create(path, b"g_0-0", ephemeral=True))
        member.connection_changed(Session(own.id, 6.0))
        member.connection_changed(None)
        member.send()
        run.delivered(member, tp, 0)
        own.close()
        other.request(rq.Create(path, b"g_1-0", ephemeral=True))
        with pytest.raises(InvariantViolation, match="g_0 delivers t-0, which g_1-0 owns"):
            run.delivered(member, tp, 1)


def test_ctrl_c_ends_the_course() -> None:
    """Ctrl-C ends the command with exit code 130 before the course has ended."""
    command = [sys.executable, "-m", "zkconsumer", "judge", str(EXAMPLES / "solution.py")]
    with subprocess.Popen([*command, "--sandbox"], stderr=subprocess.PIPE, text=True) as judging:
        assert judging.stderr is not None
        assert any("g_0 joins" in line for line in judging.stderr)
        judging.send_signal(signal.SIGINT)
        rest = judging.stderr.read()
        assert judging.wait(60) == 130
    assert "leaves" not in rest
