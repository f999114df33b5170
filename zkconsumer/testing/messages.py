"""The requests that the fake brokers serve, and their responses, in every version.

The names, types and versions are those of Kafka 3.9.1; the tests compare this module with the
definitions in Kafka's own jar (`common/message/*.json`), which also describe the fields. Tagged
fields are left out, because they are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from zkconsumer.testing.wire import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    OCTETS,
    STRING,
    UUID,
    WireMessage,
    array,
    field,
)

# ---- Produce -------------------------------------------------------------------------------------


class PartitionProduceData(WireMessage):
    index: int = field(INT32)
    records: bytes | None = field(OCTETS)


class TopicProduceData(WireMessage):
    name: str = field(STRING)
    partition_data: Sequence[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(WireMessage):
    transactional_id: str | None = field(STRING, default=None, since=3)
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: Sequence[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(WireMessage):
    batch_index: int = field(INT32)
    batch_index_error_message: str | None = field(STRING, default=None)


class PartitionProduceResponse(WireMessage):
    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, default=-1, since=2)
    log_start_offset: int = field(INT64, default=-1, since=5)
    record_errors: Sequence[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = field(STRING, default=None, since=8)


class TopicProduceResponse(WireMessage):
    name: str = field(STRING)
    partition_responses: Sequence[PartitionProduceResponse] = array(PartitionProduceResponse)


class ProduceResponse(WireMessage):
    responses: Sequence[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = field(INT32, since=1)


# ---- Fetch ---------------------------------------------------------------------------------------


class FetchPartition(WireMessage):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, default=-1, since=9)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, default=-1, since=12)
    log_start_offset: int = field(INT64, default=-1, since=5)
    partition_max_bytes: int = field(INT32)


class FetchTopic(WireMessage):
    topic: str = field(STRING, until=12)
    topic_id: bytes = field(UUID, since=13)
    partitions: Sequence[FetchPartition] = array(FetchPartition)


class ForgottenTopic(WireMessage):
    topic: str = field(STRING, until=12)
    topic_id: bytes = field(UUID, since=13)
    partitions: Sequence[int] = array(INT32)


class FetchRequest(WireMessage):
    replica_id: int = field(INT32, default=-1, until=14)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=2147483647, since=3)
    isolation_level: int = field(INT8, since=4)
    session_id: int = field(INT32, since=7)
    session_epoch: int = field(INT32, default=-1, since=7)
    topics: Sequence[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: Sequence[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = field(STRING, default="", since=11)


class AbortedTransaction(WireMessage):
    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


class PartitionData(WireMessage):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, default=-1, since=4)
    log_start_offset: int = field(INT64, default=-1, since=5)
    aborted_transactions: Sequence[AbortedTransaction] | None = array(AbortedTransaction, since=4)
    preferred_read_replica: int = field(INT32, default=-1, since=11)
    records: bytes | None = field(OCTETS)


class FetchableTopicResponse(WireMessage):
    topic: str = field(STRING, until=12)
    topic_id: bytes = field(UUID, since=13)
    partitions: Sequence[PartitionData] = array(PartitionData)


class FetchResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    error_code: int = field(INT16, since=7)
    session_id: int = field(INT32, since=7)
    responses: Sequence[FetchableTopicResponse] = array(FetchableTopicResponse)


# ---- ListOffsets ---------------------------------------------------------------------------------


class ListOffsetsPartition(WireMessage):
    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, default=-1, since=4)
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, default=1, until=0)


class ListOffsetsTopic(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(WireMessage):
    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, since=2)
    topics: Sequence[ListOffsetsTopic] = array(ListOffsetsTopic)


class ListOffsetsPartitionResponse(WireMessage):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    old_style_offsets: Sequence[int] = array(INT64, until=0)
    timestamp: int = field(INT64, default=-1, since=1)
    offset: int = field(INT64, default=-1, since=1)
    leader_epoch: int = field(INT32, default=-1, since=4)


class ListOffsetsTopicResponse(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=2)
    topics: Sequence[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


# ---- Metadata ------------------------------------------------------------------------------------


class MetadataRequestTopic(WireMessage):
    topic_id: bytes = field(UUID, since=10)
    name: str | None = field(STRING)


class MetadataRequest(WireMessage):
    topics: Sequence[MetadataRequestTopic] | None = array(MetadataRequestTopic)
    allow_auto_topic_creation: bool = field(BOOL, default=True, since=4)
    include_cluster_authorized_operations: bool = field(BOOL, since=8, until=10)
    include_topic_authorized_operations: bool = field(BOOL, since=8)


class MetadataResponseBroker(WireMessage):
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, default=None, since=1)


class MetadataResponsePartition(WireMessage):
    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1, since=7)
    replica_nodes: Sequence[int] = array(INT32)
    isr_nodes: Sequence[int] = array(INT32)
    offline_replicas: Sequence[int] = array(INT32, since=5)


class MetadataResponseTopic(WireMessage):
    error_code: int = field(INT16)
    name: str | None = field(STRING)
    topic_id: bytes = field(UUID, since=10)
    is_internal: bool = field(BOOL, since=1)
    partitions: Sequence[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = field(INT32, default=-2147483648, since=8)


class MetadataResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=3)
    brokers: Sequence[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = field(STRING, default=None, since=2)
    controller_id: int = field(INT32, default=-1, since=1)
    topics: Sequence[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = field(INT32, default=-2147483648, since=8, until=10)


# ---- OffsetCommit --------------------------------------------------------------------------------


class OffsetCommitRequestPartition(WireMessage):
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, default=-1, since=6)
    commit_timestamp: int = field(INT64, default=-1, since=1, until=1)
    committed_metadata: str | None = field(STRING)


class OffsetCommitRequestTopic(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(WireMessage):
    group_id: str = field(STRING)
    generation_id_or_member_epoch: int = field(INT32, default=-1, since=1)
    member_id: str = field(STRING, since=1)
    group_instance_id: str | None = field(STRING, default=None, since=7)
    retention_time_ms: int = field(INT64, default=-1, since=2, until=4)
    topics: Sequence[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(WireMessage):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetCommitResponseTopic(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=3)
    topics: Sequence[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


# ---- OffsetFetch ---------------------------------------------------------------------------------


class OffsetFetchRequestTopic(WireMessage):
    name: str = field(STRING)
    partition_indexes: Sequence[int] = array(INT32)


class OffsetFetchRequestGroup(WireMessage):
    group_id: str = field(STRING)
    member_id: str | None = field(STRING, default=None, since=9)
    member_epoch: int = field(INT32, default=-1, since=9)
    topics: Sequence[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic)


class OffsetFetchRequest(WireMessage):
    group_id: str = field(STRING, until=7)
    topics: Sequence[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7)
    groups: Sequence[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = field(BOOL, since=7)


class OffsetFetchResponsePartition(WireMessage):
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, default=-1, since=5)
    metadata: str | None = field(STRING)
    error_code: int = field(INT16)


class OffsetFetchResponseTopic(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponseGroup(WireMessage):
    group_id: str = field(STRING)
    topics: Sequence[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic)
    error_code: int = field(INT16)


class OffsetFetchResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=3)
    topics: Sequence[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = field(INT16, since=2, until=7)
    groups: Sequence[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


# ---- FindCoordinator -----------------------------------------------------------------------------


class FindCoordinatorRequest(WireMessage):
    key: str = field(STRING, until=3)
    key_type: int = field(INT8, since=1)
    coordinator_keys: Sequence[str] = array(STRING, since=4)


class Coordinator(WireMessage):
    key: str = field(STRING)
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING)


class FindCoordinatorResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    error_code: int = field(INT16, until=3)
    error_message: str | None = field(STRING, since=1, until=3)
    node_id: int = field(INT32, until=3)
    host: str = field(STRING, until=3)
    port: int = field(INT32, until=3)
    coordinators: Sequence[Coordinator] = array(Coordinator, since=4)


# ---- JoinGroup -----------------------------------------------------------------------------------


class JoinGroupRequestProtocol(WireMessage):
    name: str = field(STRING)
    metadata: bytes = field(OCTETS)


class JoinGroupRequest(WireMessage):
    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, default=-1, since=1)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, default=None, since=5)
    protocol_type: str = field(STRING)
    protocols: Sequence[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = field(STRING, default=None, since=8)


class JoinGroupResponseMember(WireMessage):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, default=None, since=5)
    metadata: bytes = field(OCTETS)


class JoinGroupResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=2)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, default=None, since=7)
    protocol_name: str | None = field(STRING)
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, since=9)
    member_id: str = field(STRING)
    members: Sequence[JoinGroupResponseMember] = array(JoinGroupResponseMember)


# ---- Heartbeat -----------------------------------------------------------------------------------


class HeartbeatRequest(WireMessage):
    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, default=None, since=3)


class HeartbeatResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    error_code: int = field(INT16)


# ---- LeaveGroup ----------------------------------------------------------------------------------


class MemberIdentity(WireMessage):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, default=None)
    reason: str | None = field(STRING, default=None, since=5)


class LeaveGroupRequest(WireMessage):
    group_id: str = field(STRING)
    member_id: str = field(STRING, until=2)
    members: Sequence[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(WireMessage):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING)
    error_code: int = field(INT16)


class LeaveGroupResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    error_code: int = field(INT16)
    members: Sequence[MemberResponse] = array(MemberResponse, since=3)


# ---- SyncGroup -----------------------------------------------------------------------------------


class SyncGroupRequestAssignment(WireMessage):
    member_id: str = field(STRING)
    assignment: bytes = field(OCTETS)


class SyncGroupRequest(WireMessage):
    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, default=None, since=3)
    protocol_type: str | None = field(STRING, default=None, since=5)
    protocol_name: str | None = field(STRING, default=None, since=5)
    assignments: Sequence[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    error_code: int = field(INT16)
    protocol_type: str | None = field(STRING, default=None, since=5)
    protocol_name: str | None = field(STRING, default=None, since=5)
    assignment: bytes = field(OCTETS)


# ---- DescribeGroups ------------------------------------------------------------------------------


class DescribeGroupsRequest(WireMessage):
    groups: Sequence[str] = array(STRING)
    include_authorized_operations: bool = field(BOOL, since=3)


class DescribedGroupMember(WireMessage):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, default=None, since=4)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(OCTETS)
    member_assignment: bytes = field(OCTETS)


class DescribedGroup(WireMessage):
    error_code: int = field(INT16)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: Sequence[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = field(INT32, default=-2147483648, since=3)


class DescribeGroupsResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    groups: Sequence[DescribedGroup] = array(DescribedGroup)


# ---- ListGroups ----------------------------------------------------------------------------------


class ListGroupsRequest(WireMessage):
    states_filter: Sequence[str] = array(STRING, since=4)
    types_filter: Sequence[str] = array(STRING, since=5)


class ListedGroup(WireMessage):
    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, since=4)
    group_type: str = field(STRING, since=5)


class ListGroupsResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    error_code: int = field(INT16)
    groups: Sequence[ListedGroup] = array(ListedGroup)


# ---- ApiVersions ---------------------------------------------------------------------------------


class ApiVersionsRequest(WireMessage):
    client_software_name: str = field(STRING, since=3)
    client_software_version: str = field(STRING, since=3)


class ApiVersion(WireMessage):
    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class ApiVersionsResponse(WireMessage):
    error_code: int = field(INT16)
    api_keys: Sequence[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = field(INT32, since=1)


# ---- CreateTopics --------------------------------------------------------------------------------


class CreatableReplicaAssignment(WireMessage):
    partition_index: int = field(INT32)
    broker_ids: Sequence[int] = array(INT32)


class CreatableTopicConfig(WireMessage):
    name: str = field(STRING)
    value: str | None = field(STRING)


class CreatableTopic(WireMessage):
    name: str = field(STRING)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: Sequence[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: Sequence[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(WireMessage):
    topics: Sequence[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOL, since=1)


class CreatableTopicConfigs(WireMessage):
    name: str = field(STRING)
    value: str | None = field(STRING)
    read_only: bool = field(BOOL)
    config_source: int = field(INT8, default=-1)
    is_sensitive: bool = field(BOOL)


class CreatableTopicResult(WireMessage):
    name: str = field(STRING)
    topic_id: bytes = field(UUID, since=7)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, since=1)
    num_partitions: int = field(INT32, default=-1, since=5)
    replication_factor: int = field(INT16, default=-1, since=5)
    configs: Sequence[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5)


class CreateTopicsResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=2)
    topics: Sequence[CreatableTopicResult] = array(CreatableTopicResult)


# ---- DeleteTopics --------------------------------------------------------------------------------


class DeleteTopicState(WireMessage):
    name: str | None = field(STRING, default=None)
    topic_id: bytes = field(UUID)


class DeleteTopicsRequest(WireMessage):
    topics: Sequence[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: Sequence[str] = array(STRING, until=5)
    timeout_ms: int = field(INT32)


class DeletableTopicResult(WireMessage):
    name: str | None = field(STRING)
    topic_id: bytes = field(UUID, since=6)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default=None, since=5)


class DeleteTopicsResponse(WireMessage):
    throttle_time_ms: int = field(INT32, since=1)
    responses: Sequence[DeletableTopicResult] = array(DeletableTopicResult)


# ---- DeleteRecords -------------------------------------------------------------------------------


class DeleteRecordsPartition(WireMessage):
    partition_index: int = field(INT32)
    offset: int = field(INT64)


class DeleteRecordsTopic(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[DeleteRecordsPartition] = array(DeleteRecordsPartition)


class DeleteRecordsRequest(WireMessage):
    topics: Sequence[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = field(INT32)


class DeleteRecordsPartitionResult(WireMessage):
    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16)


class DeleteRecordsTopicResult(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(WireMessage):
    throttle_time_ms: int = field(INT32)
    topics: Sequence[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


# ---- InitProducerId ------------------------------------------------------------------------------


class InitProducerIdRequest(WireMessage):
    transactional_id: str | None = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, default=-1, since=3)
    producer_epoch: int = field(INT16, default=-1, since=3)


class InitProducerIdResponse(WireMessage):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)


# ---- CreatePartitions ----------------------------------------------------------------------------


class CreatePartitionsAssignment(WireMessage):
    broker_ids: Sequence[int] = array(INT32)


class CreatePartitionsTopic(WireMessage):
    name: str = field(STRING)
    count: int = field(INT32)
    assignments: Sequence[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment)


class CreatePartitionsRequest(WireMessage):
    topics: Sequence[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


class CreatePartitionsTopicResult(WireMessage):
    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default=None)


class CreatePartitionsResponse(WireMessage):
    throttle_time_ms: int = field(INT32)
    results: Sequence[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


# ---- DeleteGroups --------------------------------------------------------------------------------


class DeleteGroupsRequest(WireMessage):
    groups_names: Sequence[str] = array(STRING)


class DeletableGroupResult(WireMessage):
    group_id: str = field(STRING)
    error_code: int = field(INT16)


class DeleteGroupsResponse(WireMessage):
    throttle_time_ms: int = field(INT32)
    results: Sequence[DeletableGroupResult] = array(DeletableGroupResult)


# ---- AddPartitionsToTxn --------------------------------------------------------------------------


class AddPartitionsToTxnTopic(WireMessage):
    name: str = field(STRING)
    partitions: Sequence[int] = array(INT32)


class AddPartitionsToTxnTransaction(WireMessage):
    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    verify_only: bool = field(BOOL, default=True)
    topics: Sequence[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(WireMessage):
    transactions: Sequence[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, since=4
    )
    v3_and_below_transactional_id: str = field(STRING, until=3)
    v3_and_below_producer_id: int = field(INT64, until=3)
    v3_and_below_producer_epoch: int = field(INT16, until=3)
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(WireMessage):
    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


class AddPartitionsToTxnTopicResult(WireMessage):
    name: str = field(STRING)
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


class AddPartitionsToTxnResult(WireMessage):
    transactional_id: str = field(STRING)
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(WireMessage):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, since=4)
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, since=4
    )
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, until=3
    )


# ---- EndTxn --------------------------------------------------------------------------------------


class EndTxnRequest(WireMessage):
    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOL)


class EndTxnResponse(WireMessage):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)


# ---- the table -----------------------------------------------------------------------------------


class Api(NamedTuple):
    """A kind of request: its number, its messages, and its first flexible version (KIP-482)."""

    key: int
    request: type[WireMessage]
    response: type[WireMessage]
    flexible: int

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")


APIS: Final[Mapping[int, Api]] = {
    one.key: one
    for one in (
        Api(0, ProduceRequest, ProduceResponse, 9),
        Api(1, FetchRequest, FetchResponse, 12),
        Api(2, ListOffsetsRequest, ListOffsetsResponse, 6),
        Api(3, MetadataRequest, MetadataResponse, 9),
        Api(8, OffsetCommitRequest, OffsetCommitResponse, 8),
        Api(9, OffsetFetchRequest, OffsetFetchResponse, 6),
        Api(10, FindCoordinatorRequest, FindCoordinatorResponse, 3),
        Api(11, JoinGroupRequest, JoinGroupResponse, 6),
        Api(12, HeartbeatRequest, HeartbeatResponse, 4),
        Api(13, LeaveGroupRequest, LeaveGroupResponse, 4),
        Api(14, SyncGroupRequest, SyncGroupResponse, 4),
        Api(15, DescribeGroupsRequest, DescribeGroupsResponse, 5),
        Api(16, ListGroupsRequest, ListGroupsResponse, 3),
        Api(18, ApiVersionsRequest, ApiVersionsResponse, 3),
        Api(19, CreateTopicsRequest, CreateTopicsResponse, 5),
        Api(20, DeleteTopicsRequest, DeleteTopicsResponse, 4),
        Api(21, DeleteRecordsRequest, DeleteRecordsResponse, 2),
        Api(22, InitProducerIdRequest, InitProducerIdResponse, 2),
        Api(24, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 3),
        Api(26, EndTxnRequest, EndTxnResponse, 3),
        Api(37, CreatePartitionsRequest, CreatePartitionsResponse, 2),
        Api(42, DeleteGroupsRequest, DeleteGroupsResponse, 2),
    )
}
