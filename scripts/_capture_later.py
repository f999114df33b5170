"""Capture what Kafka 3.9.1's own classes compute: assignors, partitioners, placement.

The cases are random, from fixed seeds (`tests/support/jvm/later_cases.py`). Each file of
`tests/golden/later` has one JSON object a line, a request and its `answer`.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.jvm.kafka_391 import ask  # noqa: E402
from support.jvm.later_cases import case, decisions, placements  # noqa: E402

FOLDER = ROOT / "tests" / "golden" / "later"


def write(name: str, requests: list[Mapping[str, Any]]) -> None:
    """Write requests with their answers, without a time stamp, so that the file can be compared."""
    answers = ask(requests)
    lines = (
        json.dumps({**request, "answer": answer}, separators=(",", ":")) + "\n"
        for request, answer in zip(requests, answers, strict=True)
    )
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=9) as file:
        file.write("".join(lines).encode())
    path = FOLDER / f"{name}.jsonl.gz"
    path.write_bytes(packed.getvalue())
    print(f"{path.relative_to(ROOT)}: {len(requests)} cases, {path.stat().st_size} bytes")


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cases", type=int, default=2400, help="cases of the assignors")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    FOLDER.mkdir(exist_ok=True)
    write("assignors", [case(seed) for seed in range(options.cases)])
    write("decisions", list(decisions(random.Random("decisions"), 300)))
    write("placement", list(placements(random.Random("placement"), 200)))


if __name__ == "__main__":
    main()
