"""`zkconsumer compare`: one script under each protocol, growth, split brain, and bad input."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.sim.compare import growth

SMALL = ("--members", "3", "--partitions", "6", "--script", "join; kill g_1")


def run(*words: str) -> tuple[int, str, str]:
    """Run `compare` in this process."""
    result = CliRunner().invoke(app, ["compare", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    return result.exit_code, result.stdout, result.stderr


def test_the_costs() -> None:
    """`compare` prints one row per protocol, and the rows fit the published JSON Schema."""
    code, out, _ = run(*SMALL, "-o", "json")
    assert code == 0
    found = json.loads(out)
    Draft202012Validator(schemas()["compare"]).validate(found)
    assert [row["protocol"] for row in found] == [
        *("zookeeper-jvm", "zookeeper", "classic-eager", "classic-cooperative", "consumer")
    ]


def test_chosen_protocols() -> None:
    """With --protocols `compare` prints these only; eager members move more than needed."""
    code, out, _ = run("--script", "join", "--protocols", "classic-eager,consumer", "-o", "json")
    assert code == 0
    eager, consumer = json.loads(out)
    assert (eager["protocol"], eager["without_need"]) == ("classic-eager", 10)
    assert (consumer["moved"], consumer["without_need"]) == (4, 0)


def test_growth_and_split_brain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of growth and of split brain fit their published JSON Schemas."""
    monkeypatch.setattr(growth, "SIZES", (2, 5, 10))
    for show in ("growth", "sizes", "split-brain"):
        words = ("--show", show, "--protocols", "classic-eager,consumer", "-o", "json")
        code, out, _ = run(*words)
        assert code == 0
        found = json.loads(out)
        Draft202012Validator(schemas()[f"compare-{show}"]).validate(found)
        assert found


def test_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTML page has a table for each part, and shows the script as text."""
    monkeypatch.setattr(growth, "SIZES", (2, 3))
    code, out, _ = run(*SMALL, "--protocols", "consumer", "-o", "html")
    assert code == 0
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]  # of a class
    parser.feed(out)
    assert tags.count("table") == 4
    assert "join; kill g_1, 3 members, 6 partitions" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--script", "jion"), "'jion' is not a step of a script"),
        (("--script", "kill g_8"), "g_8 is not in the group"),
        (("--script", " ; "), "the script has no step"),
        (("--members", "0"), "the number of members must be between 1 and"),
        (("--members", "200"), "the group grows to more than 200 members"),
        (("--partitions", "1000000"), "the number of partitions must be between 1 and"),
        (("--protocols", "consumers"), "'consumers' is not a protocol"),
        (("--script", "freeze g_0 9999s"), "a freeze is longer than"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str) -> None:
    """For bad input the command prints one error sentence but no table; exit code 2."""
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1
