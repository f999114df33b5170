"""Connections that break, carry no data, or lose a reply, on each ZooKeeper release."""

from __future__ import annotations

import pytest
from integration.test_connections import (
    test_a_commit_after_a_lost_reply,
    test_a_connection_without_replies,
    test_a_cut_connection,
    test_a_kill_amid_a_release,
    test_a_kill_amid_a_transaction,
    test_a_lost_reply_to_a_claim_that_is_another_s_by_now,
    test_a_lost_reply_to_a_commit,
    test_a_lost_reply_to_a_release,
    test_a_server_that_accepts_and_does_not_reply,
    test_a_server_without_its_leader,
)

__all__ = [
    "test_a_commit_after_a_lost_reply",
    "test_a_cut_connection",
    "test_a_kill_amid_a_release",
    "test_a_kill_amid_a_transaction",
    "test_a_lost_reply_to_a_claim_that_is_another_s_by_now",
    "test_a_lost_reply_to_a_commit",
    "test_a_lost_reply_to_a_release",
    "test_a_server_that_accepts_and_does_not_reply",
    "test_a_server_without_its_leader",
    "test_a_connection_without_replies",
]

pytestmark = pytest.mark.usefixtures("topic")
