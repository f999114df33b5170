"""Another client changes the znodes of a group, on each ZooKeeper release."""

from __future__ import annotations

import pytest
from integration.test_foreign_acts import (
    pair,
    test_a_higher_offset_is_left_until_it_is_passed,
    test_a_lower_offset_is_written_over,
    test_a_marked_edit_is_honoured,
    test_an_id_node_is_deleted,
    test_an_id_node_is_replaced,
    test_an_owner_node_is_deleted,
    test_an_owner_node_is_replaced,
)

__all__ = [
    "pair",
    "test_a_higher_offset_is_left_until_it_is_passed",
    "test_a_lower_offset_is_written_over",
    "test_a_marked_edit_is_honoured",
    "test_an_id_node_is_deleted",
    "test_an_id_node_is_replaced",
    "test_an_owner_node_is_deleted",
    "test_an_owner_node_is_replaced",
]

pytestmark = pytest.mark.usefixtures("topic")
