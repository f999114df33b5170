"""What tools ask of brokers of every release: log ends, times, and nothing that makes a topic."""

from __future__ import annotations

import time
from collections.abc import Callable

from zkconsumer.core import paths
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.records import decode_broker
from zkconsumer.kafka.logs import (
    NO_TOPIC,
    OFFSETS_TOPIC,
    LogRange,
    are_times_exact,
    committed_in_kafka,
    log_ends,
    offsets_at,
)
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import session

LIMIT_S = 30.0


def test_what_tools_ask(cluster: Sandbox, unique: Callable[[str], str]) -> None:
    """Log ends and times are answered; a topic that is not there is neither found nor made."""
    # A broker before 0.11 makes a topic that it is asked about by name, and any broker the topic of
    # offsets when somebody looks for a coordinator.
    topic, missing = unique("tools"), unique("missing")
    cluster.create_topic(topic)
    cluster.produce(topic, 5)
    here, nowhere = TopicPartition(topic, 0), TopicPartition(missing, 0)
    with session(cluster.zookeeper_connect) as client:
        broker = decode_broker(client.get(paths.broker(0))[0], where="")
        stored = client.exists(paths.topic(OFFSETS_TOPIC))
        found = log_ends([broker], [here, nowhere], limit_s=LIMIT_S)
        assert found == {here: LogRange(0, 5), nowhere: NO_TOPIC}
        later_ms = round(time.time() * 1000) + 3_600_000
        at = offsets_at([broker], [here], later_ms, limit_s=LIMIT_S)[here]
        assert at == (None if are_times_exact([broker]) else 5)
        assert are_times_exact([broker]) is (not cluster.broker.release.startswith(("0.8", "0.9")))
        none = committed_in_kafka([broker], "nobody", [here], limit_s=LIMIT_S)
        assert none == {here: None}
        assert not client.exists(paths.topic(missing))
        assert bool(client.exists(paths.topic(OFFSETS_TOPIC))) is bool(stored)
