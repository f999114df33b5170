"""A bridge as an operator runs it: real servers, JVM members on both sides, and every command."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from later.kraft import NEW, KraftBroker
from support.kafka.offsets import foreign
from support.kafka.secure_brokers import PASSWORD, PROTOCOLS, SecureBroker
from support.members.bridged_group import COMMIT_S, MIRROR_S, SLACK_S, BridgedGroup
from support.members.bridged_run import BridgedRun
from support.wait import LIMIT_S, wait_for

from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.proxy import Proxy, Wire


@pytest.fixture(scope="module")
def newest() -> Iterator[Sandbox]:
    """A ZooKeeper and a broker of 3.9.1, which several groups share."""
    with Sandbox() as sandbox:
        yield sandbox


@contextmanager
def _group(
    sandbox: Sandbox, directory: Path, name: str, *old: str, replicas: int = 1
) -> Iterator[BridgedGroup]:
    """A group whose old members, of these kinds, read everything. At the end it is judged."""
    with ExitStack() as stack:
        group = BridgedGroup(sandbox, directory, stack, name=name, replicas=replicas)
        for kind in old:
            group.old(kind)
        if old:
            group.wait_for_all("old")
        yield group
        verdict = group.finish()
        assert not verdict.violations, (verdict, verdict.violations)


MEMBERS = [
    ("0.11.0.3", "0.8.2.2", "java", "range"),
    ("0.11.0.3", "1.1.1", "librdkafka", "range"),
    ("2.8.2", "0.8.2.2", "librdkafka", "cooperative-sticky"),
    ("2.8.2", "1.1.1", "java", "cooperative-sticky"),
    ("3.9.1", "0.9.0.1", "librdkafka", "roundrobin"),
    ("3.9.1", "0.10.2.2", "java", "range"),
    ("3.9.1", "0.11.0.3", "librdkafka", "cooperative-sticky"),
    ("3.9.1", "1.1.1", "java", "sticky"),
    ("3.9.1", "zkconsumer", "java", "roundrobin"),
]


@pytest.mark.parametrize(("release", "old", "new", "assignor"), MEMBERS)
def test_members_move_to_the_brokers_and_back(
    release: str, old: str, new: str, assignor: str, tmp_path: Path
) -> None:
    """Members of each kind move there and back; no message is lost, or read by both sides."""
    with (
        Sandbox(release=release) as sandbox,
        _group(sandbox, tmp_path, "billing", old, old) as group,
    ):
        before, some = list(group.members.values()), range(1, group.partitions)
        bridge = group.bridge()
        bridge.wait("runs")
        assert ("no static members" in bridge.text()) == (release == "0.11.0.3")
        after = [group.new(new, assignor), group.new(new, assignor)]
        group.wait_for_share("new", *some)
        for member in before:
            member.leave()
        group.wait_for_all("new")
        group.old(old)
        group.wait_for_share("new", *some)
        group.order("rollback")
        group.wait_for_all("old")
        for member in after:
            member.leave()
        assert bridge.wait_for_end() == 0


def test_a_group_finishes_its_move(newest: Sandbox, tmp_path: Path) -> None:
    """After `finish` the bridge ends with the last old member, and the new ones read everything."""
    with _group(newest, tmp_path, "finishes", "1.1.1") as group:
        (old,) = group.members.values()
        bridge, _ = group.divide()
        group.order("finish")
        assert bridge.process.poll() is None
        old.leave()
        assert bridge.wait_for_end() == 0
        group.wait_for_all("new")
        assert {one["side"] for one in group.status()} == {"new"}


def test_the_share_of_the_new_side_can_be_fixed(newest: Sandbox, tmp_path: Path) -> None:
    """With `--share 33%` the new side has a third, whoever joins it."""
    with _group(newest, tmp_path, "shares", "1.1.1", "zkconsumer") as group:
        group.bridge("--share", "33%").wait("runs")
        group.new("librdkafka", "range")
        group.wait_for_share("new", 2)
        group.new("librdkafka", "range").wait("owned")
        group.wait_for_share("new", 2)


def test_a_paused_bridge_keeps_its_share(newest: Sandbox, tmp_path: Path) -> None:
    """The share of a paused bridge stays, even if it starts again; then it follows the members."""
    with _group(newest, tmp_path, "pauses", "1.1.1") as group:
        bridge, _ = group.divide()
        group.order("pause")
        group.new("librdkafka", "range")
        bridge.wait("2 new members with 3 partitions")
        bridge.interrupt()
        assert bridge.wait_for_end() == 0, bridge.text()
        bridge = group.bridge()
        bridge.wait("2 new members with 3 partitions")
        group.order("resume")
        bridge.wait("2 new members with 4 partitions")


def test_new_members_that_came_first_lose_the_lead_once(newest: Sandbox, tmp_path: Path) -> None:
    """With `--take-lead` the bridge removes the new members; then both sides share."""
    with _group(newest, tmp_path, "leads", "1.1.1") as group:
        # Kafka has no offset yet, so the new member also reads what the old one has read before.
        with group.excusing("new members read without a bridge", before_s=math.inf):
            group.new("librdkafka", "range")
            group.wait_for_share("new", *range(1, group.partitions + 1))
            refused = group.bridge()
            assert refused.wait_for_end() == 4, refused.text()
            assert "--take-lead" in refused.text()
            bridge = group.bridge("--take-lead")
            bridge.wait("1 new member with 3 partitions")
        group.wait_for_share("new", 3)


def test_a_group_of_kip_848s_protocol(newest: Sandbox, tmp_path: Path) -> None:
    """The bridge refuses to start: the broker computes the assignment."""
    with (
        KraftBroker(tmp_path / "broker", NEW) as broker,
        _group(newest, tmp_path, "kip-848", "1.1.1") as group,
    ):
        broker.create_topic("kip-848", partitions=6)
        settings = {"bootstrap.servers": broker.bootstrap, "group.protocol": "consumer"}
        consumer = Consumer({**settings, "group.id": "kip-848"})
        group.stack.callback(consumer.close)
        consumer.subscribe(["kip-848"])
        wait_for(lambda: consumer.poll(0.1) or consumer.assignment(), "the new member joins")
        refused = group.bridge("--bootstrap", broker.bootstrap)
        assert refused.wait_for_end() == 4, refused.text()
        assert "a bridge is impossible" in refused.text()
        assert "group.protocol=classic" in refused.text()


@pytest.mark.parametrize("dual", ["true", "false"])
def test_an_old_member_that_stores_offsets_in_kafka(
    dual: str, newest: Sandbox, tmp_path: Path
) -> None:
    """The bridge refuses to start, and says how to move the offsets to ZooKeeper first."""
    with ExitStack() as stack:
        group = BridgedGroup(newest, tmp_path, stack, name=f"stores-in-kafka-{dual}")
        group.old("1.1.1", **{"offsets.storage": "kafka", "dual.commit.enabled": dual})
        group.old("0.8.2.2")
        group.wait_for_all("old")
        with foreign(newest.zookeeper_connect, group.name, group.name) as another:
            wait_for(lambda: another.offsets(*range(group.partitions)), "a commit to Kafka")
        refused = group.bridge()
        assert refused.wait_for_end() == 4, refused.text()
        assert "an old member stores its offsets in Kafka" in refused.text()
        assert "offsets.storage=zookeeper" in refused.text()


def test_ctrl_c_gives_everything_back(newest: Sandbox, tmp_path: Path) -> None:
    """After Ctrl-C the old members read everything, and the command can be started again."""
    with _group(newest, tmp_path, "interrupted", "1.1.1") as group:
        bridge, new = group.divide()
        bridge.interrupt()
        assert bridge.wait_for_end() == 0, bridge.text()
        group.wait_for_all("old")
        again = group.bridge()
        again.wait("1 new member with 3 partitions")
        new.leave()
        again.wait("0 new members with 0 partitions")


def test_ctrl_c_in_a_rebalance(newest: Sandbox, tmp_path: Path) -> None:
    """The bridge ends when the new members have their assignment, so they wait for nothing."""
    with _group(newest, tmp_path, "stopped", "zkconsumer") as group:
        bridge = group.bridge()
        bridge.wait("runs")
        group.order("pause")
        bridge.wait("goal pause")
        slow = group.new("librdkafka", "range")
        slow.wait("owned")
        wait_for(lambda: "rebalances" not in bridge.last_line(), bridge.text)
        slow.freeze()
        group.new("librdkafka", "range")
        wait_for(lambda: "rebalances" in bridge.last_line(), bridge.text)
        bridge.interrupt()
        bridge.wait("giving all partitions back")
        bridge.wait_until(boottime() + 2.0)  # it waits for the frozen member
        slow.thaw()
        assert bridge.wait_for_end() == 0, bridge.text()
        admin = GroupAdmin({"bootstrap.servers": newest.bootstrap, "client.id": "test"}, group.name)
        found = admin.describe(LIMIT_S)
        assert (found.state, len(found.members)) == ("Stable", 3)
        again = group.bridge()
        again.wait("2 new members with 0 partitions")
        group.order("resume")
        again.wait("2 new members with 4 partitions")


def test_a_bridge_that_was_frozen_for_too_long_ends(tmp_path: Path) -> None:
    """A bridge wakes after a standby has replaced it. It ends, and the standby goes on leading."""
    with (
        Sandbox(zookeeper_release="3.4.14") as sandbox,
        _group(sandbox, tmp_path, "frozen", "zkconsumer") as group,
    ):
        bridge, _ = group.divide()
        standby = group.bridge()
        standby.wait("standby:")
        with group.excusing("a bridge is frozen", before_s=MIRROR_S + SLACK_S):
            bridge.freeze()
            standby.wait("1 new member with 3 partitions")
            group.wait_for_share("new", 3)
        bridge.thaw()
        assert bridge.wait_for_end() == 1, bridge.text()
        group.wait_for_share("new", 3)
        group.order("rollback")
        group.wait_for_all("old")
        assert standby.process.poll() is None, standby.text()


def test_a_standby_takes_over(newest: Sandbox, tmp_path: Path) -> None:
    """If the active bridge is killed, the standby leads; what was not copied is redelivered."""
    with _group(newest, tmp_path, "standby", "1.1.1") as group:
        bridge, _ = group.divide()
        standby = group.bridge()
        standby.wait("standby:")
        with group.without(bridge):
            standby.wait("1 new member with 3 partitions")
        group.wait_for_share("new", 3)
        group.order("rollback")
        group.wait_for_all("old")


def test_nothing_is_lost_without_a_bridge(newest: Sandbox, tmp_path: Path) -> None:
    """Without a bridge both sides continue with the last copied offsets, and read everything."""
    with _group(newest, tmp_path, "orphaned", "1.1.1") as group:
        bridge, new = group.divide()
        wait_for(
            lambda: all(one["kafka"] is not None for one in group.status()),
            "the bridge copies the offsets of the old side",
        )
        with group.without(bridge):
            wait_for(
                lambda: new.last("owned")["partitions"] == list(range(group.partitions)),
                "the new members read everything",
            )
            assert {one["side"] for one in group.status()} == {"both"}
            again = group.bridge("--take-lead")
            again.wait("1 new member with 3 partitions")
        group.wait_for_share("new", 3)


def test_the_topic_grows(newest: Sandbox, tmp_path: Path) -> None:
    """New partitions are shared, too."""
    with _group(newest, tmp_path, "grows", "1.1.1") as group:
        group.divide(assignor="cooperative-sticky")
        group.grow(10)
        group.wait_for_share("new", 5)


def test_zookeeper_is_away_from_the_bridge(newest: Sandbox, tmp_path: Path) -> None:
    """Without ZooKeeper the new members revoke before old ones take over; later both share."""
    with (
        Proxy(newest.zookeeper_connect) as proxy,
        _group(newest, tmp_path, "severed", "1.1.1") as group,
    ):
        bridge, new = group.divide("-z", proxy.address)
        with group.excusing("not yet in ZooKeeper", before_s=MIRROR_S + SLACK_S):
            proxy.wire = Wire.SILENT
            wait_for(lambda: new.last("owned")["partitions"] == [], "the new member revokes")
        group.wait_for_all("old")
        proxy.wire = Wire.PASS
        proxy.cut()
        group.wait_for_share("new", 3)
        assert bridge.process.poll() is None


def test_the_coordinator_is_away(tmp_path: Path) -> None:
    """After a restart of the only broker both sides go on, and nothing is lost."""
    with Sandbox() as sandbox, _group(sandbox, tmp_path, "restarted", "1.1.1") as group:
        bridge, _ = group.divide(new="java")
        with group.excusing("the coordinator is away", before_s=COMMIT_S + SLACK_S):
            sandbox.broker.kill()
            sandbox.broker.start()
            group.wait_for_share("new", 3)
        group.order("rollback")
        group.wait_for_all("old")
        assert bridge.process.poll() is None


def test_the_brokers_restart_one_after_the_other(tmp_path: Path) -> None:
    """While each of three brokers restarts, both sides go on, and no message is redelivered."""
    overrides = {"offsets.topic.replication.factor": 3}
    with (
        Sandbox(brokers=3, overrides=overrides) as sandbox,
        _group(sandbox, tmp_path, "rolling", "1.1.1", replicas=3) as group,
    ):
        bridge, _ = group.divide(new="java")
        for broker in sandbox.brokers:
            broker.stop()
            group.wait_for_share("new", 3)
            broker.start()
            group.wait_for_share("new", 3)
        group.order("rollback")
        group.wait_for_all("old")
        assert bridge.process.poll() is None


@pytest.mark.parametrize("listener", ["SCRAM", "MTLS"])
def test_the_brokers_require_a_login(listener: str, tmp_path: Path) -> None:
    """Members and a bridge that log in by TLS and SASL move, and no output shows the password."""
    with (
        SecureBroker(tmp_path / "servers", release="3.9.1") as server,
        _group(server.sandbox, tmp_path, "secured") as group,
    ):
        given = server.settings(listener)
        kafka = given["kafka"]
        old = group.old("zkconsumer", broker_listener=listener, kafka=kafka)
        group.wait_for_all("old")
        properties = {"broker.listener": listener, **{f"kafka.{k}": v for k, v in kafka.items()}}
        options = [word for k, v in properties.items() for word in ("--property", f"{k}={v}")]
        stranger = group.bridge(
            *options, "--property", f"kafka.ssl.ca.location={server.stranger.file}"
        )
        assert stranger.wait_for_end() == 1
        assert "is not trusted" in stranger.last_line()
        bridge = group.bridge(*options)
        bridge.wait("runs")
        member = {"bootstrap.servers": server.addresses[listener], **kafka}
        group.new("librdkafka", "range", **member, **{"security.protocol": PROTOCOLS[listener]})
        group.wait_for_share("new", 3)
        old.leave()
        group.wait_for_all("new")
        group.order("finish")
        assert bridge.wait_for_end() == 0, bridge.text()
        assert PASSWORD not in bridge.text()


def test_members_join_during_a_hand_over(newest: Sandbox, tmp_path: Path) -> None:
    """A rebalance that begins during a hand-over loses and repeats nothing."""
    with _group(newest, tmp_path, "hurried", "1.1.1") as group:
        bridge = group.bridge()
        bridge.wait("runs")
        for _ in range(2):
            group.new("librdkafka", "range")
            bridge.wait("on their way")
            group.old("zkconsumer")
        bridge.wait("2 new members")
        wait_for(
            # Two of five members are new, and two of six partitions are nearest to their share.
            lambda: Counter(one["side"] for one in group.status()) == {"new": 2, "old": 4},
            group.describe,
        )


@pytest.mark.parametrize(
    ("release", "assignor"), [("0.11.0.3", "range"), ("3.9.1", "cooperative-sticky")]
)
def test_kills_on_both_sides(release: str, assignor: str, tmp_path: Path) -> None:
    """Only what a killed member had not committed is delivered again, and nothing is lost."""
    # `scripts/soak --bridge` runs the same for any time.
    with Sandbox(release=release) as sandbox, _group(sandbox, tmp_path, "killed") as group:
        run = BridgedRun(group, assignor=assignor, seed=1, say=print)
        run.run(90.0, hand_overs=1)
        assert run.acts["kill old"] > 1
        assert run.acts["kill new"] > 1
