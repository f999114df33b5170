"""A live group as a picture and frames. The lab follows the group with an observer, and writes
nothing.

One thread follows the group's znodes. Another reads the logs' ends, `doctor` and the topics every
few seconds. Both turn changes into messages for the pages. Messages are numbered, so that a page
that was disconnected gets the messages that it has missed.

ZooKeeper shows who owns a partition, not who delivers it. Counters that ZooKeeper does not show are
None.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from zkconsumer.admin.api import Admin
from zkconsumer.admin.findings import Finding
from zkconsumer.admin.lag import CommitWindow, PartitionLag, Status
from zkconsumer.admin.lag_history import LagHistory
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import RefusedError, ZkConsumerError, escaped_and_cut
from zkconsumer.lab.engine import Engine
from zkconsumer.lab.identify import NOT_READ, Identity, MemberProgram, read_identities
from zkconsumer.lab.stage import NOBODY, STRANGER
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_health import owner_of
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.protocol.registrations import Registration
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.observer import Change, ChangeKind, Observer

logger = SafeLogger(logging.getLogger(__name__))

POLL_S = 2.0
"""Seconds between two reads of the logs' ends and of the findings."""

MAX_MESSAGES = 10_000
"""Number of messages that are kept for pages that reconnect; a page that needs an older message
gets the whole picture. """

MAX_MEMBERS = 64
"""Maximum number of members' columns. If all are used, a new member gets the column of a member
that has left."""

MAX_PARTITIONS = 2_000
"""Maximum number of partitions' cells; the page shows how many it leaves out."""

SHOWN = 200
"""Maximum number of characters of another client's text in a frame."""


IDLE_PER_S = 0.05
"""Messages per second below which a partition without lag counts as idle; the page shows 0.1."""


class Flow(NamedTuple):
    """How fast a partition is consumed, as its log and its commits show.

    Attributes:
        rate: committed messages per second, over the last commits.
        text: the rate, or that the partition is blocked or idle.
    """

    end: int
    rate: float
    text: str


def flow_of(one: PartitionLag, window: CommitWindow, now_s: float) -> Flow | None:
    """Return the flow of a partition whose last reading is in its window; None if it is unknown."""
    if isinstance(one.log, str) or not isinstance(one.lag, int):
        return None
    commits, rate = window.commits, 0.0
    if commits and now_s > commits[0].at_s:
        rate = max(0.0, (commits[-1].offset - commits[0].offset) / (now_s - commits[0].at_s))
    if window.status(now_s) in (Status.STALLED, Status.STOPPED):
        text = "blocked"
    elif one.lag == 0 and rate < IDLE_PER_S:
        text = "idle"
    else:
        text = f"{rate:.1f}/s"
    return Flow(one.log.end, rate, text)


class GroupPicture:
    """The state of the group that the pages show; each change of it becomes a frame."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.members: list[JsonObject] = []
        self.partitions: list[list[Json]] = []
        self.tree: dict[str, list[Json]] = {}
        self.omitted = 0
        self.unowned_s = 0.0
        self.moved = self.writes = 0
        self._of: dict[str, int] = {}
        self._identities: dict[str, Identity] = {}
        self._index: dict[TopicPartition, int] = {}
        self._last_owner: dict[int, int] = {}
        self._rates: dict[int, float] = {}
        self._now = 0.0
        self._connection = "connected"

    def scene(self) -> JsonObject:
        return {
            "t": self._now,
            "members": list(self.members),
            "partitions": [list(row) for row in self.partitions],
            "tree": dict(self.tree),
            "zookeeper": self.zookeeper(),
            "counters": self._counters(),
        }

    def zookeeper(self) -> JsonObject:
        """Return the known state of ZooKeeper and of the broker."""
        return {"text": self._connection, "brokers": True, "topic": True}

    def frame(self, words: str, **more: Json) -> JsonObject:
        """Return a frame for an event that is not a change of a znode."""
        common = {"t": self._now, "d": "", "l": words, "k": self.zookeeper()}
        return {**common, "c": self._counters(), **more}

    def _counters(self) -> list[float | None]:
        return [None, None, self.writes, round(self.unowned_s, 1), None, self.moved, None]

    # ---- changes ---------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Add the time since the last call to the partition-seconds without an owner."""
        holes = sum(row[1] == NOBODY for row in self.partitions)
        self.unowned_s += max(0.0, now - self._now) * holes
        self._now = max(self._now, round(now, 3))

    def change(self, change: Change) -> JsonObject | None:
        """Record a change that the observer reports; return its frame."""
        self.writes += 1
        frame: JsonObject | None
        match change.what, change.key:
            case ChangeKind.MEMBER, str(name):
                frame = self._member(name, change.after)
            case ChangeKind.OWNER, (topic, number):
                frame = self._owner(TopicPartition(topic, number), change.after)
            case ChangeKind.OFFSET, (topic, number):
                frame = self._offset(TopicPartition(topic, number), change.after)
            case _:
                self.writes -= 1
                return None
        if frame is None:
            return None
        return {"t": self._now, "d": "", "c": self._counters(), **frame}

    def connection(self, state: str) -> JsonObject:
        is_up = state == "connected"
        self._connection = state if is_up else f"the lab's connection: {state}"
        return self.frame(f"the lab is {state}")

    def _member(self, name: str, after: Json) -> JsonObject:
        path = paths.member(self.group, name)
        shown = escaped_and_cut(name, SHOWN)
        if after is None:
            who = self._of.get(name, -1)
            if who >= 0:
                self.members[who] = {**self.members[who], "s": "left", "note": ""}
            self.tree.pop(path, None)
            return {
                "l": f"{shown} is no longer registered",
                "m": {who: self.members[who]} if who >= 0 else {},
                "z": {path: None},
            }
        who = self._column(name)
        is_readable = isinstance(after, Registration)
        words = (
            _subscription(after) if is_readable else f"unreadable: {escaped_and_cut(after, SHOWN)}"
        )
        self.members[who] = {**self.members[who], "s": "up", "sub": words}
        self.tree[path] = [words, 1 + who]
        return {
            "l": f"{shown} is registered: {words}",
            "m": {who: self.members[who]},
            "z": {path: self.tree[path]},
        }

    def _column(self, name: str) -> int:
        """Return the column of a member; a new member may get the column of a member that has
        left."""
        if name in self._of:
            return self._of[name]
        free = [
            who
            for who, one in enumerate(self.members)
            if one["s"] == "left" and not one["f"] and len(self.members) >= MAX_MEMBERS
        ]
        who = free[0] if free else len(self.members)
        view = {
            "n": escaped_and_cut(name, SHOWN),
            "k": MemberProgram.UNKNOWN.value,
            "why": NOT_READ,
            "s": "left",
            "ph": "registered",
            "c": "on",
            "ses": 1 + who,
            "open": True,
            "f": [],
        }
        if free:
            self._of = {one: at for one, at in self._of.items() if at != who}
            self.members[who] = view
        else:
            self.members.append(view)
        self._of[name] = who
        return who

    def _row(self, tp: TopicPartition) -> tuple[int, list[str]]:
        """Return the number of a partition, and its name if it is new; -1 beyond the limit."""
        if tp in self._index:
            return self._index[tp], []
        if len(self.partitions) >= MAX_PARTITIONS:
            self.omitted += 1
            return -1, []
        number = self._index[tp] = len(self.partitions)
        self.partitions.append([escaped_and_cut(str(tp), SHOWN), NOBODY, None, None, None, ""])
        return number, [self.partitions[number][0]]

    def _owner(self, tp: TopicPartition, after: Json) -> JsonObject | None:
        number, new = self._row(tp)
        if number < 0:
            return None
        row = self.partitions[number]
        changed = {row[1]}
        path = paths.owner(self.group, tp)
        if after is None:
            row[1] = NOBODY
            self.tree.pop(path, None)
            text, node = f"{row[0]} has no owner", None
        else:
            assert isinstance(after, OwnerZnode)
            name = owner_of(after.thread, self._of) if after.thread else ""
            row[1] = self._column(name) if name else STRANGER
            self.moved += self._last_owner.get(number, row[1]) != row[1]
            self._last_owner[number] = row[1]
            thread = escaped_and_cut(after.thread or after.fault or "?", SHOWN)
            node = self.tree[path] = [thread, 1 + row[1] if row[1] >= 0 else 0]
            text = f"{thread} owns {row[0]}"
        views = {}
        for who in (changed | {row[1]}) - {NOBODY, STRANGER}:
            owned = [at for at, one in enumerate(self.partitions) if one[1] == who]
            views[who] = self.members[who] = {**self.members[who], "f": owned}
        frame: JsonObject = {
            "l": text,
            "m": views,
            "p": {number: row[1:]},
            "z": {path: node},
            "o": 1,
        }
        return {**frame, "new": new} if new else frame

    def _offset(self, tp: TopicPartition, after: Json) -> JsonObject | None:
        number, new = self._row(tp)
        if number < 0:
            return None
        row, path = self.partitions[number], paths.offset(self.group, tp)
        row[2] = None if after is None else escaped_and_cut(str(after), SHOWN)
        if after is None:
            self.tree.pop(path, None)
        else:
            self.tree[path] = [row[2], 0]
        unknown = "unknown: " if isinstance(after, str) else ""
        words = f"the offset of {row[0]} is {unknown}{row[2]}"
        frame: JsonObject = {
            "l": words if row[2] else f"{row[0]} has no offset",
            "p": {number: row[1:]},
            "z": {path: self.tree.get(path)},
        }
        return {**frame, "new": new} if new else frame

    # ---- programs --------------------------------------------------------------------------------

    def identify(self, found: Mapping[str, Identity]) -> JsonObject | None:
        """Record which programs the members run; return a frame without words if one has changed.

        What is known of a session stays known, because evidence such as an owner znode may go.
        """
        known = self._identities
        self._identities = {
            name: known[name]
            if one.program is MemberProgram.UNKNOWN
            and name in known
            and known[name].session == one.session
            else one
            for name, one in found.items()
        }
        views: dict[int, JsonObject] = {}
        for name, one in self._identities.items():
            who = self._of.get(name, -1)
            new = {"k": one.program.value, "why": one.why, "release": one.releases}
            if who >= 0 and self.members[who] != self.members[who] | new:
                views[who] = self.members[who] = self.members[who] | new
        if not views:
            return None
        return {"t": self._now, "d": "", "l": "", "m": views, "c": self._counters()}

    # ---- logs ------------------------------------------------------------------------------------

    def flows(self, flows: dict[TopicPartition, Flow]) -> JsonObject | None:
        """Record ends and rates of the logs; if any has changed, return a frame without a
        sentence."""
        touched: dict[int, list[Json]] = {}
        added: list[str] = []
        for tp, flow in flows.items():
            number, new = self._row(tp)
            if number < 0:
                continue
            added += new
            row = self.partitions[number]
            self._rates[number] = flow.rate
            if row[4:] != [flow.end, flow.text]:
                row[4:] = [flow.end, flow.text]
                touched[number] = row[1:]
        views = self._notes()
        if not (touched or added or views):
            return None
        frame: JsonObject = {"t": self._now, "d": "", "l": ""}
        frame |= {"p": touched, "m": views, "c": self._counters()}
        return {**frame, "new": added} if added else frame

    def _notes(self) -> dict[int, JsonObject]:
        """Return the views of the members whose lag has changed."""
        views = {}
        for who, view in enumerate(self.members):
            rows = [self.partitions[number] for number in view["f"]]
            known = [
                row[4] - int(row[2])
                for row in rows
                if row[4] is not None and row[2] is not None and row[2].isdigit()
            ]
            rate = sum(self._rates.get(number, 0.0) for number in view["f"])
            note = f"lag {sum(known)}, {rate:.1f} messages/s" if known else ""
            if view["s"] == "up" and view.get("note", "") != note:
                views[who] = self.members[who] = {**view, "note": note}
        return views


def _subscription(one: Registration) -> str:
    topics = ", ".join(f"{topic}={streams}" for topic, streams in one.subscription.items())
    return escaped_and_cut(f"{one.pattern.value} {topics}", SHOWN)


class LiveGroup:
    """Follows a group inside its `with` block; the server's pages read its messages."""

    def __init__(
        self, config: ConnectionConfig, group: str, picture: GroupPicture | None = None
    ) -> None:
        limit_s = config.zookeeper_connection_timeout_s
        self._config, self.group = config, group
        self._observer = Observer(config.zookeeper_connect, group, timeout_s=limit_s, config=config)
        self._picture = picture or GroupPicture(group)
        self._started = time.monotonic()
        self._news = threading.Condition()
        self._messages: deque[tuple[int, list[JsonObject]]] = deque(maxlen=MAX_MESSAGES)
        # The first number is greater than any number of an earlier server.
        self._number = int(time.time() * 1000)
        self._findings: list[JsonObject] | None = None
        self._history = LagHistory()
        self._closed = threading.Event()
        self._is_read = False
        self._is_identified = False

    def __enter__(self) -> LiveGroup:
        self._observer.__enter__()
        for work in (self._follow, self._poll):
            threading.Thread(target=work, name=f"lab {work.__name__}", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        with self._news:
            self._news.notify_all()
        self._observer.close()

    # ---- what the server asks --------------------------------------------------------------------

    def about(self) -> JsonObject:
        return {"kind": "live", "group": self.group}

    def after(self, number: int, timeout_s: float) -> list[tuple[int, list[JsonObject]]]:
        """Return the messages after `number`, or the whole picture if they are no longer kept."""
        with self._news:
            first = self._messages[0][0] if self._messages else self._number + 1
            if not first - 1 <= number <= self._number or not number:
                if not self._is_read:
                    self._news.wait_for(lambda: self._is_read or self._closed.is_set(), timeout_s)
                return [(self._number, self._whole())] if self._is_read else []
            self._news.wait_for(lambda: self._number > number or self._closed.is_set(), timeout_s)
            return [one for one in self._messages if one[0] > number]

    def command(self, command: JsonObject) -> list[JsonObject]:
        """Explain a partition. Refuse all other commands, because the lab only reads a live
        group."""
        if command.get("do") == "catalogue":
            return Engine().command(command)
        try:
            if command.get("do") == "explain":
                return self._explain(command.get("partition"))
            raise RefusedError("the lab only reads a live group", where=self.group)
        except ZkConsumerError as error:
            return [{"event": "error", "text": str(error)}]

    def _explain(self, number: Json) -> list[JsonObject]:
        rows = self._picture.partitions
        if type(number) is not int or not 0 <= number < len(rows):
            raise RefusedError("there is no such partition", where=self.group)
        topic, _, partition = rows[number][0].rpartition("-")
        with Admin(self._config) as admin:
            found = admin.explain(self.group)
        words = [
            f"{escaped_and_cut(one.thread, SHOWN)}: {one.why}."
            for one in found.shares
            if one.topic == topic and int(partition) in (*one.partitions, *one.owned)
        ]
        text = " ".join([found.rules + ":", *words]) if words else "No member subscribes to it."
        return [{"event": "explained", "partition": number, "text": text}]

    # ---- messages --------------------------------------------------------------------------------

    def _whole(self) -> list[JsonObject]:
        events: list[JsonObject] = [
            {
                "event": "run",
                "run": 1,
                "kind": "live",
                "scene": self._picture.scene(),
                "title": f"group {escaped_and_cut(self.group)}",
                "base": {},
                "about": {"words": self.words() + self._left_out(), "group": self.group},
            }
        ]
        if self._findings is not None:
            events.append({"event": "findings", "findings": self._findings})
        return events

    def words(self) -> str:
        """Return the page's text about the group."""
        return f"The real group {escaped_and_cut(self.group)}. The lab only reads."

    def _left_out(self) -> str:
        many = self._picture.omitted
        return f" {many} changes of further partitions are not shown." if many else ""

    def _send(self, events: list[JsonObject]) -> None:
        with self._news:
            self._number += 1
            self._messages.append((self._number, events))
            self._news.notify_all()

    def _frames(self, frames: Iterable[JsonObject | None]) -> None:
        found = [one for one in frames if one is not None]
        if found and self._is_read:
            self._send([{"event": "more", "run": 1, "frames": found}])

    # ---- reading ---------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Turn the observer's changes into frames, until it is closed."""
        try:
            for _, change in self._observer.changes():
                self._take(change)
        except ZkConsumerError as error:
            self._send([{"event": "error", "text": str(error)}])

    def _take(self, change: Change) -> None:
        with self._news:
            self._picture.advance(time.monotonic() - self._started)
            if change.what is not ChangeKind.OFFSET:
                self._is_identified = False
            if change.what is ChangeKind.READ:
                self._is_read = True
                self._news.notify_all()
            elif change.what is ChangeKind.CONNECTION:
                self._frames([self._picture.connection(str(change.after))])
            else:
                self._frames([self._picture.change(change)])

    def _poll(self) -> None:
        """Read the members' programs, the logs and the findings every POLL_S, until the lab is
        closed."""
        with ExitStack() as stack:
            admin: Admin | None = None
            while not self._closed.wait(POLL_S):
                try:
                    if admin is None:
                        admin = stack.enter_context(Admin(self._config))
                    self._identify(admin.connection)
                    self._read(admin)
                except ZkConsumerError as error:
                    logger.debug("the group could not be read: %s", error)
                    stack.close()  # the next read connects again
                    admin = None

    def _identify(self, client: ZooKeeperClient) -> None:
        """Find out which programs the members run, if a member or an owner has changed."""
        if self._is_identified:
            return
        # A change that arrives from here on causes another read.
        self._is_identified = True
        try:
            found = read_identities(client, self.group)
        except ZkConsumerError:
            self._is_identified = False
            raise
        with self._news:
            self._picture.advance(time.monotonic() - self._started)
            self._frames([self._picture.identify(found)])

    def _read(self, admin: Admin) -> None:
        lags = admin.lag([self.group]).get(self.group)
        findings = [_finding(one) for one in admin.doctor([self.group])]
        now_s = time.time()
        flows = {}
        if lags is not None:
            self._history.observe(lags, now_s)
            for one in lags.partitions:
                flow = flow_of(one, self._history.window(self.group, one), now_s)
                if flow is not None:
                    flows[one.tp] = flow
        with self._news:
            self._picture.advance(time.monotonic() - self._started)
            self._frames([self._picture.flows(flows)])
            if findings != self._findings:
                self._findings = findings
                self._send([{"event": "findings", "findings": findings}])


def _finding(one: Finding) -> JsonObject:
    text = f"{one.subject}: {one.what}. Consequence: {one.why}. Remedy: {one.remedy}."
    return {"severity": one.severity.value, "code": one.code, "text": escaped_and_cut(text, 600)}
