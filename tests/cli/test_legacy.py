"""`zkconsumer legacy` prints what the real tools of five releases printed.

The output is equal byte for byte, except that options and their descriptions are compared word by
word: zkconsumer breaks their lines at other places.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from support.jvm.tools import RELEASES, TOPICS, World, captured_runs, produce, without_stacks

from zkconsumer.sandbox import Sandbox

# How zkconsumer differs from a recorded run, and why. Everything else is equal, except the stack
# traces of the JVM (`without_stacks`) and the path of a backup.
REFUSED = {
    "DIR/import.txt": "a line without a colon: the JVM threw an exception, zkconsumer names it",
    "DIR/import2.txt": "values that are no numbers: the JVM wrote them, and no member could start",
}
# Broker timing and threads determine the order of messages in different partitions.
MIXED = "ConsoleConsumer"
# The JVM prints partitions in the order of the broker's answer, zkconsumer in ascending order.
SORTED = "GetOffsetShell"

# The captures have no run of this release on groups with idle members.
NO_IDLE_RUNS = "0.10.2.2"

# The captures have at most this many characters of standard error.
CUT = 6000


@pytest.fixture(scope="module")
def topics(sandbox: Sandbox) -> Sandbox:
    """The three topics of the captures."""
    for name, partitions in TOPICS.items():
        sandbox.create_topic(name, partitions=partitions)
    produce(sandbox)
    return sandbox


@pytest.fixture(scope="module")
def worlds(topics: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """A chroot and a directory for each release."""
    found = {}
    for release in RELEASES:
        found[release] = World(topics, release, tmp_path_factory.mktemp(f"old-{release}"))
        found[release].build()
    return found


@pytest.fixture(scope="module")
def more(topics: Sandbox) -> None:
    """Produce the messages of each topic again, as the captures did before their last runs."""
    produce(topics)


@pytest.mark.parametrize("release", RELEASES)
def test_recorded(release: str, worlds: dict[str, World]) -> None:
    """Except for two refused imports, each run has the same output, exit code, files and znodes."""
    world = worlds[release]
    lines = [line for line in captured_runs(release) if not line["state"].startswith("idle")]
    files(world, lines)
    told = Counter[str]()
    for line in lines:
        told[replay(world, line)] += 1
    assert told["equal"] >= 60 and told["refused"] == 2, told


@pytest.mark.parametrize("release", [one for one in RELEASES if one != NO_IDLE_RUNS])
def test_recorded_idle(release: str, worlds: dict[str, World], more: None) -> None:
    """With idle members, or with missing or malformed offsets, each run equals its capture."""
    world = worlds[release]
    lines = [line for line in captured_runs(release) if line["state"].startswith("idle")]
    snapshots = [line for line in lines if "znodes" in line]
    replayed = 0
    for snapshot in snapshots:
        group = snapshot["znodes"][0]["path"]
        own = [line for line in lines if "class" in line and group.split("/")[2] in line["args"]]
        offsets = [one for one in snapshot["znodes"] if one["path"].startswith(f"{group}/offsets")]
        world.put([one for one in snapshot["znodes"] if one not in offsets])
        for line in own:
            if "offsets tool3/0" in line["state"]:
                world.put(offsets)
            assert replay(world, line) == "equal"
        replayed += len(own)
        world.delete(group)
    assert replayed == sum("class" in line for line in lines) > 0


# ---- playing a line -----------------------------------------------------------------------------


def files(world: World, lines: list[dict[str, Any]]) -> None:
    """The input files of the recorded runs."""
    for line in lines:
        for name, text in line.get("import_files", {}).items():
            (world.directory / name).write_text(text)
    properties = f"zookeeper.connect={world.connect}\ngroup.id=updg\n"
    (world.directory / "consumer.properties").write_text(properties)
    settings = "group.id=ccg\nconsumer.id=cc\nconsumer.timeout.ms=6000\n"
    (world.directory / "cc.properties").write_text(settings)


def replay(world: World, line: dict[str, Any]) -> str:
    """Create the znodes of a recorded run, run its tool, and compare the results."""
    state = line["state"]
    if state.startswith(("active: ", "odd: ")):
        world.put(line["znodes"])
        return "state"
    if state == "znodes after the two ImportZkOffsets":
        return "state"  # zkconsumer refuses these imports, so the znodes differ.
    if "znodes" in line:
        roots = {"/".join(one["path"].split("/")[:3]) for one in line["znodes"]}
        recorded = {one["path"]: one["data"] for one in line["znodes"]}
        found = world.below(*roots)
        if "console consumer" in state:
            # A zkconsumer member creates parents with an empty payload, which no client reads.
            found = {path: data or recorded.get(path) for path, data in found.items()}
        assert found == recorded
        return "equal"
    if "children" in line:
        assert [one for one in world.groups() if not one.startswith("seqg")] == line["children"]
        return "equal"
    owners = "/consumers/toolg/owners/tool"
    if state.endswith("owner node of tool/1 deleted"):
        world.delete(f"{owners}/1")
    elif state == "no active member":
        gone = [path for path in world.below("/consumers/toolg") if path.count("/") > 3]
        world.delete(*(p for p in gone if "/ids/" in p or p.startswith(f"{owners}/")))
    foreign = re.findall(r"(?:^|/)(seqg\w?)\b", line["stdout"], re.MULTILINE)
    world.ensure(*foreign)
    return compare(world, line)


def compare(world: World, line: dict[str, Any]) -> str:
    tool = line["class"].rpartition(".")[2]
    is_refused = not REFUSED.keys().isdisjoint(line["args"])
    before = world.below("/consumers") if is_refused else {}
    code, *told = world.run(tool, *line["args"])
    out, err = map(by_words, told)
    if is_refused:
        assert (code, out) == (1, "")
        assert re.match(r"zkconsumer: .* \(DIR/\w+\.txt:\d\): .* no offset was imported\n$", err)
        assert world.below("/consumers") == before
        return "refused"
    assert code == line["exit"], (line, err)
    expected = by_words(without_stacks(line["stdout"]))
    if tool == MIXED:
        assert shape(out) == shape(expected)
    elif tool == SORTED:
        assert out.splitlines() == sorted(expected.splitlines())
    else:
        assert out == expected, line["args"]
    wanted = by_words(without_stacks(line["stderr"]))
    is_cut = len(line["stderr"]) >= CUT
    assert err.startswith(wanted) if is_cut else err == wanted, line["args"]
    for name, text in line.get("files", {}).items():
        assert (world.directory / name.removeprefix("DIR/")).read_text() == text
    return "equal"


HEAD = re.compile(r"^Option +(?=Description *$)", re.MULTILINE)

# Between the pieces of a word at which java.text.BreakIterator allows a line break.
PIECES = re.compile(r"(?<=[-!%.,:;?\")\]}]) | (?=[($\"\[{])")


def by_words(text: str) -> str:
    """Return the text with one line for each option of a help, and each word's blanks removed.

    The help is in two columns, and stands at the end of an output.
    """
    head = HEAD.search(text)
    if head is None:
        return text
    width = len(head[0])
    options: list[tuple[list[str], list[str]]] = []
    for line in text[head.end() :].splitlines()[2:]:
        if line.startswith("--"):
            options.append(([], []))
        for cell, words in zip(options[-1], (line[:width], line[width:]), strict=True):
            cell.extend(words.split())
    lines = (PIECES.sub("", " ".join((*name, ">", *words))) for name, words in options)
    return "\n".join((text[: head.start()], *lines))


def shape(text: str) -> tuple[int, bool]:
    """Return the console consumer's lines, in order within each partition, with or without keys."""
    partitions: dict[str, list[int]] = {}
    lines = text.splitlines()
    for line in lines:
        match = re.fullmatch(r"(?:k(\d+)\t)?(\w+-\d)-(\d+)", line)
        assert match is not None and match[1] in (None, match[3]), line
        partitions.setdefault(match[2], []).append(int(match[3]))
    assert all(numbers == list(range(len(numbers))) for numbers in partitions.values()), text
    return len(lines), "\t" in text
