"""Offsets of the past: the moment, the edits, and what gaps of the logs leave unknown."""

from __future__ import annotations

import random
import struct
import tarfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from zlib import adler32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.zk.history_logs import HEADER, LogWriter, changed, created, multi, number, sized
from support.zk.log import Tree, entries

from zkconsumer.errors import ConfigError, RefusedError
from zkconsumer.history import offsets, snapshots
from zkconsumer.history import transactions as tx
from zkconsumer.history.inputs import find_servers
from zkconsumer.history.offsets import Choice, PastOffsets, Point, Written, read_past
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.protocol.requests import Right

INCIDENT = Path(__file__).parents[1] / "golden" / "history" / "incident.tar.gz"
TPS = [TopicPartition("t", number) for number in range(3)]
PARENT = f"{paths.offsets('g')}/t"
PATHS = {tp: paths.offset("g", tp) for tp in TPS}


@dataclass
class Commits(LogWriter):
    """The log of a group `g`.

    Attributes:
        now: partition -> offset, and the znode's czxid, mzxid, ctime and mtime.
        zxids, times, states: the transactions with their times and with `now` after each.
    """

    now: dict[TopicPartition, tuple[int, tuple[int, int, int, int]]] = field(default_factory=dict)
    zxids: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    states: list[dict[TopicPartition, tuple[int, tuple[int, int, int, int]]]] = field(
        default_factory=list
    )

    def create_root(self) -> None:
        """Create the znode above all groups."""
        self.add(tx.CREATE, created(paths.CONSUMERS))
        self._note()

    def commit(self, tp: TopicPartition, offset: int, session: int = 1, ms: int = 1) -> None:
        kind, body = tx.SET_DATA, changed(PATHS[tp], b"%d" % offset)
        if tp not in self.now:
            kind, body = tx.CREATE, created(PATHS[tp], b"%d" % offset)
        zxid = self.add(kind, body, session=session, ms=ms)
        born, _, birth_ms, _ = self.now[tp][1] if tp in self.now else (zxid, 0, self.time_ms, 0)
        self.now[tp] = offset, (born, zxid, birth_ms, self.time_ms)
        self._note()

    def remove(self, tp: TopicPartition, session: int = 1, ms: int = 1) -> None:
        self.add(tx.DELETE, sized(PATHS[tp]), session=session, ms=ms)
        self.now.pop(tp)
        self._note()

    def _note(self) -> None:
        self.zxids.append(self.zxid)
        self.times.append(self.time_ms)
        self.states.append(dict(self.now))

    def elect(self) -> None:
        """Begin the epoch of another leader."""
        self.zxid = (self.zxid >> 32) + 1 << 32

    def truth(self, at: int) -> dict[TopicPartition, int]:
        return {tp: offset for tp, (offset, _) in self.states[at].items()}

    def snapshot(self, at: int, dice: random.Random, later: int) -> bytes:
        """Return the tree after a transaction; like a server's, each znode may have the state after
        one of some later transactions."""
        last = min(at + later, len(self.states) - 1)
        body = struct.pack(">iiqii", 0x5A4B534E, 2, 0, 0, 1) + struct.pack(">qi", 1, 1)
        body += struct.pack(">i", 31) + sized("world") + sized("anyone")
        for path in ("", "/consumers", paths.group("g"), paths.offsets("g"), PARENT):
            body += sized(path) + sized(b"") + struct.pack(">q", 1)
            # The znode above the last write says up to where the tree was written.
            body += struct.pack(">qqqqiiiqq", *(0,) * 8, self.zxids[last] if path == PARENT else 0)
        for tp in TPS:
            if (found := self.states[dice.randint(at, last)].get(tp)) is not None:
                body += sized(PATHS[tp]) + sized(b"%d" % found[0]) + struct.pack(">q", 1)
                body += struct.pack(">qqqqiiiqq", *found[1], 0, 0, 0, 0, 0)
        body += sized("/")
        return body + struct.pack(">q", adler32(body)) + sized("/")


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
    """A session's edit gives each partition's offset from before the session first wrote it."""
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


def test_the_end_of_a_session(tmp_path: Path) -> None:
    """An ephemeral offset ends with its session, whose id no longer belongs to its consumer."""
    log = Commits()
    name = "g_host1-1700000000000-1a2b3c4d"
    log.add(tx.CREATE, created(paths.member("g", name), b"", ephemeral=True), session=7)
    log.add(tx.CREATE, created(PATHS[TPS[0]], b"5", ephemeral=True), session=7)
    log.commit(TPS[1], 1, session=7)
    log.add(tx.CLOSE_SESSION, b"", session=7)
    log.commit(TPS[1], 2, session=7)
    log.write(tmp_path)
    assert values(read(tmp_path, Choice.ZXID, 4)) == {TPS[0]: 5, TPS[1]: 1}
    found = read(tmp_path, Choice.ZXID, 6)
    assert values(found) == {TPS[1]: 2}
    written = found.offsets["g"][TPS[1]]
    assert isinstance(written, Written)
    assert written.consumer == ""


def test_the_end_of_a_session_in_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ephemeral offset of a snapshot ends with its session, also one of server 200."""
    session = (200 << 56) - (1 << 64) + 1
    tree = snapshots.Tree.fresh()
    tree.zxid = 1
    for tp, owner in ((TPS[0], session), (TPS[1], 0)):
        tree.add(PATHS[tp], snapshots.Znode(b"5", -1, 1, 1, 5, 5, 0, 0, 0, owner, 1))
    monkeypatch.setattr(offsets, "read_snapshot", lambda source: tree)
    (tmp_path / "snapshot.1").touch()
    log = Commits(zxid=1)
    log.add(tx.CLOSE_SESSION, b"", session=session)
    log.commit(TPS[2], 1)
    log.write(tmp_path, "log.2")
    assert values(read(tmp_path, Choice.ZXID, 4)) == {TPS[1]: 5, TPS[2]: 1}


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


def random_commits(dice: random.Random) -> Commits:
    """Return 40 creations, commits and deletions, some at one time, under some leaders."""
    log = Commits(zxid=dice.choice([0, 1 << 32]))
    log.create_root()
    for _ in range(39):
        if dice.random() < 0.08:
            log.elect()
        tp, ms = dice.choice(TPS), dice.choice([0, 1, 1, 5])
        if tp in log.now and dice.random() < 0.15:
            log.remove(tp, ms=ms)
        else:
            log.commit(tp, dice.randint(0, 1_000), ms=ms)
    return log


def save_parts(log: Commits, dice: random.Random, directory: Path) -> list[tuple[int, int]]:
    """Write some of the logs, and snapshots; return the numbers of the transactions in the logs.

    A new leader writes a snapshot. A server also writes one when it begins another log.
    """
    cuts = [0, *sorted(dice.sample(range(2, 40), 3)), 40]
    logs = list(pairwise(cuts))
    kept = [one for one in logs if dice.random() < 0.7] or logs[-1:]
    for at in range(39):
        is_last = log.zxids[at] >> 32 != log.zxids[at + 1] >> 32
        if is_last or (at + 1 in cuts and dice.random() < 0.6):
            later = 0 if is_last else dice.choice([0, 3])
            content = log.snapshot(at, dice, later)
            (directory / f"snapshot.{log.zxids[at]:x}").write_bytes(content)
    for first, end in kept:
        content = HEADER + b"".join(log.entries[first:end])
        (directory / f"log.{log.zxids[first]:x}").write_bytes(content)
    return kept


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=10)
def test_gaps_never_give_a_wrong_offset(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever logs are missing, an offset is right or unknown, and none only if it was none."""
    dice = random.Random(seed)
    log = random_commits(dice)
    directory = tmp_path_factory.mktemp("gap")
    kept = save_parts(log, dice, directory)
    shown = b"".join(b"".join(log.entries[first:end]) for first, end in kept)
    mentioned = [tp for tp in TPS if PATHS[tp].encode() in shown]
    there = {number for first, end in kept for number in range(first, end)}
    for at in range(kept[0][0], kept[-1][1]):
        last = bisect_right(log.times, log.times[at]) - 1
        points = [(Choice.ZXID, log.zxids[at] + 1, at)]
        if last < kept[-1][1]:
            points.append((Choice.TIME, log.times[at], last))
        for choice, value, end in points:
            try:
                found = values(read(directory, choice, value))
            except ConfigError:
                found = {}
            known = {tp: found.get(tp) for tp in mentioned if not isinstance(found.get(tp), str)}
            if end not in there:  # nothing may mention an offset that was there only in a gap
                known = {tp: one for tp, one in known.items() if one is not None}
            assert known == {tp: log.truth(end).get(tp) for tp in known}
            if choice is Choice.ZXID and there.issuperset(range(end + 1)):
                assert found == log.truth(end)
