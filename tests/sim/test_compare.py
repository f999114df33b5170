"""One script under each protocol: partitions that move, stop, or have no owner."""

from __future__ import annotations

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.compare.growth import Growth, fitted, growth, laws
from zkconsumer.sim.compare.meter import Cost, Meter, fewest_moves
from zkconsumer.sim.compare.run import PROTOCOLS, compare, read_script
from zkconsumer.sim.compare.split_brain import split_brain

LATER = ("classic-eager", "classic-cooperative", "consumer")


def costs(script: str, members: int = 3, partitions: int = 12) -> dict[str, Cost]:
    """Return protocol -> the costs of the script under this protocol."""
    steps = read_script(script, members)
    found = compare(steps, members=members, partitions=partitions, protocols=PROTOCOLS)
    by_protocol = {one.protocol: one for one in found}
    assert list(by_protocol) == list(PROTOCOLS)
    return by_protocol


def test_a_join() -> None:
    """Sticky protocols move only the new member's share; eager ones also stop other partitions."""
    found = costs("join")
    assert {name: (one.moved, one.without_need) for name, one in found.items()} == {
        **dict.fromkeys(("zookeeper-jvm", "zookeeper", "classic-eager"), (6, 3)),
        **dict.fromkeys(("classic-cooperative", "consumer"), (3, 0)),
    }
    stops = {name for name, one in found.items() if one.stopped_s}
    assert stops == {"zookeeper-jvm", "classic-eager"}
    assert [name for name, one in found.items() if one.notifications] == [
        *("zookeeper-jvm", "zookeeper")
    ]
    assert all(one.requests and one.bytes for one in found.values())


def test_a_kill() -> None:
    """The partitions of a killed member have no owner until its session expires (6 s or 45 s)."""
    for name, one in costs("kill g_1").items():
        session_s = 45.0 if name in LATER else 6.0
        assert session_s - 5.0 <= one.settled_s <= session_s + 10.0, name
        assert 4 * (session_s - 5.0) <= one.unowned_s, name


def test_a_freeze() -> None:
    """A freeze moves partitions only if it lasts longer than the protocol's session timeout."""
    found = costs("freeze g_0 10s", members=2, partitions=4)
    for name in LATER:
        assert (found[name].moved, found[name].unowned_s) == (0, pytest.approx(20.0, abs=0.1))
    assert found["zookeeper"].moved == 4
    assert found["zookeeper"].unowned_s < 20.0


def test_the_last_member_leaves() -> None:
    """An empty group owns no partition; the next member to join gets all partitions."""
    for name, one in costs("leave g_0; join", members=1, partitions=4).items():
        assert (one.moved, one.without_need) == (4, 0), name


def test_a_script_is_the_same_each_time() -> None:
    """Two runs of the same script are equal."""
    assert costs("join; kill g_0") == costs("join; kill g_0")


def test_the_meter() -> None:
    """A gap counts as unowned before another owner, and as stopped before the same owner."""
    meter = Meter()
    p, q = TopicPartition("t", 0), TopicPartition("t", 1)
    meter.observe(0.0, {p: 0, q: 0}, ())
    meter.observe(1.0, {}, ())
    meter.observe(3.0, {p: 0}, ())
    meter.observe(4.0, {p: 0, q: 1}, ())
    assert (meter.stopped_s, meter.unowned_s, meter.moved, meter.pause_s) == (2.0, 3.0, 1, 2.0)


def test_the_fewest_moves() -> None:
    """`fewest_moves` counts the moves that a balanced assignment requires; 0 for an empty group."""
    owners = {TopicPartition("t", n): one for n, one in enumerate((0, 0, 0, 1, 1, 1))}
    assert fewest_moves(owners, {0, 1, 2}, 6) == 2
    assert fewest_moves(owners, {0}, 6) == 3
    assert fewest_moves(owners, set(), 6) == 0


def test_growth() -> None:
    """Requests grow with n members in the classic protocol, and with n squared for JVM members."""
    found = list(growth(("classic-eager", "zookeeper-jvm"), (2, 5, 10, 20, 40)))
    formulae = {(one.protocol, one.what): one.formula for one in laws(found)}
    assert formulae["classic-eager", "requests"] == "5 n + 5"
    assert formulae["classic-eager", "notifications"] == "0"
    assert "n^2" in formulae["zookeeper-jvm", "requests"]


def test_formulae() -> None:
    """The fit recognises a parabola, and finds no square term in a line."""
    assert fitted([(x, 3 * x * x + 2 * x + 1) for x in (1.0, 2.0, 5.0, 9.0)]) == (
        "3 n^2 + 2 n + 1",
        0.0,
    )
    assert fitted([(x, 7 * x) for x in (1.0, 2.0, 5.0)])[0] == "7 n"
    law = next(laws([Growth("p", n, 2 * n, 0, n) for n in (1, 2, 3)]))
    assert law.formula == "2 n"


def test_split_brain() -> None:
    """Offsets go back only with JVM members; coordinators refuse commits of frozen members."""
    found = {one.protocol: one for one in split_brain(PROTOCOLS)}
    assert [name for name, one in found.items() if one.moved_back] == ["zookeeper-jvm"]
    assert all(found[name].refused and found[name].late for name in LATER)
    assert found["zookeeper"].late == 0


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill", "'kill' is not a step"),
        ("freeze g_0", "is not a step"),
        ("leave g_0; kill g_0", "g_0 is not in the group"),
        ("; ".join(["join"] * 101), "more than 100 steps"),
    ],
)
def test_bad_scripts(script: str, message: str) -> None:
    """The error for a mistake in a script shows the step that contains it."""
    with pytest.raises(ConfigError, match=message):
        read_script(script, 5)


def test_a_script_as_text() -> None:
    """The text of each step is its notation in a script."""
    text = "join; leave g_0; kill g_1; freeze g_2 2.5s"
    assert "; ".join(map(str, read_script(text, 5))) == text
