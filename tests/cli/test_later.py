"""`zkconsumer assign --assignor`, and `zkconsumer explain coordinator|partitioner|placement`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run

GOLDEN = Path(__file__).parents[1] / "golden" / "later" / "assignors.jsonl.gz"


def case(**fields: object) -> str:
    """Return a line of a file of cases."""
    member = {"topics": ["t"], "instance": None, "rack": None, "owned": {}, "generation": -1}
    topics = {"t": {"partitions": 3, "racks": None}}
    defaults = {"case": 7, "assignor": "range", "topics": topics, "members": {"m": member}}
    return json.dumps(defaults | fields) + "\n"


def documents(text: str) -> list[dict[str, Any]]:
    """Return one JSON object for each line."""
    return [json.loads(line) for line in text.splitlines()]


def test_captured_cases(call: Run) -> None:
    """A gzip file in the captures' format gives the captured results in order."""
    lines = documents(gzip.decompress(GOLDEN.read_bytes()).decode())
    code, out, err = call("assign", "--assignor", "sticky", "--cases", str(GOLDEN), "-o", "jsonl")
    assert (code, err) == (0, "")
    assert documents(out) == [line["answer"] for line in lines]


def test_other_formats(call: Run, tmp_path: Path) -> None:
    """A table has a row for each member and topic; JSON is a single list."""
    path = tmp_path / "cases"
    path.write_text(case())
    arguments = ("assign", "--assignor", "range", "--cases", str(path))
    code, out, _ = call(*arguments)
    assert code == 0
    assert out.splitlines()[1].split() == ["7", "m", "t", "0,1,2", "-"]
    code, out, _ = call(*arguments, "-o", "json")
    assert json.loads(out) == [{"case": 7, "assignment": {"m": {"t": [0, 1, 2]}}}]


@pytest.mark.parametrize(
    "line",
    [
        case(assignor="strict"),
        case(members={}),
        case(topics={"t": {"partitions": 10**6, "racks": None}}),
        case(topics={"t": {"partitions": 2, "racks": [["a"]]}}),
        "{",
    ],
)
def test_a_bad_case(call: Run, tmp_path: Path, line: str) -> None:
    """If a good case precedes a bad one, one sentence names the place, and nothing is printed."""
    path = tmp_path / "cases"
    path.write_text(case() + line)
    code, out, err = call("assign", "--assignor", "range", "--cases", str(path), "-o", "jsonl")
    assert (code, out) == (2, "")
    assert f"{path}:2" in err
    assert err.count("\n") == 1


def test_an_unknown_assignor(call: Run, tmp_path: Path) -> None:
    """For an unknown --assignor the error lists the known ones, as wrong usage."""
    code, out, err = call("assign", "--assignor", "strict", "--cases", str(tmp_path))
    assert (code, out) == (2, "")
    assert "cooperative-sticky" in err


# ---- explain -------------------------------------------------------------------------------------


def test_the_coordinator(call: Run) -> None:
    """`explain coordinator` prints a group's partition, even for the smallest hash code."""
    code, out, _ = call("explain", "coordinator", "polygenelubricants", "-o", "json")
    assert code == 0
    (found,) = json.loads(out)
    assert (found["hash"], found["partition"]) == (-(2**31), 0)


def test_the_vote(call: Run) -> None:
    """`explain vote` prints the group's choice, or a dash if no assignor is common."""
    for ballots, choice in ((["m=a,b", "n=b,a", "o=b,a"], "b"), (["m=a", "n=b"], "-")):
        code, out, _ = call("explain", "vote", *ballots)
        assert code == 0
        assert {line.split()[-1] for line in out.splitlines()[1:]} == {choice}


def test_the_partitioners(call: Run) -> None:
    """A key's partition is given by murmur2, and by Java's hash codes of bytes and of a string."""
    code, out, _ = call("explain", "partitioner", "--key", "21", "--partitions", "10", "-o", "json")
    assert code == 0
    hashes = {row["partitioner"]: row["hash"] for row in json.loads(out)}
    assert hashes["murmur2"] == -973932308
    assert hashes["old-string"] == 31 * ord("2") + ord("1")


def test_the_placement(call: Run) -> None:
    """`explain placement` prints the replicas by AdminUtils beside those by the simple rule."""
    numbers = ("--partitions", "6", "--replicas", "3")
    code, out, _ = call("explain", "placement", "--brokers", "0,1,2,3,4", *numbers, "-o", "jsonl")
    assert code == 0
    assert documents(out)[5] == {"partition": 5, "replicas": [0, 2, 3], "simple": [0, 1, 2]}


def test_cases_of_explain(call: Run, tmp_path: Path) -> None:
    """A file of cases gives one line per case; a file with a bad case gives none."""
    path = tmp_path / "cases"
    path.write_text('{"case": 1, "group": "a"}\n{"case": 2, "group": "b", "partitions": 7}\n')
    code, out, _ = call("explain", "coordinator", "--cases", str(path), "-o", "jsonl")
    assert code == 0
    assert [one["result"][0]["partition"] for one in documents(out)] == [97 % 50, 98 % 7]
    path.write_text('{"case": 1, "group": "a"}\n{"case": 2}\n')
    code, out, err = call("explain", "coordinator", "--cases", str(path), "-o", "jsonl")
    assert (code, out) == (2, "")
    assert f"{path}:2" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("coordinator",),
        ("coordinator", "billing", "--partitions", "0"),
        ("vote",),
        ("vote", "m1"),
        ("vote", "m1=range,,sticky"),
        ("partitioner", "--key-hex", "6", "--partitions", "3"),
        ("partitioner", "--key-hex", "6b"),
        ("partitioner", "--key-hex", "6b", "--key", "k", "--partitions", "3"),
        ("placement", "--brokers", "0,x"),
        ("placement", "--brokers", "0,1", "--replicas", "3"),
        ("placement", "--brokers", "0,1", "--racks", "0"),
        ("placement", "--brokers", "0,1", "--partitions", "1000000"),
    ],
)
def test_bad_input_of_explain(call: Run, arguments: tuple[str, ...]) -> None:
    """Bad input gives one sentence, exit code 2, and no output."""
    code, out, err = call("explain", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
