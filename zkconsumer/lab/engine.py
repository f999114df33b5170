"""The lab without a server: commands in, events out, both as JSON.

The server passes commands from the page to `Engine.command`, and so does a Web Worker with Pyodide.
`open` opens a simulated group that uses ZooKeeper, or one that uses a group coordinator.

| Command (`do`) | Keys | Events |
|---|---|---|
| `catalogue` | | `catalogue`: scenarios, tours, strategies, releases, limits |
| `open` | `world` or `scenario`; `moves`, `cut` | `run`, `frames` |
| `tour` | `tour` | `run`, `frames`, `tour`: its steps, and a search that breaks it |
| `table` | `table` | `table`: the table of a lesson |
| `step` | `run`; `count`, or `until`: `owner`, `rest` or seconds | `frames` |
| `act` | `run`, `at`, `move` | `frames`; before them `run` if `at` is not the last move |
| `forget` | `run`, `at` | `frames` without a frame; the moves after `at` no longer exist |
| `choices` | `run`, `at` | `choices`: what can happen next |
| `explain` | `run`, `at`, `partition` | `explained`: why a thread owns a partition |
| `trace` | `run` | `trace`: the run as JSON lines |
| `search` | `world`: its `weak` and `asks`; `seed` | `search`: how far the search is |
| `search_on` | | `search`; `run`, `frames` before it if a run was found |
| `play` | `files`: [name, text] of each trace file | `run`, `frames`: a recorded run |
| `compare` | `script`, `members`, `partitions`, `protocols`, `session_s` | runs; `compared` |

Each command returns the event `error` if it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from zkconsumer.errors import ConfigError, RefusedError, ZkConsumerError
from zkconsumer.lab.camera import COUNTERS
from zkconsumer.lab.counterexamples import MAX_SCHEDULES, Search, search
from zkconsumer.lab.famous import FAMOUS
from zkconsumer.lab.questions import NUMBERS, QUANTITIES
from zkconsumer.lab.recorded import play
from zkconsumer.lab.runs import Run, new_stage, open_scenario, open_world
from zkconsumer.lab.stage import AnyStage
from zkconsumer.lab.tours import TOURS, located
from zkconsumer.lab.worlds import (
    BRIDGED,
    COMPARED,
    COORDINATED,
    DEFAULT_SCRIPT,
    MAX_MEMBERS,
    MAX_MOVES,
    MAX_PARTITIONS,
    LabMove,
    WorldSpec,
    parse_move,
    parse_world,
    read_moves,
    write_moves,
)
from zkconsumer.lab.worlds import PROTOCOLS as WORLDS
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.protocol.releases import RELEASES
from zkconsumer.sim.lessons import herd_effect, split_brain
from zkconsumer.sim.plan import Do
from zkconsumer.sim.scenarios import SCENARIOS
from zkconsumer.sim.weakened import SWITCHES, planted
from zkconsumer.trace import text as trace_text

MAX_RUNS = 24
"""Maximum number of runs of one page. A further run replaces the oldest one. If the user returns to
a run that was replaced, the page opens it again from the moves in the page's address.
"""

MAX_STEPS = 2_000
"""Upper bound of the moves of one command, so that a command takes at most a second or two."""

ELECTION_S = 0.5
"""Seconds without a leader when ZooKeeper's leader dies; real elections take 0.2 s to a few s."""

HERD_SIZES = (2, 5, 10, 20, 40)
"""Sizes of the groups that the lesson on the herd effect compares; larger groups take over 2 s."""

MODELS = "Models of Kafka's members and coordinators; network and clock are simulated."
"""What the page says about a world with a group coordinator."""

BOTH = "Production code of zkconsumer and the bridge, models of Kafka's members and coordinators."
"""What the page says about a world with a bridge."""

WORDS = {**dict.fromkeys(COORDINATED, MODELS), **dict.fromkeys(BRIDGED, BOTH)}
"""Protocol -> what the page says about a world."""

SLICE_S = 0.25
"""Seconds of a search in one command; the page shows the progress after each of them."""

LEADER_DIES, QUORUM_LOST = "leader_dies", "quorum_lost"


class Engine:
    """The runs of one page."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._search: Search | None = None
        self._played = 0  # the number of the last recorded run, which the engine does not keep
        self._commands: dict[str, Callable[[JsonObject], list[JsonObject]]] = {
            "catalogue": self._catalogue,
            "open": self._open,
            "tour": self._tour,
            "table": self._table,
            "step": self._step,
            "act": self._act,
            "choices": self._choices,
            "explain": self._explain,
            "forget": self._forget,
            "trace": self._trace,
            "compare": self._compare,
            "search": self._search_for,
            "search_on": self._search_on,
            "play": self._play,
        }

    def command(self, command: JsonObject) -> list[JsonObject]:
        """Carry out one command and return its events; a refused command returns one `error`."""
        try:
            handler = self._commands.get(str(command.get("do")))
            if handler is None:
                raise ConfigError(
                    f"there is no command {command.get('do')!r}",
                    where="do",
                    remedy=f"use one of {', '.join(self._commands)}",
                )
            number = command.get("run")
            run = self._runs.get(number) if isinstance(number, int) else None
            with planted(run.weak if run is not None else ()):
                return handler(command)
        except ZkConsumerError as error:
            return [{"event": "error", "text": str(error)}]

    # ---- commands --------------------------------------------------------------------------------

    def _catalogue(self, command: JsonObject) -> list[JsonObject]:
        scenarios = [
            {"name": name, "title": one.title, "lesson": one.lesson, "decided": one.decided}
            for name, one in SCENARIOS.items()
        ]
        return [
            {
                "event": "catalogue",
                "scenarios": scenarios,
                "tours": [
                    {"name": name, "title": one.title, "lesson": one.lesson}
                    for name, one in TOURS.items()
                ],
                "strategies": [one.value for one in Strategy],
                "releases": list(RELEASES),
                "counters": list(COUNTERS),
                "protocols": list(COMPARED),
                "worlds": list(WORLDS),
                "script": DEFAULT_SCRIPT,
                "famous": [asdict(one) for one in FAMOUS],
                "weaknesses": [
                    {"name": one.name, "what": one.what, "who": one.who, "breaks": one.breaks}
                    for one in SWITCHES
                ],
                "promises": [{"number": n, "sentence": text} for n, text in NUMBERS.items()],
                "quantities": [
                    {"name": name, "what": (one.__doc__ or "").strip()}
                    for name, one in QUANTITIES.items()
                ],
                "limits": {
                    "members": MAX_MEMBERS,
                    "partitions": MAX_PARTITIONS,
                    "moves": MAX_MOVES,
                },
            }
        ]

    def _open(self, command: JsonObject) -> list[JsonObject]:
        world = parse_world(_object(command.get("world", {}), "world"))
        with planted(world.weak):
            return self._opened(command, world)

    def _opened(self, command: JsonObject, world: WorldSpec) -> list[JsonObject]:
        number = self._number()
        scenario = command.get("scenario")
        if scenario is not None:
            if not isinstance(scenario, str) or scenario not in SCENARIOS:
                raise ConfigError(
                    f"there is no scenario {str(scenario)[:60]!r}",
                    where="scenario",
                    remedy="choose one from the list",
                )
            run = open_scenario(number, SCENARIOS[scenario])
        else:
            run = open_world(number, world)
        cut = command.get("cut")
        if isinstance(cut, int) and 0 <= cut < run.length:
            run = run.fork(number, cut)
            run.parent = 0
        for move in read_moves(str(command.get("moves", ""))):
            run.check_room()
            if move is None:
                run.stage.step()
            else:
                run.stage.check(move)
                run.stage.move(move)
        self._runs[number] = run
        return [_opened(run), _frames(run, 0)]

    def _tour(self, command: JsonObject) -> list[JsonObject]:
        """Open the tour's world, and return the move at which each step of the tour is shown."""
        name = command.get("tour")
        if not isinstance(name, str) or name not in TOURS:
            raise ConfigError(
                f"there is no tour {str(name)[:60]!r}",
                where="tour",
                remedy="choose one from the list",
            )
        tour = TOURS[name]
        opened = self._open({"scenario": tour.scenario} if tour.scenario else {"world": tour.world})
        run = self._runs[opened[0]["run"]]
        if tour.script is not None:
            tour.script(run.stage)
        steps = located(tour, run.stage.frames)
        return [
            _opened(run),
            _frames(run, 0),
            {
                "event": "tour",
                "run": run.number,
                "tour": name,
                "title": tour.title,
                "table": tour.table,
                "steps": steps,
                "breaks": tour.breaks.as_json(),
            },
        ]

    def _table(self, command: JsonObject) -> list[JsonObject]:
        """Return the table of a lesson of `sim.lessons`."""
        name = command.get("table")
        lessons = {"herd-effect": lambda: herd_effect(HERD_SIZES), "split-brain": split_brain}
        if not isinstance(name, str) or name not in lessons:
            raise ConfigError(
                f"there is no table {str(name)[:60]!r}",
                where="table",
                remedy=f"use one of {', '.join(lessons)}",
            )
        *_, last = lessons[name]()
        return [
            {
                "event": "table",
                "table": name,
                "title": last.title,
                "head": last.head,
                "rows": last.rows,
                "words": last.words,
            }
        ]

    def _step(self, command: JsonObject) -> list[JsonObject]:
        run = self._run(command)
        start = run.length
        until = command.get("until", "")
        count = command.get("count", MAX_STEPS)
        if type(count) is not int:
            raise ConfigError(f"count is {count!r}", where="count", remedy="give a number of moves")
        done = _condition(run.stage, until)
        for _ in range(min(count, MAX_STEPS)):
            run.check_room()
            if not run.stage.step() or done():
                break
        return [_frames(run, start)]

    def _act(self, command: JsonObject) -> list[JsonObject]:
        run, at = self._run(command), self._at(command)
        token = str(command.get("move", ""))
        found: list[JsonObject] = []
        start = at
        if at < run.length:
            run = self._fork(run, at)
            found.append(_opened(run))
        run.check_room()
        if token in (LEADER_DIES, QUORUM_LOST):
            _break_quorum(run, is_election=token == LEADER_DIES)
        else:
            run.stage.perform(parse_move(token))
        if found:
            self._runs[run.number] = run
        return [*found, _frames(run, start)]

    def _fork(self, run: Run, at: int) -> Run:
        return run.fork(self._number(run.number), at)

    def _choices(self, command: JsonObject) -> list[JsonObject]:
        run, at = self._run(command), self._at(command)
        stage = run.stage if at == run.length else run.at(at)
        ordinary, chosen, others = stage.choices()
        found = [
            {"move": str(one), "text": stage.sentence(one), "next": one == chosen}
            for one in ordinary
        ]
        faults = [{"move": str(one), "text": stage.sentence(one)} for one in others]
        return [
            {"event": "choices", "run": run.number, "at": at, "choices": found, "faults": faults}
        ]

    def _explain(self, command: JsonObject) -> list[JsonObject]:
        run, at = self._run(command), self._at(command)
        stage = run.stage if at == run.length else run.at(at)
        partition = command.get("partition")
        if type(partition) is not int or not 0 <= partition < stage.partitions:
            raise ConfigError(
                f"there is no partition {partition!r}", where="partition", remedy="choose one"
            )
        return [{"event": "explained", "partition": partition, "text": stage.explain(partition)}]

    def _forget(self, command: JsonObject) -> list[JsonObject]:
        """Remove the moves after `at`, which the page has fetched and not shown."""
        run, at = self._run(command), self._at(command)
        run.cut(at)
        return [_frames(run, at)]

    def _trace(self, command: JsonObject) -> list[JsonObject]:
        """Perform the moves of a run again with a recorder, and return them as a trace."""
        run = self._run(command)
        lines: list[str] = []
        stage = new_stage(run.spec, run.scenario)
        stage.record(lambda entry: lines.append(trace_text(entry)))
        stage.start(*run.stage.settled)
        for move in run.stage.moves:
            stage.move(move)
        return [{"event": "trace", "run": run.number, "text": "\n".join([*lines, ""])}]

    def _compare(self, command: JsonObject) -> list[JsonObject]:
        """Run a script on several protocols; return the runs and their table."""
        given = {
            "members": 3,
            "partitions": 12,
            "protocols": list(COMPARED[:2]),
            "session_s": 0,
            **command,
        }
        names, script = given["protocols"], given.get("script", DEFAULT_SCRIPT)
        if not isinstance(names, list) or not isinstance(script, str):
            raise ConfigError(
                "the script is not a text, or the protocols are not a list", where="compare"
            )
        for name in ("members", "partitions"):
            if type(given[name]) is not int:
                raise ConfigError(f"{name} is {given[name]!r}", where=name, remedy="give a number")
        if type(given["session_s"]) not in (int, float):
            raise ConfigError(
                f"session_s is {given['session_s']!r}", where="session_s", remedy="give seconds"
            )
        from zkconsumer.lab.comparisons import compared  # noqa: PLC0415 - see `worlds.COORDINATED`

        return compared(
            script,
            members=given["members"],
            partitions=given["partitions"],
            protocols=[str(name) for name in dict.fromkeys(map(str, names))],
            session_s=given["session_s"] or None,
        )

    def _search_for(self, command: JsonObject) -> list[JsonObject]:
        """Begin a search for a run that answers the world's question."""
        seed = command.get("seed", 0)
        if type(seed) is not int or not 0 <= seed < 10**9:
            raise ConfigError(f"seed is {seed!r}", where="seed", remedy="give 0 to 999999999")
        world = parse_world(_object(command.get("world", {}), "world"))
        self._search = search(world, seed=seed)
        return [_progress(self._search)]

    def _search_on(self, command: JsonObject) -> list[JsonObject]:
        """Continue the search; at its end, open the run that was found."""
        one = self._search
        if one is None:
            raise RefusedError("there is no search", where="search_on", remedy="begin one")
        one.advance(SLICE_S)
        if not one.is_over:
            return [_progress(one)]
        self._search = None
        if one.found is None:
            return [_progress(one)]
        with planted(one.spec.weak):
            run = one.open(self._number())
            self._runs[run.number] = run
            return [_opened(run), _frames(run, 0), {**_progress(one), "run": run.number}]

    def _play(self, command: JsonObject) -> list[JsonObject]:
        """Return the events that show the user's trace files as one recorded run."""
        match command.get("files"):
            case [_, *_] as files if all(map(_is_file, files)):
                number = max([*self._runs, self._played]) + 1
                events = play([(name, text) for name, text in files], number)
                self._played = number
                return events
        raise ConfigError("there are no files", where="files", remedy="give names and texts")

    # ---- arguments -------------------------------------------------------------------------------

    def _number(self, keep: int = 0) -> int:
        """Return the number of a new run; if there are too many, remove the oldest run except
        `keep`.
        """
        number = max([*self._runs, self._played]) + 1
        if len(self._runs) >= MAX_RUNS:
            del self._runs[min(one for one in self._runs if one != keep)]
        return number

    def _run(self, command: JsonObject) -> Run:
        number = command.get("run", 0)
        if type(number) is not int or number not in self._runs:
            raise RefusedError(f"there is no run {number!r}", where="run", remedy="open it again")
        return self._runs[number]

    def _at(self, command: JsonObject) -> int:
        run, at = self._run(command), command.get("at")
        if type(at) is not int or not 0 <= at <= run.length:
            raise ConfigError(
                f"the run has no move {at!r}", where="at", remedy=f"give 0 to {run.length}"
            )
        return at


def _is_file(value: Json) -> bool:
    return isinstance(value, list) and list(map(type, value)) == [str, str]


def _object(value: Json, where: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {value!r}", where=where, remedy="give a JSON object")
    return value


def _about(run: Run) -> JsonObject:
    words = "" if run.spec is None else WORDS.get(run.spec.protocol, "")
    return {"words": words} if words else {}


def _opened(run: Run) -> JsonObject:
    return {
        "event": "run",
        "run": run.number,
        "kind": "simulated",
        "scene": run.stage.picture,
        "parent": run.parent,
        "forked_at": run.forked_at,
        "scripted": run.scripted,
        "title": run.scenario.title if run.scenario else "",
        "lesson": run.scenario.lesson if run.scenario else "",
        "base": _base(run),
        "about": _about(run),
    }


def opened(run: Run) -> list[JsonObject]:
    """Return the events that show a whole run."""
    return [_opened(run), _frames(run, 0)]


def _progress(one: Search) -> JsonObject:
    """Return how far a search is, in numbers and as a sentence."""
    if not one.is_over:
        state = "searching" if one.found is None else "shortening"
    else:
        state = "none" if one.found is None else "found"
    return {
        "event": "search",
        "state": state,
        "asks": one.question.text,
        "sentence": one.question.sentence,
        "schedules": one.schedules,
        "states": one.states,
        "limit": MAX_SCHEDULES,
        "seconds": round(one.seconds, 1),
        "chosen": one.chosen,
        "before": one.before,
        "text": one.sentence(),
    }


def _base(run: Run) -> JsonObject:
    if run.scenario is None:
        assert run.spec is not None
        return {"world": run.spec.as_json()}
    return {"scenario": run.scenario.name, "cut": run.scripted}


def _frames(run: Run, start: int) -> JsonObject:
    """Return the frames from a move on, and the run's moves as text for the page's address."""
    stage = run.stage
    given = zip(stage.moves[run.scripted :], stage.defaults[run.scripted :], strict=True)
    moves = [None if is_default else move for move, is_default in given]
    return {
        "event": "frames",
        "run": run.number,
        "from": start,
        "frames": stage.frames[start:],
        "moves": write_moves(moves),
        "rests": stage.next_move() is None,
    }


def _condition(stage: AnyStage, until: Json) -> Callable[[], bool]:
    """Return the condition at which the command `step` stops, as a function of the run."""
    if until == "owner":
        return lambda: bool(stage.frames and "o" in stage.frames[-1]) or stage.keeps_owners()
    if until == "rest":
        return stage.rests
    if isinstance(until, int | float) and not isinstance(until, bool):
        end = stage.now + until
        return lambda: stage.now >= end
    return lambda: False


def _break_quorum(run: Run, *, is_election: bool) -> None:
    """Remove ZooKeeper's leader, so that all connections break; elect another leader if asked."""
    stage = run.stage
    if stage.zookeeper is None:
        raise RefusedError("the group does not use ZooKeeper")
    stage.check(LabMove(Do.NO_QUORUM.value))
    stage.move(LabMove(Do.NO_QUORUM.value))
    for who, link in enumerate(stage.zookeeper.links):
        if link.connected:
            stage.move(LabMove(Do.CUT.value, who))
    if is_election:
        stage.wait(ELECTION_S)
        stage.move(LabMove(Do.QUORUM.value))
