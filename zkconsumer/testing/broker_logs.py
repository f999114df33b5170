"""Requests that concern logs: Produce, Fetch, ListOffsets and DeleteRecords.

Kafka: `kafka.server.ReplicaManager`, `DelayedFetch` and `FetchSession`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import messages as ms
from zkconsumer.testing.broker_calls import BrokerCall, Handlers, Site
from zkconsumer.testing.cluster_metadata import Partition
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.logs import PartitionLog
from zkconsumer.testing.record_sets import ZSTD
from zkconsumer.testing.wire import NO_ID

# Fetch versions: the highest message format that a consumer knows (KIP-31, KIP-98), incremental
# sessions (KIP-227), zstd (KIP-110), topic ids (KIP-516).
_KNOWS_V1: Final = 2
_KNOWS_V2: Final = 4
_RETURNS_WHOLE_BATCHES: Final = 3
_KNOWS_ZSTD: Final = 10
_NAMES_TOPICS_BY_ID: Final = 13

# Special times of ListOffsets.
_LATEST: Final = -1
_EARLIEST: Final = -2
_NEWEST_TIME: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5

_READ_COMMITTED: Final = 1

# The epochs of fetch sessions: a request without a session, and one that begins a session.
_NO_SESSION: Final = -1
_BEGINS: Final = 0


class _Wanted(NamedTuple):
    """A partition that a Fetch request names; `topic` is "" if no topic has the id."""

    topic: str
    topic_id: bytes
    fetch: ms.FetchPartition

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.fetch.partition)


@dataclass
class _Session:
    """An incremental fetch session: its next epoch, its partitions, and what was sent of them."""

    epoch: int = 1
    wanted: dict[tuple[str, bytes, int], _Wanted] = field(default_factory=dict)
    sent: dict[tuple[str, bytes, int], tuple[int, int, int]] = field(default_factory=dict)


@dataclass(eq=False)
class _Parked:
    """A Fetch request that waits for messages."""

    call: BrokerCall
    wanted: list[_Wanted]
    session: int
    is_full: bool
    timer: asyncio.TimerHandle | None = None


def _highest_magic(version: int) -> int:
    """Return the highest message format that the sender of this Fetch version knows."""
    return 2 if version >= _KNOWS_V2 else 1 if version >= _KNOWS_V1 else 0


def _state(one: ms.PartitionData) -> tuple[int, int, int]:
    return one.high_watermark, one.last_stable_offset, one.log_start_offset


class LogRequests:
    """Answers the requests that concern one broker's logs."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._metadata = site.controller.metadata
        self._parked: list[_Parked] = []
        self._sessions: dict[int, _Session] = {}
        self._session_ids = itertools.count(1)
        self._metadata.listen(self.wake)
        self.handlers: Handlers = {
            0: self._produce,
            1: self._fetch,
            2: self._list_offsets,
            21: self._delete_records,
        }

    # ---- Produce --------------------------------------------------------------------------------

    def _produce(self, request: ms.ProduceRequest, call: BrokerCall) -> ms.ProduceResponse | None:
        responses = [
            ms.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    self._append(TopicPartition(topic.name, one.index), one.records or b"")
                    for one in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        self._metadata.changed()
        if request.acks == 0:
            call.answer(None)
            return None
        return ms.ProduceResponse(responses=responses)

    def _append(self, tp: TopicPartition, records: bytes) -> ms.PartitionProduceResponse:
        try:
            log = self._metadata.led(tp, self._site.id).log
            now_ms = self._site.now_ms
            base = log.append(records, now_ms)
        except KafkaFault as fault:
            return ms.PartitionProduceResponse(
                index=tp.partition,
                error_code=fault.code,
                base_offset=-1,
                error_message=fault.why,
            )
        return ms.PartitionProduceResponse(
            index=tp.partition,
            base_offset=base,
            log_append_time_ms=now_ms if log.settings.append_time else -1,
            log_start_offset=log.start,
        )

    # ---- Fetch ----------------------------------------------------------------------------------

    def _fetch(self, request: ms.FetchRequest, call: BrokerCall) -> ms.FetchResponse | None:
        try:
            parked = self._opened(request, call)
        except KafkaFault as fault:
            return ms.FetchResponse(error_code=fault.code)
        if (found := self._ready(parked)) is not None:
            return found
        loop = self._site.engine.loop
        parked.timer = loop.call_later(request.max_wait_ms / 1000, self._end_wait, parked)
        self._parked.append(parked)
        return None

    def _opened(self, request: ms.FetchRequest, call: BrokerCall) -> _Parked:
        """Return the request with the partitions that it means. Raises KafkaFault."""
        named = list(self._named(request.topics, call.version))
        if request.session_epoch in (_NO_SESSION, _BEGINS):
            self._sessions.pop(request.session_id, None)
            number = 0
            if request.session_epoch == _BEGINS and call.version >= 7:
                number = next(self._session_ids)
                self._sessions[number] = _Session(wanted={self._key(one): one for one in named})
            return _Parked(call, named, number, is_full=True)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaFault(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaFault(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch += 1
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                key = topic.topic, topic.topic_id, partition
                session.wanted.pop(key, None)
                session.sent.pop(key, None)
        session.wanted |= {self._key(one): one for one in named}
        return _Parked(call, list(session.wanted.values()), request.session_id, is_full=False)

    @staticmethod
    def _key(one: _Wanted) -> tuple[str, bytes, int]:
        # Topic and id, as the request has them: one of both is empty.
        return one.topic if one.topic_id == NO_ID else "", one.topic_id, one.fetch.partition

    def _named(self, topics: Iterable[ms.FetchTopic], version: int) -> Iterator[_Wanted]:
        for topic in topics:
            name = topic.topic
            if version >= _NAMES_TOPICS_BY_ID:
                known = self._metadata.topic_of_id(topic.topic_id)
                name = known.name if known is not None else ""
            for one in topic.partitions:
                yield _Wanted(name, topic.topic_id, one)

    def wake(self) -> None:
        """Answer the parked requests that have something to return now."""
        for one in list(self._parked):
            if (found := self._ready(one)) is not None:
                self._answer(one, found)

    def _end_wait(self, parked: _Parked) -> None:
        self._answer(parked, self._response(parked))

    def _answer(self, parked: _Parked, response: ms.FetchResponse) -> None:
        self._parked.remove(parked)
        if parked.timer is not None:
            parked.timer.cancel()
        parked.call.answer(response)

    def _ready(self, parked: _Parked) -> ms.FetchResponse | None:
        """Return the response if the request need not wait."""
        request = parked.call.request
        assert isinstance(request, ms.FetchRequest)
        size = 0
        for one in parked.wanted:
            try:
                log = self._log(one)
            except KafkaFault:
                return self._response(parked)
            until = self._limit(log, request)
            size += log.size_from(one.fetch.fetch_offset, until)
        is_due = not parked.wanted or request.max_wait_ms <= 0
        if is_due or (size >= request.min_bytes and (size or not request.min_bytes)):
            return self._response(parked)
        return None

    def _log(self, one: _Wanted) -> PartitionLog:
        """Return the log to read. Raises KafkaFault if this broker cannot read it."""
        if one.topic_id != NO_ID and not one.topic:
            raise KafkaFault(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self._metadata.led(one.tp, self._site.id)
        _check_epoch(partition, one.fetch.current_leader_epoch)
        log = partition.log
        if not log.start <= one.fetch.fetch_offset <= log.end:
            raise KafkaFault(ErrorCode.OFFSET_OUT_OF_RANGE)
        return log

    @staticmethod
    def _limit(log: PartitionLog, request: ms.FetchRequest) -> int:
        return log.last_stable if request.isolation_level == _READ_COMMITTED else log.end

    def _response(self, parked: _Parked) -> ms.FetchResponse:
        request = parked.call.request
        assert isinstance(request, ms.FetchRequest)
        left = request.max_bytes
        topics: dict[tuple[str, bytes], list[ms.PartitionData]] = {}
        session = self._sessions.get(parked.session)
        for one in parked.wanted:
            data = self._read(one, request, parked.call.version, left)
            left -= len(data.records or b"")
            if session is not None:
                key = self._key(one)
                is_news = bool(data.records or data.error_code)
                is_news |= session.sent.get(key) != _state(data)
                if not parked.is_full and not is_news:
                    continue
                session.sent[key] = _state(data)
            topics.setdefault((one.topic, one.topic_id), []).append(data)
        return ms.FetchResponse(
            session_id=parked.session,
            responses=[
                ms.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in topics.items()
            ],
        )

    def _read(
        self, one: _Wanted, request: ms.FetchRequest, version: int, left: int
    ) -> ms.PartitionData:
        """Return the data of one partition; `left` is what the response has left of its bytes."""
        number = one.fetch.partition
        try:
            log = self._log(one)
        except KafkaFault as fault:
            return ms.PartitionData(
                partition_index=number, error_code=fault.code, high_watermark=-1, records=b""
            )
        until, most = self._limit(log, request), min(one.fetch.partition_max_bytes, left)
        found = log.read(one.fetch.fetch_offset, most, magic=_highest_magic(version), until=until)
        data = found.data
        if version < _RETURNS_WHOLE_BATCHES:
            data = data[: one.fetch.partition_max_bytes]
        elif len(data) > left and left < request.max_bytes:
            data = b""  # only the first partition may exceed the response's limit
        if version < _KNOWS_ZSTD and ZSTD in found.codecs:
            return ms.PartitionData(
                partition_index=number,
                error_code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                high_watermark=-1,
                records=b"",
            )
        is_committed = request.isolation_level == _READ_COMMITTED
        return ms.PartitionData(
            partition_index=number,
            high_watermark=log.end,
            last_stable_offset=log.last_stable,
            log_start_offset=log.start,
            aborted_transactions=[
                ms.AbortedTransaction(producer_id=gone.producer, first_offset=gone.first)
                for gone in found.aborted
            ]
            if is_committed
            else None,
            records=data,
        )

    # ---- ListOffsets ----------------------------------------------------------------------------

    def _list_offsets(
        self, request: ms.ListOffsetsRequest, call: BrokerCall
    ) -> ms.ListOffsetsResponse:
        is_committed = request.isolation_level == _READ_COMMITTED

        def answer(topic: str, one: ms.ListOffsetsPartition) -> ms.ListOffsetsPartitionResponse:
            number = one.partition_index
            try:
                partition = self._metadata.led(TopicPartition(topic, number), self._site.id)
                _check_epoch(partition, one.current_leader_epoch)
                log = partition.log
                if call.version == 0:
                    offsets = self._old_offsets(log, one.timestamp)[: one.max_num_offsets]
                    return ms.ListOffsetsPartitionResponse(
                        partition_index=number, old_style_offsets=offsets
                    )
                end = log.last_stable if is_committed else log.end
                time, offset = _offset_at(log, one.timestamp, end)
            except KafkaFault as fault:
                return ms.ListOffsetsPartitionResponse(
                    partition_index=number, error_code=fault.code
                )
            epoch = partition.epoch if offset >= 0 else -1
            return ms.ListOffsetsPartitionResponse(
                partition_index=number, timestamp=time, offset=offset, leader_epoch=epoch
            )

        return ms.ListOffsetsResponse(
            topics=[
                ms.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[answer(topic.name, one) for one in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _old_offsets(self, log: PartitionLog, time_ms: int) -> list[int]:
        """Return the offsets of version 0: the segments that were written before a time.

        The fake's logs have one segment (`kafka.log.LogManager.fetchOffsetsBefore`).
        """
        if time_ms == _EARLIEST:
            return [log.start]
        both = [log.end, log.start] if log.end > log.start else [log.end]
        if time_ms == _LATEST or time_ms >= self._site.now_ms:
            return both
        return [log.start] if log.end > log.start and time_ms >= log.written_ms else []

    # ---- DeleteRecords --------------------------------------------------------------------------

    def _delete_records(
        self, request: ms.DeleteRecordsRequest, _call: BrokerCall
    ) -> ms.DeleteRecordsResponse:
        def cut(tp: TopicPartition, offset: int) -> ms.DeleteRecordsPartitionResult:
            number = tp.partition
            try:
                log = self._metadata.led(tp, self._site.id).log
                if offset > log.end:
                    raise KafkaFault(ErrorCode.OFFSET_OUT_OF_RANGE)
            except KafkaFault as fault:
                return ms.DeleteRecordsPartitionResult(
                    partition_index=number, low_watermark=-1, error_code=fault.code
                )
            log.cut(offset)
            return ms.DeleteRecordsPartitionResult(partition_index=number, low_watermark=log.start)

        results = [
            ms.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    cut(TopicPartition(topic.name, one.partition_index), one.offset)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        self._metadata.changed()
        return ms.DeleteRecordsResponse(topics=results)


def _check_epoch(partition: Partition, epoch: int) -> None:
    """Raise KafkaFault if the client knows another epoch of the leader; -1 stands for none."""
    if 0 <= epoch < partition.epoch:
        raise KafkaFault(ErrorCode.FENCED_LEADER_EPOCH)
    if epoch > partition.epoch:
        raise KafkaFault(ErrorCode.UNKNOWN_LEADER_EPOCH)


def _offset_at(log: PartitionLog, time_ms: int, end: int) -> tuple[int, int]:
    """Return a timestamp and an offset, each -1 if there is none.

    Raises KafkaFault if the messages have no timestamps.
    """
    if time_ms in (_LATEST, _EARLIEST, _EARLIEST_LOCAL):
        return -1, end if time_ms == _LATEST else log.start
    if time_ms == _LATEST_TIERED:
        return -1, -1
    if log.settings.magic == 0:
        raise KafkaFault(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    found = log.newest() if time_ms == _NEWEST_TIME else log.at_time(time_ms)
    return (found.timestamp, found.offset) if found is not None and found.offset < end else (-1, -1)
