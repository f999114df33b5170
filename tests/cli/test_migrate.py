"""`zkconsumer migrate`: the plan, the plan's effect, and the exit codes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.kafka.offsets import foreign
from support.members.group import Group, group_on
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.output import Progress
from zkconsumer.kafka import log_answers
from zkconsumer.protocol import paths
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import Sandbox

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """An idle group with the offsets 7 and 8 in ZooKeeper."""
    with group_on(sandbox, unique, partitions=2) as one:
        for number, value in enumerate((b"7", b"8")):
            one.admin.create(paths.offset(one.name, one.tp(number)), value, makepath=True)
        yield one


@pytest.fixture
def ask(group: Group, tmp_path: Path) -> Ask:
    """Run `migrate` for the group and the topic of the test, in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(
            app,
            [
                "migrate",
                *arguments,
                "--zookeeper",
                group.sandbox.zookeeper_connect,
                "--group",
                group.name,
                "--topic",
                group.topic,
                "--timeout",
                "30",
                "--backup-dir",
                str(tmp_path),
            ],
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result.exit_code, result.stdout, result.stderr

    return run


def test_preview(ask: Ask, group: Group) -> None:
    """`--preview` needs members, excludes --execute, and prints the assignment in Kafka."""
    code, out, err = ask("zookeeper-to-kafka", "--preview")
    assert (code, out) == (2, "")
    assert "the group has no threads" in err
    code, out, err = ask("zookeeper-to-kafka", "--preview", "--execute")
    assert (code, out) == (2, "")
    assert "--preview and --execute exclude each other" in err
    code, out, err = ask("zookeeper-to-kafka", "--preview", "--plan-out", "p.json")
    assert (code, "--preview and --plan-out exclude each other" in err) == (2, True)
    code, out, err = ask("zookeeper-to-kafka", "--assignor", "sticky")
    assert (code, "--assignor is used by --preview only" in err) == (2, True)
    registration = encode_registration(Registration({group.topic: 2}, timestamp_ms=1))
    path = paths.member(group.name, f"{group.name}_x")
    group.admin.create(path, registration, ephemeral=True, makepath=True)
    code, out, err = ask("zookeeper-to-kafka", "--preview", "-o", "json")
    assert code == 0, err
    (first, second) = json.loads(out)["assignment"].values()
    assert [first, second] == [{group.topic: [0]}, {group.topic: [1]}]


def test_a_migration_to_kafka_and_back(ask: Ask, group: Group) -> None:
    """After a dry run comes a verified migration, then one back, which lowers offsets by force."""
    code, out, err = ask("zookeeper-to-kafka", "-o", "json")
    assert code == 0
    assert [(row["zookeeper"], row["kafka"], row["action"]) for row in json.loads(out)] == [
        (7, None, "create"),
        (8, None, "create"),
    ]
    assert "dry run, nothing was written" in err
    with foreign(group.sandbox.zookeeper_connect, group.name, group.topic) as kafka:
        assert kafka.offsets(0, 1) == {}
        code, _, err = ask("zookeeper-to-kafka", "--execute")
        assert code == 0, err
        assert "verified: 2 of 2 offsets were written" in err
        assert kafka.offsets(0, 1) == {0: 7, 1: 8}
        kafka.commit({0: 5, 1: 9})
    code, out, err = ask("kafka-to-zookeeper", "--execute")
    assert code == 1
    assert "1 partitions are not migrated" in err
    assert "not lowered unless forced" in out
    read = [group.admin.get(paths.offset(group.name, group.tp(n)))[0] for n in (0, 1)]
    assert read == [b"7", b"9"]
    code, _, err = ask("kafka-to-zookeeper", "--execute", "--force-lower-offsets")
    assert code == 0, err
    assert group.admin.get(paths.offset(group.name, group.tp(0)))[0] == b"5"


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (1, "1 of 2 offsets were read; nothing was written"),
        (3, "1 of 2 offsets were read; all changes were made, but they could not be verified"),
    ],
    ids=["before", "after"],
)
def test_ctrl_c(
    ask: Ask, group: Group, monkeypatch: pytest.MonkeyPatch, reading: int, said: str
) -> None:
    """Ctrl-C reports how many offsets were read, and whether changes were made."""
    monkeypatch.setattr(
        log_answers, "PARTITIONS_PER_REQUEST", 1
    )  # Each request carries one offset.
    advanced, calls = Progress.advanced, itertools.count(1)

    def interrupted(self: Progress, done: int, total: int) -> None:
        advanced(self, done, total)
        if type(self) is Progress and next(calls) == reading:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advanced", interrupted)
    code, _, err = ask("zookeeper-to-kafka", "--execute")
    assert code == 130
    assert f"interrupted: {said}" in err
    monkeypatch.setattr(Progress, "advanced", advanced)
    code, out, err = ask("zookeeper-to-kafka", "--execute", "-o", "json")
    assert code == 0, err
    expected = "create" if reading == 1 else "same"
    assert [row["action"] for row in json.loads(out)] == [expected] * 2


def test_outside_the_log(ask: Ask, group: Group) -> None:
    """An offset above the log's end is migrated unchanged, and the output says why."""
    group.write(0, b"99")
    code, out, _ = ask("zookeeper-to-kafka", "-o", "json")
    assert code == 0
    row = json.loads(out)[0]
    assert row["action"] == "create"
    assert re.fullmatch(
        r"beyond the end of the log \(\d+\): members will apply auto.offset.reset", row["reason"]
    )


def test_a_live_group(ask: Ask, group: Group) -> None:
    """For a live group the command refuses, with exit code 4."""
    path = paths.member(group.name, "x")
    group.admin.create(path, b"{}", ephemeral=True, makepath=True)
    code, out, err = ask("zookeeper-to-kafka", "--execute")
    assert (code, out) == (4, "")
    assert "do not commit to both stores" in err
