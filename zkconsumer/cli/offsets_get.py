"""`zkconsumer offsets get`: what is committed, in ZooKeeper and in Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import Common, Groups, Topics, operator, topics_of
from zkconsumer.cli.output import Align, Column, say
from zkconsumer.cli.partitions import unknown

if TYPE_CHECKING:
    from zkconsumer.admin.lag import PartitionLag

COLUMNS = (
    Column("group", drop=2),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("zookeeper", align=Align.RIGHT),
    Column("kafka", align=Align.RIGHT),
    Column("written", drop=1),
    Column("metadata", wide_only=True),
)


@operator
def get(common: Common, *, group: Groups = None, topic: Topics = None) -> None:
    """Show the committed offsets of groups, in ZooKeeper and in Kafka. Reads only.

    WRITTEN is when ZooKeeper's was, by its own clock.

    Example: zkconsumer offsets get -z zk1:2181/kafka --group billing --topic orders:0,1
    """
    from zkconsumer.admin.images import unknown_group  # noqa: PLC0415
    from zkconsumer.admin.lag import group_lags, unasked_logs  # noqa: PLC0415

    names = [common.group(name) for name in group or (None,)]
    with common.connect(names[0]) as connection:
        found = group_lags(
            connection, names, only=topics_of(topic), logs=unasked_logs,
            limit_s=connection.config.zookeeper_connection_timeout_s,
        )  # fmt: skip
    for name in names:
        if name not in found:
            raise unknown_group(name)
    common.write(
        [_row(name, one) for name, of_group in found.items() for one in of_group.partitions],
        COLUMNS,
    )
    for name, of_group in found.items():
        if not any(one.source for one in of_group.partitions):
            say(f"group {name}: nothing is committed, in ZooKeeper or in Kafka")


def _row(group: str, one: PartitionLag) -> dict[str, Any]:
    kafka = one.in_kafka
    stored = kafka if kafka is None or isinstance(kafka, str) else kafka.offset
    metadata = "" if kafka is None or isinstance(kafka, str) else kafka.metadata
    return {
        "group": group,
        "topic": one.topic,
        "partition": one.partition,
        "zookeeper": unknown(one.in_zookeeper),
        "kafka": unknown(stored),
        "written": of_time(one.written_ms) if one.written_ms else None,
        "metadata": metadata or None,
    }
