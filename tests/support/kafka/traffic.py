"""A continuous flow of messages for a group."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from support.wait import LIMIT_S, wait_for
from zkconsumer.protocol.model import TopicPartition


class Traffic:
    """Produces `burst` small messages every `pace_s` seconds, to all partitions in turn.

    `cluster` has librdkafka's settings for the connection to the brokers.
    """

    def __init__(
        self, cluster: Mapping[str, str | bool], *, burst: int = 1, pace_s: float = 0.004
    ) -> None:
        self._burst, self._pace_s = burst, pace_s
        self.produced: dict[TopicPartition, set[int]] = defaultdict(set)
        self.counts: dict[str, int] = {}
        self.partitions: list[TopicPartition] = []
        self._over = threading.Event()
        self._failures: list[Exception] = []
        self._producer = Producer(
            {
                **cluster,
                # A few messages share a request, because one request per message would keep a
                # broker busy.
                "linger.ms": 20,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def count(self) -> int:
        """The number of messages that the brokers have accepted."""
        return sum(map(len, self.produced.values()))

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The offset after the last accepted message of each partition.

        It may be higher than the number of accepted messages: the producer repeats a request whose
        answer is late, so the broker may store messages of which the producer never learns.
        """
        return {tp: max(offsets) + 1 for tp, offsets in [*self.produced.items()]}

    def burst(self, partition: TopicPartition, count: int) -> None:
        """Produce `count` messages to one partition, without waiting for the broker's answer."""
        for _ in range(count):
            wait_for(lambda: self._take(partition), f"the producer to know {partition}")

    def _take(self, partition: TopicPartition) -> bool:
        try:
            self._producer.produce(
                partition.topic, b"x", partition=partition.partition, on_delivery=self._done
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            self._producer.poll(0)
            return False  # The partition has just been added.
        return True

    def feed(self, topic: str, partitions: int) -> None:
        """From now on, also produce to this topic, or to all partitions that it has now."""
        self.counts[topic] = partitions
        self.partitions = [
            TopicPartition(name, number) for name, n in self.counts.items() for number in range(n)
        ]
        self.start()

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop producing, and return when the broker has all messages."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(2 * LIMIT_S)
            assert not self._thread.is_alive()
        assert not self._failures, self._failures
        assert self._producer.flush(LIMIT_S) == 0, (
            "the broker does not accept the produced messages"
        )

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._over.wait(self._pace_s):
                    return
                self.burst(self.partitions[number % len(self.partitions)], self._burst)
                self._producer.poll(0)
        except (KafkaException, AssertionError) as error:  # `stop` raises this error.
            self._failures.append(error)

    def _done(self, error: Any, message: Any) -> None:
        if error is None:
            self.produced[TopicPartition(message.topic(), message.partition())].add(
                message.offset()
            )
