"""`zkconsumer bridge`: let old and new consumers share one group while it moves to Kafka."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperGroup

from zkconsumer.cli.lag import STORES, unknown
from zkconsumer.cli.options import Common, OneGroup, operator
from zkconsumer.cli.output import Align, Column, Unknown, say
from zkconsumer.errors import ConfigError, RefusedError, ZkConsumerError, shell_word

if TYPE_CHECKING:
    from zkconsumer.bridge.process import BridgeProcess
    from zkconsumer.bridge.state import Goal, State
    from zkconsumer.config.settings import ConsumerConfig
    from zkconsumer.zk.client import ZooKeeperClient

COLUMNS: Final = (
    Column("group", wide_only=True),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("side"),
    Column("member"),
    Column("offset", align=Align.RIGHT),
    Column("lag", align=Align.RIGHT),
    *STORES,
)

SESSION_S: Final = 30.0
"""The session timeout, in seconds, of the bridge in ZooKeeper. After this time, old members take
over the partitions of a dead bridge."""

BROKER_SESSION_S: Final = 60.0
"""The session timeout, in seconds, of the bridge in the brokers' group.

It is longer than the one in ZooKeeper, so that a standby takes over the membership before the
coordinator removes it."""

CONSUMERS: Final = 48
"""The maximum number of consumers that the bridge registers; its share cannot grow beyond it.

Each consumer has a connection to ZooKeeper, and the process has one, too. By default a server
accepts 60 connections from one address (`maxClientCnxns`), also those of other programs."""


class _DefaultRun(TyperGroup):
    """Runs `run` if the first argument is no command: `bridge g` is `bridge run g`."""

    def parse_args(self, ctx: object, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)  # type: ignore[arg-type]  # Click's context


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    cls=_DefaultRun,
    help="Let old and new consumers share one group while it moves from ZooKeeper to Kafka.\n\n"
    "`zkconsumer docs migrating` says what was tried with real members, and what was not.",
)

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="Brokers to ask first; by default the brokers that are registered in ZooKeeper.",
    ),
]


@app.command("run")
@operator()
def run(
    common: Common,
    *,
    group: OneGroup = None,
    bootstrap: Bootstrap = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="The new consumers' share of the partitions, such as 25%. By default it follows"
            " the number of members on each side.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="A topic to share; repeatable. By default all topics of the old members."
        ),
    ] = None,
    take_lead: Annotated[
        bool,
        typer.Option(
            "--take-lead",
            help="If the brokers' group already has members, remove them once, so that the bridge"
            " leads the group. They join again at once.",
        ),
    ] = False,
) -> None:
    """Run the bridge of a group until it finishes, or until Ctrl-C.

    Old consumers, in ZooKeeper, and new consumers, with the classic protocol, share the group's
    partitions. Start and stop programs on both sides in any order. A second process waits as a
    standby. Ctrl-C gives all partitions back to the old side. If new consumers still run then, they
    read every partition, too, as soon as the brokers notice that the bridge is gone: end the bridge
    with `finish` or `rollback` instead.

    Example: zkconsumer bridge run billing -z zk1:2181/kafka --bootstrap broker1:9092
    """
    name = common.group(group)
    wanted = _share(share)
    config = common.settings(name, zookeeper_session_timeout_s=SESSION_S)
    from zkconsumer.zk.client import ZooKeeperClient

    with ZooKeeperClient(config) as connection:
        _run(connection, config, bootstrap, wanted, tuple(topic or ()), takes_lead=take_lead)


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise ConfigError(
            f"{text} is not a share between 0% and 100%",
            where="--share",
            remedy="give a percentage such as 25%",
        )
    return percent / 100


def _run(
    connection: ZooKeeperClient,
    config: ConsumerConfig,
    bootstrap: str | None,
    share: float | None,
    topics: tuple[str, ...],
    *,
    takes_lead: bool,
) -> None:
    from zkconsumer.admin.groups import existing_group
    from zkconsumer.bridge.control import Control, process_name
    from zkconsumer.bridge.machine import LEFT
    from zkconsumer.bridge.process import new_process, when_brokers_answer
    from zkconsumer.bridge.state import Goal

    group = config.group_id
    existing_group(connection, group)
    control = Control(connection, group, process_name())
    if not control.holder():
        goal = control.begin(share).goal
        if goal is not Goal.RUN:
            say(f"continues with {goal.value}; `zkconsumer bridge resume {group}` ends it")
    was_standby = control.wait(_tell)
    _tell("checking the group")
    make = partial(
        new_process,
        *(config, connection),
        bootstrap=bootstrap,
        topics=topics,
        share=share,
        takes_lead=takes_lead or was_standby,
        session_s=BROKER_SESSION_S,
        consumers=CONSUMERS,
        stored=control.wish().topics,
    )
    process = when_brokers_answer(make, connection, _tell) if was_standby else make()
    for notice in process.notices:
        _tell(notice)
    _stop_at_signals(process)
    shown = _Shown(group)
    _tell(f"the bridge of {group} runs; end it with `zkconsumer bridge finish` or `rollback`")
    if process.run(shown.look, control) == LEFT:
        control.reached()
    _report_end(process.state, group)


def _report_end(state: State, group: str) -> None:
    """Say why the bridge has ended. Raises ZkConsumerError if the brokers have refused it."""
    from zkconsumer.admin.apply import count
    from zkconsumer.bridge.machine import FOLLOWS
    from zkconsumer.bridge.state import Goal

    reason = state.ended
    _tell(f"the bridge of {group} has ended: {reason}")
    if state.members and state.goal is Goal.STOP:
        _tell(
            f"{count(state.members, 'new member')} may still run, and will read every partition,"
            f" too, in about {BROKER_SESSION_S:g} s: stop the new members, or start the bridge"
            " again before"
        )
    if reason == FOLLOWS:
        raise RefusedError(
            reason,
            where=group,
            remedy="start the bridge before the new members, or give --take-lead",
        )
    if reason.startswith("the brokers refuse"):
        is_replaced = reason.endswith("FENCED_INSTANCE_ID")
        raise ZkConsumerError(
            reason,
            where=group,
            remedy="another process is the bridge now; start this one again as its standby"
            if is_replaced
            else "see the brokers' logs, and start the bridge again",
        )


def _tell(text: str) -> None:
    """Write a message to standard error; a reader that is gone, or a full disk, ends no bridge.

    Ctrl-C also ends the `tee` of `zkconsumer bridge run ... 2>&1 | tee log`.
    """
    with suppress(OSError):
        say(text)


def _stop_at_signals(process: BridgeProcess) -> None:
    """Let the bridge give its partitions back when a signal or a lost terminal ends it."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stop(process, stopped, is_urgent=stopped.is_set()))
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # as `nohup` sets it
        # When a terminal closes, both the system and the shell may send this signal.
        signal.signal(hangup, lambda *_: _stop(process, stopped, is_urgent=False))


def _stop(process: BridgeProcess, stopped: threading.Event, *, is_urgent: bool) -> None:
    if is_urgent:
        raise KeyboardInterrupt
    is_first = not stopped.is_set()
    stopped.set()
    process.stop()
    if is_first:
        with suppress(RuntimeError):  # the signal has interrupted another write to standard error
            _tell("giving all partitions back to the old side; press Ctrl-C again to end at once")


class _Shown:
    """Prints a line with the time whenever the division of the partitions has changed."""

    def __init__(self, group: str) -> None:
        self._group, self._last = group, ""

    def look(self, state: State) -> None:
        """Print the state, if it differs from the last one."""
        from zkconsumer.admin.apply import count
        from zkconsumer.bridge.state import Goal, Stage

        lent = [tp for tp, one in state.held.items() if one.stage is Stage.LENT]
        moving = state.held.keys() - set(lent)
        errors = (state.held[tp].refusal for tp in sorted(moving))
        refusals = dict.fromkeys(one.name for one in errors if one)
        # A bridge that is alone in the brokers' group joins again from time to time.
        is_rebalancing = state.has_led and not state.leads and bool(state.members)
        text = (
            f"{count(state.members, 'new member')} with {count(lent, 'partition')},"
            f" {count(state.old, 'old member')}"
            + (f", {count(moving, 'partition')} on their way" if moving else "")
            + (f", the brokers refuse some: {', '.join(refusals)}" if refusals else "")
            + (", the brokers' group rebalances" if is_rebalancing else "")
            + ("" if state.goal in (Goal.RUN, Goal.STOP) else f", goal {state.goal.value}")
        )
        if text != self._last:
            self._last = text
            _tell(f"{datetime.now():%H:%M:%S} {self._group}: {text}")


@app.command("status")
@operator()
def status(common: Common, *, group: OneGroup = None, bootstrap: Bootstrap = None) -> None:
    """Show each partition with its side, its member and its offsets.

    Example: zkconsumer bridge status billing -z zk1:2181/kafka
    """
    from zkconsumer.bridge.control import Control

    name = common.group(group)
    config = common.settings(name)
    with common.connect(name) as connection:
        control = Control(connection, name, "")
        holder, wish = control.holder(), control.wish()
        common.write(_rows(connection, config, bootstrap), COLUMNS)
    say(f"active: {holder}, goal {wish.goal.value}" if holder else "no bridge is active")


def _rows(
    connection: ZooKeeperClient, config: ConsumerConfig, bootstrap: str | None
) -> Iterator[dict[str, object]]:
    from zkconsumer.bridge.process import settings_of_brokers
    from zkconsumer.bridge.status import sides

    brokers = settings_of_brokers(config, connection, bootstrap)
    limit_s = config.zookeeper_connection_timeout_s
    for one in sides(connection, config.group_id, brokers, limit_s=limit_s):
        yield {
            "group": config.group_id,
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "side": one.side.value,
            "member": Unknown(one.member_fault) if one.member_fault else one.member,
            "offset": unknown(one.offset),
            "lag": unknown(one.lag),
            "zookeeper": unknown(one.zookeeper),
            "kafka": unknown(one.kafka),
        }


def _change(common: Common, group: str | None, goal: Goal, text: str) -> None:
    from zkconsumer.bridge.control import Control

    name = common.group(group)
    with common.connect(name) as connection:
        control = Control(connection, name, "")
        holder = control.holder()
        if not holder:
            raise RefusedError(
                "no bridge is active",
                where=name,
                remedy=f"start it with `zkconsumer bridge run --group {shell_word(name)}`",
            )
        control.change(lambda wish: replace(wish, goal=goal))
    say(f"{holder}: {text}")


@app.command("pause")
@operator()
def pause(common: Common, *, group: OneGroup = None) -> None:
    """Keep the number of the bridge's consumers until `resume`.

    Example: zkconsumer bridge pause billing
    """
    from zkconsumer.bridge.state import Goal

    _change(common, group, Goal.PAUSE, "the bridge keeps its number of consumers")


@app.command("resume")
@operator()
def resume(common: Common, *, group: OneGroup = None) -> None:
    """Let the bridge divide the partitions again.

    `resume` ends the effect of `pause`, `finish` and `rollback`.

    Example: zkconsumer bridge resume billing
    """
    from zkconsumer.bridge.state import Goal

    _change(common, group, Goal.RUN, "the bridge divides the partitions")


@app.command("finish")
@operator()
def finish(common: Common, *, group: OneGroup = None) -> None:
    """End the bridge as soon as no old member is left.

    Afterwards, the brokers' group is an ordinary group.

    Example: zkconsumer bridge finish billing
    """
    from zkconsumer.bridge.state import Goal

    _change(common, group, Goal.FINISH, "the bridge ends when the last old member has left")


@app.command("rollback")
@operator()
def rollback(common: Common, *, group: OneGroup = None) -> None:
    """Give all partitions back to the old side.

    The bridge ends when the last new member has left.

    Example: zkconsumer bridge rollback billing
    """
    from zkconsumer.bridge.state import Goal

    text = "the old members get all partitions; the bridge ends when the last new member has left"
    _change(common, group, Goal.ROLLBACK, text)
