"""Kafka 3.9.1's own classes, through JPype: assignors, partitioners, placement.

`ask` starts this file as a process, because a JVM lives until its process ends. Each line of its
standard input is a request, and each line of its standard output is an answer.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jpype

from support.jvm.member import libjvm
from zkconsumer.sandbox import jars

RELEASE = "3.9.1"

CLIENT = "org.apache.kafka.clients.consumer"
SERVER = "org.apache.kafka.coordinator.group"
CLASSES = {
    "range": f"{CLIENT}.RangeAssignor",
    "roundrobin": f"{CLIENT}.RoundRobinAssignor",
    "sticky": f"{CLIENT}.StickyAssignor",
    "cooperative-sticky": f"{CLIENT}.CooperativeStickyAssignor",
    "uniform": f"{SERVER}.assignor.UniformAssignor",
    "server-range": f"{SERVER}.assignor.RangeAssignor",
}


def ask(requests: Iterable[Mapping[str, Any]], timeout_s: float = 600.0) -> list[dict[str, Any]]:
    """Return the answers of a new JVM to cases, and to requests with a `call` (`Live.answer`)."""
    return answers_of(__file__, requests, timeout_s)


def answers_of(program: str, requests: Iterable[Any], timeout_s: float) -> list[dict[str, Any]]:
    """Return the output of a program of this package: one line for each request."""
    path = os.pathsep.join(str(Path(__file__).parents[level]) for level in (2, 3))
    found = subprocess.run(
        [sys.executable, program],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


def start() -> None:
    """Start the JVM with the broker's jars, unless it already runs."""
    if jpype.isJVMStarted():
        return
    with tempfile.NamedTemporaryFile("w", suffix=".properties", delete=False) as log4j:
        log4j.write("log4j.rootLogger=OFF\n")
    atexit.register(Path(log4j.name).unlink)
    jpype.startJVM(
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Xrs",
        f"-Dlog4j.configuration=file:{log4j.name}",
        jvmpath=str(libjvm(jars.find_java().executable)),
        classpath=[str(jar) for jar in jars.resolve(f"kafka-{RELEASE}")],
        convertStrings=True,
    )


class Live:
    """Computes cases with the real classes, whose names are looked up only once."""

    def __init__(self) -> None:
        start()
        self.array_list = jpype.JClass("java.util.ArrayList")
        self.hash_map = jpype.JClass("java.util.HashMap")
        self.hash_set = jpype.JClass("java.util.HashSet")
        self.integer = jpype.JClass("java.lang.Integer")
        self.optional = jpype.JClass("java.util.Optional")
        self.partition = jpype.JClass("org.apache.kafka.common.TopicPartition")
        self.subscription = jpype.JClass(f"{CLIENT}.ConsumerPartitionAssignor$Subscription")
        self.assignment = jpype.JClass(f"{CLIENT}.ConsumerPartitionAssignor$Assignment")
        self.group = jpype.JClass(f"{CLIENT}.ConsumerPartitionAssignor$GroupSubscription")
        self.metadata = jpype.JClass(f"{CLIENT}.ConsumerGroupMetadata")
        self.protocol = jpype.JClass(f"{CLIENT}.internals.ConsumerProtocol")
        self.cluster = jpype.JClass("org.apache.kafka.common.Cluster")
        self.node = jpype.JClass("org.apache.kafka.common.Node")
        self.info = jpype.JClass("org.apache.kafka.common.PartitionInfo")
        self.uuid = jpype.JClass("org.apache.kafka.common.Uuid")

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request; its `call` names the computation."""
        match request.get("call", "assign"):
            case "assign":
                return self.result(request)
            case "coordinator":
                utils = jpype.JClass("org.apache.kafka.common.utils.Utils")
                code = jpype.JClass("java.util.Objects").hashCode(jpype.JString(request["group"]))
                return {"partition": int(utils.abs(code)) % request["partitions"]}
            case "partitioner":
                return self._partitioner(request)
            case "placement":
                return self._placement(request)
            case "vote":
                return self._vote(request)
            case "reconcile":
                return self._reconcile(request)
            case "size":
                return self._size(request)
        raise ValueError(request["call"])

    def _size(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Encode a message, and return its number of bytes with the length and the header.

        `fields` are those that have not the message's defaults, as Kafka's converters write them.
        """
        name, version = request["message"], request["version"]
        data = f"org.apache.kafka.common.message.{name}Data"
        converter = jpype.JClass(f"{data}JsonConverter")
        mapper = jpype.JClass("com.fasterxml.jackson.databind.ObjectMapper")()
        default = json.loads(str(converter.write(jpype.JClass(data)(), version)))
        document = mapper.readTree(json.dumps(default | request["fields"]))
        kind = jpype.JClass("org.apache.kafka.common.protocol.ApiKeys").forId(request["key"])
        requests = "org.apache.kafka.common.requests"
        if name.endswith("Request"):
            head = jpype.JClass(f"{requests}.RequestHeader")(kind, version, request["client"], 7)
        else:
            head = jpype.JClass(f"{requests}.ResponseHeader")(
                7, kind.responseHeaderVersion(version)
            )
        encoded = jpype.JClass("org.apache.kafka.common.protocol.MessageUtil").toByteBuffer
        body = encoded(converter.read(document, version), version).remaining()
        return {"size": 4 + int(encoded(head.data(), head.headerVersion()).remaining() + body)}

    def _partitioner(self, request: Mapping[str, Any]) -> dict[str, Any]:
        utils = jpype.JClass("org.apache.kafka.common.utils.Utils")
        key = jpype.JArray(jpype.JByte)(bytes.fromhex(request["key"]))
        code = jpype.JClass("java.util.Arrays").hashCode(key)
        producer = jpype.JClass("org.apache.kafka.clients.producer.internals.BuiltInPartitioner")
        return {
            "murmur2": int(utils.murmur2(key)),
            "new": int(producer.partitionForKey(key, request["partitions"])),
            "hash": int(code),
            "old": int(utils.abs(code)) % request["partitions"],
        }

    def _placement(self, request: Mapping[str, Any]) -> dict[str, Any]:
        racks = request.get("racks")
        metadata = jpype.JClass("org.apache.kafka.admin.BrokerMetadata")
        brokers = self.array_list_of(
            metadata(broker, self.optional.ofNullable(racks[str(broker)] if racks else None))
            for broker in sorted(request["brokers"])
        )
        found = jpype.JClass("org.apache.kafka.admin.AdminUtils").assignReplicasToBrokers(
            brokers,
            request["partitions"],
            request["replicas"],
            request["start"],
            request["first_partition"],
        )
        return {
            str(entry.getKey()): [int(one) for one in entry.getValue()]
            for entry in found.entrySet()
        }

    def _vote(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Let a `ClassicGroup` select its protocol."""
        logs = jpype.JClass("org.apache.kafka.common.utils.LogContext")()
        states = jpype.JClass(f"{SERVER}.classic.ClassicGroupState")
        clock = jpype.JClass("org.apache.kafka.common.utils.Time").SYSTEM
        registry = jpype.JClass("org.apache.kafka.timeline.SnapshotRegistry")(logs)
        metrics = jpype.JClass(f"{SERVER}.metrics.GroupCoordinatorMetricsShard")(
            registry, self.hash_map(), self.partition("__consumer_offsets", 0)
        )
        groups = jpype.JClass(f"{SERVER}.classic.ClassicGroup")
        group = groups(logs, "group", states.EMPTY, clock, metrics)
        member = jpype.JClass(f"{SERVER}.classic.ClassicGroupMember")
        message = "org.apache.kafka.common.message.JoinGroupRequestData$JoinGroupRequestProtocol"
        for name, assignors in request["members"].items():
            protocols = jpype.JClass(f"{message}Collection")()
            for assignor in assignors:
                one = jpype.JClass(message)().setName(assignor)
                protocols.add(one.setMetadata(jpype.JArray(jpype.JByte)(b"")))
            none = self.optional.empty()
            group.add(member(name, none, "client", "host", 1000, 1000, "consumer", protocols))
        return {"assignor": str(group.selectProtocol())}

    def _reconcile(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Let a `CurrentAssignmentBuilder` build the next state of a member."""
        ids = {name: self.uuid(1, place) for place, name in enumerate(request["topics"])}
        names = {str(one): name for name, one in ids.items()}

        def by_topic(partitions: Iterable[list[Any]]) -> Any:
            found = self.hash_map()
            for topic, number in partitions:
                found.computeIfAbsent(ids[topic], lambda _: self.hash_set()).add(
                    self.integer(number)
                )
            return found

        states = jpype.JClass(f"{SERVER}.modern.MemberState")
        members = jpype.JClass(f"{SERVER}.modern.consumer.ConsumerGroupMember$Builder")
        before = request["member"]
        member = (
            members("member")
            .setState(states.valueOf(before["state"]))
            .setMemberEpoch(before["epoch"])
            .setPreviousMemberEpoch(before["previous_epoch"])
            .setAssignedPartitions(by_topic(before["assigned"]))
            .setPartitionsPendingRevocation(by_topic(before["revoking"]))
            .build()
        )
        held = {(str(ids[topic]), number) for topic, number in request["held"]}
        epochs = jpype.JProxy(
            "java.util.function.BiFunction",
            dict={
                "apply": lambda topic, number: self.integer(
                    1 if (str(topic), int(number)) in held else -1
                )
            },
        )
        builder = jpype.JClass(f"{SERVER}.modern.consumer.CurrentAssignmentBuilder")(member)
        target = jpype.JClass(f"{SERVER}.modern.Assignment")(by_topic(request["target"]))
        builder.withTargetAssignment(request["target_epoch"], target)
        builder.withCurrentPartitionEpoch(epochs)
        if request["owned"] is not None:
            owned = by_topic(request["owned"])
            message = "org.apache.kafka.common.message.ConsumerGroupHeartbeatRequestData"
            part = jpype.JClass(f"{message}$TopicPartitions")
            builder.withOwnedTopicPartitions(
                self.array_list_of(
                    part()
                    .setTopicId(one.getKey())
                    .setPartitions(self.array_list_of(one.getValue()))
                    for one in owned.entrySet()
                )
            )
        after = builder.build()

        def plain(partitions: Any) -> list[list[Any]]:
            return sorted(
                [names[str(one.getKey())], int(number)]
                for one in partitions.entrySet()
                for number in one.getValue()
            )

        return {
            "state": str(after.state().name()),
            "epoch": int(after.memberEpoch()),
            "previous_epoch": int(after.previousMemberEpoch()),
            "assigned": plain(after.assignedPartitions()),
            "revoking": plain(after.partitionsPendingRevocation()),
        }

    def result(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a case in the form of `zkconsumer assign --assignor`."""
        compute = self._server if case["assignor"] in ("uniform", "server-range") else self._client
        try:
            found = compute(case)
        except jpype.JException as error:
            return {"case": case["case"], "error": str(error.getClass().getName())}
        assignment = {
            member: {
                topic: sorted(number for name, number in found.get(member, ()) if name == topic)
                for topic in sorted({name for name, _ in found.get(member, ())})
            }
            for member in case["members"]
        }
        return {"case": case["case"], "assignment": assignment}

    def array_list_of(self, elements: Iterable[Any]) -> Any:
        found = self.array_list()
        for element in elements:
            found.add(element)
        return found

    def _partitions(self, owned: Mapping[str, list[int]]) -> Any:
        return self.array_list_of(
            self.partition(topic, number) for topic, numbers in owned.items() for number in numbers
        )

    # ---- the assignors of the client -------------------------------------------------------------

    def _client(self, case: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
        members = self.hash_map()
        for member, document in case["members"].items():
            members.put(member, self._subscription(case["assignor"], document))
        assignor = jpype.JClass(CLASSES[case["assignor"]])()
        found = assignor.assign(self._cluster(case["topics"]), self.group(members))
        return {
            str(entry.getKey()): [
                (str(one.topic()), int(one.partition())) for one in entry.getValue().partitions()
            ]
            for entry in found.groupAssignment().entrySet()
        }

    def _subscription(self, name: str, document: Mapping[str, Any]) -> Any:
        owned, generation = document.get("owned") or {}, document.get("generation", -1)
        topics = self.array_list_of(document["topics"])
        held = self._partitions(owned)
        user_data, kept = None, self.array_list_of(())
        if name == "cooperative-sticky":
            user_data = jpype.JClass(CLASSES[name])().subscriptionUserData(self.hash_set(topics))
            kept = held
        elif name == "sticky" and (held.size() or generation != -1):
            member = jpype.JClass(CLASSES[name])()
            empty = self.optional.empty()
            member.onAssignment(
                self.assignment(held), self.metadata("group", generation, "member", empty)
            )
            user_data = member.subscriptionUserData(self.hash_set(topics))
        elif name not in CLASSES:
            raise ValueError(name)
        rack = self.optional.ofNullable(document.get("rack"))
        sent = self.subscription(topics, user_data, kept, generation, rack)
        received = self.protocol.deserializeSubscription(self.protocol.serializeSubscription(sent))
        received.setGroupInstanceId(self.optional.ofNullable(document.get("instance")))
        return received

    def _cluster(self, topics: Mapping[str, Any]) -> Any:
        nodes: dict[str | None, Any] = {}

        def node(rack: str | None) -> Any:
            if rack not in nodes:
                nodes[rack] = self.node(len(nodes), "host", 9092, rack)
            return nodes[rack]

        infos = self.array_list_of(())
        for name, topic in topics.items():
            racks = topic.get("racks")
            for number in range(topic["partitions"]):
                replicas = [node(rack) for rack in racks[number]] if racks else [node(None)]
                array = jpype.JArray(self.node)(replicas)
                leader = replicas[0] if replicas else None
                infos.add(self.info(name, number, leader, array, array))
        empty = jpype.JClass("java.util.Collections").emptySet()
        return self.cluster("cluster", self.array_list_of(nodes.values()), infos, empty, empty)

    # ---- the assignors of the coordinator --------------------------------------------------------

    def _server(self, case: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
        ids = {}
        for place, (name, topic) in enumerate(case["topics"].items()):
            given = topic.get("id")
            ids[name] = self.uuid.fromString(given) if given else self.uuid(1, place)
        names = {str(one): name for name, one in ids.items()}
        members, inverted = self._server_members(case, ids)
        topics = self.hash_map()
        metadata = jpype.JClass(f"{SERVER}.modern.TopicMetadata")
        for name, topic in case["topics"].items():
            one = metadata(ids[name], name or "-", topic["partitions"], self.hash_map())
            topics.put(ids[name], one)
        wanted = [frozenset(one["topics"]) for one in case["members"].values()]
        kinds = jpype.JClass("org.apache.kafka.coordinator.group.api.assignor.SubscriptionType")
        equal = all(one == wanted[0] for one in wanted)
        group = jpype.JClass(f"{SERVER}.modern.GroupSpecImpl")(
            members, kinds.HOMOGENEOUS if equal else kinds.HETEROGENEOUS, inverted
        )
        describer = jpype.JClass(f"{SERVER}.modern.SubscribedTopicDescriberImpl")(topics)
        found = jpype.JClass(CLASSES[case["assignor"]])().assign(group, describer)
        return {
            str(entry.getKey()): [
                (names[str(one.getKey())], int(number))
                for one in entry.getValue().partitions().entrySet()
                for number in one.getValue()
            ]
            for entry in found.members().entrySet()
        }

    def _server_members(self, case: Mapping[str, Any], ids: Mapping[str, Any]) -> tuple[Any, Any]:
        image = self._image(ids)
        members, inverted = self.hash_map(), self.hash_map()
        for name, document in case["members"].items():
            held = self.hash_map()
            for topic, numbers in (document.get("owned") or {}).items():
                if topic not in ids or not numbers:
                    continue
                held.put(ids[topic], self.hash_set(self.array_list_of(map(self.integer, numbers))))
                owners = inverted.computeIfAbsent(ids[topic], lambda _: self.hash_map())
                for number in numbers:
                    owners.put(self.integer(number), name)
            members.put(
                name,
                jpype.JClass(f"{SERVER}.modern.MemberSubscriptionAndAssignmentImpl")(
                    self.optional.ofNullable(document.get("rack")),
                    self.optional.ofNullable(document.get("instance")),
                    jpype.JClass(f"{SERVER}.modern.TopicIds")(
                        self.hash_set(self.array_list_of(document["topics"])), image
                    ),
                    jpype.JClass(f"{SERVER}.modern.Assignment")(held),
                ),
            )
        return members, inverted

    def _image(self, ids: Mapping[str, Any]) -> Any:
        images = jpype.JClass("org.apache.kafka.image.TopicsImage")
        delta = jpype.JClass("org.apache.kafka.image.TopicsDelta")(images.EMPTY)
        for name, one in ids.items():
            record = jpype.JClass("org.apache.kafka.common.metadata.TopicRecord")()
            delta.replay(record.setName(name).setTopicId(one))
        return delta.apply()


def main() -> None:
    """Answer the requests on standard input until it ends."""
    live = Live()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(live.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
