"""Where a member's batches go on in each partition: by the checkpoint, the group, or the reset."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from zkconsumer.core.model import TopicPartition
from zkconsumer.kafka.logs import LogRange
from zkconsumer.spark import resolving
from zkconsumer.spark.ledger import Served
from zkconsumer.spark.logs import ShortLogs
from zkconsumer.spark.membership import Membership
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.ranges import OffsetRange

_log = logging.getLogger(__name__)

_TOLD = 10  # of many partitions, so many are logged

Positions = dict[TopicPartition, int]
Logs = Mapping[TopicPartition, LogRange]
Partitions = Mapping[TopicPartition, Served]


class Placing:
    """Of one query.

    Attributes:
        replayed: where batches began that were run again before the membership.
        checkpoint: the last batch of the checkpoint with which this process began.
    """

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options, self._name = options, name
        self.replayed: Positions = {}
        self.checkpoint: Mapping[TopicPartition, OffsetRange] = {}
        self._short = ShortLogs()

    def resume(
        self, group: Membership, served: Partitions, before: Mapping[TopicPartition, OffsetRange]
    ) -> bool:
        """Place what the checkpoint knows and this process has not had; False: not possible now.

        The group's offset is behind the checkpoint's where the query died between the two commits,
        or where an operator moved it back; a mark beside the offset tells which. What was replayed
        from just there has honoured the edit.
        """
        rule = self._options.on_restart
        moves = {
            tp: before[tp].end for tp, at in served.items()
            if at.is_first and tp in before and at.offset != before[tp].end
            and (at.offset is None or rule == "checkpoint"
                 or (rule == "max" and at.offset < before[tp].end))
        }
        if rule == "max" and moves:
            marked = group.marked(sorted(moves))
            if marked is None:
                return False
            for tp in marked:
                edit = served[tp].offset
                if edit != self.replayed.get(tp):
                    end = moves.pop(tp)
                    _log.info("%s: %s goes on from an operator's edit, %s, and not from %d",
                              self._name, tp, edit, end)
        self._report(served, moves)
        for tp, end in moves.items():
            group.place(tp, served[tp], end)
        if moves:
            group.commit()
        return True

    def _report(self, served: Partitions, moves: Positions) -> None:
        """Warn of group offsets behind the checkpoint that the query does not go on from.

        The JVM's tools leave no mark, so their reset cannot be told from an offset that was never
        committed. Only where the group's offset is the beginning of the checkpoint's last batch,
        the query most likely ended between the two commits: no warning then.
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
                "%s: the group's offsets are behind the checkpoint's, and the query goes on from"
                " the checkpoint: %s%s. If another tool than `zkconsumer offsets` has reset them,"
                " the reset has no effect and is overwritten: to honour it, start the query with"
                " offsets.on.restart=zookeeper, or reset with `zkconsumer offsets`",
                self._name, ", ".join(behind[:_TOLD]),
                f" and {len(behind) - _TOLD} more" if len(behind) > _TOLD else "",
            )

    def positions(self, group: Membership, served: Partitions, logs: Logs) -> Positions:
        """From where each partition is read, which its log has; without those that must wait."""
        found: Positions = {}
        reset = False
        for tp, at in served.items():
            log = logs.get(tp)
            if log is None:
                if at.offset is not None:
                    found[tp] = at.offset
            elif at.offset is not None and self._short.must_wait(tp, at.offset, log):
                found[tp] = at.offset
            elif at.offset is not None and not at.is_stored:
                strict = self._options.fail_on_data_loss
                found[tp] = resolving.within(tp, at.offset, log, fail_on_data_loss=strict)
                if found[tp] != at.offset:
                    group.reset(tp, at, found[tp], "gone from the log")
            elif at.offset is None or not log.start <= at.offset <= log.end:
                found[tp] = self._reset(group, tp, at, log)
                reset = True
            else:
                found[tp] = at.offset
        if reset:
            group.commit()
        return found

    def _reset(self, group: Membership, tp: TopicPartition, at: Served, log: LogRange) -> int:
        """As the old consumer: where the group has no offset, or one that the log has not got."""
        policy = self._options.config.auto_offset_reset
        offset = log.start if policy == "smallest" else log.end
        if at.offset is None:
            why = "nothing is stored"
            _log.info("%s: %s begins at %d: %s (auto.offset.reset=%s)",
                      self._name, tp, offset, why, policy)
        else:
            why = f"the group's offset {at.offset} is not in the log of {log.start} to {log.end}"
            _log.warning("%s: %s goes on at %d: %s (auto.offset.reset=%s)",
                         self._name, tp, offset, why, policy)
        group.reset(tp, at, offset, why)
        return offset
