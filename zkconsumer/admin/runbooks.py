"""Runbooks: how a group leaves ZooKeeper without losing its place, and how it returns.

A runbook is Markdown. Its steps are the same for all programs, except how the program is stopped,
and how it is told to keep its offsets in Kafka. `docs/migrating.md` explains the ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.admin.inventory import InventoryEntry, Verdict
from zkconsumer.errors import shell_word
from zkconsumer.protocol.programs import Program


@dataclass(frozen=True, slots=True)
class Way:
    """What differs between programs.

    Attributes:
        stop: how the program is stopped.
        change: how it is changed to keep its offsets in Kafka.
        back: how it is changed back.
        caution: what to know before the first step; "" if there is nothing special.
    """

    stop: str
    change: str
    back: str
    caution: str = ""


_EMBEDDED: Final = "The program embeds Kafka's old consumer, so its members look like JVM members."
_OLD: Final = "Start the program with its old release and its old settings."

WAYS: Final[Mapping[Program, Way]] = {
    Program.UNKNOWN: Way(
        "Find the program that uses the group, and stop it.",
        "Start the program with a consumer of Kafka's own protocol, with the same `group.id` and"
        " with `bootstrap.servers` in place of ZooKeeper's address. For the first start, set"
        " `auto.offset.reset=none` (Java) or `error` (librdkafka), so that a missing offset is an"
        " error and no message is skipped.",
        _OLD,
        "The znodes do not show which program uses the group. The servers' own logs may name its"
        " machine: `zkconsumer history show commits --group {name} --data-dir DIR --server-log"
        " LOGS` (`zkconsumer docs history`).",
    ),
    Program.JVM: Way(
        "Stop all members of the group.",
        "Replace `kafka.consumer.ConsumerConnector` by `org.apache.kafka.clients.consumer"
        ".KafkaConsumer`, with the same `group.id` and with `bootstrap.servers` in place of"
        " `zookeeper.connect`. Set `auto.offset.reset=none` for the first start, so that a missing"
        " offset is an error and no message is skipped.",
        "Start the old program with its old settings.",
        "Without a stop: restart the members one by one with `offsets.storage=kafka` and"
        " `dual.commit.enabled=true`. Kafka then has the offsets before step 3, and the pause is"
        " only that of the change of programs. Brokers from 0.8.2 on support this.",
    ),
    Program.ZKCONSUMER: Way(
        "Stop all members of the group.",
        "Replace `ConsumerConnector` by a consumer of Kafka's own protocol, such as"
        " `confluent_kafka.Consumer` with the same `group.id` and `auto.offset.reset=error`.",
        "Start the zkconsumer members again.",
        "Without a stop: restart the members one by one with `offsets.storage=kafka` and"
        " `dual.commit.enabled=true`; then Kafka has the offsets before step 3.",
    ),
    # The fields of the input, by their labels: class KafkaTransport of graylog2-server 3.3 to 6.
    Program.GRAYLOG: Way(
        "Stop the Kafka input in Graylog (System / Inputs), on all nodes.",
        "Use Graylog 3.3 or later, and edit the input: switch `Legacy mode` off, fill in `Bootstrap"
        " Servers`, and keep `Consumer group id` (by default `graylog2`). `Custom Kafka properties`"
        " for the old consumer have other names in the new one.",
        "Edit the input: switch `Legacy mode` on again.",
        f"{_EMBEDDED} By default, `Auto offset reset` is `largest`: without an offset in Kafka, the"
        " input skips what is in the topic. Check step 3 before step 4.",
    ),
    # Flume's User Guide: Kafka Source and Kafka Channel in 1.6, with the deprecated properties in
    # 1.7 and 1.9.
    Program.FLUME: Way(
        "Stop the agents whose Kafka source or channel uses the group.",
        "Use Flume 1.7 or later. For a source, set `kafka.bootstrap.servers` in place of"
        " `zookeeperConnect`, `kafka.consumer.group.id` in place of `groupId`, and `kafka.topics`"
        " in place of `topic`; for a channel, `kafka.topic` in place of `topic`. Set"
        " `migrateZookeeperOffsets=false`: the offsets of step 3 are in Kafka.",
        _OLD,
        _EMBEDDED,
    ),
    # The options of logstash-input-kafka 2.0 and 3.0 (lib/logstash/inputs/kafka.rb, CHANGELOG.md).
    Program.LOGSTASH: Way(
        "Stop the Logstash processes whose Kafka input uses the group.",
        "Use version 3 or later of the Kafka input (Logstash 5 or later). Set `bootstrap_servers`"
        " in place of `zk_connect`, and `topics` or `topics_pattern` in place of `topic_id` and"
        " `white_list`. Keep `group_id` (by default `logstash`). Remove `black_list` and"
        " `reset_beginning`; `auto_offset_reset` is `earliest` or `latest`. The default codec is"
        " `plain` in place of `json`, so set `codec` if it was not set.",
        _OLD,
        f"{_EMBEDDED} Do not set `reset_beginning` of the old input: it deletes the group's"
        " offsets.",
    ),
    # Druid's documentation: Supervisor API, and "Manage a supervisor".
    Program.DRUID: Way(
        "Stop the ingestion tasks that use the group.",
        "Use Druid's Kafka indexing service in place of the firehose. It keeps offsets in Druid's"
        " metadata, and reads neither ZooKeeper's offsets nor those of step 3. Submit the"
        " supervisor, and at once set the offsets of the file of step 2: `POST"
        " /druid/indexer/v1/supervisor/ID/resetOffsets`, or `Set offsets` in the web console. Until"
        " then, its tasks read from the end of the log that `useEarliestOffset` selects.",
        _OLD,
        _EMBEDDED,
    ),
    Program.FLINK: Way(
        "Stop the job with a savepoint.",
        "Replace the 0.8 connector by a later one with the same `group.id`. A job that starts"
        " without the savepoint reads the offsets of step 3 from Kafka"
        " (`setStartFromGroupOffsets`). A job that starts from the savepoint ignores them.",
        "Start the old job from its savepoint.",
        "Flink keeps its own offsets in checkpoints; the znodes are only a copy. Empty offset"
        " znodes are left out: `zkconsumer doctor --fix` deletes them.",
    ),
    Program.SPARK: Way(
        "Stop the job after a finished batch.",
        "Start the new job with the offsets of the file of step 2: `startingOffsets` as JSON in"
        " Structured Streaming, or `fromOffsets` of a direct stream. Later starts use the job's"
        " checkpoint.",
        "Start the old job again: it reads the offsets in ZooKeeper.",
        "A direct job commits without a registration. Stop it before step 3, because the plan is"
        " refused while it commits.",
    ),
    # secor.common.properties and class SecorConfig of Secor's sources.
    Program.SECOR: Way(
        "Stop all Secor processes, after they have uploaded their files.",
        "Use a release of Secor with Kafka's new consumer, and keep `secor.kafka.group`. Set"
        " `kafka.message.iterator.className` to the new consumer's iterator, and"
        " `kafka.new.consumer.topic.list` or `secor.kafka.topic_filter`."
        " `kafka.offsets.storage=kafka` alone is not enough: the old consumer still needs ZooKeeper"
        " for its members and owners.",
        _OLD,
        "If Secor ended during its first commit, an offset znode holds the address of a host:"
        " `zkconsumer doctor` names it, and it is not migrated. Secor's locks below `/secor` hold"
        " no offsets.",
    ),
    Program.STORM: Way(
        "Kill the topology, with a wait time that lets the spout commit.",
        "Use `storm-kafka-client` with the `group.id` that step 3 has filled, and"
        " `FirstPollOffsetStrategy.UNCOMMITTED_EARLIEST`.",
        "Start the old topology: its znodes are unchanged.",
        "Storm keeps its offsets as JSON. Write the payload of each znode `partition_N` below the"
        " spout's id into a file, one per line. Before step 3, run `zkconsumer offsets import FILE"
        " --format storm -g {name} --execute`.",
    ),
    Program.KAFKA_NODE: Way(
        "Stop all processes with a `HighLevelConsumer` of the group.",
        "Use `ConsumerGroup` of kafka-node with `kafkaHost`, or another client of Kafka's own"
        " protocol, with the same group id.",
        "Start the old processes.",
    ),
    Program.GO: Way(
        "Stop all processes of the group.",
        "Replace the library consumergroup by a consumer group of sarama or of franz-go, with the"
        " same group id.",
        "Start the old processes.",
    ),
    Program.PYKAFKA: Way(
        "Stop all processes of the group.",
        "Replace `BalancedConsumer` by `confluent_kafka.Consumer` with the same `group.id` and"
        " `auto.offset.reset=error`.",
        "Start the old processes.",
        "pykafka keeps its offsets in Kafka. If ZooKeeper has no offset, step 3 has nothing to do.",
    ),
    Program.MIRROR_MAKER: Way(
        "Stop all mirrors of the group.",
        "Start MirrorMaker with `--new.consumer` (0.9 to 0.10), or a later release, with the same"
        " `group.id` and with `bootstrap.servers` in its consumer's properties.",
        _OLD,
        _EMBEDDED,
    ),
    Program.CONSOLE: Way(
        "End the console consumer.",
        "Start the console consumer with `--bootstrap-server` in place of `--zookeeper`.",
        "Start the console consumer with `--zookeeper`.",
        "A console consumer without `--group` has a group of its own, which nobody uses again:"
        " delete it with `zkconsumer groups delete -g {name} --execute`.",
    ),
    Program.WRITER: Way(
        "Stop the client that commits without a registration.",
        "Start a client that keeps its offsets in Kafka, with the same group id.",
        "Start the old client.",
        "No registration shows which program it is. `zkconsumer doctor -g {name}` names the"
        " connections that may be this client. Direct Spark jobs, Flink and kafka-python up to"
        " 0.9.5 commit in this way.",
    ),
}


def runbook(one: InventoryEntry, zookeeper: str) -> str:
    """Return a runbook for a user of ZooKeeper, in Markdown; `zookeeper` is its connect string."""
    way = WAYS[one.program]
    return "\n".join(_lines(one, way, f"-z {shell_word(zookeeper)}", shell_word(one.name)))


def _lines(one: InventoryEntry, way: Way, where: str, name: str) -> Iterator[str]:
    yield from _head(one, way, name)
    if one.verdict is Verdict.DELETE:
        yield from (
            "## It may be deleted",
            "",
            f"{one.why[:1].upper()}{one.why[1:]}. If its owner agrees, no migration is needed:",
            "",
            *_shell(f"zkconsumer groups delete -g {name} {where} --execute"),
            "`zkconsumer undo --last --execute` restores it.",
            "",
        )
    yield from _way_there(way, where, name)
    yield from _way_back(way, where, name)


def _head(one: InventoryEntry, way: Way, name: str) -> Iterator[str]:
    yield f"# Move {one.name} from ZooKeeper to Kafka"
    yield ""
    hints = all(it.is_hint for it in one.evidence) and bool(one.evidence)
    reasons = "; ".join(it.reason for it in one.evidence) or "no evidence"
    yield f"- Program: {one.program.value}{' (a hint)' if hints else ''}. Evidence: {reasons}."
    yield f"- Topics: {', '.join(one.topics) or 'none is known'}."
    yield f"- Hosts: {', '.join(one.hosts) or 'unknown'}."
    lag = "unknown" if one.lag is None or isinstance(one.lag, str) else f"{one.lag} messages"
    yield f"- Lag: {lag}."
    yield f"- Verdict: {one.verdict.value}: {one.why}."
    for clause in one.blocked_by:
        yield f"- To do before step 3: {clause}."
    if way.caution:
        yield ""
        yield way.caution.format(name=name)
    yield ""


def _way_there(way: Way, where: str, name: str) -> Iterator[str]:
    yield from (
        "## The way there",
        "",
        "1. Examine the group, and correct what is found.",
        "",
        *_shell(f"zkconsumer doctor -g {name} {where}", indent="   "),
        "2. Keep the offsets in a file.",
        "",
        *_shell(
            f"zkconsumer offsets export -g {name} {where} --file {name}-offsets.json", indent="   "
        ),
        f"3. {way.stop} Then copy the offsets to Kafka. The first command shows the plan, and the"
        " last one checks it.",
        "",
        *_shell(
            f"zkconsumer migrate zookeeper-to-kafka -g {name} {where}",
            f"zkconsumer migrate zookeeper-to-kafka -g {name} {where} --execute",
            f"zkconsumer offsets get -g {name} {where}",
            indent="   ",
        ),
        "   Check: the columns ZOOKEEPER and KAFKA are equal for each partition. If a member"
        " still runs, the command is refused with exit code 4.",
        "",
        f"4. {way.change}",
        "",
        "5. Check that the lag decreases, and that the offsets in ZooKeeper do not move any more.",
        "",
        *_shell(
            f"kafka-consumer-groups.sh --bootstrap-server BROKER:9092 --describe --group {name}",
            f"zkconsumer inventory -g {name} {where}",
            indent="   ",
        ),
        "   Check: the verdict is `already moved`.",
        "",
        "6. When you do not need the way back any more, delete the group's znodes.",
        "",
        *_shell(f"zkconsumer groups delete -g {name} {where} --execute", indent="   "),
    )


def _way_back(way: Way, where: str, name: str) -> Iterator[str]:
    yield from (
        "## The way back",
        "",
        "1. Stop the new consumers.",
        "2. Copy the offsets back, so that the old program continues where the new one stopped.",
        "",
        *_shell(
            f"zkconsumer migrate kafka-to-zookeeper -g {name} {where} --execute",
            f"zkconsumer offsets get -g {name} {where}",
            indent="   ",
        ),
        f"3. {way.back}",
        "4. Check that every partition has an owner, and that the lag decreases.",
        "",
        *_shell(
            f"zkconsumer verify -g {name} {where}",
            f"zkconsumer lag -g {name} {where}",
            indent="   ",
        ),
        "If the group's znodes have been deleted, `zkconsumer undo` restores them from the backup,"
        f" and `zkconsumer offsets restore -g {name} --data-dir DIR --at TIME` from ZooKeeper's"
        " logs.",
        "",
    )


def _shell(*commands: str, indent: str = "") -> list[str]:
    lines = ["```sh", *commands, "```"]
    return [*(f"{indent}{line}" for line in lines), ""]
