"""Requests that concern topics: Metadata, CreateTopics, CreatePartitions and DeleteTopics.

Kafka: `kafka.server.KafkaApis` and `ZkAdminManager`.
"""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.testing import messages as ms
from zkconsumer.testing.broker_calls import BrokerCall, Handlers, Site
from zkconsumer.testing.cluster_metadata import INTERNAL_TOPICS, NO_LEADER, Topic
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.wire import NO_ID


class TopicRequests:
    """Answers the requests that concern topics."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._creates_topics = site.creates_topics
        self._controller = site.controller
        self._metadata = site.controller.metadata
        self.handlers: Handlers = {
            3: self._describe,
            19: self._create,
            20: self._delete,
            37: self._add_partitions,
        }

    # ---- Metadata -------------------------------------------------------------------------------

    def _describe(self, request: ms.MetadataRequest, call: BrokerCall) -> ms.MetadataResponse:
        metadata = self._metadata
        return ms.MetadataResponse(
            brokers=[
                ms.MetadataResponseBroker(node_id=one.id, host=one.host, port=one.port)
                for one in sorted(metadata.nodes.values())
            ],
            cluster_id=metadata.cluster_id,
            controller_id=metadata.controller,
            topics=list(self._topics(request, call.version)),
        )

    def _topics(
        self, request: ms.MetadataRequest, version: int
    ) -> Iterable[ms.MetadataResponseTopic]:
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            for topic in sorted(self._metadata.topics.values(), key=lambda one: one.name):
                yield self._topic(topic)
            return
        for one in wanted:
            if one.name is None:
                known = self._metadata.topic_of_id(one.topic_id)
                missing = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                known = self._metadata.topics.get(one.name)
                missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if known is None and self._creates_topics and request.allow_auto_topic_creation:
                    missing = self._auto_created(one.name)
            if known is not None:
                yield self._topic(known)
            else:
                # The name is null only in version 12 and later.
                name = one.name if version >= 12 else one.name or ""
                yield ms.MetadataResponseTopic(error_code=missing, name=name, topic_id=one.topic_id)

    def _auto_created(self, name: str) -> ErrorCode:
        """Create a topic that a client has named, and return the error in the first response."""
        try:
            self._controller.create_topic(name, 1)
        except KafkaFault as fault:
            return fault.code
        return ErrorCode.LEADER_NOT_AVAILABLE

    def _topic(self, topic: Topic) -> ms.MetadataResponseTopic:
        alive = self._metadata.nodes
        return ms.MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[
                ms.MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE
                    if one.leader == NO_LEADER
                    else ErrorCode.NONE,
                    partition_index=number,
                    leader_id=one.leader,
                    leader_epoch=one.epoch,
                    replica_nodes=one.replicas,
                    isr_nodes=one.isr,
                    offline_replicas=[node for node in one.replicas if node not in alive],
                )
                for number, one in sorted(topic.partitions.items())
            ],
        )

    # ---- changes --------------------------------------------------------------------------------

    def _create(
        self, request: ms.CreateTopicsRequest, _call: BrokerCall
    ) -> ms.CreateTopicsResponse:
        return ms.CreateTopicsResponse(
            topics=[self._created(one, is_trial=request.validate_only) for one in request.topics]
        )

    def _created(self, wanted: ms.CreatableTopic, *, is_trial: bool) -> ms.CreatableTopicResult:
        # -1 stands for the broker's defaults, which are 1.
        count = 1 if wanted.num_partitions == -1 else wanted.num_partitions
        replicas = 1 if wanted.replication_factor == -1 else wanted.replication_factor
        assignment = {one.partition_index: one.broker_ids for one in wanted.assignments}
        config = {one.name: one.value for one in wanted.configs if one.value is not None}
        try:
            if not is_trial:
                self._controller.create_topic(wanted.name, count, replicas, config, assignment)
        except KafkaFault as fault:
            return ms.CreatableTopicResult(
                name=wanted.name, error_code=fault.code, error_message=fault.why
            )
        topic = self._metadata.topics.get(wanted.name)
        return ms.CreatableTopicResult(
            name=wanted.name,
            topic_id=topic.id if topic else NO_ID,
            error_message=None,
            num_partitions=count,
            replication_factor=replicas,
        )

    def _add_partitions(
        self, request: ms.CreatePartitionsRequest, _call: BrokerCall
    ) -> ms.CreatePartitionsResponse:
        results = []
        for one in request.topics:
            result = ms.CreatePartitionsTopicResult(name=one.name)
            try:
                if not request.validate_only:
                    self._controller.add_partitions(one.name, one.count)
            except KafkaFault as fault:
                result.error_code, result.error_message = fault.code, fault.why
            results.append(result)
        return ms.CreatePartitionsResponse(results=results)

    def _delete(self, request: ms.DeleteTopicsRequest, call: BrokerCall) -> ms.DeleteTopicsResponse:
        if call.version >= 6:
            named = [(one.name, one.topic_id) for one in request.topics]
        else:
            named = [(name, NO_ID) for name in request.topic_names]
        return ms.DeleteTopicsResponse(responses=[self._deleted(*one) for one in named])

    def _deleted(self, name: str | None, topic_id: bytes) -> ms.DeletableTopicResult:
        result = ms.DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            if name is None:
                known = self._metadata.topic_of_id(topic_id)
                if known is None:
                    raise KafkaFault(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
                name = result.name = known.name
            self._controller.delete_topic(name)
        except KafkaFault as fault:
            result.error_code, result.error_message = fault.code, fault.why
        return result
