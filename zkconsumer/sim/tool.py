"""An operator who applies plans while members run: the production `admin.apply` and its undo.

Every request of the tool is one action of the world, so members join, commit and die between any
two of them. A reply may be lost, and the tool may be killed between two transactions. The tool's
plan is then applied again, or undone from the backup.

The production functions wait for replies, and a world has no threads. Each action therefore runs
the function again, with the replies so far, up to the first request without a reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, cast

from zkconsumer.admin import apply as applying
from zkconsumer.admin import plan as plan_file
from zkconsumer.admin.apply import Live
from zkconsumer.admin.group_changes import plan_undo
from zkconsumer.admin.plan import Change, Content, Plan, ZnodeState
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import RefusedError, RemedyOperation, ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.requests import Code, Node, Reply
from zkconsumer.sim.kernel.promises import Reason, promise
from zkconsumer.sim.plan import Plan as WorldPlan
from zkconsumer.sim.zookeeper import SimZooKeeper
from zkconsumer.zk.client import Read, ZooKeeperClient

MAX_WRITES = 1
"""Changes in one transaction, so that a plan for two partitions takes two transactions."""

LIVES = (Live.REFUSE, Live.FORCE)
"""The ways in which an operator may apply a plan while members are registered."""

FOREVER_S = 1e9

ANYONE = (rq.Right("world:anyone", 31),)
"""The access control list of every znode: the tool has all rights."""


class _Pending(BaseException):
    """Raised when the tool would wait for the replies to this batch."""

    def __init__(self, batch: Sequence[rq.Request]) -> None:
        super().__init__()
        self.batch = batch


class _Connection(ZooKeeperClient):
    """A connection that replays the replies so far, then raises `_Pending`."""

    def __init__(self, replies: Sequence[Sequence[Reply]]) -> None:
        self.config = ConsumerConfig(zookeeper_connect="simulated:2181", group_id="tool")
        self._limit_s = FOREVER_S
        self._known = iter(replies)

    def _ask(self, batch: Sequence[Read | rq.Multi]) -> Sequence[Reply]:
        known = next(self._known, None)
        if known is None:
            raise _Pending(cast(Sequence[rq.Request], batch))  # the tool asks for no rights
        return known


Task = Callable[[ZooKeeperClient], None]


class ToolWorld(Protocol):
    """The part of a `World` that a tool uses."""

    GROUP: str
    plan: WorldPlan
    now: float
    log_end: dict[TopicPartition, int]
    zookeeper: SimZooKeeper


# ---- the promise (I16) ---------------------------------------------------------------------------


@promise("I16")
def refuses_before_it_writes(written: Collection[str], refusal: RefusedError) -> Reason:
    """A run that is refused has written nothing."""
    return f"refused after {[*written]}: {refusal}" if written else None


@promise("I16")
def refuses_for_a_reason(refusal: RefusedError, *, is_changed: bool) -> Reason:
    """A run is refused only if members are registered, or if another client has made a change.

    `is_changed`: whether another client has changed a znode of the plan, or a member has come and
    gone.
    """
    advice = refusal.advice
    is_for_members = advice is not None and advice.step is RemedyOperation.FORCE_LIVE
    return None if is_for_members or is_changed else f"refused without a change: {refusal}"


@promise("I16")
def writes_what_it_reports(plan: Plan, seen: Collection[tuple[str, bytes | None]]) -> Reason:
    """A plan that is reported as applied has been written.

    `seen`: every path with each of its values. If another client wrote the planned value in
    between, the change counts as done.
    """
    missing = [
        one.path
        for one in plan.changes
        if one.after is not None and (one.path, one.after.data) not in seen
    ]
    return f"applied, and {missing} were never written" if missing else None


@promise("I16")
def writes_without_members(wrote: Sequence[str], members: Sequence[str], live: Live) -> Reason:
    """Without `--force-live`, nothing of a plan is written while members are registered."""
    if not (wrote and members) or live is not Live.REFUSE:
        return None
    return f"{wrote} written while {members} are registered"


@promise("I16")
def writes_once(written: Mapping[str, int], path: str) -> Reason:
    """Each znode is written once for one plan."""
    return f"{path} is written twice for one plan" if written[path] > 1 else None


@promise("I16")
def writes_in_the_planned_state(change: Change, before: Node | None) -> Reason:
    """A znode is written only in the state for which the plan was made."""
    return None if change.is_due(before) else f"{change.path} is written in an unplanned state"


@promise("I16")
def marks_offsets(path: str, *, has_mark: bool) -> Reason:
    """An offset is written together with an edit mark."""
    is_offset = paths.locate(path).kind is ZnodeKind.OFFSET
    return f"{path} is written without a mark" if is_offset and not has_mark else None


PROMISES: Final = (
    refuses_before_it_writes,
    refuses_for_a_reason,
    writes_what_it_reports,
    writes_without_members,
    writes_once,
    writes_in_the_planned_state,
    marks_offsets,
)
"""The promises of an operator's `apply`."""


# ---- the tool ------------------------------------------------------------------------------------


class Tool:
    """One operator, with one plan at a time.

    Attributes:
        pending: the requests that the tool has sent; None while it does not run.
        plan: the last plan.
        is_over: whether that plan was applied, undone or refused for good.
        written: path -> how many times the znode was written for the plan.
    """

    def __init__(self, world: ToolWorld) -> None:
        self._world = world
        self._session = 0
        self._directory = TemporaryDirectory(prefix="zkconsumer-sim-")
        self._replies: list[Sequence[Reply]] = []
        self._task: Task | None = None
        self._live = Live.REFUSE
        self._done: Plan | None = None  # the plan that an undo reverts
        self._backup: Path | None = None
        self._run: Counter[str] = Counter()
        self._started_after = 0  # the last zxid before the present run
        self._wrote: dict[str, Node | None] = {}  # planned path -> its state after the last write
        self.pending: Sequence[rq.Request] | None = None
        self.plan: Plan | None = None
        self.is_over = True
        self.written: Counter[str] = Counter()

    # ---- actions of the operator -----------------------------------------------------------------

    def begin(self, variant: int) -> None:
        """Plan a change of all stored offsets, and apply the plan as `LIVES[variant]`.

        The plan sets each offset to 0 or to half of its value.
        """
        self._begin_plan(Plan.of("offsets reset", "", self._changes()), LIVES[variant])

    @property
    def has_work(self) -> bool:
        """Whether a plan could lower a stored offset."""
        return not Plan.of("offsets reset", "", self._changes()).is_empty

    def _changes(self) -> list[Change]:
        nodes = self._world.zookeeper.nodes
        changes = []
        for tp in sorted(self._world.log_end):
            node = nodes.get(paths.offset(self._world.GROUP, tp))
            if node is None or not (node.data or b"").isdigit():
                continue
            half = int(node.data or b"0") // 2 if tp.partition % 2 else 0
            before = ZnodeState(node.data, node.stat.version, node.stat.mzxid)
            changes.append(
                Change(paths.offset(self._world.GROUP, tp), before, Content(b"%d" % half))
            )
        return changes

    def _begin_plan(self, plan: Plan, live: Live) -> None:
        self.plan, self._live, self.is_over = plan, live, plan.is_empty
        self.written, self._wrote, self._backup = Counter(), {}, None
        if not plan.is_empty:
            self.apply_again()

    def apply_again(self) -> None:
        """Apply the plan, or what remains of it."""
        plan, live = self.plan, self._live
        assert plan is not None

        def task(connection: ZooKeeperClient) -> None:
            applying.apply(
                connection,
                plan,
                backup_dir=Path(self._directory.name),
                live=live,
                max_writes=MAX_WRITES,
                on_backup=self._saved,
            )

        self._start(task)

    def _saved(self, path: Path) -> None:
        if self._backup is not None:
            path.unlink()  # an earlier run of the function has written the backup
        else:
            self._backup = path

    def undo(self) -> None:
        """Plan the undo from the backup, and apply it as a plan."""
        done = plan_file.load_plan(self._backup) if self._backup is not None else self.plan
        assert done is not None
        made: list[Plan] = []

        def task(connection: ZooKeeperClient) -> None:
            made[:] = [plan_undo(connection, done)]

        self._start(task, then=lambda: self._begin_plan(made[0], self._live))

    def kill(self) -> None:
        """End the tool's process; a request that is not executed yet will never be executed."""
        self.pending = self._task = None

    def retire(self) -> None:
        """End the operator's actions."""
        self.kill()
        self.is_over = True
        self._directory.cleanup()

    # ---- running ---------------------------------------------------------------------------------

    def _start(self, task: Task, then: Callable[[], None] | None = None) -> None:
        self._task, self._then, self._replies = task, then, []
        self._started_after = self._world.zookeeper.last_zxid
        self._run = Counter()
        self._run_task()

    def _run_task(self) -> None:
        assert self._task is not None
        self.pending = None
        try:
            self._task(_Connection(self._replies))
        except _Pending as pending:
            self.pending = pending.batch
        except RefusedError as error:
            self.is_over = True
            refuses_before_it_writes.check(self._run, error)
            refuses_for_a_reason.check(error, is_changed=self._is_changed_by_others())
        except ZkConsumerError:
            pass  # the plan is partly applied; the operator applies it again or undoes it
        else:
            self._task_ended()

    def _is_changed_by_others(self) -> bool:
        """Return whether another client has changed a znode of the plan since the plan was made, or
        whether a member has come and gone since the run began."""
        assert self.plan is not None
        nodes = self._world.zookeeper.nodes
        ids = f"{paths.ids(self._world.GROUP)}/"
        has_gone = any(
            one.zxid > self._started_after and one.path.startswith(ids) and one.path not in nodes
            for one in self._world.zookeeper.history
        )
        return has_gone or any(
            nodes.get(one.path) != self._wrote[one.path]
            if one.path in self._wrote
            else not one.is_due(nodes.get(one.path))
            for one in self.plan.changes
        )

    def _task_ended(self) -> None:
        if self._then is not None:
            self._then()
            return
        assert self.plan is not None
        self.is_over = True
        seen = {
            (change.path, change.new.data)
            for change in self._world.zookeeper.history
            if change.new is not None
        }
        writes_what_it_reports.check(self.plan, seen)

    def step(self, *, is_lost: bool = False) -> None:
        """Execute the pending requests; with `is_lost` their replies are lost."""
        assert self.pending is not None
        replies = [self._served(request) for request in self.pending]
        if is_lost:
            replies = [Reply(Code.BROKEN)] * len(replies)
        self._replies.append(replies)
        self._run_task()

    @property
    def writes(self) -> bool:
        """Whether a transaction is pending."""
        return self.pending is not None and any(isinstance(r, rq.Multi) for r in self.pending)

    def _served(self, request: rq.Request) -> Reply:
        zookeeper, now = self._world.zookeeper, self._world.now
        if not zookeeper.is_connected(self._session):
            session = zookeeper.connect(
                now=now,
                timeout_s=FOREVER_S,
                replica=self._world.plan.replicas,
                session=self._session,
            )
            assert session is not None
            self._session = session
        if isinstance(request, rq.Rights):
            is_there = request.path in zookeeper.nodes
            return Reply(Code.OK, ANYONE) if is_there else Reply(Code.NO_NODE)
        before = dict(zookeeper.nodes) if isinstance(request, rq.Multi) else {}
        reply = zookeeper.request(self._session, request, now)
        assert reply is not None
        if isinstance(request, rq.Multi) and reply.code is Code.OK:
            self._check_transaction(request, before)
        return reply

    def _check_transaction(self, request: rq.Multi, before: Mapping[str, Node]) -> None:
        """Check the transaction of the tool that was just executed."""
        assert self.plan is not None
        planned = {one.path: one for one in self.plan.changes}
        wrote = [one.path for one in request.writes if one.path in planned]
        group = self._world.GROUP
        ids = f"{paths.ids(group)}/"
        # No process holds a registration without a session.
        members = [path for path, one in before.items() if path.startswith(ids) and one.stat.owner]
        writes_without_members.check(wrote, members, self._live)
        has_mark = any(
            isinstance(one, rq.Create) and one.path.startswith(f"{paths.edits(group)}/")
            for one in request.writes
        )
        for path in wrote:
            self._run[path] += 1
            self.written[path] += 1
            self._wrote[path] = self._world.zookeeper.nodes.get(path)
            writes_once.check(self.written, path)
            writes_in_the_planned_state.check(planned[path], before.get(path))
            marks_offsets.check(path, has_mark=has_mark)
