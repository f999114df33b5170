"""The published schemas equal those in the code, and real output and files fit them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.published_schemas import json_schema, published
from jsonschema import Draft202012Validator
from support.scenes import Scene, scenes
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.lab.engine import Engine
from zkconsumer.protocol import paths
from zkconsumer.sandbox import ZooKeeperServer

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"
# Each schema, with the commands whose JSON it describes. The broker of the scene does not answer.
COMMANDS = {
    "lag": ["lag -g g", "lag"],
    "members": ["members", "members -g g"],
    "groups-list": ["groups list"],
    "groups-show": ["groups show g"],
    "topics-list": ["topics list"],
    "topics-show": ["topics show"],
    "offsets-get": ["offsets get g"],
    "inventory": ["inventory g"],
    "verify": ["verify broken"],
    "doctor": ["doctor"],
    "owners": ["owners g"],
    "assign": ["assign g", "assign g --leave g_b", "assign broken"],
    "explain": ["explain g"],
    "changes": [
        "offsets set idle t:0=3",
        "groups delete idle",
        "groups copy idle new",
        "offsets delete idle -t t --plan-out plan.json",
        "offsets delete idle -t t --execute",
        "undo --last",
    ],
    "backups-list": ["backups list"],
    "context-list": ["context list"],
    "context-show": ["context show"],
}


MEMBERS = {"m": {"topics": ["t"], "instance": None, "rack": None, "owned": {}, "generation": -1}}
OLD = {"strategy": "range", "registrations": {"g_a": '{"version":1}'}, "topics": {}}
# Each schema, with a command that needs no server. FILE contains the lines that follow it.
WITHOUT_SERVERS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "explain-coordinator": ("explain coordinator billing", []),
    "explain-coordinator-cases": ("explain coordinator --cases FILE", [{"group": "g"}]),
    "explain-vote": ("explain vote m=range,sticky", []),
    "explain-vote-cases": ("explain vote --cases FILE", [{"members": {"m": ["range"]}}]),
    "explain-partitioner": ("explain partitioner --key k --partitions 3", []),
    "explain-partitioner-cases": (
        "explain partitioner --cases FILE",
        [{"case": 1, "key": "00ff", "partitions": 3}],
    ),
    "explain-placement": ("explain placement --brokers 0,1,2 --replicas 2", []),
    "explain-placement-cases": (
        "explain placement --cases FILE",
        [{"case": "one", "brokers": [0, 1], "partitions": 3}],
    ),
    "assign-cases": ("assign --release 1.1.1 --cases FILE", [OLD]),
    "assign-assignor-cases": (
        "assign --assignor range --cases FILE",
        [
            {"case": 1, "topics": {"t": {"partitions": 3, "racks": None}}, "members": MEMBERS},
        ],
    ),
    "simulate": ("simulate --scenario a-reply-is-lost", []),
    "judge-list": ("judge --list", []),
    "simulate-list": ("simulate --list", []),
    "simulate-lesson": ("simulate --scenario split-brain", []),
}


@pytest.fixture
def scene(
    zookeeper: ZooKeeperServer,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    """A settled group, one without members, one with an unreadable registration; a context."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with scenes(zookeeper, unique("schema")) as one:
        one.settled({"g_a": {"t": 2}, "g_b": {"t": 1}}, {"t": 2})
        one.offset("t", 0, 7, "idle")
        one.offset("t", 1, "no number", "idle")
        one.settled({"broken_a": {"t": 1}}, {"t": 2}, group="broken")
        one.hold(paths.member("broken", "broken_x"), b"hello")
        monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", one.connect)
        run("context", "add", "prod", "-z", one.connect)
        yield one


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 6), (words, result.output)
    return result.stdout


def fits(name: str, document: Any, *, item: bool = False) -> None:
    schema = schemas()[name]
    Draft202012Validator(schema["items"] if item else schema).validate(document)
    if "properties" in schema.get("items", {}):
        for row in [document] if item else document:
            assert set(row) <= set(schema["items"]["properties"]), "the schema lacks a field"


def test_output(scene: Scene) -> None:
    """The JSON of each command, and each line of its JSON Lines, fits the schema."""
    for name, commands in COMMANDS.items():
        for command in commands:
            words = command.split()
            limit = () if name in ("backups-list", "context-list") else ("--timeout", "0.3")
            document = json.loads(run(*words, *limit, "-o", "json"))
            fits(name, document)
            if schemas()[name]["type"] == "array":
                assert document, command
                if "--execute" not in words and "--plan-out" not in words:
                    lines = run(*words, *limit, "-o", "jsonl").splitlines()
                    assert len(lines) == len(document), command
                    for line in lines:
                        fits(name, json.loads(line), item=True)
    tested_below = {*WITHOUT_SERVERS, "trace-show", "trace-check", "assign-assignor"}
    # tests/lab/test_site.py checks the schema of `lab-build`.
    tested_below |= {"lab-build", "lab-frames"}
    others = {"consume", "judge", "judge-assignor", "migrate", "offsets", "plan", "trace", "demo"}
    others |= {"bridge-status"}  # the scene has no brokers
    # test_compare.py, test_history.py, test_restore.py, tests/judge and tests/sandbox check these.
    elsewhere = ("compare", "history", "offsets-restore", "sandbox")
    others |= {name for name in schemas() if name.startswith(elsewhere)}
    assert set(schemas()) - set(COMMANDS) == others | tested_below
    fits("assign-assignor", json.loads(run("assign", "g", "--assignor", "sticky", "-o", "json")))
    fits("plan", json.loads(Path("plan.json").read_text()))
    (backup,) = Path().glob("zkconsumer/backups/*/*.json")
    fits("plan", json.loads(backup.read_text()))
    fits("offsets", json.loads(run("offsets", "export", "g")))


def test_csv_has_the_fields_of_json(scene: Scene) -> None:
    """In CSV a member's subscription is JSON, and a row of lag has reasons of unknown values."""
    found = list(csv.DictReader(io.StringIO(run("members", "g", "-o", "csv"))))
    assert [json.loads(row["subscription"]) for row in found] == [{"t": 2}, {"t": 1}]
    lags = list(csv.DictReader(io.StringIO(run("lag", "g", "--timeout", "0.3", "-o", "csv"))))
    assert set(json.loads(lags[0]["unknown"])) == {"kafka", "log_start", "log_end", "lag"}
    chosen = run("lag", "g", "--timeout", "0.3", "-o", "csv", "--columns", "partition,topic")
    assert chosen.splitlines()[1:] == ["0,t,", "1,t,"]
    bare = run("groups", "list", "-o", "csv", "--no-headers", "--sort", "-group")
    assert [line.split(",")[0] for line in bare.splitlines()] == ["idle", "g", "broken"]


@pytest.mark.parametrize("name", WITHOUT_SERVERS)
def test_output_without_servers(name: str, tmp_path: Path) -> None:
    """JSON, YAML and JSON Lines have the same values, and fit the schema."""
    text, cases = WITHOUT_SERVERS[name]
    file = tmp_path / "cases"
    file.write_text("".join(json.dumps(one) + "\n" for one in cases))
    words = text.replace("FILE", str(file)).split()
    document = json.loads(run(*words, "-o", "json"))
    assert document
    fits(name, document)
    lines = [json.loads(line) for line in run(*words, "-o", "jsonl").splitlines()]
    for line in lines:
        fits(name, line, item=True)
    assert lines == document
    assert yaml.safe_load(run(*words, "-o", "yaml")) == document


def test_shown_traces(tmp_path: Path) -> None:
    """`trace show` sorts the events by time; `trace check` prints the steps that it replayed."""
    file = tmp_path / "trace.jsonl"
    file.write_text(run("simulate", "--seed", "3", "--members", "2", "-o", "jsonl"))
    shown = json.loads(run("trace", "show", str(file), "-o", "json"))
    fits("trace-show", shown)
    assert [one["t"] for one in shown] == sorted(one["t"] for one in shown)
    assert [*map(json.loads, run("trace", "show", str(file), "-o", "jsonl").splitlines())] == shown
    found = json.loads(run("trace", "check", str(file), "-o", "json"))
    fits("trace-check", found)
    assert found["runs"] == len(found["phases"]) == 2
    assert found["transitions"] == sum("event" in one for one in shown)


def test_frames_of_the_lab() -> None:
    """The scene and the frames that the lab's page exports fit their schema."""
    engine = Engine()
    (opened, *_) = engine.command({"do": "open", "world": {}})
    (stepped,) = engine.command({"do": "step", "run": 1, "count": 9})
    assert stepped["frames"]
    for one in (opened["scene"], *stepped["frames"]):
        fits("lab-frames", one)


def test_traces() -> None:
    """Each line of a trace fits the schema; a member's line without `to` does not."""
    validator = Draft202012Validator(schemas()["trace"])
    lines = run(
        "simulate", "--seed", "3", "--members", "2", "--partitions", "3", "--output", "jsonl"
    )
    entries = [json.loads(line) for line in lines.splitlines()]
    for entry in entries:
        validator.validate(entry)
    decided = next(one for one in entries if "event" in one)
    assert not validator.is_valid({key: value for key, value in decided.items() if key != "to"})


def test_published(request: pytest.FixtureRequest) -> None:
    """docs/schemas contains the schemas of the commands' columns, and the command prints them."""
    found = {f"{name}.json": json.dumps(one, indent=2) + "\n" for name, one in published().items()}
    if request.config.getoption("--rewrite"):
        PUBLISHED.mkdir(exist_ok=True)
        for name, text in found.items():
            (PUBLISHED / name).write_text(text, encoding="utf-8")
    files = {file.name: file.read_text(encoding="utf-8") for file in PUBLISHED.iterdir()}
    assert files == found, f"pytest {__file__} --rewrite"
    assert all(run("schema", name.removesuffix(".json")) == text for name, text in found.items())
    for document in schemas().values():
        Draft202012Validator.check_schema(document)


def test_types() -> None:
    """A field's type may include null, and may be one of several types."""
    assert json_schema("integer") == {"type": "integer"}
    both = Draft202012Validator(json_schema("integer|string?"))
    assert all(map(both.is_valid, (1, "x", None)))
    assert not both.is_valid(1.5)
