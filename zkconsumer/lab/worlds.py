"""The parameters of a lab's world as JSON, and the moves of a run as text for a URL."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import NamedTuple

from zkconsumer.errors import ConfigError
from zkconsumer.frozen import dataclass
from zkconsumer.later.group_events import DEFAULT_SESSION_S as COORDINATED_SESSION_S
from zkconsumer.member.state import Settings
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import Json, JsonObject, RebalanceMode, TopicPartition
from zkconsumer.protocol.releases import DEFAULT, RELEASES, profile
from zkconsumer.sim.plan import FAULTS, Action, Do, Plan
from zkconsumer.sim.weakened import weakness

MAX_MEMBERS = 64
MAX_PARTITIONS = 2000
"""Upper bounds of a world; a larger world is refused. The page can draw this number of cells within
one frame."""

MAX_MOVES = 10_000
"""Upper bound of the moves of one run; a run ends there, because the page keeps all moves in
memory."""

ZOOKEEPER = "zookeeper"
COORDINATED = ("classic-eager", "classic-cooperative", "consumer")
"""The protocols with a group coordinator. A world with ZooKeeper does not import their modules,
because the import would delay the first picture (docs/performance.md)."""

BRIDGED = ("bridge-eager", "bridge-cooperative")
"""The protocols of a group that a bridge divides between ZooKeeper and a coordinator: the new
members' assignor is eager (range) or cooperative."""

PROTOCOLS = (ZOOKEEPER, *COORDINATED, *BRIDGED)
"""The protocols of a world: ZooKeeper's, those with a group coordinator, and both with a bridge."""

COMPARED = ("zookeeper-jvm", ZOOKEEPER, *COORDINATED)
"""The protocols of a comparison."""

DEFAULT_SCRIPT = "join; kill g_1; freeze g_0 20s; leave g_2"
"""The script that the page proposes for a comparison."""

SPARE_MEMBERS = 3
"""Members that may join later, beyond those that the world starts with."""

NEW_MEMBERS = 3
"""Members of the classic protocol that may join a group with a bridge."""

UNLIMITED_FAULTS = dict.fromkeys(
    [*sorted(FAULTS, key=lambda do: do.value), Do.LEAVE, Do.COMMIT], 10**9
)
"""Upper bound of the number of each fault; it is so high that it never limits the user."""

EXCLUDED_FAULTS = (Do.APPLY, Do.LOSE_TOOL, Do.KILL_TOOL, Do.REFUSE)
"""Faults that the lab leaves out: the worlds have no operator's tool, and no access control lists.
"""


@dataclass(frozen=True)
class WorldSpec:
    """The parameters of a world; the world's JSON form has a key for each parameter.

    Attributes:
        members: members that have joined and settled when the run begins.
        jvm: the numbers of the JVM members.
        spare: members that may join later.
        new_members: with a bridge, members of the classic protocol that may join later.
        partitions: of the topic `t`.
        threads: streams of each member.
        messages: messages of each partition at the start.
        flow: messages that each partition gets whenever time advances.
        seed: with 0, the client or server that has waited longest acts next; with another number, a
            random one does. With a coordinator, another number gives messages random delays.
        session_s, backoff_s, auto_commit_s: settings of all members, in seconds.
        protocol: one of `PROTOCOLS`.
        mode: which partitions a rebalance revokes first; a value of `RebalanceMode`.
        weak: the names of the weakened parts of all zkconsumer members (`sim.weakened`).
        asks: the question that is asked about the run (`lab.questions`); "" asks nothing.

    `_MISSING` lists the parameters that a world of each kind does not have. With a bridge,
    `members`, `jvm` and `spare` are the old members, and `session_s` is the session timeout in
    ZooKeeper.
    """

    members: int = 3
    jvm: tuple[int, ...] = ()
    spare: int = SPARE_MEMBERS
    partitions: int = 6
    topics: tuple[str, ...] = ()
    threads: int = 1
    strategy: str = Strategy.RANGE.value
    release: str = DEFAULT.release
    messages: int = 2
    flow: int = 1
    seed: int = 0
    session_s: float = 6.0
    backoff_s: float = 2.0
    auto_commit_s: float = 5.0
    protocol: str = ZOOKEEPER
    mode: str = RebalanceMode.INCREMENTAL.value
    weak: tuple[str, ...] = ()
    asks: str = ""
    new_members: int = NEW_MEMBERS

    @property
    def slots(self) -> int:
        """Number of members, including those that have not joined; with a bridge, of old ones."""
        return self.members + self.spare

    def plan(self) -> Plan:
        """Return the plan of the simulated world."""
        return Plan(
            members=self.slots,
            partitions=self.partitions,
            messages=self.messages,
            messages_per_advance=self.flow,
            session_s=self.session_s,
            replicas=2,
            topics=self.topics,
            faults=UNLIMITED_FAULTS,
            settings=self._settings,
        )

    def _settings(self, one: Settings) -> Settings:
        return replace(
            one,
            subscription=dict.fromkeys(("t", *self.topics), self.threads),
            strategy=Strategy(self.strategy),
            profile=profile(self.release),
            backoff_s=self.backoff_s,
            auto_commit_s=self.auto_commit_s,
            mode=RebalanceMode(self.mode),
        )

    def as_json(self) -> JsonObject:
        """Return the parameters that differ from the defaults."""
        defaults = _defaults(self.protocol)
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


_DEFAULTS = asdict(WorldSpec())

_NOT_OF_BRIDGES = (
    "topics",
    "threads",
    "strategy",
    "release",
    "backoff_s",
    "mode",
    "weak",
    "asks",
)

_MISSING: dict[str, tuple[str, ...]] = {
    ZOOKEEPER: ("new_members",),
    **dict.fromkeys(COORDINATED, ("jvm", *_NOT_OF_BRIDGES, "new_members")),
    **dict.fromkeys(BRIDGED, _NOT_OF_BRIDGES),
}
"""Protocol -> the parameters that its worlds do not have."""

BRIDGED_SESSION_S = 12.0
"""The default session timeout in ZooKeeper of a group with a bridge, in seconds."""

_SESSIONS_S: dict[str, tuple[float, float, str]] = {
    ZOOKEEPER: (_DEFAULTS["session_s"], 1.0, ""),
    **dict.fromkeys(COORDINATED, (COORDINATED_SESSION_S, 6.0, "which the coordinator requires")),
    **dict.fromkeys(
        BRIDGED,
        (BRIDGED_SESSION_S, 10.0, "because new members revoke before a lease of the bridge ends"),
    ),
}
"""Protocol -> the default of `session_s`, the least value, and the reason for it. The coordinator's
least value is `group.min.session.timeout.ms`."""


def _defaults(protocol: Json) -> JsonObject:
    return {**_DEFAULTS, "session_s": _SESSIONS_S[str(protocol)][0]}


def parse_world(given: Mapping[str, Json]) -> WorldSpec:
    """Return the world that JSON describes. Raises ConfigError."""
    values: JsonObject = {}
    known = {one.name: one for one in fields(WorldSpec)}
    for name, value in given.items():
        if name not in known:
            raise _refused(f"a world has no parameter {name!r}", f"use one of {', '.join(known)}")
        values[name] = _typed(name, value, _DEFAULTS[name])
    protocol = values.get("protocol", ZOOKEEPER)
    if protocol in _SESSIONS_S:
        values.setdefault("session_s", _SESSIONS_S[protocol][0])
    spec = WorldSpec(**values)
    _check(spec)
    return spec


def _typed(name: str, value: Json, default: Json) -> Json:
    """Return the value if it has the type of the default, with lists as tuples."""
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise _refused(f"{name} is {value!r}", f"give a value such as {default!r}")
    return value


_BOUNDS: dict[str, tuple[float, float]] = {
    "members": (0, MAX_MEMBERS),
    "spare": (0, MAX_MEMBERS),
    "new_members": (0, MAX_MEMBERS),
    "partitions": (1, MAX_PARTITIONS),
    "threads": (1, 16),
    "messages": (0, 1000),
    "flow": (0, 10),
    "seed": (0, 10**9),
    "session_s": (1, 60),
    "backoff_s": (0.1, 60),
    "auto_commit_s": (0.5, 600),
}


def _check(spec: WorldSpec) -> None:
    for name, (least, most) in _BOUNDS.items():
        if not least <= getattr(spec, name) <= most:
            raise _refused(
                f"{name} is {getattr(spec, name)}", f"give a number from {least:g} to {most:g}"
            )
    if not 1 <= spec.slots <= MAX_MEMBERS:
        raise _refused(
            f"the world has {spec.slots} members", f"give 1 to {MAX_MEMBERS} with the spare ones"
        )
    _check_names(spec)
    if any(type(who) is not int or not 0 <= who < spec.slots for who in spec.jvm):
        raise _refused(f"jvm is {list(spec.jvm)}", f"give numbers from 0 to {spec.slots - 1}")
    if spec.jvm and spec.topics:
        raise _refused(
            "the simulated JVM member reads one topic", "leave out either `jvm` or `topics`"
        )
    if len(spec.topics) > 4 or any(
        not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]{0,15}", name) or name == "t"
        for name in spec.topics
    ):
        raise _refused(
            f"topics are {list(spec.topics)}", "give at most 4 names of small letters, except `t`"
        )
    if spec.release not in RELEASES:
        profile(spec.release)


def _check_names(spec: WorldSpec) -> None:
    if spec.protocol not in PROTOCOLS:
        names = ", ".join(PROTOCOLS)
        raise _refused(f"protocol is {spec.protocol[:60]!r}", f"use one of {names}")
    _check_protocol(spec)
    for name, kinds in (("strategy", Strategy), ("mode", RebalanceMode)):
        known = [one.value for one in kinds]
        if getattr(spec, name) not in known:
            given = getattr(spec, name)[:60]
            raise _refused(f"{name} is {given!r}", f"use one of {', '.join(known)}")
    for name in spec.weak:
        weakness(name)


def _check_protocol(spec: WorldSpec) -> None:
    for name in _MISSING[spec.protocol]:
        if getattr(spec, name) != _DEFAULTS[name]:
            raise _refused(
                f"the protocol {spec.protocol} has no parameter {name!r}", f"leave out {name!r}"
            )
    _, least, why = _SESSIONS_S[spec.protocol]
    if spec.session_s < least:
        raise _refused(f"session_s is {spec.session_s:g}", f"give {least:g} or more, {why}")


def _refused(what: str, remedy: str) -> ConfigError:
    return ConfigError(what, where="world", remedy=remedy)


# ---- moves ---------------------------------------------------------------------------------------

PRODUCE, PASS_TIME, SET_OFFSET = "produce", "pass_time", "set_offset"
HOLD, LET_GO, LOSE_REPLY = "hold", "let_go", "lose_reply"
DELAY_REQUEST, DROP_REQUEST = "delay_request", "drop_request"
DELAY_REPLY, DROP_REPLY = "delay_reply", "drop_reply"
COORDINATE, NO_COORDINATOR, REMOVE = "coordinate", "no_coordinator", "remove"
KILL_BROKER, REVIVE_BROKER = "kill_broker", "revive_broker"
PAUSE_BRIDGE, RESUME_BRIDGE = "pause_bridge", "resume_bridge"
FINISH, ROLLBACK, SHARE = "finish", "rollback", "share"

LAB_MOVES = {
    PRODUCE: "messages for each partition",
    PASS_TIME: "the clock advances",
    SET_OFFSET: "another client writes an offset",
    HOLD: "the network delays a member's requests and replies",
    LET_GO: "the delay ends",
    LOSE_REPLY: "the connection breaks when the next request is executed, before its reply",
    DELAY_REQUEST: "one request in transit is delayed, and those behind it",
    DELAY_REPLY: "one reply or watch in transit is delayed, and those behind it",
    DROP_REQUEST: "the connection breaks before one request in transit arrives",
    DROP_REPLY: "the connection breaks before one reply or watch in transit arrives",
    COORDINATE: "another broker becomes the coordinator",
    NO_COORDINATOR: "no broker coordinates the group",
    KILL_BROKER: "a broker dies",
    REVIVE_BROKER: "a broker starts again",
    REMOVE: "an operator removes a member from the group",
    PAUSE_BRIDGE: "the bridge keeps the number of its consumers, whoever joins",
    RESUME_BRIDGE: "the share of the new side follows the members again",
    SHARE: "the new side gets this share of the partitions, in percent",
    FINISH: "the bridge leaves both groups as soon as no old member is left",
    ROLLBACK: "the bridge gives all partitions back to the old side",
}
"""Moves of the lab besides the actions of the simulator (`Do`)."""

COORDINATOR_MOVES = frozenset({COORDINATE, NO_COORDINATOR, KILL_BROKER, REVIVE_BROKER, REMOVE})
"""Moves that exist only in worlds with a group coordinator."""


BRIDGE_MOVES = (PAUSE_BRIDGE, RESUME_BRIDGE, SHARE, FINISH, ROLLBACK)
"""An operator's commands to a bridge."""


class LabMove(NamedTuple):
    """One move of a run: an action of the simulator, or one of `LAB_MOVES`."""

    do: str
    who: int = -1
    tp: TopicPartition | None = None
    value: float = 0.0

    @staticmethod
    def of(action: Action) -> LabMove:
        return LabMove(action.do.value, action.who, action.tp)

    @property
    def action(self) -> Action | None:
        """The simulator's action; None for a move of the lab."""
        return None if self.do in LAB_MOVES else Action(Do(self.do), self.who, self.tp)

    def __str__(self) -> str:
        """Return the token of a URL: `kill:1`, `delete_owner::t~3`, `produce:::2`."""
        where = f"{self.tp.topic}~{self.tp.partition}" if self.tp else ""
        who = str(self.who) if self.who >= 0 else ""
        value = repr(self.value) if self.do in (PASS_TIME, Do.TIME.value) else f"{self.value:g}"
        parts = [self.do, who, where, value if self.value else ""]
        return ":".join(parts).rstrip(":")


_MOVE_KINDS = {do.value for do in Do} | set(LAB_MOVES)


def parse_move(token: str) -> LabMove:
    """Return the move of a token. Raises ConfigError."""
    do, who, where, value, *more = [*token.split(":"), "", "", ""][:4]
    topic, _, number = where.partition("~")
    try:
        if do not in _MOVE_KINDS or more or not math.isfinite(float(value or 0)):
            raise ValueError(token)
        tp = TopicPartition(topic, int(number)) if where else None
        return LabMove(do, int(who) if who else -1, tp, float(value or 0))
    except ValueError:
        raise ConfigError(
            f"{token[:60]!r} is not a move", where="moves", remedy="copy the whole address"
        ) from None


def write_moves(moves: list[LabMove | None]) -> str:
    """Return moves as text; consecutive None values (steps that the run chose itself) are written
    as a count."""
    parts: list[str] = []
    steps = 0
    for move in [*moves, LabMove("")]:
        if move is None:
            steps += 1
            continue
        if steps:
            parts.append(str(steps))
            steps = 0
        if move.do:
            parts.append(str(move))
    return ",".join(parts)


def read_moves(text: str) -> list[LabMove | None]:
    """Return the moves of `write_moves`. Raises ConfigError."""
    moves: list[LabMove | None] = []
    for token in filter(None, text.split(",")):
        if token.isdigit():
            moves += [None] * min(int(token), MAX_MOVES + 1)
        else:
            moves.append(parse_move(token))
        if len(moves) > MAX_MOVES:
            raise ConfigError(
                f"the run has more than {MAX_MOVES} moves",
                where="moves",
                remedy="open a shorter run",
            )
    return moves
