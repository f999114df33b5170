"""What a failed transaction leaves behind, and how the number of children becomes right again."""

from __future__ import annotations

import pytest
from support.zk.contract import Op, Server, create, refusal


def _leave_after_a_failed_transaction(server: Server) -> None:
    """End the session of the only child, which was checked in a transaction that failed."""
    member = server.session()
    member.multi(create("/ids"), create("/offset"))
    member.create_ephemeral("/ids/m")
    failed = member.multi(Op("check", "/ids/m", version=0), Op("set", "/offset", b"1", version=9))
    assert "BadVersion" in failed
    member.close()


@pytest.mark.since("3.4.7")
def test_a_failed_transaction_leaves_nothing(server: Server) -> None:
    """When the only child has ended with its session, its parent can be deleted."""
    _leave_after_a_failed_transaction(server)
    other = server.session()
    assert server.until(lambda: other.children("/ids") == [])
    other.delete("/ids")


@pytest.mark.until("3.4.7")
def test_a_failed_transaction_leaves_a_number_of_children(server: Server) -> None:
    """Before 3.4.7 a parent without children cannot be deleted until a child is created."""
    _leave_after_a_failed_transaction(server)
    other = server.session()
    assert server.until(lambda: other.children("/ids") == [])
    assert refusal(other.delete, "/ids") == "NotEmpty"
    other.multi(
        Op("create", "/ids/count", ephemeral="ephemeral"),
        Op("delete", "/ids/count"),
    )
    other.delete("/ids")
