"""The tables of `zkconsumer history` for JVM members: their retries and their back-offs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.captures import captured
from support.zk.history_logs import LogWriter, changed, created, number, sized

from zkconsumer.history import transactions as tx
from zkconsumer.history.describe import Described, Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.protocol import paths
from zkconsumer.protocol.paths import ZnodeKind

CODES = {"NODEEXISTS": -110, "NONODE": -101}
PARTITIONS = b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1],"3":[1]}}'
BACKOFF_MS = 2000
"""The default of `rebalance.backoff.ms`; the captures have no times."""


def requests(scenario: str) -> Iterator[dict[str, Any]]:
    """Return the writes and the marks of a scenario, as a 1.1.1 member sent them."""
    return (one for one in captured("sequences") if one["scenario"] == scenario)


def record(one: dict[str, Any]) -> tuple[int, bytes]:
    """Return the type and the record of a request's transaction."""
    if one["reply"] != "ok":
        return tx.ERROR, number(CODES[one["reply"]])
    data = (one.get("data") or "").encode()
    if one["op"] == "create":
        is_live = paths.locate(one["path"]).kind in (ZnodeKind.MEMBER, ZnodeKind.OWNER)
        return tx.CREATE, created(one["path"], data, ephemeral=is_live)
    if one["op"] == "setData":
        return tx.SET_DATA, changed(one["path"], data)
    return tx.DELETE, sized(one["path"])


@pytest.fixture
def conflict(tmp_path: Path) -> Described:
    """A is frozen and keeps all partitions; B tries three times; A continues; C joins."""
    log = LogWriter()
    log.add(tx.CREATE, created(paths.topic("seqcf"), PARTITIONS), session=9)
    sessions: dict[str, int] = {}
    for one in requests("conflict"):
        if "mark" in one:
            log.time_ms += 15_000
            if one["mark"] == "C joined":
                break
        elif one["op"] in ("create", "setData", "delete"):
            if one["member"] not in sessions:
                sessions[one["member"]] = len(sessions) + 1
                log.add(tx.CREATE_SESSION, number(6000), session=sessions[one["member"]])
            is_attempt = one["path"].endswith("seqcf/3") and one["reply"] == "NODEEXISTS"
            ms = BACKOFF_MS if is_attempt else 1
            log.add(*record(one), session=sessions[one["member"]], ms=ms)
    log.write(tmp_path)
    description = Description(find_servers([tmp_path]))
    description.read()
    return description.result()


def test_the_retries_of_a_jvm_member(conflict: Described) -> None:
    """Three attempts to claim two partitions are one row with six refused writes of a session."""
    *_, row = conflict.tables.rebalances
    assert row.triggers == ["seqgcfc_B joined", "seqgcfc_C joined"]
    assert row.refused == {"0x2": 6}
    # When A continues, it releases four partitions and claims two; when C joins, A releases two and
    # claims two.
    assert (row.released, row.claimed) == (4 + 2, 2 + 4)


def test_who_blocked_a_jvm_member_that_gave_up(conflict: Described) -> None:
    """A partition that the member did not get counts as blocked, and the owner is named."""
    # Up to now the group could also use round-robin, which leaves partition 2 to A.
    blocked = [one for one in conflict.tables.incidents if one.kind == "blocked partition"]
    assert [one.what for one in blocked] == [
        "seqcf-3 is held by seqgcfc_A-0 (session 0x1), but seqgcfc_B should own it"
    ]


def test_a_jvm_member_that_gave_up_claims_at_the_next_change(conflict: Described) -> None:
    """The member's share stayed free until a third member joined; then the group settled."""
    gave_up = [one for one in conflict.tables.incidents if one.kind == "member gave up"]
    assert [one.what.split()[0] for one in gave_up] == ["seqgcfc_B"]
    assert conflict.tables.rebalances[-1].settled_ms is not None
