"""`zkconsumer assign`, for groups in files and for a group on a real ZooKeeper."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from kazoo.client import KazooClient

from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import GroupInput, assign_each_member
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.protocol.releases import profile
from zkconsumer.sandbox import ZooKeeperServer

GOLDEN = Path(__file__).parents[1] / "golden" / "assignor"


def documents(text: str) -> list[dict[str, Any]]:
    """Return one JSON object per line; only line feeds end a line."""
    return [json.loads(line) for line in text.split("\n") if line]


# ---- cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["0.8.2.2", "0.10.2.2", "1.1.1"])
def test_captured_cases(call: Run, release: str) -> None:
    """A gzip file in the format of the captures gives the captured results and errors in order."""
    path = GOLDEN / "documented_and_failures.jsonl.gz"
    code, out, err = call("assign", "--cases", str(path), "--release", release, "--output", "jsonl")
    assert (code, err) == (0, "")
    cases = documents(gzip.decompress(path.read_bytes()).decode())
    for case, found in zip(cases, documents(out), strict=True):
        (result,) = (r for r in case["results"] if release in r["releases"])
        expected = {
            one: error["class"]
            for one, error in (result.get("errors") or {}).items()
            if one in case["registrations"]
        }
        assert found.keys() == {"case", "name", "release", "assignment", "errors"}
        assert (found["case"], found["name"]) == (case["case"], case["name"])
        assert found["release"] == release
        assert found["assignment"] == result["assignment"]
        assert {one: error["error"] for one, error in found["errors"].items()} == expected
        assert all(error["message"] for error in found["errors"].values())


def case(**fields: object) -> str:
    """Return one line of a file of groups."""
    registration = encode_registration(Registration({"t": 1}, timestamp_ms=1)).decode()
    defaults = {
        "case": 7,
        "strategy": "range",
        "registrations": {"g_a": registration, "g_b": registration},
        "topics": {"t": '{"partitions":{"0":[0],"1":[0]}}'},
    }
    return json.dumps(defaults | fields)


def test_a_table_of_cases(call: Run, tmp_path: Path) -> None:
    """A file may be uncompressed; its results are ignored, and missing fields have defaults."""
    path = tmp_path / "cases.jsonl"
    path.write_text(case(results="x", exclude_internal_topics=None) + "\n\n")
    code, out, _ = call("assign", "--cases", str(path), "--release", "0.9")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["case", "7"],
        ["TOPIC", "PARTITION", "THREAD", "OWNER"],
        ["t", "0", "g_a-0", "-"],
        ["t", "1", "g_b-0", "-"],
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        case(strategy="sticky"),
        case(registrations=[]),
        case(topics={"t": 1}),
        case(ids_child_order="g_a"),
    ],
)
def test_a_bad_case(call: Run, tmp_path: Path, line: str) -> None:
    """For a line that does not describe a group, the error names file and line; exit code 2."""
    path = tmp_path / "cases.jsonl"
    path.write_text(f"{case()}\n{line}\n")
    code, _, err = call("assign", "--cases", str(path), "--release", "1.1.1", "--output", "jsonl")
    assert code == 2
    assert f"{path}:2" in err


@pytest.mark.parametrize("fill", [b" ", b"1", b"["])
def test_a_case_that_expands_without_end(call: Run, tmp_path: Path, fill: bytes) -> None:
    """A small gzip file that expands to one endless line is refused by its name."""
    path = tmp_path / "cases.jsonl.gz"
    path.write_bytes(gzip.compress(case().encode() + b"\n" + fill * (65 * 1024 * 1024), 1))
    code, _, err = call("assign", "--cases", str(path), "--release", "1.1.1", "--output", "jsonl")
    assert code == 2
    assert f"{path}:2" in err
    assert "the line is longer than" in err


def test_a_case_that_is_nested_too_deep(call: Run, tmp_path: Path) -> None:
    """A line with 100,000 levels of JSON is refused, as members refuse such a znode."""
    path = tmp_path / "cases.jsonl"
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    code, _, err = call("assign", "--cases", str(path), "--release", "1.1.1", "--output", "jsonl")
    assert code == 2
    assert "levels of brackets" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--cases", "x", "--group", "g"),
        ("--zookeeper", "127.0.0.1:1"),
        ("--cases", "does-not-exist", "--release", "1.1.1"),
        ("--cases", "does-not-exist"),
        ("--cases", "does-not-exist", "--release", "2.0.0"),
    ],
)
def test_wrong_usage(call: Run, arguments: tuple[str, ...]) -> None:
    """Two sources, no source, an unknown release or a missing file gives exit code 2."""
    code, out, err = call("assign", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("zkconsumer: ")


# ---- a live group -------------------------------------------------------------------------------


@pytest.fixture
def topic(client: KazooClient) -> Iterator[str]:
    """A topic of eleven partitions whose round-robin order differs between releases."""
    name = "goldrr-t"
    partitions = {"partitions": {str(n): [0] for n in range(11)}}
    client.create(paths.topic(name), json.dumps(partitions).encode(), makepath=True)
    yield name
    client.delete(paths.topic(name))


@pytest.fixture
def group(client: KazooClient, topic: str, unique: Callable[[str], str]) -> str:
    """Two members of 1.1.1 in a round-robin group that has settled."""
    name = unique("group")
    payload = encode_registration(Registration({topic: 1}, Pattern.STATIC, 1))
    members = {f"{name}_a": payload, f"{name}_b": payload}
    for member, registration in members.items():
        client.create(paths.member(name, member), registration, ephemeral=True, makepath=True)
    topics = {topic: client.get(paths.topic(topic))[0]}
    parts = assign_each_member(GroupInput(Strategy.ROUND_ROBIN, members, topics), profile("1.1.1"))
    for part in parts.values():
        assert isinstance(part, dict)
        for tp, thread in part.items():
            client.create(paths.owner(name, tp), thread.encode(), ephemeral=True, makepath=True)
    return name


@pytest.fixture
def ask(zookeeper: ZooKeeperServer, group: str, call: Run) -> Run:
    """Run `zkconsumer assign` for the group of the test."""
    return lambda *arguments: call(
        "assign", "--zookeeper", zookeeper.connect, "--group", group, *arguments
    )


def test_the_owner_nodes_say_which_release(ask: Run, group: str, topic: str) -> None:
    """Without --release, `assign` infers the release and says why, and no partition moves."""
    code, out, err = ask("--strategy", "roundrobin")
    assert code == 0
    rows = [line.split() for line in out.splitlines()][1:]
    assert [row[:2] for row in rows] == [[topic, str(n)] for n in range(11)]
    assert all(thread == owner for *_, thread, owner in rows)
    assert "computed by the rules of 1.0-1.1 (the owner znodes match 1.0-1.1)" in err


def test_what_if(ask: Run, group: str, topic: str) -> None:
    """If members were to leave or join, `assign` prints the new assignment as a JSON object."""
    code, out, _ = ask(
        "--leave",
        f"{group}_b",
        "--join",
        f"{group}_c:{topic}=2",
        "--release",
        "0.11",
        "--output",
        "jsonl",
    )
    assert code == 0
    (found,) = documents(out)
    assert (found["release"], found["reason"]) == ("0.11.0.3", "set with --release")
    counts = {member: len(topics[topic]) for member, topics in found["assignment"].items()}
    assert counts == {f"{group}_a": 4, f"{group}_c": 7}


def test_moves_are_shown_and_counted(ask: Run, group: str, topic: str) -> None:
    """For each set of --what-if options, each partition that would move is printed and counted."""
    wishes = f"+{group}_c:1 -{group}_b"
    code, out, err = ask(
        "--strategy", "roundrobin", "--what-if", wishes, "--what-if", f"{topic}=+1"
    )
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["TOPIC", "PARTITION", "THREAD", "OWNER", "MOVE"]
    moves = [row for row in rows[1:] if "->" in row]
    assert moves
    assert all(row[4:] == [row[3], "->", row[2]] for row in moves)
    assert f"{len(moves)} of 12 partitions move ({topic}: {len(moves)})" in err
    assert "1 without an owner get one" in err
    code, out, _ = ask("--strategy", "roundrobin", "--what-if", wishes, "--output", "json")
    document = json.loads(out)
    assert document["moves"]
    assert all(one["from"] != one["to"] for one in document["moves"])
    assert {f"{group}_c-0"} == {
        one["to"] for one in document["moves"] if one["from"].startswith(f"{group}_b")
    }


def test_members_that_would_fail(ask: Run, client: KazooClient, group: str) -> None:
    """If an unreadable registration would make all members fail, each is named; exit code 6."""
    client.create(paths.member(group, "x"), b"hello", ephemeral=True)
    code, out, err = ask("--release", "1.1.1")
    assert code == 6
    assert len(out.splitlines()) == 1 + 11, "the owners must be shown although members would fail"
    assert err.count("fails if it is a JVM member: kafka.common.KafkaException") == 3


def test_disagreements_are_named(ask: Run, client: KazooClient, group: str, topic: str) -> None:
    """A member that gave up because it sorts the partitions in another order is named."""
    for n in range(11):
        tp = TopicPartition(topic, n)
        if client.get(paths.owner(group, tp))[0].startswith(f"{group}_b-".encode()):
            client.delete(paths.owner(group, tp))
    code, _, err = ask("--strategy", "roundrobin")
    assert code == 0
    assert f"member {group}_b: " in err


@pytest.mark.parametrize("what", [("--leave", "nobody"), ("--join", "x"), ("--join", "x:t=0")])
def test_an_impossible_join_or_leave_is_refused(ask: Run, what: tuple[str, str]) -> None:
    """If an unknown member is to leave, or a join lacks a subscription, the exit code is 2."""
    assert ask(*what)[0] == 2


@pytest.mark.parametrize("assignor", ["range", "sticky", "uniform"])
def test_later_consumers(ask: Run, group: str, topic: str, assignor: str) -> None:
    """Each thread becomes a consumer of Kafka's own protocol; shares and moves are printed."""
    code, out, err = ask("--assignor", assignor, "--output", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    owned = [number for one in found["assignment"].values() for number in one[topic]]
    assert sorted(owned) == list(range(11))
    threads = {one: share["then"] for one, share in found["shares"].items()}
    assert all(thread.startswith(group) for thread in threads)
    assert max(threads.values()) - min(threads.values()) <= 1
    code, out, err = ask("--assignor", assignor)
    assert code == 0
    assert f"{len(found['moves'])} of 11 partitions move" in err
    assert err.count(f" with {assignor}\n") == len(threads)


def test_an_unknown_group(zookeeper: ZooKeeperServer, call: Run) -> None:
    """For a group that does not exist, the error names the group; exit code 1."""
    code, out, err = call("assign", "--zookeeper", zookeeper.connect, "--group", "nobody")
    assert (code, out) == (1, "")
    assert err.startswith("zkconsumer: group nobody does not exist")
