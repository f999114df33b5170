"""Write the pictures and the tables of phases into docs/architecture.md and docs/later.md.

The member's phases are those of `zkconsumer.member.phases`, those of a classic group are those of
`zkconsumer.later.group_phases`. The command generates the parts of the pages between
`<!-- phases -->` and `<!-- /phases -->`, and between `<!-- group phases -->` and
`<!-- /group phases -->`. Tests compare the pages with what the command would write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from zkconsumer.later import group_phases
from zkconsumer.member import phases
from zkconsumer.member.phases import Phase, Row, cause_name

PAGE = ROOT / "docs" / "architecture.md"
LATER_PAGE = ROOT / "docs" / "later.md"
BLOCK = re.compile(r"(<!-- phases -->\n).*?(<!-- /phases -->)", re.DOTALL)
ORDER = list(Phase)
NAMES = {
    phases.ALIVE: "any but CLOSED",
    phases.STAYING: "any but LEAVING and CLOSED",
    phases.OPERATING: "any with an operation",
    phases.ACTIVE: "any but OFFLINE, LEAVING and CLOSED",
}


_EXPLANATION = (
    "`scripts/phases` writes the diagram above and the tables below from `member.phases`. Tests",
    "and simulated members check each change of phase with the tables. A cause is an event, the",
    "outcome of an operation, or a deadline (`…_at`) that has passed at a `Tick`.",
    "Every event may also leave the phase unchanged. A missing partition is one that is assigned",
    "to the member, and that the member does not own yet. The diagram shows these changes:",
    "",
)


def with_phases(page: str) -> str:
    """Return the page with its generated part replaced."""
    return BLOCK.sub(lambda match: match.group(1) + generated() + match.group(2), page)


def generated() -> str:
    """Return the text between the two markers."""
    parts = (
        *("```mermaid", *_picture(), "```", "", *_EXPLANATION),
        *_table(phases.MAIN_PATH),
        *("", "Less usual changes:", ""),
        *_table(phases.DETOURS),
        *("", "Changes that can interrupt a member in almost any phase:", ""),
        *_table(phases.ANY_TIME),
        "",
        "After an interruption (a lost connection, a refused read, or an owner znode deleted by",
        f"another client), {_rare()} can lead to any phase of a rebalance.",
        "",
    )
    return "\n".join(parts)


def with_group_phases(page: str) -> str:
    """Return docs/later.md with its generated part replaced."""
    block = re.compile(r"(<!-- group phases -->\n).*?(<!-- /group phases -->)", re.DOTALL)
    return block.sub(lambda match: match.group(1) + generated_group() + match.group(2), page)


_GROUP_EXPLANATION = (
    "`scripts/phases` writes this diagram and the table from `later.group_phases`.",
    "`classic_group.step` checks each change of phase with them. If one call of `step` enters and",
    "leaves PreparingRebalance, the table shows its first and last phase only.",
    "",
    "| Phase | Cause | Next phase | When |",
    "|---|---|---|---|",
)


def generated_group() -> str:
    """Return the picture and the table of a classic group's phases."""
    picture = [
        f"  {_values(row.before)} --> {_values(row.after)}: {row.when}"
        for row in group_phases.MAIN_PATH
    ]
    table = [
        f"| {_values(row.before)} | {', '.join(one.value for one in row.causes)} "
        f"| {_values(row.after)} | {row.when} |"
        for row in group_phases.LEGAL_CHANGES
    ]
    ends = ("  [*] --> Empty", *picture, "  Dead --> [*]", "```", "")
    return "\n".join(("```mermaid", "stateDiagram-v2", *ends, *_GROUP_EXPLANATION, *table, ""))


def _values(phases: frozenset[group_phases.GroupPhase]) -> str:
    """Return Kafka's names of the phases in a row; each row has one phase before and after."""
    return ", ".join(phase.value for phase in group_phases.GroupPhase if phase in phases)


def _picture() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield f"  [*] --> {Phase.OFFLINE.name}"
    for row in phases.MAIN_PATH:
        for before in _in_order(row.before):
            for after in _in_order(row.after):
                yield f"  {before} --> {after}: {row.when}"
    yield f"  {Phase.CLOSED.name} --> [*]"


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| Phase | Cause | Next phase | When |"
    yield "|---|---|---|---|"
    for row in rows:
        causes = ", ".join(f"`{cause_name(cause)}`" for cause in row.causes)
        yield f"| {_phases(row.before)} | {causes} | {_phases(row.after)} | {row.when} |"


def _phases(found: frozenset[Phase]) -> str:
    if found in NAMES:
        return NAMES[found]
    return ", ".join(_in_order(found))


def _in_order(found: frozenset[Phase]) -> list[str]:
    return [phase.name for phase in ORDER if phase in found]


def _rare() -> str:
    causes = dict.fromkeys(cause_name(cause) for row in phases.RARE for cause in row.causes)
    *first, last = (f"`{name}`" for name in causes)
    return f"{', '.join(first)} and {last}"


if __name__ == "__main__":
    PAGE.write_text(with_phases(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    later = with_group_phases(LATER_PAGE.read_text(encoding="utf-8"))
    LATER_PAGE.write_text(later, encoding="utf-8")
