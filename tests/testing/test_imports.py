"""What the import of zkconsumer.testing loads, and when."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from zkconsumer.testing import *
import zkconsumer.testing as package
from zkconsumer.testing.cluster import FakeCluster as home
assert package.FakeCluster is FakeCluster is home
missing = [name for name in package.__all__ if name not in globals()]
heavy = ("zkconsumer.admin", "zkconsumer.history", "zkconsumer.consumer", "numba", "pyarrow")
print(json.dumps([missing, [name for name in heavy if name in sys.modules]]))
"""


def test_the_fakes_load_neither_tools_nor_the_consumer() -> None:
    """All public names are there, without the operator's tools, the consumer, numba and pyarrow."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout) == [[], []]
