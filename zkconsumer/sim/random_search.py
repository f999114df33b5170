"""Random runs: a seed draws world, faults and order of actions; a list of decisions replays a run.

A run that breaks a promise is shrunk and saved as a file: the decisions that replay it (`load`,
then `run`), and the run's story, with one column for each member.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from zkconsumer.member.phases import Phase
from zkconsumer.member.rebalance import CALLING
from zkconsumer.member.state import Settings
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import RebalanceMode, Storage
from zkconsumer.protocol.registrations import Pattern
from zkconsumer.sim import promises
from zkconsumer.sim.aims import CHURN, DISTURBANCES, RECONNECTED, PhaseAim
from zkconsumer.sim.kernel.search import Decide, Decisions, Result, judged, one_of, shrunk
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.member import PREEMPTED_S
from zkconsumer.sim.monitor import Monitor, made_room
from zkconsumer.sim.plan import FAULTS, USER_ACTIONS, Action, Do, Plan, Rare
from zkconsumer.sim.recorder import ROOT, Recorder
from zkconsumer.sim.world import PEER, Watcher, Watchers, World, possible, repairs
from zkconsumer.trace.story import story

MAX_ACTIONS = 20_000
"""Upper bound of actions after the faults have ended; a world that has not settled by then counts
as stuck."""

CONVERGENCE_S = 60.0
"""Virtual seconds within which a world must settle after the faults have ended.

They include session timeouts, back-offs and grace periods.
"""

QUIET_S = 9.0
"""Virtual seconds for which the settled world is observed: longer than a session timeout, a
back-off, and the time after which a member looks for idle peers.
"""

ROOM_S = 2.0
"""Virtual seconds within which a group must settle after a client that registered empty has written
its payload.
"""

NO_BACKOFF_S = 1_000.0
"""A back-off, in seconds, that is longer than any run, so that only watches report changes.
"""

NEEDS_BACKOFF = frozenset({Do.REFUSE, Do.CORRUPT_OFFSET, Do.TAKE_ID})
"""No watch reports the end of these faults: restored rights, a repaired offset, and a free id."""

SILENCE = frozenset({Do.FREEZE, Do.BLACK_HOLE, Do.ISOLATE, Do.LAG})
"""Faults that no member notices by an event."""

OPERATOR_FAULTS = frozenset({Do.APPLY, Do.LOSE_TOOL, Do.KILL_TOOL})
LARGE_WORLD_FAULTS = frozenset({Do.REVIVE, Do.KAFKA_DOWN, *OPERATOR_FAULTS})
"""Faults that happen in large worlds only."""

FULL_WORLD_FAULTS = frozenset(
    {Do.CRASH_CLIENT, Do.LOCK_OUT, Do.APPLY_RETENTION, Do.REGISTER_EMPTY, Do.LOSE_DATA}
)
"""Faults that happen in full worlds only."""

AIMED_WORLD_FAULTS = frozenset({Do.TAKE_ID})
"""Faults that happen in aimed worlds only."""

SMALL, FULL, LARGE = 14, 7, 3
"""Of 24 worlds that are not aimed, 14 are small, seven are full, and three are large.

Small worlds run faster, and their failing runs shrink to fewer actions.
"""

AIMED = 7
"""One in AIMED worlds is aimed: most of its faults happen in one phase of a member."""

SHARP = range(8, 15)
"""Number of sharp worlds among 24 aimed worlds; a sharp world prefers one kind of rare pairs."""

Drawn = tuple[Plan, int, int]


def draw_world(decide: Decide) -> Drawn:
    """Draw a small, full, large, aimed or sharp world."""
    drawn, rest = divmod(decide((SMALL + FULL + LARGE) * AIMED), AIMED)
    if rest == AIMED - 1:
        return draw_sharp(decide) if drawn in SHARP else draw_aimed(decide)
    if drawn < SMALL:
        return draw_plan(decide)
    return draw_full(decide) if drawn < SMALL + FULL else draw_large(decide)


class Listening(TypedDict):
    """The settings of a member whose user has a listener and callbacks, or neither."""

    listener_s: float | None
    announces: bool


def listening(listener_s: float | None) -> Listening:
    """Return the settings for a wait of `listener_s` seconds; None: the user has no functions."""
    return {"listener_s": listener_s, "announces": listener_s is not None}


def draw_full(decide: Decide) -> Drawn:
    """Draw a small or a large world in which more faults may happen."""
    plan, length, rarity = draw_large(decide) if decide(2) else draw_plan(decide)
    kinds = sorted(FULL_WORLD_FAULTS | USER_ACTIONS | {Do.REVIVE}, key=lambda do: do.value)
    more = {do: 1 + decide(2) for do in kinds if decide(2)}
    listener_s = 5.0 if decide(2) else None
    of_all = plan.settings
    plan = replace(
        plan,
        streams=True,
        queries=max(0, decide(4) - 1),
        reset="largest" if decide(2) else "smallest",
        settings=lambda one: replace(of_all(one), **listening(listener_s)),
        faults={**plan.faults, **more},
    )
    return plan, length, rarity


def draw_sharp(decide: Decide) -> Drawn:
    """Draw an aimed world that prefers one kind of rare pairs, in a phase where they are rare."""
    rare = tuple(Rare)[decide(len(Rare))]
    plan, length, rarity = draw_aimed(decide, RARE_AIMS[rare], rare)
    faults = {**plan.faults, **RARE_FAULTS.get(rare, {})}
    return replace(plan, rare=rare, faults=faults), length, rarity


def draw_aimed(decide: Decide, aims: Sequence[Phase] = (), rare: Rare | None = None) -> Drawn:
    """Draw a world whose members often start and leave, and whose faults hit one phase of its
    members: one of `aims`, or of all `AIMS`.

    A member passes through most phases in a few steps, so faults at random moments rarely hit them.
    """
    aims = aims or AIMS
    aim = aims[decide(len(aims))]
    streams = decide(3) > 0 or rare is Rare.COMMIT
    storage = (Storage.ZOOKEEPER, Storage.ZOOKEEPER, Storage.DUAL, Storage.KAFKA)[decide(4)]
    if rare is Rare.TOOL:
        storage = Storage.ZOOKEEPER
    has_tool = rare is Rare.TOOL or (storage is Storage.ZOOKEEPER and decide(2) == 0)
    of_all = FAULTS | (USER_ACTIONS if streams else frozenset())
    if not has_tool:
        of_all -= OPERATOR_FAULTS
    if storage is not Storage.ZOOKEEPER:
        of_all -= {Do.EDIT}  # it changes only ZooKeeper's offsets
    share = 2 + decide(4)
    kinds = sorted(of_all, key=lambda do: do.value)
    possible = {do: 1 + decide(2) for do in kinds if decide(share) == 0}
    plan, length, rarity = _draw_plan(decide, possible)
    of_members = plan.settings
    listener_s = 5.0 if aim in CALLING or decide(3) == 0 else None
    nudge_s = 2.0 if decide(2) and rare is not Rare.DIAGNOSIS else None
    is_hasty = decide(2) == 0 or rare is not None
    is_rarely_diagnosed = rare is Rare.DIAGNOSIS or (rare is None and aim in RARELY_DIAGNOSED)
    more = RARE_REPORT_FAULTS | DISTURBANCES if is_rarely_diagnosed else {}

    def settings(one: Settings) -> Settings:
        heard = listening(listener_s)
        one = replace(of_members(one), **heard, nudge_s=nudge_s, storage=storage)
        # Hasty members often look for idle peers, and wait only 0.5 s for slow users.
        return replace(one, retries=1, backoff_s=0.5, grace_s=0.5) if is_hasty else one

    plan = replace(
        plan,
        streams=streams,
        queries=max(0, decide(4) - 2) if streams else 0,
        reset="largest" if decide(3) == 0 else "smallest",
        has_tool=has_tool,
        settings=settings,
        faults={**plan.faults, **more, **dict.fromkeys(CHURN, 2 + decide(3))},
        messages=plan.messages + 3,
        aim=aim,
        is_ambiguous=is_rarely_diagnosed,
    )
    return plan, length + (500 if is_rarely_diagnosed else 250), 4 * rarity


AIMS = tuple(one for one in Phase if one not in (Phase.SETTLED, Phase.CLOSED))
"""Phases at which a world aims; members rest in SETTLED, so faults often hit that phase anyway."""

RARELY_DIAGNOSED = frozenset(
    {
        *RECONNECTED,
        Phase.COMMITTING,
        Phase.BEFORE_RELEASE,
        Phase.BEFORE_START,
        Phase.LOADING,
        Phase.VERIFYING,
    }
)
"""Phases in which a diagnosis rarely ends."""

RARE_REPORT_FAULTS = {
    Do.BAD_REGISTRATION: 3,
    Do.STUCK: 3,
    Do.CUT: 6,
    Do.EXPIRE: 5,
    Do.DELETE_ID: 6,
    Do.COMMIT_TIMEOUT: 3,
}
"""How often some faults and timeouts happen in worlds that aim at a phase of `RARELY_DIAGNOSED`.

These faults lead to a diagnosis or interrupt it; the timeouts are those of explicit commits.
"""

RARE_FAULTS = {
    Rare.TOOL: {Do.APPLY: 5, Do.LOSE_TOOL: 5},
    Rare.DIAGNOSIS: {Do.DELETE_OWNER: 20},
    Rare.COMMIT: {Do.CUT: 6, Do.DELETE_ID: 6, Do.COMMIT_TIMEOUT: 6, Do.COMMIT: 12, Do.REFUSE: 2},
}
"""How often some faults and actions happen in sharp worlds."""

RARE_AIMS = {
    Rare.TOOL: (Phase.LEAVING, Phase.LEAVING, Phase.RECOVERING, Phase.STOPPING),
    Rare.COMMIT: (
        *[Phase.RECOVERING, Phase.WAITING] * 2,
        Phase.BEFORE_RELEASE,
        Phase.BEFORE_START,
        Phase.LOADING,
    ),
    Rare.DIAGNOSIS: (
        *[Phase.BEFORE_START] * 4,
        Phase.RECOVERING,
        Phase.VERIFYING,
        Phase.COMMITTING,
        Phase.RELEASING,
        Phase.LEAVING,
    ),
}
"""For each kind of rare pairs: the phases in which these pairs are rare.

A run draws one of the phases; a phase that is listed twice is drawn twice as often.
"""


def draw_plan(decide: Decide) -> Drawn:
    """Draw a small world, the number of actions before the faults end, and how rare faults are."""
    return _draw_plan(decide, draw_faults(decide))


def _draw_plan(decide: Decide, possible: dict[Do, int]) -> Drawn:
    plan = Plan(
        members=2 + decide(3),
        partitions=1 + decide(6),
        messages=1 + decide(4),
        messages_per_advance=decide(2),
        replicas=1 + decide(3),
        faults=possible,
        repair_one_in=1 + decide(6),
        settings=draw_settings(decide, possible),
    )
    return plan, 50 + decide(300), 5 + decide(40)


def draw_large(decide: Decide) -> Drawn:
    """Draw a large world: up to 8 members and 3 topics, an operator, and members that start again.

    The members' subscriptions, session timeouts, rebalance modes and grace periods differ.
    """
    plan, length, rarity = draw_plan(decide)
    more = tuple(f"{World.TOPIC}{number + 1}" for number in range(decide(3)))
    kinds = sorted(LARGE_WORLD_FAULTS, key=lambda do: do.value)
    possible = {do: 1 + decide(3) for do in kinds}
    plan = replace(
        plan,
        members=2 + decide(7),
        partitions=min(plan.partitions, 3),
        topics=more,
        has_tool=True,
        faults={**plan.faults, **possible},
        sessions=[(), (6.0, 3.0), (6.0, 12.0, 4.0)][decide(3)],
        stored=decide(2),
    )
    storage = (Storage.ZOOKEEPER, Storage.ZOOKEEPER, Storage.DUAL, Storage.KAFKA)[decide(4)]
    if storage is not Storage.ZOOKEEPER:
        # These faults change only ZooKeeper's offsets, and an operator would have to change both
        # stores.
        left = {do: n for do, n in plan.faults.items() if do not in {Do.EDIT, *OPERATOR_FAULTS}}
        plan = replace(plan, faults=left, has_tool=False, stored=0)
    listener_s = 5.0 if decide(3) == 0 else None
    nudge_s = 5.0 if decide(3) == 0 else None
    members = [_draw_member(decide, more) for _ in range(plan.members)]
    of_all = plan.settings

    def settings(one: Settings) -> Settings:
        given = of_all(one)
        topics, is_eager, is_hasty = members[int(one.consumer.rpartition("_")[2])]
        threads = max(given.subscription.values())
        is_free = given.pattern is Pattern.STATIC and given.strategy is Strategy.RANGE
        return replace(
            given,
            # A round-robin assignment needs the same topics in all members.
            subscription=dict.fromkeys(topics if is_free else (World.TOPIC, *more), threads)
            if given.pattern is Pattern.STATIC
            else given.subscription,
            mode=RebalanceMode.EAGER if is_eager else given.mode,
            grace_s=0.0 if is_hasty else given.grace_s,
            storage=storage,
            **listening(listener_s),
            nudge_s=nudge_s,
        )

    return replace(plan, settings=settings), 2 * length, rarity


def _draw_member(decide: Decide, more: Sequence[str]) -> tuple[tuple[str, ...], bool, bool]:
    """Draw a member's topics, whether it is eager, and whether its grace period is 0."""
    topics = tuple(topic for topic in (World.TOPIC, *more) if decide(3))
    return topics or (World.TOPIC,), decide(3) == 0, decide(3) == 0


def draw_faults(decide: Decide) -> dict[Do, int]:
    """Draw no faults, or only faults that no member notices (they test leases), or any mixture."""
    of_all = (
        (FAULTS | {Do.LEAVE, Do.COMMIT})
        - LARGE_WORLD_FAULTS
        - FULL_WORLD_FAULTS
        - AIMED_WORLD_FAULTS
    )
    kinds = sorted(of_all, key=lambda do: do.value)
    match decide(6):
        case 0:
            return {}
        case 1:
            return {do: 3 for do in kinds if do in SILENCE}
        case _:
            share = 2 + decide(6)
            return {do: 1 + decide(2) for do in kinds if decide(share) == 0}


JOIN_RARITY = 20
"""A member that may join joins with a probability of one in twenty."""

PATTERNS = (
    *[(Pattern.STATIC, "")] * 4,
    (Pattern.WHITE_LIST, "t.*"),
    (Pattern.BLACK_LIST, "x|y"),
)
"""Patterns to which every second member may subscribe; each of them matches the only topic."""


def draw_settings(decide: Decide, possible: dict[Do, int]) -> Callable[[Settings], Settings]:
    """Draw the settings of all members; only some may subscribe by a pattern."""
    eager, roundrobin, threads = decide(4) == 0, decide(4) == 0, 1 + (decide(4) == 0)
    commit_s = (5.0, 0.5)[decide(2)]
    pattern, regex = PATTERNS[decide(len(PATTERNS))]
    patient = decide(4) == 0 and not NEEDS_BACKOFF.intersection(possible)

    def settings(one: Settings) -> Settings:
        patterned = regex and one.consumer[-1] in "02468"
        return replace(
            one,
            subscription=dict.fromkeys([regex] if patterned else one.subscription, threads),
            pattern=pattern if patterned else Pattern.STATIC,
            auto_commit_s=commit_s,
            mode=RebalanceMode.EAGER if eager else one.mode,
            strategy=Strategy.ROUND_ROBIN if roundrobin else one.strategy,
            backoff_s=NO_BACKOFF_S if patient else one.backoff_s,
        )

    return settings


Make = Callable[[Plan, Monitor], World]


def world_of(plan: Plan, watcher: Watcher) -> World:
    """Return the world of a plan."""
    if not plan.streams:
        return World(plan, watcher)
    from zkconsumer.sim.stream_world import StreamWorld  # noqa: PLC0415 - imports confluent_kafka

    return StreamWorld(plan, watcher)


Draw = Callable[[Decide], Drawn]


def run(decide: Decisions, *, make: Make = world_of, draw: Draw = draw_world) -> Result:
    """Run a world with faults and check safety; then without faults, and check convergence."""
    plan, length, rarity = draw(decide)
    return run_plan(plan, decide, length=length, rarity=rarity, make=make)


def run_plan(
    plan: Plan, decide: Decisions, *, length: int, rarity: int, make: Make = world_of
) -> Result:
    """Run a world as `run` does, with a given plan."""
    monitor = Monitor()
    return run_world(make(plan, monitor), monitor, decide, length=length, rarity=rarity)


def run_world(
    world: World,
    monitor: Monitor,
    decide: Decisions,
    *,
    length: int,
    rarity: int,
    end_faults: Callable[[World, Decide], None] | None = None,
) -> Result:
    """Run this world as `run` does; `end_faults` replaces `heal`."""
    actions = 0

    def play() -> None:
        nonlocal actions
        while actions < length and (available := world.enabled()):
            world.act(choose(world, available, decide, rarity))
            actions += 1
        (end_faults or heal)(world, decide)
        actions += settle(world, monitor, decide)
        if Do.REGISTER_EMPTY in world.plan.faults:
            actions += make_room(world, decide)

    return judged(lambda: _without_a_crash(play), monitor, decide, lambda: actions)


def _without_a_crash(play: Callable[[], None]) -> None:
    """Play a run; an exception of the production code breaks I15: it would end a thread."""
    try:
        play()
    except InvariantViolation:
        raise
    except Exception as error:
        why = promises.every_event_is_handled.reason(error) or ""
        raise promises.every_event_is_handled.broken(why) from error


def choose(world: World, actions: list[Action], decide: Decide, rarity: int) -> Action:
    """Return the next action: rarely a fault or its end, otherwise one of the ordinary `actions`.

    Time rarely advances while there is work. After the first member, members rarely join: otherwise
    all members would join before the first message, and no member would hand over a partition of
    which it has read messages.
    """
    if world.plan.aim is not None:
        aim = PhaseAim(world.plan, world.plan.aim)
        if found := aim.preferred(world, actions, decide):
            return one_of(found, decide)
    if world.plan.rare and (early := _early(world, actions)) and decide(EARLY_RARITY):
        actions = [action for action in actions if action not in early] or actions
    if rarity and decide(rarity) == 0:
        ends = repairs(world) if decide(world.plan.repair_one_in) == 0 else []
        wrong = [*possible(world), *ends]
        if wrong:
            return wrong[decide(len(wrong))]
    if len(actions) > 1 and actions[-1].do is Do.TIME and decide(8):
        actions.pop()
    others = [action for action in actions if action.do is not Do.JOIN]
    if len(actions) > len(others) > 0 and decide(JOIN_RARITY):
        actions = others
    return actions[decide(len(actions))]


def _early(world: World, actions: list[Action]) -> list[Action]:
    """Return the actions that a sharp world delays.

    A tool's write is delayed while no member is in the phase of the aim. The end of a listener's
    call is delayed while a commit runs.
    """
    if world.plan.rare is Rare.TOOL:
        phases = {member.state.phase for member in world.members}
        is_early = world.tool is not None and world.tool.writes and world.plan.aim not in phases
        return [one for one in actions if one.do is Do.TOOL and is_early]
    if world.plan.rare is Rare.COMMIT:
        return [
            one
            for one in actions
            if one.do is Do.POST
            and world.members[one.who].state.commits.running
            and not world.members[one.who].delays_user
        ]
    return []


EARLY_RARITY = 20
"""A sharp world permits actions that it delays with a probability of one in EARLY_RARITY."""


def heal(world: World, decide: Decide) -> None:
    """End all faults; a random part of the members, never all, stays dead or frozen."""
    world.faults_left, world.messages_per_advance = {}, 0
    if world.tool is not None:
        world.tool.retire()
    while due := repairs(world):
        world.act(due[0])
    alive = [who for who, link in enumerate(world.links) if link.joined and not link.dead]
    for who in alive[1:]:
        if decide(4) == 0:
            world.act(Action(Do.KILL if decide(2) else Do.FREEZE, who))


def settle(world: World, monitor: Monitor, decide: Decide) -> int:
    """Run until the world is settled; then check that it stays settled (I12)."""
    deadline = world.now + CONVERGENCE_S
    actions = 0
    why = ""
    while (reason := monitor.converged(world)) and (available := world.enabled()):
        why = reason if world.settled() else why
        if actions >= MAX_ACTIONS or world.now > deadline:
            raise promises.group_settles.broken(why or reason)
        world.act(_busy(available, decide))
        actions += 1
    before = monitor.rebalances
    deadline = world.now + QUIET_S
    while world.now < deadline and actions < MAX_ACTIONS and (available := world.enabled()):
        actions += 1
        world.act(_busy(available, decide))
    promises.settled_group_rests.check(monitor, before)
    return actions


def make_room(world: World, decide: Decide) -> int:
    """Let a client register with two requests; check that the group then settles in time (I12)."""
    world.act(Action(Do.REGISTER_EMPTY, 0))
    actions = 0
    for _ in range(decide(100)):
        if available := world.enabled():
            world.act(_busy(available, decide))
            actions += 1
    if not world.active_faults.peer:
        return actions
    world.act(Action(Do.WRITE_PAYLOAD))
    preempted_s = PREEMPTED_S if world.plan.aim is not None else 0.0
    deadline = world.now + ROOM_S + preempted_s
    peer = f"{world.GROUP}_{PEER}"
    while not made_room(world, peer, {world.TOPIC: 1}) and (available := world.enabled()):
        if world.now > deadline:
            why = f"not settled {ROOM_S:g} s after the peer's payload"
            raise promises.group_settles.broken(why)
        world.act(_busy(available, decide))
        actions += 1
    return actions


def _busy(actions: list[Action], decide: Decide) -> Action:
    """Choose an action other than the advance of time, if there is one."""
    if len(actions) > 1 and actions[-1].do is Do.TIME:
        actions.pop()
    return actions[decide(len(actions))]


# ---- files of failing runs -----------------------------------------------------------------------


MARK = "decisions:"


def record(decide: Decisions) -> tuple[Result, list[dict[str, object]], World]:
    """Run, and return the result, the entries of the trace and the world at its end."""
    entries: list[dict[str, object]] = []
    worlds: list[World] = []

    def make(plan: Plan, monitor: Monitor) -> World:
        worlds.append(world_of(plan, Watchers(Recorder(entries.append), monitor)))
        return worlds[-1]

    return run(decide, make=make), entries, worlds[0]


def save(path: Path, *, name: str, decisions: Sequence[int]) -> Result:
    """Write the file of the run with these decisions; `name` names its bug."""
    result, text = _as_text(name, decisions)
    path.write_text(text, encoding="utf-8")
    return result


def report(decisions: Sequence[int], *, name: str = "a broken promise") -> str:
    """Shrink a run that breaks a promise; return the text of the file that `save` would write."""
    return _as_text(name, shrunk(run, decisions))[1]


def _as_text(name: str, decisions: Sequence[int]) -> tuple[Result, str]:
    result, entries, world = record(Decisions(decisions))
    numbers = textwrap.fill(" ".join(map(str, decisions)), 100)
    names = [member.name for member in world.members]
    lines = [
        name,
        "=" * len(name),
        str(result.violation or "no promise is broken"),
        "",
        MARK,
        numbers,
        "",
        *story(entries, names, root=ROOT),
    ]
    return result, "\n".join(lines) + "\n"


def load(path: Path) -> tuple[int, ...]:
    """Return the decisions of a saved run."""
    _, _, rest = path.read_text(encoding="utf-8").partition(f"\n{MARK}\n")
    return tuple(int(word) for word in rest.partition("\n\n")[0].split())
