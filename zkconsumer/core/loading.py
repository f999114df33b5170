"""Taking up what was claimed: where each partition is read on from, by what is stored of it."""

from __future__ import annotations

from collections.abc import Mapping

from zkconsumer.core import rebalance
from zkconsumer.core.commands import Command, Notice, NoticeKind, StartFetching
from zkconsumer.core.events import OffsetsLoaded, StoreUnavailable
from zkconsumer.core.model import Storage, TopicPartition
from zkconsumer.core.offsets import take_up
from zkconsumer.core.state import Phase, State, Step, replace, then


def offsets_loaded(state: State, outcome: OffsetsLoaded, now: float) -> Step:
    """Offsets are read after the claim, so nothing the old owner stored is missed."""
    ledger, grants, bad = dict(state.ledger), {}, {}
    told: set[TopicPartition] = set()
    for tp, stored in outcome.offsets.items():
        mine = state.owned.get(tp)
        if mine is None:
            continue
        known, kafka = ledger.get(tp), outcome.kafka.get(tp)
        ledger[tp], start = take_up(state.settings.storage, stored, kafka, mine.epoch)
        if error := ledger[tp].error:
            bad[tp] = error
            told |= {tp} if known is not None and known.error == error else set()
        else:
            grants[tp] = (mine, start)
    state = replace(
        state,
        ledger=ledger,
        serving=state.serving.union(grants),
        malformed=state.malformed.union(bad),
    )
    commands: tuple[Command, ...] = (StartFetching(grants),) if grants else ()
    commands += tuple(
        Notice(NoticeKind.OFFSET_MALFORMED, str(tp), f"claimed but not fetched: {reason}",
               "mend or delete the offset znode")
        for tp, reason in bad.items()
        if tp not in told
    )
    starts = {tp: at for tp, (_, at) in grants.items() if at is not None}
    commands += _migrated(state, starts, outcome)
    return then((state, commands), lambda s: rebalance.advance(s, now))


def _migrated(
    state: State, starts: Mapping[TopicPartition, int], outcome: OffsetsLoaded
) -> tuple[Command, ...]:
    """The group has moved to Kafka's storage, and these partitions have no offset there yet."""
    fresh = sorted(starts.keys() - outcome.kafka.keys())
    if state.settings.storage is Storage.ZOOKEEPER or not fresh:
        return ()
    more = f" and {len(fresh) - 1} more" if fresh[1:] else ""
    text = f"Kafka has no offset; going on from ZooKeeper's {starts[fresh[0]]}"
    return (Notice(NoticeKind.OFFSETS_MIGRATED, f"{fresh[0]}{more}", text),)


def not_loaded(state: State, outcome: StoreUnavailable, now: float) -> Step:
    """Kafka does not tell where to begin: what is claimed waits, and the group is still heeded."""
    reason = f"Kafka does not tell the group's offsets: {outcome.reason}"
    notice = Notice(NoticeKind.OFFSETS_UNAVAILABLE, "offsets.storage=kafka", reason)
    waiting_for = state.waiting_for or reason
    state = replace(state, phase=Phase.WAITING, op=None, waiting_for=waiting_for)
    return replace(state, retry_at=now + state.settings.channel_backoff_s), (notice,)
