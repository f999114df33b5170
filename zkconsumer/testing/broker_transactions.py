"""Requests of idempotent and transactional producers.

Offsets are not part of a transaction: a fake broker does not serve AddOffsetsToTxn and
TxnOffsetCommit, which no consumer of ZooKeeper's groups needs.

Kafka: `kafka.coordinator.transaction.TransactionCoordinator`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import messages as ms
from zkconsumer.testing.broker_calls import BrokerCall, Handlers, Site
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.record_sets import Producer


@dataclass
class _Transactional:
    """A transactional producer, and the partitions of its open transaction."""

    producer: int
    epoch: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)


class Transactions:
    """The transactional producers of a cluster; every broker coordinates them."""

    def __init__(self) -> None:
        self.ids = itertools.count(1000)
        self.by_id: dict[str, _Transactional] = {}

    def known(self, transactional_id: str, producer: int, epoch: int) -> _Transactional:
        """Return a producer. Raises KafkaFault if another instance has replaced it."""
        found = self.by_id.get(transactional_id)
        if found is None or found.producer != producer:
            raise KafkaFault(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if found.epoch != epoch:
            raise KafkaFault(ErrorCode.INVALID_PRODUCER_EPOCH)
        return found


class TransactionRequests:
    """Answers the requests of producers at one broker."""

    def __init__(self, site: Site, transactions: Transactions) -> None:
        self._site, self._transactions = site, transactions
        self._metadata = site.controller.metadata
        self.handlers: Handlers = {22: self._init, 24: self._add_partitions, 26: self._end}

    def _init(
        self, request: ms.InitProducerIdRequest, _call: BrokerCall
    ) -> ms.InitProducerIdResponse:
        transactions = self._transactions
        if request.transactional_id is None:
            return ms.InitProducerIdResponse(producer_id=next(transactions.ids))
        known = transactions.by_id.get(request.transactional_id)
        if known is None:
            known = transactions.by_id[request.transactional_id] = _Transactional(
                next(transactions.ids)
            )
        else:
            self._write_markers(known, commits=False)
            known.epoch += 1
        return ms.InitProducerIdResponse(producer_id=known.producer, producer_epoch=known.epoch)

    def _add_partitions(
        self, request: ms.AddPartitionsToTxnRequest, _call: BrokerCall
    ) -> ms.AddPartitionsToTxnResponse:
        topics = request.v3_and_below_topics
        tps = {TopicPartition(topic.name, one) for topic in topics for one in topic.partitions}
        error = ErrorCode.NONE
        try:
            known = self._transactions.known(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
            )
            for tp in tps:
                self._metadata.partition(tp)
            known.partitions |= tps
        except KafkaFault as fault:
            error = fault.code
        return ms.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                ms.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        ms.AddPartitionsToTxnPartitionResult(
                            partition_index=one, partition_error_code=error
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in topics
            ]
        )

    def _end(self, request: ms.EndTxnRequest, _call: BrokerCall) -> ms.EndTxnResponse:
        try:
            known = self._transactions.known(
                request.transactional_id, request.producer_id, request.producer_epoch
            )
        except KafkaFault as fault:
            return ms.EndTxnResponse(error_code=fault.code)
        self._write_markers(known, commits=request.committed)
        return ms.EndTxnResponse()

    def _write_markers(self, known: _Transactional, *, commits: bool) -> None:
        producer = Producer(known.producer, known.epoch)
        for tp in sorted(known.partitions):
            topic = self._metadata.topics.get(tp.topic)
            if topic is not None and tp.partition in topic.partitions:
                log = topic.partitions[tp.partition].log
                log.end_transaction(producer, self._site.now_ms, commits=commits)
        known.partitions.clear()
        self._metadata.changed()
