"""Generate the tables of recorded runs in docs/*.md.

A long run with `--record` (scripts/bench_sim, scripts/soak) writes one JSON file to docs/records/.
The file contains what ran, the commit, the command, the seeds, the duration, and the results. From
these files this command generates every part of a page between `<!-- records: NAME -->` and `<!--
end of records -->`. A test checks that the pages are up to date.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RECORDS = DOCS / "records"
KINDS = (
    "swarm",
    "exhaustive",
    "mutants",
    "reached",
    "soak",
    "faults",
    "mixed",
    "history",
    "lab",
    "scale",
    "moves",
    "bridge",
    "ladder",
    "bridged",
)
ALL = "all tables"
A_DAY_GB = 1000
"""What 1,000 ensembles write a day if each writes 1 GB."""
MANY = (1, 2, 8, 32, 128)
"""Numbers of executors for which the page states the time."""
REQUIRED = (
    "kind",
    "date",
    "commit",
    "command",
    "machine",
    "seconds",
    "seeds",
    "counts",
    "violations",
)
BLOCK = re.compile(r"(<!-- records: ([a-z ]+) -->\n).*?(<!-- end of records -->)", re.DOTALL)

Record = Mapping[str, Any]


# ---- Records -------------------------------------------------------------------------------------


def records(kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind, in the order of their dates and first seeds."""
    paths = RECORDS.glob(f"{kind}-*.json")
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(found, key=lambda one: (one["date"], (one["seeds"] or {}).get("first", 0)))


def latest(kind: str) -> dict[str, Any] | None:
    """Return the latest record of a kind, or None."""
    found = records(kind)
    return found[-1] if found else None


def write(
    kind: str,
    *,
    seconds: float,
    counts: Mapping[str, Any],
    seeds: Mapping[str, int] | None = None,
    violations: Sequence[Any] = (),
    name: str = "",
    **more: Any,
) -> Path:
    """Write the record of a run that has ended, and return its path.

    `name` makes the file's name unique among the records of this kind and commit.
    """
    record = {
        "kind": kind,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": " ".join([f"scripts/{Path(sys.argv[0]).stem.lstrip('_')}", *sys.argv[1:]]),
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1)},
        "seconds": round(seconds, 1),
        "seeds": seeds,
        "counts": counts,
        "violations": list(violations),
        **more,
    }
    path = RECORDS / f"{'-'.join(filter(None, (kind, record['commit'], name)))}.json"
    save(path, record)
    print(f"recorded in {path.relative_to(ROOT)}; run scripts/records to update the pages")
    return path


def save(path: Path, record: Record) -> None:
    """Write a record as text with one value per line, so that differences are easy to read."""
    RECORDS.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str:
    """Return the present commit, with `+changes` if tracked code differs from it."""
    head = _git("rev-parse", "--short=7", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":!docs")
    return f"{head}+changes" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


# ---- Tables of the pages -------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [" | ".join(map(_cell, line)) for line in (head, *rows)]
    lines = [f"| {line} |" for line in lines]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(record: Record) -> str:
    seconds = record["seconds"]
    return "not recorded" if seconds is None else f"{seconds:,.0f} s"


def _broken(record: Record) -> str:
    texts = [
        f"{one['invariant']}, fixed in {one['mended']}" if one.get("mended") else one["invariant"]
        for one in record["violations"]
    ]
    return f"{len(texts)}: {'; '.join(sorted(set(texts)))}" if texts else "0"


def _swarm(kind: str = "swarm") -> str:
    found = records(kind)
    if not found:
        return "No run is recorded."
    rows = [
        (
            one["date"],
            one["commit"],
            f"{one['seeds']['first']} to {one['seeds']['last']}",
            one["counts"]["schedules"],
            _broken(one),
            _time(one),
        )
        for one in _joined(found)
    ]
    total = sum(one["counts"]["schedules"] for one in found)
    broken = sum(len(one["violations"]) for one in found)
    table = _table(("Date", "Commit", "Seeds", "Schedules", "Violations", "Time"), rows)
    return f"{table}\n\nAll runs together: {total:,} schedules, {broken} violations."


def _joined(runs: Iterable[Record]) -> list[Record]:
    """Return the runs, with those of one commit whose seeds follow each other as one run."""
    found: list[Record] = []
    for one in runs:
        before = found[-1] if found else None
        if (
            before is not None
            and before["commit"] == one["commit"]
            and before["seeds"]["last"] + 1 == one["seeds"]["first"]
        ):
            schedules = before["counts"]["schedules"] + one["counts"]["schedules"]
            found[-1] = {
                **before,
                "seconds": before["seconds"] + one["seconds"],
                "seeds": {"first": before["seeds"]["first"], "last": one["seeds"]["last"]},
                "counts": {"schedules": schedules},
                "violations": [*before["violations"], *one["violations"]],
            }
        else:
            found.append(one)
    return found


def _exhaustive() -> str:
    keys = ("faults", "states", "transitions", "depth", "rests")
    rows = [
        (
            one["date"],
            one["commit"],
            one["counts"].get("world", "zookeeper"),
            *(one["counts"][key] for key in keys),
            "yes" if one["counts"]["complete"] else "no",
            len(one["violations"]),
            _time(one),
        )
        for one in records("exhaustive")
    ]
    return _table(
        (
            "Date",
            "Commit",
            "Group",
            "Maximum faults",
            "States",
            "Transitions",
            "Longest path",
            "States at rest",
            "Complete",
            "Violations",
            "Time",
        ),
        rows,
    )


def _reached() -> str:
    record = latest("reached")
    if record is None:
        return "Not recorded."
    counts = record["counts"]
    never = counts["never"]
    told = (
        f"{_provenance(record)} {counts['schedules']:,} schedules reached {counts['pairs']} of "
        f"{counts['pairs'] + len(never)} pairs that can occur."
    )
    if never:
        told += f" Never reached: {', '.join(never)}."
    sys.path.insert(0, str(ROOT / "tests"))
    from support.sim.coverage import EXCLUDED, LIVE  # noqa: PLC0415 - only this table needs it

    rows = []
    for (phases, names), reason in EXCLUDED.items():
        others = [one.value for one in LIVE if one.value not in phases]
        of = [one.value for one in LIVE if one.value in phases]
        where = f"all but {', '.join(others)}" if len(others) < len(of) else ", ".join(of)
        rows.append((where, ", ".join(sorted(names)), reason))
    table = _table(("Phases", "Events, outcomes or faults", "Why the pair cannot occur"), rows)
    return f"{told}\n\n{table}"


def mutant_rows() -> dict[str, dict[str, Any]]:
    """Return, by mutant's name, the promise that caught it, the count of schedules, and the run."""
    found: dict[str, dict[str, Any]] = {}
    for record in records("mutants"):
        for name, row in record["counts"].items():
            found[name] = {**row, "commit": record["commit"], "date": record["date"]}
    return found


def _mutants() -> str:
    sys.path.insert(0, str(ROOT / "tests"))
    planted = importlib.import_module("support.sim.mutants").MUTANTS
    known = mutant_rows()
    rows = []
    for one in planted:
        row = known.get(one.name, {"caught_by": "not recorded", "schedules": "", "commit": ""})
        rows.append(
            (one.name, one.what, one.who, row["caught_by"], row["schedules"], row["commit"])
        )
    head = ("Mutant", "Planted fault", "Known from", "Violated", "Schedules", "Commit")
    return f"{len(rows)} mutants.\n\n{_table(head, rows)}"


def _soak() -> str:
    found = records("soak")
    keys = ("rounds", "faults", "delivered", "redelivered", "lost", "owned_twice", "moved_back")
    rows = [
        (one["date"], one["commit"], *(one["counts"][key] for key in keys), _time(one))
        for one in found
    ]
    total = ["all", "", *(sum(one["counts"][key] for one in found) for key in keys), ""]
    head = (
        "Date",
        "Commit",
        "Rounds",
        "Faults",
        "Delivered",
        "Redelivered",
        "Lost",
        "Owned twice",
        "Offsets moved back",
        "Time",
    )
    return _table(head, [*rows, total])


def _lab() -> str:
    rows = []
    for one in records("lab"):
        counts = one["counts"]
        page, browser, server = (
            " → ".join(f"{size / 1e6:.1f}" for size in counts[name])
            for name in ("page_heap", "browser_resident", "server_resident")
        )
        row = (one["date"], one["commit"], counts["events"], page, browser, server)
        rows.append((*row, f"{counts['drawn_s']:.2f} s", len(one["violations"]), _time(one)))
    head = (
        *("Date", "Commit", "Events", "Heap of the page (MB)", "Browser (MB)", "Server (MB)"),
        *("A commit was drawn after", "Limits exceeded", "Time"),
    )
    return _table(head, rows)


def _of_faults(case: str) -> Record | None:
    return next((one for one in reversed(records("faults")) if one["case"] == case), None)


def _fault_costs() -> str:
    record = _of_faults("faults")
    assert record is not None
    head = ("Fault", "Messages redelivered, in each run", "Delivered in all", "Lost")
    rows = [
        (name, ", ".join(map(str, row["redelivered"])), row["delivered"], row["lost"])
        for name, row in record["counts"].items()
    ]
    return f"{_provenance(record)}\n\n{_table(head, rows)}"


def _takeover() -> str:
    record = _of_faults("kill")
    assert record is not None
    row = record["counts"]
    return (
        f"{_provenance(record)}\n\nThe benchmark killed {row['members']} members, which owned"
        f" {row['partitions']} partitions. Time to take over a partition: p50 {row['p50_s']} s,"
        f" p99 {row['p99_s']} s, max {row['max_s']} s. These times include the session timeout"
        f" of {row['session_s']} s. Lost: {row['lost']} of {row['delivered']:,} messages."
    )


def _overlap() -> str:
    record = _of_faults("freeze")
    assert record is not None
    head = (
        "User",
        "Freezes",
        "Freezes with an overlap",
        "Maximum unfinished",
        "Longest overlap",
        "Delivered",
        "Lost",
    )
    rows = [
        (
            user,
            row["freezes"],
            row["overlaps"],
            row["most"],
            f"{row['longest_s']} s",
            row["delivered"],
            row["lost"],
        )
        for user, row in record["counts"].items()
    ]
    return f"{_provenance(record)}\n\n{_table(head, rows)}"


def _requests() -> str:
    record = _of_faults("requests")
    assert record is not None
    partitions = record["partitions"]
    rows = [
        (
            int(size),
            row["reads"],
            4 * int(size) + 2 * partitions,
            row["writes"],
            2 * int(size) + 2,
        )
        for size, row in record["counts"].items()
    ]
    head = (
        "Members after the join, n",
        "Reads",
        "Expected reads: 4 n + 2 per partition",
        "Writes",
        "Expected writes: 2 n + 2",
    )
    return f"{_provenance(record)}\n\n{_table(head, rows)}"


def _mixed() -> str:
    record = latest("mixed")
    assert record is not None
    keys = ("repeated", "without_session", "moves_back")
    rows: list[list[object]] = []
    sums: dict[str, list[int]] = {key: [0, 0] for key in keys}
    messages = 0
    for name, row in record["counts"].items():
        rows.append([name, row["messages"], *(_pair(row[key]) for key in keys)])
        messages += row["messages"]
        for key in keys:
            sums[key] = [a + b for a, b in zip(sums[key], row[key], strict=True)]
    rows.append(["all", messages, *(_pair(sums[key]) for key in keys)])
    table = _table(("Scenario", "Messages", "Redelivered", "Without a session", "Lowered"), rows)
    return f"{_provenance(record)}\n\n{table}"


def _moves() -> str:
    """Compare the ways from ZooKeeper to Kafka's protocol (scripts/bench_bridge)."""
    record = latest("moves")
    if record is None:
        return "No run is recorded."
    counts = record["counts"]
    ways = {"stop": "stop, copy, start", "bridge": "the bridge"}
    metrics = {
        "unread, mean": "Unread, mean",
        "unread, max": "Unread, longest",
        "duration": "Whole move",
        "redelivered": "Messages redelivered",
        "lost": "Messages lost",
    }
    rows = []
    for way, title in ways.items():
        values = {metric: counts[f"{way}: {metric}"] for metric in metrics}
        seconds = [f"{values[one]:.1f} s" for one in list(metrics)[:3]]
        rows.append([title, *seconds, *(f"{values[one]:,.0f}" for one in list(metrics)[3:])])
    table = _table(("Way", *metrics.values()), rows)
    return f"{_provenance(record)} The brokers are of {record['release']}.\n\n{table}"


def _bridge() -> str:
    """Show the runs of a bridge under kills (scripts/soak --bridge)."""
    found = records("bridge")
    if not found:
        return "No run is recorded."
    rows = []
    for one in found:
        counts = one["counts"]
        again = ", ".join(f"{why}: {n:,}" for why, n in sorted(counts["redelivered"].items()))
        rows.append(
            (
                *(one["commit"], counts["release"], counts["assignor"], _time(one)),
                _pair([counts["hand-over to new"], counts["hand-over to old"]]),
                _pair([counts["kill old"], counts["kill new"]]),
                *(f"{counts['messages']:,}", again or "none", len(one["violations"])),
            )
        )
    head = ("Commit", "Brokers", "Assignor", "Time", "Hand-overs (new / old)", "Kills (old / new)")
    return _table((*head, "Messages", "Redelivered, and why", "Violations"), rows)


def _history() -> str:
    found = records("history")
    if not found:
        return "No run is recorded."
    keys = ("simulated", "real", "missed", "invented")
    rows = [
        (
            *(one["date"], one["commit"], one["seeds"]["first"]),
            *(one["counts"][key] for key in keys),
            *(sum(one["counts"]["rows"].values()), _time(one)),
        )
        for one in found
    ]
    head = ("Date", "Commit", "First seed", "Simulated runs", "Real runs")
    table = _table((*head, "Missed", "Invented", "Rows compared", "Time"), rows)
    sums = {key: sum(one["counts"][key] for one in found) for key in keys}
    return (
        f"{table}\n\nAll together: {sums['simulated']:,} simulated and {sums['real']:,} real runs, "
        f"{sums['missed']} rows missed, {sums['invented']} invented."
    )


def growth(seconds: Mapping[str, float]) -> tuple[float, float]:
    """Return the seconds that do not depend on the size, and the seconds per GB (least squares).

    `seconds` has the seconds for each number of GB. If there is one number, the time is
    proportional to it.
    """
    found = {float(size): taken for size, taken in seconds.items()}
    if len(found) == 1:
        ((size, taken),) = found.items()
        return 0.0, taken / size
    line = linear_regression(list(found), list(found.values()))
    return line.intercept, line.slope


def _scale() -> str:
    record = latest("scale")
    if record is None:
        return "No run is recorded."
    return f"{_provenance(record)}\n\n{scale_text(record['counts'])}"


def scale_text(counts: Mapping[str, Any]) -> str:
    """Return the times for each size, the growth law, and the cost of many ensembles."""
    executors, taken = counts["executors"], counts["seconds"]
    sizes = [(f"{size} GB", *(f"{one[size]} s" for one in taken.values())) for size in taken[ALL]]
    laws = {query: growth(seconds) for query, seconds in taken.items()}
    texts = [
        f"{query}: {slope * executors:.1f} s * GB / executors {fixed:+.1f} s"
        for query, (fixed, slope) in laws.items()
    ]
    costs = {
        query: [_hours(fixed + A_DAY_GB * slope * executors / n) for n in MANY]
        for query, (fixed, slope) in laws.items()
    }
    of_many = [(n, *(costs[query][at] for query in laws)) for at, n in enumerate(MANY)]
    return (
        f"{_table(('Logs', *taken), sizes)}\n\n"
        f"The times are those of {executors} executors with one core each. A line through them "
        f"(least squares) gives these formulas: {'; '.join(texts)}. For the transactions of 1 GB, "
        f"the time with one executor is {counts['efficiency'] * executors:.2f} times the time with "
        f"{executors}, an efficiency of {counts['efficiency']:.2f}.\n\n"
        f"If these formulas hold for more executors, {A_DAY_GB:,} GB take:\n\n"
        f"{_table(('Executors', *taken), of_many)}"
    )


def _ladder() -> str:
    found = records("ladder")
    if not found:
        return "No run is recorded."
    names = dict.fromkeys(name for one in found for name in one["counts"])
    rows = []
    for name in names:
        parts = [one["counts"][name] for one in found if name in one["counts"]]
        schedules = sum(part["schedules"] for part in parts)
        cpu_ms = 1000 * sum(part["cpu_s"] for part in parts) / schedules
        broken = [it for one in found for it in one["violations"] if it["challenge"] == name]
        rows.append((f"`{name}`", schedules, len(broken), f"{cpu_ms:.0f} ms"))
    head = ("Challenge", "Schedules", "Violations", "Processor time of a schedule")
    told = "\n".join(_provenance(one) for one in found)
    return f"{told}\n\n{_table(head, rows)}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"


def _pair(both: Sequence[int]) -> str:
    return " / ".join(f"{one:,}" for one in both)


def _provenance(record: Record) -> str:
    cores, note = record["machine"]["cores"], record["machine"].get("note", "")
    where = f"{cores} cores" + (f" ({note})" if note else "")
    at = f", commit {record['commit']}" if record["commit"] else ""
    return f"Recorded on {record['date']}{at}, with `{record['command']}`, on {where}."


BLOCKS: dict[str, Callable[[], str]] = {
    "swarm": _swarm,
    "bridged": partial(_swarm, "bridged"),
    "exhaustive": _exhaustive,
    "mutants": _mutants,
    "soak": _soak,
    "reached": _reached,
    "take over": _takeover,
    "overlap": _overlap,
    "costs of faults": _fault_costs,
    "requests of a join": _requests,
    "mixed groups": _mixed,
    "moves": _moves,
    "bridge runs": _bridge,
    "history": _history,
    "lab": _lab,
    "scale": _scale,
    "ladder": _ladder,
}


def pages() -> dict[Path, str]:
    """Return the correct text of every page with a generated part."""
    found = {}
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if BLOCK.search(text):
            found[path] = BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]]()}\n{m[3]}", text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/records",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 if a page differs from the records",
    )
    arguments = parser.parse_args()
    stale = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'differs' if arguments.check else 'written'}")
        if not arguments.check:
            path.write_text(pages()[path], encoding="utf-8")
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
