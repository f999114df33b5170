"""Kafka 3.9.1's own group coordinator, through JPype, with its log and its clock in memory.

`LiveCoordinator` runs a `GroupCoordinatorService`, the class that a broker runs. Its log, loader,
timer and clock are proxies of this module. So a script decides when time passes, when a partition
of `__consumer_offsets` is read, and when another broker takes over that partition.

The module runs as a separate process, because a JVM lives until its process ends: a line of its
standard input is the request for one script (`support.jvm.coordinator_scripts`), and a line of its
standard output is the script with every answer.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jpype

from support.jvm.coordinator_scripts import TOPICS, play, short
from support.jvm.kafka_391 import SERVER, answers_of, start
from zkconsumer.protocol.model import coordinator_partition

NO_GROUP = 69
NO_LEADER = -1
PARTITIONS = 50
OFFSETS_TOPIC = "__consumer_offsets"
BARRIER_TIMEOUT_S = 8


def _data(name: str) -> Any:
    return jpype.JClass(f"org.apache.kafka.common.message.{name}")


class _Clock:
    """A `Time` that the script advances."""

    def __init__(self) -> None:
        self.ms = 1_000_000_000

    def proxy(self) -> Any:
        methods: dict[str, Callable[..., Any]] = {
            "milliseconds": lambda: self.ms,
            "hiResClockMs": lambda: self.ms,
            "nanoseconds": lambda: self.ms * 1_000_000,
            "sleep": lambda _: None,
        }
        return jpype.JProxy("org.apache.kafka.common.utils.Time", dict=methods)


class _Timer:
    """A `Timer` that runs tasks in the order of their deadlines, then of their registration."""

    def __init__(self, clock: _Clock) -> None:
        self._clock, self._serial = clock, 0
        self._tasks: list[tuple[int, int, Any]] = []
        self._entry = jpype.JClass("org.apache.kafka.server.util.timer.TimerTaskEntry")

    def proxy(self) -> Any:
        methods: dict[str, Callable[..., Any]] = {
            "add": self._add,
            "advanceClock": lambda _: False,
            "size": lambda: len(self._tasks),
            "close": lambda: None,
        }
        return jpype.JProxy("org.apache.kafka.server.util.timer.Timer", dict=methods)

    def _add(self, task: Any) -> None:
        at = self._clock.ms + int(task.delayMs)
        heapq.heappush(self._tasks, (at, self._serial, self._entry(task, at)))
        self._serial += 1

    def due(self, until_ms: int) -> tuple[int, Any] | None:
        """Remove and return the next task that is due at this time, with its deadline."""
        while self._tasks and self._tasks[0][0] <= until_ms:
            at, _, entry = heapq.heappop(self._tasks)
            if not entry.cancelled():
                return at, entry.timerTask
        return None


class LiveCoordinator:
    """A broker with the real coordinator. Numbers identify requests, as in `group_events`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        start()
        self.clock = _Clock()
        self._timer = _Timer(self.clock)
        self._futures: dict[int, tuple[str, Any]] = {}
        self._log: list[Any] = []
        self._listeners: list[Any] = []
        self._loading: list[tuple[Any, Any]] = []
        self._group, self._place, self._epoch = "", 0, 0
        self._serde = jpype.JClass(f"{SERVER}.CoordinatorRecordSerde")()
        self._context = self._contexts()
        self._partition = jpype.JClass("org.apache.kafka.common.TopicPartition")
        self._service = self._build(config)

    # ---- the service and its proxies -------------------------------------------------------------

    def _build(self, config: Mapping[str, Any]) -> Any:
        configs = jpype.JClass(f"{SERVER}.GroupCoordinatorConfig")
        definition = jpype.JClass("org.apache.kafka.common.config.ConfigDef")()
        for part in (
            "GROUP_COORDINATOR_CONFIG_DEF",
            "NEW_GROUP_CONFIG_DEF",
            "OFFSET_MANAGEMENT_CONFIG_DEF",
            "CONSUMER_GROUP_CONFIG_DEF",
            "SHARE_GROUP_CONFIG_DEF",
        ):
            for key in getattr(configs, part).configKeys().values():
                definition.define(key)
        values = jpype.JClass("java.util.HashMap")()
        base = {
            "group.coordinator.append.linger.ms": "0",
            "group.coordinator.threads": "1",
            "group.consumer.migration.policy": "disabled",
        }
        for name, value in {**base, **config}.items():
            values.put(name, str(value))
        settings = configs(
            jpype.JClass("org.apache.kafka.common.config.AbstractConfig")(definition, values)
        )
        metrics = jpype.JClass("org.apache.kafka.common.metrics.Metrics")()
        registry = jpype.JClass("com.yammer.metrics.core.MetricsRegistry")()
        service = (
            jpype.JClass(f"{SERVER}.GroupCoordinatorService$Builder")(1, settings)
            .withTime(self.clock.proxy())
            .withTimer(self._timer.proxy())
            .withLoader(self._loader())
            .withWriter(self._writer())
            .withCoordinatorRuntimeMetrics(
                jpype.JClass(f"{SERVER}.metrics.GroupCoordinatorRuntimeMetrics")(metrics)
            )
            .withGroupCoordinatorMetrics(
                jpype.JClass(f"{SERVER}.metrics.GroupCoordinatorMetrics")(registry, metrics)
            )
            .build()
        )
        partitions = {"getAsInt": lambda: PARTITIONS}
        service.startup(jpype.JProxy("java.util.function.IntSupplier", dict=partitions))
        return service

    def _loader(self) -> Any:
        futures = jpype.JClass("java.util.concurrent.CompletableFuture")

        def load(_: Any, playback: Any) -> Any:
            future = futures()
            self._loading.append((playback, future))
            return future

        methods = {"load": load, "close": lambda: None}
        return jpype.JProxy(f"{SERVER}.runtime.CoordinatorLoader", dict=methods)

    def _writer(self) -> Any:
        log_config = jpype.JClass("org.apache.kafka.storage.internals.log.LogConfig")(
            jpype.JClass("java.util.HashMap")()
        )

        def append(partition: Any, _: Any, records: Any) -> int:
            for record in records.records():
                self._log.append(self._serde.deserialize(record.key(), record.value()))
            end = len(self._log)
            for listener in self._listeners:
                listener.onHighWatermarkUpdated(partition, end)
            return end

        methods: dict[str, Callable[..., Any]] = {
            "registerListener": lambda _, listener: self._listeners.append(listener),
            "deregisterListener": lambda _, __: self._listeners.clear(),
            "config": lambda _: log_config,
            "append": append,
        }
        return jpype.JProxy(f"{SERVER}.runtime.PartitionWriter", dict=methods)

    def _contexts(self) -> Callable[[str, int, str], Any]:
        headers = jpype.JClass("org.apache.kafka.common.requests.RequestHeader")
        contexts = jpype.JClass("org.apache.kafka.common.requests.RequestContext")
        keys = jpype.JClass("org.apache.kafka.common.protocol.ApiKeys")
        address = jpype.JClass("java.net.InetAddress").getLoopbackAddress()
        principal = jpype.JClass("org.apache.kafka.common.security.auth.KafkaPrincipal").ANONYMOUS
        security = jpype.JClass("org.apache.kafka.common.security.auth.SecurityProtocol").PLAINTEXT
        listener = jpype.JClass("org.apache.kafka.common.network.ListenerName").forSecurityProtocol(
            security
        )
        information = jpype.JClass("org.apache.kafka.common.network.ClientInformation").EMPTY

        def context(api: str, version: int, client: str) -> Any:
            key = getattr(keys, api)
            header = headers(key, version if version >= 0 else key.latestVersion(), client, 0)
            return contexts(header, "1", address, principal, listener, security, information, False)

        return context

    # ---- what a script does ----------------------------------------------------------------------

    def elect(self, partition: int) -> None:
        """Become leader of a partition."""
        self._epoch += 1
        self._service.onElection(partition, self._epoch)
        self._wait_until(lambda: bool(self._loading))

    def load(self) -> None:
        """Read the log of the partition that the coordinator has begun to load."""
        playback, future = self._loading.pop()
        longs = jpype.JClass("java.lang.Long")
        for offset, record in enumerate(self._log):
            playback.replay(offset, -1, -1, record)
            playback.updateLastWrittenOffset(longs(offset + 1))
            playback.updateLastCommittedOffset(longs(offset + 1))
        summary = jpype.JClass(f"{SERVER}.runtime.CoordinatorLoader$LoadSummary")
        future.complete(summary(0, 0, 0, len(self._log), 0))

    def resign(self, partition: int) -> None:
        """Hand a partition over to another broker."""
        self._service.onResignation(partition, jpype.JClass("java.util.OptionalInt").empty())

    def begin(self, group: str, place: int) -> None:
        """Forget all state, and become leader of the partition of a group whose log is empty."""
        while self._loading:
            self.load()
        self._image = jpype.JClass("org.apache.kafka.image.MetadataImage").EMPTY
        self._counts: dict[str, int] = {}
        self._service.onNewMetadataImage(self._image, self._delta(self._image))
        self.describe(self._group)
        self.resign(self._place)
        self.describe(self._group)
        self._group, self._place = group, place
        self._known: set[str] = set()
        self._log.clear()
        self._futures.clear()
        self.elect(place)
        self.load()
        self.describe(group)

    def advance(self, ms: int, group: str) -> None:
        """Advance the time, and run the tasks that become due in their order."""
        target = self.clock.ms + ms
        while (found := self._timer.due(target)) is not None:
            self.clock.ms = max(self.clock.ms, found[0])
            found[1].run()
            self.describe(group)
        self.clock.ms = target

    def create(self, topics: Mapping[str, int]) -> None:
        """Create topics with these numbers of partitions, or give existing topics more of them."""
        delta = self._delta(self._image)
        uuid = jpype.JClass("org.apache.kafka.common.Uuid")
        for name, count in topics.items():
            topic = uuid(1, TOPICS.index(name))
            if name not in self._counts:
                record = jpype.JClass("org.apache.kafka.common.metadata.TopicRecord")()
                delta.replay(record.setName(name).setTopicId(topic))
            for number in range(self._counts.get(name, 0), count):
                record = jpype.JClass("org.apache.kafka.common.metadata.PartitionRecord")()
                delta.replay(record.setTopicId(topic).setPartitionId(number).setLeader(NO_LEADER))
            self._counts[name] = count
        self._image = delta.apply(jpype.JClass("org.apache.kafka.image.MetadataProvenance").EMPTY)
        self._service.onNewMetadataImage(self._image, delta)

    @staticmethod
    def _delta(image: Any) -> Any:
        return jpype.JClass("org.apache.kafka.image.MetadataDelta")(image)

    def send(self, number: int, request: Mapping[str, Any]) -> None:
        """Send a request; `replies` returns the answer when there is one."""
        future = getattr(self, f"_{request['op']}")(request)
        self._futures[number] = (request["op"], future)

    def replies(self) -> dict[int, Any]:
        """Return the answers that have arrived since the last call."""
        done = [number for number, (_, future) in self._futures.items() if future.isDone()]
        found = {}
        for number in done:
            op, future = self._futures.pop(number)
            try:
                found[number] = getattr(self, f"_{op}_answer")(future.get())
            # KafkaApis translates these exceptions into error codes.
            except jpype.JException as failure:
                errors = jpype.JClass("org.apache.kafka.common.protocol.Errors")
                found[number] = {"error": int(errors.forException(failure.getCause()).code())}
        return found

    def describe(self, group: str) -> dict[str, Any]:
        """Return the group's state after everything that has been sent."""
        names = jpype.JClass("java.util.ArrayList")()
        names.add(group)
        context = self._context("DESCRIBE_GROUPS", -1, "observer")
        units = jpype.JClass("java.util.concurrent.TimeUnit")
        future = self._service.describeGroups(context, names)
        found = future.get(BARRIER_TIMEOUT_S, units.SECONDS)[0]
        if found.errorCode() == NO_GROUP:
            return {"state": "Dead", "members": []}
        if found.errorCode():
            return {"error": int(found.errorCode())}
        return {
            "state": str(found.groupState()),
            "members": sorted(str(one.memberId()) for one in found.members()),
        }

    def _described_consumer_group(self) -> dict[str, Any] | None:
        """Return the state of a KIP-848 group; None if the group is classic or does not exist."""
        names = jpype.JClass("java.util.ArrayList")()
        names.add(self._group)
        context = self._context("CONSUMER_GROUP_DESCRIBE", -1, "observer")
        units = jpype.JClass("java.util.concurrent.TimeUnit")
        future = self._service.consumerGroupDescribe(context, names)
        found = future.get(BARRIER_TIMEOUT_S, units.SECONDS)[0]
        if found.errorCode():
            return None
        members = {
            str(one.memberId()): [
                int(one.memberEpoch()),
                _partitions(one.assignment()),
                _partitions(one.targetAssignment()),
            ]
            for one in found.members()
        }
        return {
            "state": str(found.groupState()),
            "epoch": int(found.groupEpoch()),
            "target_epoch": int(found.assignmentEpoch()),
            "members": dict(sorted(members.items())),
        }

    # ---- requests --------------------------------------------------------------------------------

    def _join(self, request: Mapping[str, Any]) -> Any:
        message = _data("JoinGroupRequestData")
        protocols = _data("JoinGroupRequestData$JoinGroupRequestProtocolCollection")()
        one = _data("JoinGroupRequestData$JoinGroupRequestProtocol")
        for name, metadata in request["protocols"]:
            protocols.add(one().setName(name).setMetadata(_bytes(metadata)))
        data = (
            message()
            .setGroupId(request["group"])
            .setMemberId(request["member"])
            .setGroupInstanceId(request["instance"])
            .setProtocolType(request["type"])
            .setProtocols(protocols)
            .setSessionTimeoutMs(request["session"])
            .setRebalanceTimeoutMs(request["rebalance"])
        )
        context = self._context("JOIN_GROUP", request["version"], request["client"])
        return self._service.joinGroup(context, data, _no_buffers())

    @staticmethod
    def _join_answer(data: Any) -> dict[str, Any]:
        return short(
            {
                "error": int(data.errorCode()),
                "member": str(data.memberId() or ""),
                "generation": int(data.generationId()),
                "type": _text(data.protocolType()),
                "protocol": _text(data.protocolName()),
                "leader": str(data.leader() or ""),
                "skip": bool(data.skipAssignment()),
                "members": [
                    [str(one.memberId()), _text(one.groupInstanceId()), _hex(one.metadata())]
                    for one in data.members()
                ],
            }
        )

    def _sync(self, request: Mapping[str, Any]) -> Any:
        message = _data("SyncGroupRequestData")
        assignments = jpype.JClass("java.util.ArrayList")()
        one = _data("SyncGroupRequestData$SyncGroupRequestAssignment")
        for member, assignment in request["assignments"].items():
            assignments.add(one().setMemberId(member).setAssignment(_bytes(assignment)))
        data = (
            message()
            .setGroupId(request["group"])
            .setMemberId(request["member"])
            .setGroupInstanceId(request["instance"])
            .setGenerationId(request["generation"])
            .setProtocolType(request["type"])
            .setProtocolName(request["protocol"])
            .setAssignments(assignments)
        )
        context = self._context("SYNC_GROUP", -1, "client")
        return self._service.syncGroup(context, data, _no_buffers())

    @staticmethod
    def _sync_answer(data: Any) -> dict[str, Any]:
        return short(
            {
                "error": int(data.errorCode()),
                "assignment": _hex(data.assignment()),
                "type": _text(data.protocolType()),
                "protocol": _text(data.protocolName()),
            }
        )

    def _heartbeat(self, request: Mapping[str, Any]) -> Any:
        data = (
            _data("HeartbeatRequestData")()
            .setGroupId(request["group"])
            .setMemberId(request["member"])
            .setGroupInstanceId(request["instance"])
            .setGenerationId(request["generation"])
        )
        return self._service.heartbeat(self._context("HEARTBEAT", -1, "client"), data)

    @staticmethod
    def _heartbeat_answer(data: Any) -> dict[str, Any]:
        return short({"error": int(data.errorCode())})

    def _leave(self, request: Mapping[str, Any]) -> Any:
        leavers = jpype.JClass("java.util.ArrayList")()
        one = _data("LeaveGroupRequestData$MemberIdentity")
        for member, instance in request["leavers"]:
            leavers.add(one().setMemberId(member).setGroupInstanceId(instance))
        data = _data("LeaveGroupRequestData")().setGroupId(request["group"]).setMembers(leavers)
        return self._service.leaveGroup(self._context("LEAVE_GROUP", -1, "client"), data)

    @staticmethod
    def _leave_answer(data: Any) -> dict[str, Any]:
        return short(
            {
                "error": int(data.errorCode()),
                "leavers": [
                    [str(one.memberId()), _text(one.groupInstanceId()), int(one.errorCode())]
                    for one in data.members()
                ],
            }
        )

    def _commit(self, request: Mapping[str, Any]) -> Any:
        topics = jpype.JClass("java.util.ArrayList")()
        topic = _data("OffsetCommitRequestData$OffsetCommitRequestTopic")
        one = _data("OffsetCommitRequestData$OffsetCommitRequestPartition")
        for name, number, offset in request["offsets"]:
            partitions = jpype.JClass("java.util.ArrayList")()
            partitions.add(one().setPartitionIndex(number).setCommittedOffset(offset))
            topics.add(topic().setName(name).setPartitions(partitions))
        data = (
            _data("OffsetCommitRequestData")()
            .setGroupId(request["group"])
            .setMemberId(request["member"])
            .setGroupInstanceId(request["instance"])
            .setGenerationIdOrMemberEpoch(request["generation"])
            .setTopics(topics)
        )
        context = self._context("OFFSET_COMMIT", -1, "client")
        return self._service.commitOffsets(context, data, _no_buffers())

    @staticmethod
    def _commit_answer(data: Any) -> dict[str, Any]:
        codes = {int(one.errorCode()) for topic in data.topics() for one in topic.partitions()}
        (code,) = codes
        return short({"error": code})

    def _fetch(self, request: Mapping[str, Any]) -> Any:
        data = (
            _data("OffsetFetchRequestData$OffsetFetchRequestGroup")()
            .setGroupId(request["group"])
            .setTopics(None)
            .setMemberId(request["member"])
            .setMemberEpoch(request["epoch"])
        )
        context = self._context("OFFSET_FETCH", -1, "client")
        return self._service.fetchAllOffsets(context, data, False)

    @staticmethod
    def _fetch_answer(data: Any) -> dict[str, Any]:
        return short(
            {
                "error": int(data.errorCode()),
                "offsets": sorted(
                    [str(topic.name()), int(one.partitionIndex()), int(one.committedOffset())]
                    for topic in data.topics() or ()
                    for one in topic.partitions()
                ),
            }
        )

    def _beat(self, request: Mapping[str, Any]) -> Any:
        message = _data("ConsumerGroupHeartbeatRequestData")
        data = (
            message()
            .setGroupId(request["group"])
            .setMemberId(request["member"])
            .setMemberEpoch(request["epoch"])
            .setInstanceId(request["instance"])
            .setServerAssignor(request["assignor"])
        )
        if request["rebalance"] is not None:
            data.setRebalanceTimeoutMs(request["rebalance"])
        lists = jpype.JClass("java.util.ArrayList")
        if request["topics"] is not None:
            names = lists()
            for name in request["topics"]:
                names.add(name)
            data.setSubscribedTopicNames(names)
        if request["owned"] is not None:
            owned = lists()
            part = _data("ConsumerGroupHeartbeatRequestData$TopicPartitions")
            uuid = jpype.JClass("org.apache.kafka.common.Uuid")
            for name, number in request["owned"]:
                numbers = lists()
                numbers.add(jpype.JClass("java.lang.Integer")(number))
                topic = uuid(1, TOPICS.index(name))
                owned.add(part().setTopicId(topic).setPartitions(numbers))
            data.setTopicPartitions(owned)
        context = self._context("CONSUMER_GROUP_HEARTBEAT", -1, "client")
        return self._service.consumerGroupHeartbeat(context, data)

    @staticmethod
    def _beat_answer(data: Any) -> dict[str, Any]:
        found = short(
            {
                "error": int(data.errorCode()),
                "member": _text(data.memberId()),
                "epoch": int(data.memberEpoch()),
            }
        )
        if data.assignment() is not None:
            found["assignment"] = sorted(
                [TOPICS[int(one.topicId().getLeastSignificantBits())], int(number)]
                for one in data.assignment().topicPartitions()
                for number in one.partitions()
            )
        return found

    # ---- scripts: `support.jvm.coordinator_scripts.Backend` ------------------------------------

    def apply(self, number: int, event: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the answers that an event causes, and the group's state after it.

        The event's `fresh` is set to the end of the member id that the coordinator has chosen.
        """
        match event["op"]:
            case "advance":
                self.advance(event["ms"], self._group)
            case "resign":
                self.resign(self._place)
            case "elect":
                self.elect(self._place)
            case "load":
                self.load()
            case "topics":
                self.create(event["topics"])
            case _:
                self.send(number, event)
        state = self.describe(self._group)
        if "error" not in state:
            state = self._described_consumer_group() or state
        answers = {str(one): answer for one, answer in self.replies().items()}
        known = set(state.get("members", ()))
        if event["op"] == "beat" and not event["member"]:
            event["fresh"] = answers.get(str(number), {}).get("member", "")
        if event["op"] == "join" and not event["member"]:
            prefix = f"{event['instance'] or event['client']}-"
            mine = {answers.get(str(number), {}).get("member", "")} | (known - self._known)
            event["fresh"] = next(
                (one.removeprefix(prefix) for one in mine if one.startswith(prefix)), ""
            )
        self._known |= known
        return answers, state

    @staticmethod
    def _wait_until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + BARRIER_TIMEOUT_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the coordinator has not begun to load the partition")
            time.sleep(0.001)


def _partitions(assignment: Any) -> list[list[Any]]:
    return sorted(
        [str(one.topicName()), int(number)]
        for one in assignment.topicPartitions()
        for number in one.partitions()
    )


def _bytes(text: str) -> Any:
    return jpype.JArray(jpype.JByte)(bytes.fromhex(text))


def _hex(data: Any) -> str:
    return bytes(byte & 0xFF for byte in data or ()).hex()


def _text(text: Any) -> str | None:
    return str(text) if text else None


def _no_buffers() -> Any:
    return jpype.JClass("org.apache.kafka.common.utils.BufferSupplier").NO_CACHING


class Backend:
    """The real coordinators as a backend for scripts, one coordinator for each configuration."""

    def __init__(self) -> None:
        self._services: dict[str, LiveCoordinator] = {}

    def begin(self, config: Mapping[str, Any], group: str) -> None:
        """Start with an empty log, as leader of the group's partition."""
        name = json.dumps(config, sort_keys=True)
        if name not in self._services:
            self._services[name] = LiveCoordinator(config)
        self._service = self._services[name]
        self._service.begin(group, coordinator_partition(group))

    def apply(self, number: int, event: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the answers that an event causes, and the group's state after it."""
        return self._service.apply(number, event)


def scripts(seeds: Iterable[int], timeout_s: float = 600.0) -> list[dict[str, Any]]:
    """Return the scripts of seeds, with the answers of the real coordinator in a new JVM."""
    return answers_of(__file__, seeds, timeout_s)


def main() -> None:
    """Write the script of each seed that standard input names."""
    status = 1
    try:
        backend = Backend()
        for line in sys.stdin:
            sys.stdout.write(json.dumps(play(backend, int(line))) + "\n")
        sys.stdout.flush()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)  # The threads of the coordinators do not end by themselves.


if __name__ == "__main__":
    main()
