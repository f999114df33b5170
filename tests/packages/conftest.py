"""The wheel and the sdist that the tests of this directory share."""

from __future__ import annotations

import pytest
from support.packages import Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the package once for all tests."""
    return build(tmp_path_factory.mktemp("built"))
