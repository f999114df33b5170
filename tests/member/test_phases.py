"""The table of phase changes: complete, checked at every step, and shown in the documentation."""

from __future__ import annotations

import ast
from pathlib import Path
from unittest.mock import patch

import _phases
import pytest
from support.members.machine import ME, Member, member_in, tps, view

from zkconsumer.member import events as ev
from zkconsumer.member import machine, phases
from zkconsumer.member.phases import LEGAL_CHANGES, TABLE, Deadline, Phase, check_change
from zkconsumer.member.rebalance import MAX_POSTPONED_READS
from zkconsumer.member.state import State, Step, enter
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.phase_table import IllegalPhaseChangeError

ROOT = Path(__file__).resolve().parents[2]
T3 = TopicPartition("t", 3)


def test_the_page_shows_the_table() -> None:
    """docs/architecture.md contains the output of `scripts/phases`."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert _phases.generated() in page
    assert _phases.with_phases(page) == page


def test_the_later_page_shows_the_group_table() -> None:
    """docs/later.md contains the output of `scripts/phases` for a classic group."""
    page = (ROOT / "docs" / "later.md").read_text(encoding="utf-8")
    assert _phases.generated_group() in page
    assert _phases.with_group_phases(page) == page


def test_every_phase_but_the_last_can_be_left_and_every_phase_but_the_first_reached() -> None:
    """Every phase but the last can be left, and every phase but the first can be reached."""
    left = {before for row in LEGAL_CHANGES for before in row.before}
    reached = {after for row in LEGAL_CHANGES for after in row.after}
    assert left == set(Phase) - {Phase.CLOSED}
    assert reached == set(Phase) - {Phase.OFFLINE}


def test_every_cause_is_an_event_that_the_machine_handles() -> None:
    """The cause in each row is a deadline, or an event or outcome that its phase handles."""
    always = {ev.Committed, ev.Denied, ev.MemberNodeGone, ev.Synced}
    handled = machine.HANDLERS.keys() | machine.OUTCOME_HANDLERS.keys()
    for before, cause in TABLE.changes:
        if isinstance(cause, Deadline) or cause in always:
            continue
        assert (before, cause) in handled or (None, cause) in handled, (before, cause)


def test_every_deadline_is_a_cause_or_changes_no_phase() -> None:
    """Every deadline causes a phase change, except the deadlines of background work."""
    causes = {cause for _, cause in TABLE.changes if isinstance(cause, Deadline)}
    beside = {
        Deadline.RECREATE,
        Deadline.LEASE,
        Deadline.AUTO_COMMIT,
        Deadline.PEERS,
        Deadline.REPORT,
    }
    assert causes == set(Deadline) - beside


@pytest.mark.parametrize(
    ("before", "cause", "after"),
    [
        (Phase.OFFLINE, ev.Connected, Phase.SETTLED),
        (Phase.SETTLED, ev.Triggered, Phase.CLAIMING),
        (Phase.STOPPING, ev.ReleaseReady, Phase.CLAIMING),
        (Phase.RELEASING, ev.Released, Phase.LEAVING),
        (Phase.WAITING, Deadline.GRACE, Phase.READING),
        (Phase.CLOSED, ev.Connected, Phase.REGISTERING),
    ],
)
def test_a_change_that_no_row_covers_is_refused(
    before: Phase, cause: phases.Cause, after: Phase
) -> None:
    """The error for a change that no row allows names the cause and both phases."""
    with pytest.raises(IllegalPhaseChangeError) as caught:
        check_change(before, (cause,), after)
    text = str(caught.value)
    assert all(one in text for one in (before.value, phases.cause_name(cause), after.value))


def test_each_step_checks_its_change_of_phase() -> None:
    """If a handler skips a phase, `step` raises an error, and the state is unchanged."""
    member = member_in(Phase.SETTLED)
    before = member.state

    def skip(state: State, _: ev.Triggered) -> Step:
        return enter(state, Phase.CLAIMING), ()

    skipping = patch.dict(machine.HANDLERS, {(None, ev.Triggered): skip})
    with skipping, pytest.raises(IllegalPhaseChangeError, match="Triggered led from"):
        member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    assert member.state is before


def test_a_tick_causes_what_its_deadlines_cause() -> None:
    """A tick causes only those deadlines that have passed and that apply in the phase."""
    member = Member()
    assert machine.causes(member.state, ev.Tick(now=member.now)) == ()
    member = member_in(Phase.SETTLED)
    times = dict(machine.deadlines(member.state))
    at = times[Deadline.LEASE]
    assert at is not None
    assert Deadline.LEASE in machine.causes(member.state, ev.Tick(now=at))
    assert Deadline.LEASE not in machine.causes(member.state, ev.Tick(now=at - 0.001))


def _is_rare(before: Phase, cause: phases.Cause, after: Phase) -> bool:
    """Return whether only the rows for disturbed rebalances allow this change."""
    usual = (*phases.MAIN_PATH, *phases.DETOURS, *phases.ANY_TIME)
    rows = [one for one in usual if before in one.before and cause in one.causes]
    return not any(after in one.after for one in rows)


def test_an_aborted_rebalance_may_revoke_after_a_denied_reading() -> None:
    """If an owner changes after a denied reading, the interrupted revocation is resumed."""
    member = Member()
    member.register()
    member.read()
    member.claim(T3)
    member.load()
    member.verify()
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(view(("g_a", ME)))
    assert member.state.phase is Phase.STOPPING
    member.send(ev.Suspended)
    member.connect()
    member.verify()
    member.answer(ev.Denied("/consumers/g/ids", "no rights"))
    assert member.state.phase is Phase.WAITING
    member.send(ev.OwnersChanged, topic="t")
    assert member.state.revoking == tps(0, 1)
    assert _is_rare(Phase.WAITING, ev.OwnersChanged, member.state.phase)


def test_a_group_that_changes_all_the_time_may_call_the_listener_again() -> None:
    """After `MAX_POSTPONED_READS`, a lost owner znode is handled without another reading."""
    member = Member(listener_s=1.0)
    member.register()
    for _ in range(MAX_POSTPONED_READS + 1):
        member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
        member.read()
    member.listened()
    member.claim()
    assert member.state.phase is Phase.BEFORE_START
    member.send(ev.OwnerNodeChanged, partition=T3)
    member.listened()
    assert member.state.phase is Phase.BEFORE_RELEASE
    assert _is_rare(Phase.BEFORE_START, ev.ListenerReturned, Phase.BEFORE_RELEASE)


def test_one_function_assigns_phases() -> None:
    """Only `enter` gives a member's state another phase; other kinds of members are left out."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "zkconsumer").rglob("*.py"))
        if {"later", "judge", "weakened.py"}.isdisjoint(path.parts)
        and "phase=" in (text := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", getattr(call.func, "attr", "")) == "replace"
        and any(keyword.arg == "phase" for keyword in call.keywords)
    ]
    assert len(found) == 1
    assert found[0].startswith("zkconsumer/member/state.py:")
