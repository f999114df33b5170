"""Offsets of the past: the moment, the edits, and what gaps of the logs leave unknown."""

from __future__ import annotations

import random
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import adler32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.zk.history_logs import HEADER, LogWriter, changed, created, multi, number, sized
from support.zk.log import Tree, entries

from zkconsumer.errors import ConfigError, RefusedError
from zkconsumer.history import transactions as tx
from zkconsumer.history.inputs import find_servers
from zkconsumer.history.offsets import Choice, PastOffsets, Point, Written, read_past
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.protocol.requests import Right

INCIDENT = Path(__file__).parents[1] / "golden" / "history" / "incident.tar.gz"
TPS = [TopicPartition("t", number) for number in range(3)]
PATHS = {tp: paths.offset("g", tp) for tp in TPS}


@dataclass
class Commits(LogWriter):
    """The log of a group `g`; `truth` has the offsets after each transaction."""

    now: dict[TopicPartition, int] = field(default_factory=dict)
    truth: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    mzxids: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    snapshots: dict[int, bytes] = field(default_factory=dict)

    def commit(self, tp: TopicPartition, offset: int, session: int = 1) -> None:
        kind, body = tx.SET_DATA, changed(PATHS[tp], b"%d" % offset)
        if tp not in self.now:
            kind, body = tx.CREATE, created(PATHS[tp], b"%d" % offset)
        zxid = self.add(kind, body, session=session, ms=1)
        self.mzxids[tp] = (self.mzxids[tp][0] if tp in self.now else zxid), zxid
        self.now[tp] = offset
        self.truth[zxid] = dict(self.now)

    def remove(self, tp: TopicPartition, session: int = 1) -> None:
        zxid = self.add(tx.DELETE, sized(PATHS[tp]), session=session, ms=1)
        self.now.pop(tp)
        self.truth[zxid] = dict(self.now)

    def snapshot(self) -> None:
        """Write the tree after the last transaction, as the server does."""
        stat = struct.pack(">qqqqiiiqq", *(0,) * 9)
        body = struct.pack(">iiqii", 0x5A4B534E, 2, 0, 0, 1) + struct.pack(">qi", 1, 1)
        body += struct.pack(">i", 31) + sized("world") + sized("anyone")
        znodes = {"": None, "/consumers": None, "/consumers/g": None}
        znodes |= {"/consumers/g/offsets": None, "/consumers/g/offsets/t": None}
        for path in znodes:
            body += sized(path) + sized(b"") + struct.pack(">q", 1) + stat
        for tp, offset in self.now.items():
            stat = struct.pack(">qqqqiiiqq", *self.mzxids[tp], 0, 5, 0, 0, 0, 0, 0)
            body += sized(PATHS[tp]) + sized(b"%d" % offset) + struct.pack(">q", 1) + stat
        body += sized("/")
        self.snapshots[self.zxid] = body + struct.pack(">q", adler32(body)) + sized("/")

    def save(self, directory: Path, logs: Sequence[tuple[int, int]]) -> None:
        """Write the snapshots, and these ranges of transactions as logs."""
        for zxid, content in self.snapshots.items():
            (directory / f"snapshot.{zxid:x}").write_bytes(content)
        for first, last in logs:
            content = HEADER + b"".join(self.entries[first - 1 : last])
            (directory / f"log.{first:x}").write_bytes(content)


def read(directory: Path, choice: Choice, value: int = 0) -> PastOffsets:
    return read_past(find_servers([directory]), Point(choice, value))


def values(found: PastOffsets) -> dict[TopicPartition, int | str | None]:
    """Return partition -> offset; a text for an unknown one, None for none."""
    return {
        tp: int(one.data or b"") if isinstance(one, Written) else one
        for tp, one in found.offsets["g"].items()
    }


@pytest.fixture
def story(tmp_path: Path) -> Commits:
    """A member commits 10, 11, 12; session 7 sets partition 0 back; the member continues."""
    log = Commits()
    registration = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    name = "g_host1-1700000000000-1a2b3c4d"
    log.add(tx.CREATE, created(paths.member("g", name), registration, ephemeral=True), ms=1)
    for tp, offset in zip(TPS, (10, 11, 12), strict=True):
        log.commit(tp, offset)
    log.commit(TPS[0], 3, session=7)
    log.remove(TPS[1], session=7)
    log.commit(TPS[2], 20)
    log.write(tmp_path)
    return log


def test_a_moment(story: Commits, tmp_path: Path) -> None:
    """At a time, the last write up to this millisecond counts; its session and member are known."""
    begin = 1_700_000_000_000
    found = read(tmp_path, Choice.TIME, begin + 4)
    assert values(found) == dict(zip(TPS, (10, 11, 12), strict=True))
    written = found.offsets["g"][TPS[0]]
    assert isinstance(written, Written)
    assert (written.session, written.consumer) == (1, "g_host1-1700000000000-1a2b3c4d")
    assert paths.host_of("g", written.consumer) == "host1"
    assert values(read(tmp_path, Choice.TIME, begin + 6)) == {TPS[0]: 3, TPS[2]: 12}
    assert values(read(tmp_path, Choice.ZXID, 3)) == {TPS[0]: 10}
    assert read(tmp_path, Choice.TIME, begin + 900).ends


def test_the_writes_of_a_session(story: Commits, tmp_path: Path) -> None:
    """Of a session's edit, the offsets before its first write to each partition are returned."""
    found = read(tmp_path, Choice.SESSION, 7)
    assert values(found) == {TPS[0]: 10, TPS[1]: 11}
    assert (found.zxid, found.session) == (6, 7)
    assert values(read(tmp_path, Choice.SESSION, 1)) == dict.fromkeys(TPS)


def test_the_last_edit_by_a_tool(tmp_path: Path) -> None:
    """A plan in two transactions is one edit; an older plan and a deletion do not belong to it."""
    log = Commits()
    for tp in TPS:
        log.commit(tp, 100)
    for mark, plan, tp, offset in ((0, b"a", 0, 1), (1, b"b", 0, 2), (2, b"b", 1, 2)):
        parts = [
            (tx.SET_DATA, changed(PATHS[TPS[tp]], b"%d" % offset)),
            (tx.CREATE, created(paths.edit("g", mark), plan)),
        ]
        log.add(tx.MULTI, multi(*parts), session=9)
    log.write(tmp_path)
    found = read(tmp_path, Choice.TOOL)
    assert values(found) == {TPS[0]: 1, TPS[1]: 100}
    assert (found.plan, found.session) == ("b", 9)


def test_access_control_lists(tmp_path: Path) -> None:
    """The access control lists are those of the moment."""
    log = Commits()
    log.commit(TPS[0], 1)
    acl = struct.pack(">ii", 1, 5) + sized("digest") + sized("me:hash")
    log.add(tx.SET_ACL, sized(PATHS[TPS[0]]) + acl + number(1))
    log.write(tmp_path)
    path = PATHS[TPS[0]]
    assert read(tmp_path, Choice.ZXID, 2).rights[path] == (Right("world:anyone", 31),)
    assert read(tmp_path, Choice.ZXID, 3).rights[path] == (Right("digest:me:hash", 5),)


@pytest.mark.parametrize(
    ("choice", "value", "text"),
    [
        (Choice.TIME, 1_600_000_000_000, "the logs begin at 2023-11-14T22:13:20.001Z"),
        (Choice.ZXID, 1, "the logs begin at"),
        (Choice.ZXID, 99, "the logs end with transaction 0x7"),
    ],
)
def test_a_moment_outside_of_the_logs(
    story: Commits, tmp_path: Path, choice: Choice, value: int, text: str
) -> None:
    """A moment that the logs do not contain is refused, and the error says what they contain."""
    with pytest.raises(RefusedError, match=text):
        read(tmp_path, choice, value)


def test_what_the_logs_do_not_contain(story: Commits, tmp_path: Path) -> None:
    """An unknown group, chroot, session or edit is an error that says what to look at."""
    servers = find_servers([tmp_path])
    point = Point(Choice.TIME, 1_800_000_000_000)
    for options, text in (
        ({"groups": ["x"]}, "no offsets of group x"),
        ({"chroot": "/kafka"}, "no offsets of any group below this chroot"),
    ):
        with pytest.raises(ConfigError, match=text):
            read_past(servers, point, **options)  # type: ignore[arg-type]  # two kinds of options
    for choice, text in ((Choice.SESSION, "session 0x5 wrote no offset"), (Choice.TOOL, "no tool")):
        with pytest.raises(ConfigError, match=text):
            read_past(servers, Point(choice, 5))


def test_an_incident_of_real_servers(tmp_path: Path) -> None:
    """All servers give the offsets of an independent reader, and each server gives no wrong one."""
    with tarfile.open(INCIDENT) as archive:
        archive.extractall(tmp_path, filter="data")
    directories = sorted(tmp_path.iterdir())
    truth: dict[str, bytes | None] = {}
    tree, number = Tree("/consumers/billing/offsets/orders/"), 0
    for entry in entries(directories):
        for written in tree.apply(entry):
            if written.change is not None and written.change.path:
                new = written.change.new
                truth[written.change.path] = None if new is None else new.data
        number += 1
        if number % 100 or not any(truth.values()):
            continue
        wanted = {path: data for path, data in truth.items() if data is not None}
        assert offsets_after(entry.zxid, directories) == wanted
        for one in directories:
            alone = offsets_after(entry.zxid, [one])
            assert {path: data for path, data in alone.items() if data}.items() <= wanted.items()


def offsets_after(zxid: int, directories: Sequence[Path]) -> dict[str, bytes | None]:
    """Return path -> payload after a transaction; None for an unknown one."""
    try:
        found = read_past(find_servers(directories), Point(Choice.ZXID, zxid + 1))
    except RefusedError:  # this server's logs do not contain the transaction
        return {}
    return {
        paths.offset("billing", tp): one.data if isinstance(one, Written) else None
        for tp, one in found.offsets["billing"].items()
    }


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=8)
def test_gaps_never_give_a_wrong_offset(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever logs are missing, each offset is right or unknown, and none if it was none."""
    dice = random.Random(seed)
    log = Commits()
    for _ in range(40):
        tp = dice.choice(TPS)
        if tp in log.now and dice.random() < 0.15:
            log.remove(tp)
        else:
            log.commit(tp, dice.randint(0, 1_000))
        if dice.random() < 0.1:
            log.snapshot()
    cuts = sorted(dice.sample(range(2, 40), 3))
    logs = list(zip([1, *cuts], [*(one - 1 for one in cuts), 40], strict=True))
    kept = [one for one in logs if dice.random() < 0.7] or logs[-1:]
    directory = tmp_path_factory.mktemp("gap")
    log.save(directory, kept)
    there = {number for first, end in kept for number in range(first, end + 1)}
    for last in range(kept[0][0], kept[-1][1] + 1):
        at = (Choice.ZXID, last + 1), (Choice.TIME, 1_700_000_000_000 + last)
        for choice, value in at:
            try:
                found = values(read(directory, choice, value))
            except ConfigError:
                found = {}
            known = {tp: one for tp, one in found.items() if isinstance(one, int)}
            assert known.items() <= log.truth[last].items()
            if choice is Choice.ZXID and there.issuperset(range(1, last + 1)):
                assert found == log.truth[last]
