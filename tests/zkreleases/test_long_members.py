"""Members join, leave, freeze and lose their sessions, on each release of ZooKeeper."""

from __future__ import annotations

import pytest
from integration.test_expiry import test_ten_expiries_in_a_row
from integration.test_membership import (
    test_a_freeze_within_the_session_moves_nothing,
    test_a_frozen_member,
    test_a_member_is_killed_at_work,
    test_a_member_leaves,
    test_partitions_are_added,
)

__all__ = [
    "test_a_frozen_member",
    "test_a_member_is_killed_at_work",
    "test_a_member_leaves",
    "test_a_freeze_within_the_session_moves_nothing",
    "test_ten_expiries_in_a_row",
    "test_partitions_are_added",
]

pytestmark = pytest.mark.usefixtures("topic")
