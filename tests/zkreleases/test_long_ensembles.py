"""Three servers of each release; their leader dies or is frozen."""

from __future__ import annotations

from integration.test_restarts import (
    ensemble_bootstrap,
    ensemble_crew,
    test_the_leader_of_an_ensemble_is_frozen,
    test_the_leader_of_an_ensemble_is_killed,
)

__all__ = [
    "ensemble_bootstrap",
    "ensemble_crew",
    "test_the_leader_of_an_ensemble_is_frozen",
    "test_the_leader_of_an_ensemble_is_killed",
]
