"""Real brokers of each release: their segments and their topic say what they answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.history.offset_commits import (
    COMPACTING,
    IDLE,
    TOOL,
    Recording,
    compaction,
    everyone_commits,
    jvm_member_commits,
    recorded,
)
from support.wait import eventually
from support.zk.client import peer_of

from zkconsumer.admin.offsets_topic import OffsetsTopic
from zkconsumer.errors import BrokerAccessError
from zkconsumer.history.kafka_offsets import LogReplay, OffsetChange, read_past_in_kafka
from zkconsumer.history.offset_logs import Replica, find_replicas
from zkconsumer.history.offsets import KafkaCommit
from zkconsumer.protocol.model import OFFSETS_TOPIC
from zkconsumer.sandbox.topics import client_settings

pytestmark = pytest.mark.server


@contextmanager
def topic_of(one: Recording) -> Iterator[OffsetsTopic]:
    settings = client_settings(one.sandbox.zookeeper_connect)
    with closing(OffsetsTopic(settings, limit_s=60.0)) as topic:
        yield topic


def changes(replicas: Iterable[Replica]) -> dict[int, list[OffsetChange]]:
    """Return the changes of offsets by partition of the topic, without the names of files."""
    return {
        one.partition: [
            change._replace(
                file="",
                after=change.after._replace(file="")
                if isinstance(change.after, KafkaCommit)
                else change.after,
            )
            for change in LogReplay(one).changes()
        ]
        for one in replicas
    }


def wrong(one: Recording, replicas: Sequence[Replica]) -> list[tuple[int, str, int]]:
    """Return the moments, groups and partitions whose offset differs from what OffsetFetch
    answered; an unknown offset does not differ."""
    found = []
    for at_ms, answered in one.moments:
        past = read_past_in_kafka(replicas, at_ms).offsets
        known = {
            (group, tp.partition): (then.offset, then.metadata)
            if isinstance(then, KafkaCommit)
            else None
            for group, some in past.items()
            for tp, then in some.items()
        }
        wanted = {(group, n): then for group, some in answered.items() for n, then in some.items()}
        found += [
            (at_ms, *key)
            for key in known.keys() | wanted.keys()
            if known.get(key, ()) not in (None, wanted.get(key))
        ]
    return found


@pytest.mark.parametrize(
    "release", ["0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "3.9.1"]
)
def test_each_release(release: str, tmp_path: Path) -> None:
    """Each commit of every kind of client is found at each moment, in segments and in the topic."""
    with recorded(release, tmp_path / "servers") as one:
        everyone_commits(one, release)
        jvm_member_commits(one, tmp_path)
        assert len(one.moments) >= 7
        segments = find_replicas(one.log_dirs)
        assert wrong(one, segments) == []
        last_ms = one.moments[-1][0]
        past = read_past_in_kafka(segments, last_ms).offsets
        assert not [
            then for some in past.values() for then in some.values() if isinstance(then, str)
        ]
        with topic_of(one) as topic:
            assert changes(topic.replicas()) == changes(segments)


@pytest.mark.parametrize("release", ["0.10.2.2", "1.1.1", "3.9.1"])
def test_compaction(release: str, tmp_path: Path) -> None:
    """While the cleaner compacts the topic, an offset is right or unknown, and then known again."""
    with recorded(release, tmp_path, **COMPACTING) as one:
        compaction(one)
        assert wrong(one, find_replicas(one.log_dirs)) == []
        with topic_of(one) as topic:
            assert wrong(one, topic.replicas()) == []

        def past(group: str) -> list[KafkaCommit | str]:
            replicas = find_replicas(one.log_dirs)
            found = [read_past_in_kafka(replicas, at_ms).offsets for at_ms, _ in one.moments]
            return [then for some in found for then in some.get(group, {}).values()]

        # The cleaner writes its checkpoint after it has replaced the last segment.
        eventually(lambda: all(isinstance(then, KafkaCommit) for then in past(IDLE)))
        assert len(past(IDLE)) == len(one.moments)
        assert any(isinstance(then, str) for then in past(TOOL))


def test_without_the_right(tmp_path: Path) -> None:
    """Brokers that deny access to the topic are an error that names the right."""
    settings = {
        "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with recorded("1.1.1", tmp_path, **settings) as one:
        one.commit(TOOL, {0: 1})
        denied = {"principal": "User:ANONYMOUS", "permissionType": "Deny", "host": "*"}
        entry = {"version": 1, "acls": [{**denied, "operation": "Read"}]}
        with peer_of(one.sandbox.zookeeper_connect) as client:
            path = f"/kafka-acl/Topic/{OFFSETS_TOPIC}"
            client.create(path, json.dumps(entry).encode(), makepath=True)
            change = f"Topic:{OFFSETS_TOPIC}".encode()
            client.create("/kafka-acl-changes/acl_changes_", change, sequence=True)

        def is_denied() -> bool:
            with topic_of(one) as topic:
                try:
                    changes(topic.replicas())
                except BrokerAccessError as error:
                    assert f"--operation Read --topic {OFFSETS_TOPIC}" in error.remedy
                    return True
            return False

        eventually(is_denied)
