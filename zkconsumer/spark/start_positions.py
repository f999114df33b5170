"""Start offsets of the batches of a query in group mode, for each partition.

A query starts at the group's offsets, at its checkpoint's offsets, or where `auto.offset.reset`
says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from zkconsumer.errors import first_few
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark import offset_resolution
from zkconsumer.spark.batch_member import Membership, ServedPartition
from zkconsumer.spark.cluster_logs import ShortLogs
from zkconsumer.spark.offset_ranges import OffsetRange, Offsets
from zkconsumer.spark.options import SourceOptions

_log = SafeLogger(logging.getLogger(__name__))

_LOGGED_PARTITIONS: Final = 10
"""Maximum number of partitions that one log line names."""

Logs = Mapping[TopicPartition, LogRange]
Partitions = Mapping[TopicPartition, ServedPartition]


class StartPositions:
    """The offset at which one query's next batch starts, for each partition.

    Attributes:
        checkpoint: the last batch of the checkpoint with which this process started.
    """

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options, self._name = options, name
        self.checkpoint: Mapping[TopicPartition, OffsetRange] = {}
        self._short = ShortLogs(options.config)

    def resume(
        self, group: Membership, served: Partitions, before: Mapping[TopicPartition, OffsetRange]
    ) -> bool:
        """Apply the checkpoint's offsets to partitions that this process serves for the first time.

        The group's offset is lower than the checkpoint's in two cases: the query died between the
        two commits, or an operator moved the group back. A mark beside the offset identifies an
        operator's edit. The edit wins even if the replayed batch started at the operator's offset:
        the operator may have made the edit during the replay, to have the messages read again.

        Return False if the marks cannot be read now.
        """
        rule = self._options.on_restart
        moves = {
            tp: before[tp].end
            for tp, at in served.items()
            if at.is_first
            and tp in before
            and at.offset != before[tp].end
            and (
                at.offset is None
                or rule == "checkpoint"
                or (rule == "max" and at.offset < before[tp].end)
            )
        }
        if rule == "max" and moves:
            marked = group.marked(sorted(moves))
            if marked is None:
                return False
            for tp in marked:
                end = moves.pop(tp)
                _log.info(
                    "%s: %s continues from offset %s, which an operator set, and not from %d",
                    self._name,
                    tp,
                    served[tp].offset,
                    end,
                )
        self._warn_of_unmarked_resets(served, moves)
        for tp, end in moves.items():
            group.place(tp, served[tp], end)
        if moves:
            group.commit()
        return True

    def _warn_of_unmarked_resets(self, served: Partitions, moves: Offsets) -> None:
        """Warn of group offsets that are lower than the checkpoint's and that the query ignores.

        The JVM's tools create no mark. So after a reset by these tools, the group looks as if the
        higher offsets had never been committed. There is no warning if the group's offset is the
        start of the checkpoint's last batch: then the query most likely died between the two
        commits.
        """
        if self._options.on_restart != "max":
            return
        behind = [
            f"{tp} {'none' if served[tp].offset is None else served[tp].offset} behind {end}"
            for tp, end in sorted(moves.items())
            if tp not in self.checkpoint or served[tp].offset != self.checkpoint[tp].start
        ]
        if behind:
            _log.warning(
                "%s: the group's offsets are behind the checkpoint's, and the query continues from"
                " the checkpoint: %s. If a tool other than `zkconsumer offsets` has reset them,"
                " the reset has no effect and is overwritten: to honour it, start the query with"
                " offsets.on.restart=zookeeper, or reset with `zkconsumer offsets`",
                self._name,
                few(behind),
            )

    def positions(self, group: Membership, served: Partitions, logs: Logs) -> Offsets:
        """Return the offset of the next message to read in each partition. Partitions that must
        wait are left out.
        """
        found: Offsets = {}
        resets: Offsets = {}
        for tp, at in served.items():
            log = logs.get(tp)
            if log is None:
                if at.offset is not None:
                    found[tp] = at.offset
            elif at.offset is not None and self._short.must_wait(tp, at.offset, log):
                found[tp] = at.offset
            elif at.offset is not None and not at.is_stored:
                strict = self._options.fail_on_data_loss
                found[tp] = offset_resolution.within(tp, at.offset, log, fail_on_data_loss=strict)
                if found[tp] != at.offset:
                    group.reset(tp, at, found[tp], "the log no longer contains the offset")
            elif at.offset is None or not log.start <= at.offset <= log.end:
                found[tp] = resets[tp] = self._reset(group, tp, at, log)
            else:
                found[tp] = at.offset
        if resets:
            self._log_new({tp: at for tp, at in resets.items() if served[tp].offset is None})
            group.commit()
        return found

    def _reset(
        self, group: Membership, tp: TopicPartition, at: ServedPartition, log: LogRange
    ) -> int:
        """Apply `auto.offset.reset` as the old consumer does.

        It applies if the group has no stored offset, or an offset that the log does not contain.
        """
        policy = self._options.config.auto_offset_reset
        offset = log.start if policy == "smallest" else log.end
        why = "the group has no stored offset"
        if at.offset is not None:
            why = f"the log has offsets {log.start} to {log.end}, and the group's is {at.offset}"
            _log.warning(
                "%s: %s continues at offset %d: %s (auto.offset.reset=%s)",
                self._name,
                tp,
                offset,
                why,
                policy,
            )
        group.reset(tp, at, offset, why)
        return offset

    def _log_new(self, offsets: Offsets) -> None:
        """Write one log line that says where partitions without a stored offset of the group
        start."""
        if offsets:
            _log.info(
                "%s: the group has no stored offset for %d partitions; they start at"
                " auto.offset.reset=%s: %s",
                self._name,
                len(offsets),
                self._options.config.auto_offset_reset,
                few(f"{tp} at {offset}" for tp, offset in offsets.items()),
            )


def few(things: Iterable[object]) -> str:
    """Return items as a list for a log line, with the number of items that it leaves out."""
    return first_few(things, _LOGGED_PARTITIONS)
