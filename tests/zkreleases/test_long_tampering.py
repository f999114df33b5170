"""Faults of ZooKeeper itself, and random mixtures of faults, on each release."""

from __future__ import annotations

from faults.test_mixture import test_a_random_mixture
from faults.test_tampering import (
    pair,
    test_all_data_of_the_group_is_wiped,
    test_the_right_to_claim_is_taken_and_given_back,
    test_the_right_to_commit_is_taken_and_given_back,
    test_the_right_to_read_the_group_is_taken_and_given_back,
)

__all__ = [
    "pair",
    "test_a_random_mixture",
    "test_all_data_of_the_group_is_wiped",
    "test_the_right_to_claim_is_taken_and_given_back",
    "test_the_right_to_commit_is_taken_and_given_back",
    "test_the_right_to_read_the_group_is_taken_and_given_back",
]
