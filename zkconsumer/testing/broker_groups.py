"""Requests that concern groups: their coordinator, their members and their offsets.

The simulator's coordinator (`zkconsumer.later`) decides. This module translates messages, and
stores the offsets of OffsetCommit version 0 in ZooKeeper, as brokers do.

Kafka: `kafka.server.KafkaApis` and `GroupCoordinator`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from zkconsumer.later import group_coordinator as coordinator
from zkconsumer.later.classic_state import ClassicGroup
from zkconsumer.later.group_coordinator import GroupCoordinator, step
from zkconsumer.later.group_events import (
    BrokerSettings,
    Elected,
    Event,
    Loaded,
    Received,
    Resigned,
    Tick,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.later import messages as later
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    TopicPartition,
    coordinator_partition,
)
from zkconsumer.protocol.payloads import encode_offset
from zkconsumer.testing import messages as ms
from zkconsumer.testing.broker_calls import BrokerCall, Handlers, Site
from zkconsumer.testing.cluster_metadata import NO_LEADER
from zkconsumer.testing.errors import ErrorCode, KafkaFault

_TRANSACTION: Final = 1  # the type of a FindCoordinator key

# The first version of JoinGroup with its own rebalance timeout, of OffsetFetch and OffsetCommit
# with Kafka's storage, and of OffsetFetch with several groups.
_REBALANCE_TIMEOUT: Final = 1
_IN_KAFKA: Final = 1
_GROUPS: Final = 8

_LONGEST_SLEEP_S: Final = 1.0
"""How long a timer sleeps at most, in seconds: a test's own clock does not run with the loop's."""

OFFSETS_PARTITIONS: Final = 4
"""`offsets.topic.num.partitions`: small, because each partition is a znode."""

# A fake answers at once: a group does not wait for more members, and its members may be as short-
# lived as tests need them.
SETTINGS: Final = BrokerSettings(
    initial_delay_s=0.0, min_session_s=0.1, offsets_partitions=OFFSETS_PARTITIONS
)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def offsets_partition(group: str) -> TopicPartition:
    """Return the partition of `__consumer_offsets` whose leader coordinates a group."""
    return TopicPartition(OFFSETS_TOPIC, coordinator_partition(group, OFFSETS_PARTITIONS))


class GroupRequests:
    """Answers the requests that concern the groups of one broker."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._state = GroupCoordinator(SETTINGS)
        self._numbers = itertools.count()
        self._waiting: dict[int, Callable[[later.Response], object]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.handlers: Handlers = {
            8: self._commit,
            9: self._fetch,
            10: self._find_coordinator,
            11: self._join,
            12: self._heartbeat,
            13: self._leave,
            14: self._sync,
            15: self._describe,
            16: self._list,
            42: self._delete,
        }

    # ---- the coordinator ------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        self._state, replies = step(self._state, event, self._site.clock.now())
        for reply in replies:
            self._waiting.pop(reply.number)(reply.response)
        self._set_timer()

    def ask(
        self,
        request: later.Request,
        answer: Callable[[Any], object],  # Any: the response of this kind of request
        client: str = "client",
    ) -> None:
        """Let the coordinator answer a request, now or later."""
        number = next(self._numbers)
        self._waiting[number] = answer
        self._step(Received(number, request, client, str(uuid.uuid4())))

    def tick(self) -> None:
        """Let the coordinator do what is due; called after each change of the test's own time."""
        if self._site.clock.now() >= coordinator.next_deadline(self._state):
            self._step(Tick())
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left_s = coordinator.next_deadline(self._state) - self._site.clock.now()
        if left_s < SETTINGS.retention_check_s / 2:  # a fake forgets no offset
            wait_s = min(max(0.0, left_s), _LONGEST_SLEEP_S)
            self._timer = self._site.engine.loop.call_later(wait_s, self.tick)

    def _led(self) -> set[int]:
        """Return the partitions of `__consumer_offsets` that this broker leads."""
        topic = self._site.controller.metadata.topics.get(OFFSETS_TOPIC)
        partitions = topic.partitions.items() if topic else ()
        return {number for number, one in partitions if one.leader == self._site.id}

    def resign(self) -> None:
        """Store the groups of the partitions that this broker no longer leads."""
        for number in self._state.partitions.keys() - self._led():
            self._site.controller.groups[number] = coordinator.stored(self._state, number)
            self._step(Resigned(number))

    def load(self) -> None:
        """Continue with the groups of the partitions that this broker leads now."""
        for number in self._led() - self._state.partitions.keys():
            self._step(Elected(number))
            self._step(Loaded(number, self._site.controller.groups.pop(number, {})))

    def end_timer(self) -> None:
        """Let no timer fire any more, because the engine stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def offsets(self, group: str) -> Offsets:
        """Return all offsets that a group has committed to this coordinator."""
        partition = self._state.partitions.get(offsets_partition(group).partition)
        found = partition.offsets.get(group, {}) if partition is not None else {}
        return {tp: one.offset for tp, one in found.items()}

    # ---- finding the coordinator ----------------------------------------------------------------

    def _find_coordinator(
        self, request: ms.FindCoordinatorRequest, call: BrokerCall
    ) -> ms.FindCoordinatorResponse:
        keys = request.coordinator_keys if call.version >= 4 else [request.key]
        found = [self._coordinator(key, request.key_type) for key in keys]
        first = found[0]
        return ms.FindCoordinatorResponse(
            error_code=first.error_code,
            error_message=first.error_message,
            node_id=first.node_id,
            host=first.host,
            port=first.port,
            coordinators=found,
        )

    def _coordinator(self, key: str, kind: int) -> ms.Coordinator:
        controller = self._site.controller
        metadata = controller.metadata
        leader = metadata.controller
        if kind != _TRANSACTION:
            try:
                if OFFSETS_TOPIC not in metadata.topics:
                    controller.create_topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS)
                leader = metadata.partition(offsets_partition(key)).leader
            except KafkaFault:  # no broker is registered
                leader = NO_LEADER
        node = metadata.nodes.get(leader)
        if leader == NO_LEADER or node is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return ms.Coordinator(key=key, node_id=-1, port=-1, error_code=code)
        return ms.Coordinator(key=key, node_id=node.id, host=node.host, port=node.port)

    # ---- members --------------------------------------------------------------------------------

    def _join(self, request: ms.JoinGroupRequest, call: BrokerCall) -> None:
        session_s = request.session_timeout_ms / 1000
        rebalance_ms = request.rebalance_timeout_ms
        has_own = call.version >= _REBALANCE_TIMEOUT
        join = later.JoinGroup(
            request.group_id,
            request.member_id,
            tuple(later.Protocol(one.name, one.metadata) for one in request.protocols),
            instance=request.group_instance_id,
            session_timeout_s=session_s,
            rebalance_timeout_s=rebalance_ms / 1000 if has_own else session_s,
            protocol_type=request.protocol_type,
            version=call.version,
        )

        def answer(found: later.Joined) -> None:
            members = [
                ms.JoinGroupResponseMember(
                    member_id=one.member, group_instance_id=one.instance, metadata=one.metadata
                )
                for one in found.members
            ]
            call.answer(
                ms.JoinGroupResponse(
                    error_code=found.error,
                    generation_id=found.generation,
                    protocol_type=found.protocol_type,
                    # The name is null only in version 7 and later.
                    protocol_name=found.protocol or (None if call.version >= 7 else ""),
                    leader=found.leader,
                    skip_assignment=found.skip_assignment,
                    member_id=found.member,
                    members=members,
                )
            )

        self.ask(join, answer, call.client)

    def _sync(self, request: ms.SyncGroupRequest, call: BrokerCall) -> None:
        def answer(found: later.Synced) -> None:
            call.answer(
                ms.SyncGroupResponse(
                    error_code=found.error,
                    protocol_type=found.protocol_type,
                    protocol_name=found.protocol,
                    assignment=found.assignment,
                )
            )

        sync = later.SyncGroup(
            request.group_id,
            request.member_id,
            request.generation_id,
            {one.member_id: one.assignment for one in request.assignments},
            instance=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
        )
        self.ask(sync, answer, call.client)

    def _heartbeat(self, request: ms.HeartbeatRequest, call: BrokerCall) -> None:
        heartbeat = later.Heartbeat(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
        self.ask(
            heartbeat,
            lambda found: call.answer(ms.HeartbeatResponse(error_code=found.error)),
            call.client,
        )

    def _leave(self, request: ms.LeaveGroupRequest, call: BrokerCall) -> None:
        is_single = call.version < 3
        leavers: tuple[later.Leaver, ...]
        if is_single:
            leavers = (later.Leaver(request.member_id),)
        else:
            leavers = tuple(
                later.Leaver(one.member_id, one.group_instance_id) for one in request.members
            )

        def answer(found: later.Left) -> None:
            error = found.error
            if is_single and found.leavers:
                error = found.leavers[0][1]
            members = [
                ms.MemberResponse(
                    member_id=one.member, group_instance_id=one.instance, error_code=code
                )
                for one, code in found.leavers
            ]
            call.answer(ms.LeaveGroupResponse(error_code=error, members=members))

        self.ask(later.LeaveGroup(request.group_id, leavers), answer, call.client)

    # ---- offsets --------------------------------------------------------------------------------

    def _commit(
        self, request: ms.OffsetCommitRequest, call: BrokerCall
    ) -> ms.OffsetCommitResponse | None:
        offsets = {
            TopicPartition(topic.name, one.partition_index): OffsetAndMetadata(
                one.committed_offset, one.committed_metadata or ""
            )
            for topic in request.topics
            for one in topic.partitions
        }
        known = {tp: one for tp, one in offsets.items() if self._exists(tp)}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        def response(error: int) -> ms.OffsetCommitResponse:
            return ms.OffsetCommitResponse(
                topics=[
                    ms.OffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=[
                            ms.OffsetCommitResponsePartition(
                                partition_index=one.partition_index,
                                error_code=error
                                if TopicPartition(topic.name, one.partition_index) in known
                                else unknown,
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )

        if call.version < _IN_KAFKA:
            for tp, one in known.items():
                path = paths.offset(request.group_id, tp)
                self._site.controller.write(path, encode_offset(one.offset))
            return response(ErrorCode.NONE)
        commit = later.OffsetCommit(
            request.group_id,
            known,
            request.member_id,
            request.generation_id_or_member_epoch,
            request.group_instance_id,
        )
        self.ask(commit, lambda found: call.answer(response(found.error)), call.client)
        return None

    def _exists(self, tp: TopicPartition) -> bool:
        topic = self._site.controller.metadata.topics.get(tp.topic)
        return topic is not None and tp.partition in topic.partitions

    def _fetch(
        self, request: ms.OffsetFetchRequest, call: BrokerCall
    ) -> ms.OffsetFetchResponse | None:
        if call.version < _IN_KAFKA:
            return self._fetch_from_zookeeper(request)
        if call.version < _GROUPS:

            def answer(found: later.OffsetsFetched) -> None:
                topics = self._offset_topics(request.topics, found, call.version)
                call.answer(ms.OffsetFetchResponse(topics=topics, error_code=found.error))

            self._ask_offsets(request.group_id, request.topics, answer)
            return None
        groups: list[ms.OffsetFetchResponseGroup] = []
        for group in request.groups:

            def collect(
                found: later.OffsetsFetched, group: ms.OffsetFetchRequestGroup = group
            ) -> None:
                topics = self._offset_topics(group.topics, found, call.version)
                groups.append(
                    ms.OffsetFetchResponseGroup(
                        group_id=group.group_id, topics=topics, error_code=found.error
                    )
                )

            self._ask_offsets(group.group_id, group.topics, collect)
        return ms.OffsetFetchResponse(groups=groups)  # the coordinator has answered at once

    def _ask_offsets(
        self,
        group: str,
        topics: Iterable[ms.OffsetFetchRequestTopic] | None,
        answer: Callable[[later.OffsetsFetched], object],
    ) -> None:
        partitions = None if topics is None else tuple(_partitions(topics))
        self.ask(later.OffsetFetch(group, partitions), answer)

    @staticmethod
    def _offset_topics(
        topics: Iterable[ms.OffsetFetchRequestTopic] | None,
        found: later.OffsetsFetched,
        version: int,
    ) -> list[ms.OffsetFetchResponseTopic]:
        wanted = found.offsets if topics is None else _partitions(topics)
        grouped: dict[str, list[ms.OffsetFetchResponsePartition]] = {}
        for tp in wanted:
            one = found.offsets.get(tp, OffsetAndMetadata(-1, ""))
            # Until version 1, the response has no error of its own.
            error = found.error if version < 2 else Error.NONE
            grouped.setdefault(tp.topic, []).append(
                ms.OffsetFetchResponsePartition(
                    partition_index=tp.partition,
                    committed_offset=one.offset,
                    metadata=one.metadata,
                    error_code=error,
                )
            )
        return [
            ms.OffsetFetchResponseTopic(name=name, partitions=partitions)
            for name, partitions in grouped.items()
        ]

    def _fetch_from_zookeeper(self, request: ms.OffsetFetchRequest) -> ms.OffsetFetchResponse:
        def answer(tp: TopicPartition) -> ms.OffsetFetchResponsePartition:
            data = self._site.controller.read(paths.offset(request.group_id, tp))
            missing = data is None or not self._exists(tp)
            return ms.OffsetFetchResponsePartition(
                partition_index=tp.partition,
                committed_offset=-1 if data is None else int(data),
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else ErrorCode.NONE,
            )

        return ms.OffsetFetchResponse(
            topics=[
                ms.OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        answer(TopicPartition(topic.name, number))
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics or ()
            ]
        )

    # ---- groups ---------------------------------------------------------------------------------

    def _groups(self) -> dict[str, ClassicGroup]:
        return {
            name: group
            for partition in self._state.partitions.values()
            for name, group in partition.groups.items()
            if isinstance(group, ClassicGroup)
        }

    def _list(self, request: ms.ListGroupsRequest, _call: BrokerCall) -> ms.ListGroupsResponse:
        states = {one.lower() for one in request.states_filter}
        return ms.ListGroupsResponse(
            groups=[
                ms.ListedGroup(
                    group_id=name,
                    protocol_type=group.protocol_type or "",
                    group_state=group.phase.value,
                    group_type="classic",
                )
                for name, group in sorted(self._groups().items())
                if not states or group.phase.value.lower() in states
            ]
        )

    def _describe(
        self, request: ms.DescribeGroupsRequest, _call: BrokerCall
    ) -> ms.DescribeGroupsResponse:
        known = self._groups()

        def described(name: str) -> ms.DescribedGroup:
            if offsets_partition(name).partition not in self._state.partitions:
                return ms.DescribedGroup(group_id=name, error_code=ErrorCode.NOT_COORDINATOR)
            group = known.get(name)
            if group is None:
                return ms.DescribedGroup(group_id=name, group_state="Dead")
            return ms.DescribedGroup(
                group_id=name,
                group_state=group.phase.value,
                protocol_type=group.protocol_type or "",
                protocol_data=group.protocol or "",
                members=[
                    ms.DescribedGroupMember(
                        member_id=one.member,
                        group_instance_id=one.instance,
                        client_id=one.client,
                        client_host="/127.0.0.1",
                        member_metadata=one.metadata(group.protocol) if group.protocol else b"",
                        member_assignment=one.assignment,
                    )
                    for one in group.in_order()
                ],
            )

        return ms.DescribeGroupsResponse(groups=[described(one) for one in request.groups])

    def _delete(
        self, request: ms.DeleteGroupsRequest, _call: BrokerCall
    ) -> ms.DeleteGroupsResponse:
        def deleted(name: str) -> ErrorCode:
            number = offsets_partition(name).partition
            if number not in self._state.partitions:
                return ErrorCode.NOT_COORDINATOR
            group = self._groups().get(name)
            if group is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            if group.members:
                return ErrorCode.NON_EMPTY_GROUP
            partition = self._state.partitions[number]
            groups, offsets = dict(partition.groups), dict(partition.offsets)
            del groups[name]
            offsets.pop(name, None)
            partition = replace(partition, groups=groups, offsets=offsets)
            partitions = {**self._state.partitions, number: partition}
            self._state = replace(self._state, partitions=partitions)
            return ErrorCode.NONE

        return ms.DeleteGroupsResponse(
            results=[
                ms.DeletableGroupResult(group_id=name, error_code=deleted(name))
                for name in request.groups_names
            ]
        )


def _partitions(topics: Iterable[ms.OffsetFetchRequestTopic]) -> list[TopicPartition]:
    return [TopicPartition(one.name, number) for one in topics for number in one.partition_indexes]
