"""Text from other clients is escaped and truncated wherever it is displayed."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from support.members.group import Group
from support.members.machine import ME, NOBODY, Member, view
from support.wait import eventually

from zkconsumer.consumer.jvm_log_lines import JvmLogWriter
from zkconsumer.consumer.status import NoticeLog, TroubleLog, error_for, held_by, status_of
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import LeaseGate
from zkconsumer.errors import MAX_DISPLAYED, MAX_ERROR_TEXT, ZkConsumerError, escaped_and_cut
from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.machine import step
from zkconsumer.protocol import paths, registrations
from zkconsumer.protocol.model import Blocker, TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.trace.page import page

LARGE = 900_000
HOSTILE = {
    "line end": "x\n2026-01-01 CRITICAL forged",
    "carriage return": "x\rforged",
    "colour": "x\x1b[31m\x1b]0;title\x07",
    "turned round": "x\u202egpj.exe",
    "invisible": "x\u200b\u2066y\u2028z",
    "NUL": "x\x00y",
    "C1": "x\x9b31m",
    "surrogate": "x\ud800",
    "large": "x" * LARGE,
}
IN_A_PATH = {name: text for name, text in HOSTILE.items() if name in ("turned round", "invisible")}
"""In names of znodes, ZooKeeper refuses the other texts."""


def assert_harmless(text: str, limit: int = 50_000) -> None:
    """Check that a text has no control character and no forged line, and is not too long."""
    assert text.isprintable(), ascii(text[:300])
    assert len(text) <= limit


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_displayed_is_printable_and_short(text: str) -> None:
    """Hostile characters are escaped; of a long text, the omitted characters are counted."""
    assert_harmless(escaped_and_cut(text), 10 * MAX_DISPLAYED)
    error = ZkConsumerError(text, where=text, remedy=text)
    for part in (error.what, error.where, error.remedy, str(error), *error.args):
        assert_harmless(part, 4 * MAX_ERROR_TEXT)
    assert escaped_and_cut("g_häuser-0") == "g_häuser-0"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_every_line_of_a_member_is_harmless(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A member's log, errors and status show owners, ids, topics, offsets and hosts safely."""
    caplog.set_level(logging.DEBUG)
    member = Member(retries=1, backoff_s=0.1)
    journal = JvmLogWriter(ME).observe
    log = NoticeLog(SafeLogger(logging.getLogger("member")), ME, lambda: member.now)
    seen: list[str] = []

    def happens(event: ev.Event) -> None:
        before = member.state
        member.state, commands = step(before, event)
        journal(before, event, member.state, commands)
        for notice in (one for one in commands if isinstance(one, cmd.Notice)):
            error = error_for(notice)
            log.write(notice, error)
            seen.append(str(error))
        status = status_of(member.state, LeaseGate())
        seen.extend([status.waiting_for, held_by(member.state), *status.blocked.values()])
        seen.extend([*status.malformed_peers, *status.malformed_peers.values()])

    def ends(outcome: ev.Outcome) -> None:
        assert member.state.op is not None
        happens(ev.Finished(now=member.now, op=member.state.op, outcome=outcome))

    member.register()
    topics = {"t": 2, text: 1}
    hostile = view([ME, text], topics, malformed={f"{text}2": text})
    ends(ev.ViewRead(hostile, NOBODY))
    wanted = sorted(member.state.assigned)
    threads = dict.fromkeys(wanted, Blocker(escaped_and_cut(text), 7))
    ends(ev.Claimed({}, threads, {}))
    member.now += 5
    happens(ev.Tick(now=member.now))
    ends(ev.ViewRead(view([ME], {"t": 2}, wildcards={text: text}), NOBODY))
    for kind in cmd.NoticeKind:
        notice = cmd.Notice(kind, text, text, text)
        log.write(notice, error_for(notice))
        seen.append(str(error_for(notice)))
    happens(ev.TopicDeleted(now=member.now, topic=text))
    happens(ev.Triggered(now=member.now, trigger=ev.Trigger.TOPIC, subject=text))
    troubles = TroubleLog(SafeLogger(logging.getLogger("streams")), lambda: 0.0)
    for kind in ReportKind:
        troubles.add(StreamReport(kind, text, text, TopicPartition(text, 0)))
    logged = [record.getMessage() for record in caplog.records]
    assert {"member", "streams"} <= {record.name for record in caplog.records}
    for line in logged:
        assert line.isprintable(), ascii(line[:300])
    for line in seen:
        assert_harmless(line)
    assert any("held by" in line for line in seen)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_page_of_a_trace_is_harmless(text: str) -> None:
    """Paths, owners and notes of a trace can neither break out of the page nor reverse its text."""
    tag = f"<script>alert(1)</script>{text}"
    entries = [
        {"t": 0.0, "note": tag},
        {"t": 1.0, "member": tag, "writes": [["+", f"/consumers/g/owners/{tag}/0", tag]]},
        {"t": 2.0, "member": tag, "watch": tag, "path": tag},
        {"t": 3.0, "member": tag, "phase": "closed", "text": tag},
    ]
    found = page(tag, entries, [tag], root="/consumers/g")
    assert "<script" not in found
    for line in found.splitlines():
        assert line.isprintable(), ascii(line[:300])
    assert len(found) < LARGE


def test_hostile_znodes_reach_no_terminal(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """If a server has hostile znodes, every line of a member and of the tools is safe."""
    caplog.set_level(logging.DEBUG, "zkconsumer")
    admin, name = group.admin, group.name
    sound = registrations.encode_registration(Registration({group.topic: 1}, Pattern.STATIC, 1))
    for number, text in enumerate(HOSTILE.values()):
        payload = text.encode(errors="surrogatepass")
        if number < 4:
            admin.create(group.owner(number), payload, ephemeral=True, makepath=True)
            admin.create(group.offset(number), payload, makepath=True)
        admin.create(paths.owner(name, TopicPartition("other", number)), payload, makepath=True)
        admin.create(paths.offset(name, TopicPartition("other", number)), payload, makepath=True)
        admin.create(paths.member(name, f"{name}_{number}"), payload, makepath=True)
    for text in IN_A_PATH.values():
        admin.create(paths.member(name, f"{name}_{text}"), sound, ephemeral=True, makepath=True)
        admin.create(paths.member(name, f"z_{text}"), b"\x1b[31m", ephemeral=True, makepath=True)
    one = group.join(rebalance_max_retries=1, rebalance_backoff_s=0.1)
    eventually(lambda: one.counted.get("malformed_peer", 0) >= len(HOSTILE))
    eventually(lambda: one.status.blocked)
    status = one.status
    for text in (*status.blocked.values(), *status.malformed_peers, status.waiting_for):
        assert_harmless(text)
    server = group.sandbox.zookeeper_connect
    logged = [one.getMessage() for one in caplog.records if one.name.startswith("zkconsumer")]
    assert logged
    for line in logged:
        assert_harmless(line)
    for words in (["owners"], ["doctor"], ["members"], ["verify"]):
        asked = [sys.executable, "-m", "zkconsumer", *words, "--zookeeper", server, "--group", name]
        found = subprocess.run(asked, capture_output=True, check=False, timeout=300)
        assert found.stdout, found.stderr
        for line in (found.stdout + found.stderr).decode().split("\n"):
            assert_harmless(line, 2 * LARGE)
