"""The captures of `tests/golden`: what Kafka's own consumers, tools and classes have written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_GOLDEN = Path(__file__).parents[1] / "golden"


def captured(name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a captured file, for instance `registrations` or `later/assignors`."""
    with gzip.open(_GOLDEN / f"{name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        yield from map(json.loads, lines)
