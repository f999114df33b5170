"""The versions of requests that a broker without ApiVersions supports, asked one by one."""

from __future__ import annotations

import struct

import pytest
from support.kafka.offsets import Wire, header
from support.wait import eventually

from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError
from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import FakeCluster, wire
from zkconsumer.testing import messages as ms
from zkconsumer.testing.broker_versions import broker_profile

# How long a broker may take for a version that it does not know, in seconds: 0.9 never answers.
SILENCE_S = 1.0

PARTITION = ms.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
REQUESTS: dict[int, wire.WireMessage] = {
    0: ms.ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            ms.TopicProduceData(name="none", partition_data=[ms.PartitionProduceData(records=b"")])
        ],
    ),
    1: ms.FetchRequest(
        topics=[ms.FetchTopic(topic="t", partitions=[ms.FetchPartition(partition_max_bytes=1000)])]
    ),
    2: ms.ListOffsetsRequest(
        replica_id=-1,
        topics=[ms.ListOffsetsTopic(name="t", partitions=[ms.ListOffsetsPartition(timestamp=-1)])],
    ),
    3: ms.MetadataRequest(topics=[ms.MetadataRequestTopic(name="t")]),
    8: ms.OffsetCommitRequest(
        group_id="g", topics=[ms.OffsetCommitRequestTopic(name="t", partitions=[PARTITION])]
    ),
    9: ms.OffsetFetchRequest(
        group_id="g", topics=[ms.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    ),
    10: ms.FindCoordinatorRequest(key="g"),
    11: ms.JoinGroupRequest(
        group_id="h",
        session_timeout_ms=1,
        protocol_type="consumer",
        protocols=[ms.JoinGroupRequestProtocol(name="range", metadata=b"")],
    ),
    12: ms.HeartbeatRequest(group_id="h", generation_id=1, member_id="m"),
    13: ms.LeaveGroupRequest(group_id="h", member_id="m"),
    14: ms.SyncGroupRequest(group_id="h", generation_id=1, member_id="m"),
    15: ms.DescribeGroupsRequest(groups=["h"]),
    16: ms.ListGroupsRequest(),
    18: ms.ApiVersionsRequest(),
}
# Answers to versions that these brokers do not support. 0.8.2 has Heartbeat without a
# coordinator of members behind it, and answers UNKNOWN. 0.9 does not check the version of a Fetch,
# and version 2 has the layout of version 1.
ANSWERED = {("0.8.2.2", 12), ("0.9.0.1", 1)}


def understands(address: str, api: int, version: int, limit_s: float = 60.0) -> bool:
    """Return whether a broker answers in the layout of this version."""
    connection = Wire(address, limit_s)
    try:
        answer = connection.ask(
            header(api, version) + wire.encode(REQUESTS[api], version, flexible=False)
        )
    except (AssertionError, TimeoutError, ConnectionResetError):
        return False
    finally:
        connection.close()
    reader = FieldReader(answer)
    reader.skip(4)
    try:
        wire.decode(ms.APIS[api].response, version, reader, flexible=False)
    except (MalformedError, struct.error):
        return False
    return reader.at == len(answer)


@pytest.mark.until("0.9.0.1")
@pytest.mark.also("0.9.0.1")
def test_the_versions_of_brokers_without_api_versions(cluster: Sandbox | FakeCluster) -> None:
    """A real broker, as a fake one, understands the versions of the table, and no later one."""
    is_fake = isinstance(cluster, FakeCluster)
    release = cluster.release if isinstance(cluster, FakeCluster) else cluster.broker.release
    highest = broker_profile(release).versions
    address = cluster.bootstrap
    eventually(lambda: understands(address, 10, 0))
    expected = {api: list(range(highest.get(api, -1) + 1)) for api in REQUESTS}
    found = {
        api: [version for version in versions if understands(address, api, version)]
        for api, versions in expected.items()
    }
    later = {
        api
        for api, versions in expected.items()
        if understands(address, api, len(versions), SILENCE_S)
    }
    assert found == expected
    assert later == {api for at, api in ANSWERED if at == release and not is_fake}
