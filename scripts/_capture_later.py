"""Capture the results of Kafka 3.9.1's own classes: assignors, partitioners, placement,
coordinator.

The cases are random, from fixed seeds (`tests/support/jvm/later_cases.py`). Each line of a file in
`tests/golden/later` is a JSON object: a request with its `answer`. A line of `coordinator` is a
script of requests to a group coordinator with all answers.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.jvm.kafka_391 import ask
from support.jvm.later_cases import case, decisions, placements
from support.jvm.live_coordinator import scripts

FOLDER = ROOT / "tests" / "golden" / "later"


def write(name: str, requests: list[Mapping[str, Any]]) -> None:
    """Write requests with their answers."""
    answers = ask(requests)
    found = zip(requests, answers, strict=True)
    write_lines(name, [{**request, "answer": answer} for request, answer in found])


def write_lines(name: str, lines: list[dict[str, Any]]) -> None:
    """Write a file without a time stamp, so that it can be compared."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=9) as file:
        file.write(text.encode())
    path = FOLDER / f"{name}.jsonl.gz"
    path.write_bytes(packed.getvalue())
    print(f"{path.relative_to(ROOT)}: {len(lines)} cases, {path.stat().st_size} bytes")


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cases", type=int, default=2400, help="cases of the assignors")
    parser.add_argument("--scripts", type=int, default=760, help="scripts of the coordinator")
    parser.add_argument("--only", help="write this file only")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    FOLDER.mkdir(exist_ok=True)
    captures: dict[str, Callable[[], None]] = {
        "assignors": lambda: write("assignors", [case(seed) for seed in range(options.cases)]),
        "decisions": lambda: write("decisions", list(decisions(random.Random("decisions"), 300))),
        "placement": lambda: write("placement", list(placements(random.Random("placement"), 200))),
        "coordinator": lambda: write_lines("coordinator", scripts(range(options.scripts))),
    }
    for name, capture in captures.items():
        if options.only in (None, name):
            capture()


if __name__ == "__main__":
    main()
