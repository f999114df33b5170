"""docs/operators.md: on real servers each recipe has the described effect and output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Producer
from kazoo.client import KazooClient
from support.kafka.offsets import foreign
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.admin.exporter import OWN, READINGS
from zkconsumer.cli import COMMANDS, app
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.output import Progress
from zkconsumer.cli.sources import SettingSource
from zkconsumer.kafka.columns.compilation import fastest_engine
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port
from zkconsumer.sandbox.process import until

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
RECIPES = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BACKUP = re.compile(r"zkconsumer-backup-[\w.-]+?-\d{8}T[\d.]+Z-[0-9a-f]{12}\.json")
ADDRESS = "zk1:2181/kafka"
# Values that differ between runs, and the widths of columns.
VARYING = {
    r"\d{4}-\d\d-\d\d[T ][\d:.,]+(Z|\+00:00)?": "TIME",
    r"0x[0-9a-f]+": "SESSION",
    r"client at [0-9.]+:\d+": "CLIENT",
    r"\d+\.\d\d s\b": "SECONDS",
    r"\d+ s ago": "SECONDS ago",
    r"[ \t]+": " ",
}
HOURS_S = 3600


class Recipe:
    """The group `billing` and the topic `orders` of a recipe, under names of this test."""

    def __init__(self, sandbox: Sandbox, suffix: str, zk: KazooClient) -> None:
        self.sandbox, self.suffix, self.zk = sandbox, suffix, zk

    def real(self, text: str) -> str:
        """Return a text of the page with the names of this test."""
        text = text.replace(ADDRESS, self.sandbox.zookeeper_connect)
        return re.sub("billing|orders", lambda name: name.group() + self.suffix, text)

    def told(self, text: str) -> str:
        """Return a text with the names of the page, and without values that differ between runs."""
        text = text.replace(self.suffix, "")
        for pattern, stead in VARYING.items():
            text = re.sub(pattern, stead, text)
        return "".join(f"{line.strip()}\n" for line in text.splitlines())

    @property
    def group(self) -> str:
        return self.real("billing")

    @property
    def topic(self) -> str:
        return self.real("orders")

    # ---- what there is ---------------------------------------------------------------------------

    def messages(self, partitions: int = 2) -> None:
        """Each partition has four messages that are two hours old and three new ones."""
        self.sandbox.create_topic(self.topic, partitions=partitions)
        producer = Producer({"bootstrap.servers": self.sandbox.bootstrap})
        now = int(time.time() * 1000)
        for partition in range(partitions):
            for age_s in [2 * HOURS_S] * 4 + [0] * 3:
                producer.produce(
                    self.topic, b"m", partition=partition, timestamp=now - age_s * 1000
                )
        assert producer.flush(60) == 0

    def offsets(self, *values: object) -> None:
        for number, value in enumerate(values):
            path = paths.offset(self.group, TopicPartition(self.topic, number))
            self.zk.create(path, str(value).encode(), makepath=True)

    def member(self, name: str, threads: int = 1) -> None:
        """Register a member that stays until the end of the test."""
        data = encode_registration(Registration({self.topic: threads}, Pattern.STATIC, 1))
        path = paths.member(self.group, f"{self.group}_{name}")
        self.zk.create(path, data, ephemeral=True, makepath=True)

    def owner(self, partition: int, thread: str) -> None:
        path = paths.owner(self.group, TopicPartition(self.topic, partition))
        data = f"{self.group}_{thread}".encode()
        self.zk.create(path, data, ephemeral=True, makepath=True)

    # ---- the effects of a recipe -----------------------------------------------------------------

    def stored(self, group: str = "billing", topic: str = "orders") -> list[str]:
        """Return the contents of the offset znodes, in the order of the partitions."""
        above = paths.offsets_of(self.real(group), self.real(topic))
        if not self.zk.exists(above):
            return []
        numbers = sorted(self.zk.get_children(above), key=int)
        return [self.zk.get(f"{above}/{number}")[0].decode() for number in numbers]

    def has_group(self, name: str) -> bool:
        return self.zk.exists(paths.group(self.real(name))) is not None

    # ---- the page's commands ---------------------------------------------------------------------

    def run(self, line: str) -> tuple[int, str]:
        """Return a command's exit code and output; the page's backup stands for the newest one."""
        words = shlex.split(BACKUP.sub(newest_backup, self.real(line)))
        assert words.pop(0) == "zkconsumer"
        done = CliRunner().invoke(app, words)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output


def newest_backup(_: object = None) -> str:
    return str(max(Path().glob("**/zkconsumer-backup-*.json"), key=os.path.getmtime))


@pytest.fixture
def stage(
    sandbox: Sandbox,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Recipe]:
    """An empty directory, with the environment variables that the page requires."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", sandbox.zookeeper_connect)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # On a busy machine a command may work so long that it shows its progress; the page has none.
    monkeypatch.setattr(Progress, "DELAY_S", HOURS_S)
    with peer_of(sandbox.zookeeper_connect) as zk:
        yield Recipe(sandbox, unique(""), zk)


# ---- what there is before a recipe, and after ----------------------------------------------------


def at_rest(stage: Recipe) -> None:
    stage.messages()
    stage.offsets(7, 7)


def live(stage: Recipe) -> None:
    at_rest(stage)
    stage.member("b")
    stage.owner(0, "b-0")
    stage.owner(1, "b-0")


def lagging(stage: Recipe) -> None:
    stage.messages()
    stage.offsets(5, 5)
    stage.member("b")
    stage.owner(0, "b-0")
    stage.owner(1, "b-0")


def blocked(stage: Recipe) -> None:
    """Let an unregistered thread own a partition that is assigned to another thread."""
    at_rest(stage)
    stage.member("b", threads=2)
    stage.owner(0, "b-0")
    stage.owner(1, "a-0")


def settled(stage: Recipe) -> None:
    at_rest(stage)
    stage.member("b", threads=2)
    stage.owner(0, "b-0")
    stage.owner(1, "b-1")


def idle(stage: Recipe) -> None:
    """Let eight threads share three partitions, so that five are idle."""
    stage.messages(partitions=3)
    stage.offsets(7, 7, 7)
    stage.member("a", threads=4)
    stage.member("b", threads=4)
    for partition in range(3):
        stage.owner(partition, f"a-{partition}")


def gone(stage: Recipe) -> None:
    at_rest(stage)
    stage.sandbox.delete_topic(stage.topic)
    assert until(lambda: not stage.zk.exists(paths.topic(stage.topic)), limit_s=LIMIT_S)


def malformed(stage: Recipe) -> None:
    """Write an empty registration that belongs to no session."""
    at_rest(stage)
    stage.member("a")
    stage.owner(0, "a-0")
    stage.owner(1, "a-0")
    stage.zk.create(paths.member(stage.group, f"{stage.group}_old"), b"")


def unmoved(stage: Recipe) -> None:
    assert stage.stored() == ["7", "7"]


def copied_and_deleted(stage: Recipe) -> None:
    assert stage.stored() == ["7", "7"]
    assert not stage.has_group("billing-test")


def in_kafka(stage: Recipe) -> None:
    with foreign(stage.sandbox.zookeeper_connect, stage.group, stage.topic) as kafka:
        assert kafka.offsets(0, 1) == {0: 7, 1: 7}


def deleted(stage: Recipe) -> None:
    """Check that the backup restores the group, as the page says it does."""
    assert not stage.has_group("billing")
    # Delete the group as the page does.
    name = "zkconsumer-backup-billing-20260131T120000.000000Z-0123456789ab.json"
    code, output = stage.run(f"zkconsumer undo {name} --execute")
    assert code == 0, output
    assert stage.stored() == ["7", "7"]


def forgotten(stage: Recipe) -> None:
    assert stage.stored() == []
    assert stage.has_group("billing")


def mended(stage: Recipe) -> None:
    assert stage.zk.get_children(paths.ids(stage.group)) == [f"{stage.group}_a"]


def exported(stage: Recipe) -> None:
    of = paths.offsets_of(stage.group, stage.topic)
    lines = Path(stage.real("offsets.txt")).read_text().splitlines()
    assert sorted(lines) == [f"{of}/0:7", f"{of}/1:7"]


def exportable(stage: Recipe) -> None:
    """Prepare messages and a compiled decoder; else the command would report a compilation."""
    stage.messages()
    fastest_engine()


def written(stage: Recipe) -> None:
    """Check that the files contain all messages, and that the group has committed them."""
    names = sorted(path.name for path in Path(stage.topic).glob("*.parquet"))
    assert names == [f"{stage.topic}-{n}-{0:020}..{6:020}.parquet" for n in range(2)]
    assert stage.stored() == ["7", "7"]


def nothing(stage: Recipe) -> None:
    """Check nothing, because the recipe only reads."""


Step = Callable[[Recipe], None]
# The sessions of the page in order; each has its preparation and the check of its effect.
SCENES: dict[str, list[tuple[Step, Step]]] = {
    "Move a group back an hour": [(at_rest, unmoved), (live, unmoved)],
    "Clone a group for a test": [(at_rest, copied_and_deleted)],
    "Migrate a group's offsets to Kafka": [(at_rest, in_kafka)],
    "Find who blocks a rebalance": [(blocked, nothing), (settled, nothing)],
    "See the lag, and alert on it": [(lagging, nothing)],
    "Back up offsets, and restore them": [(at_rest, unmoved)],
    "Threads that are idle": [(idle, nothing)],
    "Delete a dead group": [(at_rest, deleted)],
    "Forget a deleted topic": [(gone, forgotten)],
    "JVM members fail on a malformed registration": [(malformed, mended)],
    "Export a topic to files": [(exportable, written)],
    "Scripts that call the old tools": [(at_rest, exported)],
}
SESSIONS = [(name, number) for name, scenes in SCENES.items() for number in range(len(scenes))]


def steps(session: str) -> list[tuple[str, str, int]]:
    """Return the commands of a session, with the output and the exit code of each.

    `echo $?` prints the exit code. Where it is missing, the code of `doctor` is 6 if it reports a
    problem and is no dry run, and all other codes are 0.
    """
    found: list[tuple[str, str, int]] = []
    for part in session.replace("\\\n", "").split("$ ")[1:]:
        line, _, printed = part.partition("\n")
        if line == "echo $?":
            found[-1] = (*found[-1][:2], int(printed))
        else:
            is_dry_run = line.endswith("--fix")
            is_found = "of which --fix can fix" in printed and not is_dry_run
            found.append((line, printed, Exit.FOUND if is_found else Exit.OK))
    return found


@pytest.mark.parametrize(("recipe", "number"), SESSIONS)
def test_a_recipe(stage: Recipe, recipe: str, number: int) -> None:
    """The commands of a recipe have the output, the exit codes and the effects on the page."""
    before, after = SCENES[recipe][number]
    before(stage)
    for line, printed, code in steps(SESSION.findall(RECIPES[recipe])[number]):
        exit_code, output = stage.run(line)
        assert exit_code == code, output
        pieces = map(stage.told, re.split(r"^\.\.\.\n", printed, flags=re.MULTILINE))
        assert re.fullmatch("(.*\n)*".join(map(re.escape, pieces)), stage.told(output)), output
    after(stage)


def test_every_session_is_run() -> None:
    """The tests run every recipe on the page, and each session of the recipe."""
    found = {name: len(SESSION.findall(text)) for name, text in RECIPES.items()}
    assert {name: count for name, count in found.items() if count} == {
        name: len(scenes) for name, scenes in SCENES.items()
    }


def test_the_alert(stage: Recipe) -> None:
    """The exporter serves the gauges that the alert rules on the page use."""
    recipe = RECIPES["See the lag, and alert on it"]
    named = set(re.findall(r"expr: .*?(zkconsumer_\w+)", recipe))
    assert named
    assert named <= {name for name, _, _ in (*OWN, *READINGS)}
    (line,) = re.findall(r"^```sh\nzkconsumer (.*)\n```$", recipe, re.MULTILINE)
    port = free_port()
    words = shlex.split(stage.real(line).replace("9308", str(port)).replace("0.0.0.0", "127.0.0.1"))
    live(stage)
    process = subprocess.Popen(
        [sys.executable, "-m", "zkconsumer", *words], stderr=subprocess.PIPE, text=True
    )

    address = f"http://127.0.0.1:{port}/metrics"
    wanted = [*(f"\n{name}" for name in named), f'status="OK",topic="{stage.topic}"']

    def served() -> str:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        eventually(lambda: (page := served()) and all(one in page for one in wanted))
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == Exit.INTERRUPTED
    finally:
        process.kill()
        process.communicate()


# ---- the table, and Python -----------------------------------------------------------------------


def test_every_command_is_in_the_table() -> None:
    """The table names each command, and all its subcommands."""
    section = PAGE.split("\n### Commands\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    root: Any = typer.main.get_command(app)
    context = typer.Context(root)
    listed = []
    for first, second in rows:
        names = re.findall(r"`(\w+)`", first)
        listed += names
        below = set(re.findall(r"`(?:(?:trace|sandbox) )?([\w-]+)`", second))
        there = set()
        for name in names:
            command = root.get_command(context, name)
            there |= set(getattr(command, "commands", {}))
        assert below == there, first
    assert sorted(listed) == sorted(COMMANDS)


def test_the_exit_codes() -> None:
    """The page lists exactly the exit codes that exist."""
    listed = re.findall(r"^\| (\d+) \| .*? \|$", PAGE, re.MULTILINE)
    assert list(map(int, listed)) == list(Exit)


def test_the_precedence() -> None:
    """The page lists the sources of settings in the order that the commands use."""
    section = PAGE.split("\n### Sources of settings\n")[1].split("\n##")[0]
    listed = re.findall(r"^\d+\. (.*)\.$", section, re.MULTILINE)
    assert [line.replace("`", "") for line in listed] == [
        one.value.replace("`", "") for one in SettingSource
    ]


def test_the_calls(stage: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    """The last Python program on the page runs unchanged, except for names."""
    at_rest(stage)
    *_, program = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    # The page is a file of this repository.
    exec(compile(stage.real(program), "operators.md", "exec"), {})
    said = capsys.readouterr().out
    for line in ("lag [0, 0]", "moved 2", "to import 0", "to forget 3", "settled False"):
        assert line in said
    assert stage.stored() == ["7", "7"]
    in_kafka(stage)
