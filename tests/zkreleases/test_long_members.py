"""Members that come, go, freeze and lose their sessions, on each release."""

from __future__ import annotations

import pytest
from integration.test_expiry import test_expiry_again_and_again
from integration.test_membership import (
    test_a_frozen_member,
    test_a_member_is_killed_at_work,
    test_a_member_leaves,
    test_a_short_freeze_changes_nothing,
    test_partitions_are_added,
)

__all__ = [
    "test_a_frozen_member",
    "test_a_member_is_killed_at_work",
    "test_a_member_leaves",
    "test_a_short_freeze_changes_nothing",
    "test_expiry_again_and_again",
    "test_partitions_are_added",
]

pytestmark = pytest.mark.usefixtures("topic")
