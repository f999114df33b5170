"""Nodes as other clients write them: no JVM member ever looks at these, or sees what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zkconsumer.admin.case import Case
from zkconsumer.admin.findings import Finding, Severity, fix_command
from zkconsumer.core import paths
from zkconsumer.core.paths import Kind
from zkconsumer.errors import shown

FOREIGN_OWNERS, FOREIGN_OFFSETS, FOREIGN_TOPIC = (
    "foreign-owner-nodes", "foreign-offset-nodes", "foreign-topic-name"
)  # fmt: skip
_PYKAFKA = re.compile(r"[0-9]+-[0-9]+")


def foreign_nodes(case: Case) -> list[str]:
    """Znodes of the group that are none of the JVM's layout: to be read with all below them."""
    found = []
    for parent, at in case.image.topic_rooms.items():
        odd = not paths.is_topic(at.name)
        names = case.image.listed[parent]
        found += [f"{parent}/{name}" for name in names if odd or not paths.is_partition(name)]
    return found


def of_layouts(case: Case) -> Iterator[Finding]:
    """Topics and partitions that are named as no JVM client names them."""
    for parent, at in case.image.topic_rooms.items():
        if not paths.is_topic(at.name):
            yield _topic(case, parent, at.name)
            continue
        names = case.image.listed[parent]
        odd = [f"{parent}/{name}" for name in names if not paths.is_partition(name)]
        if odd:
            yield _nodes(case, at.name, odd, at.kind)


def _topic(case: Case, parent: str, name: str) -> Finding:
    why = "no topic can have that name"
    if name.startswith(("b'", 'b"')):
        why += ": a Python 3 client wrote the text of its bytes, as pykafka does (its issue 888)"
    mends = case.mends_of_tree(parent)
    return Finding(
        Severity.WARNING, FOREIGN_TOPIC, case.group, shown(name), f"{parent} is no topic's", why
        + "; to JVM members it means nothing, and both may be reading the same partitions",
        fix_command(case.group) if mends else _stop_of(case, [parent]), mends=mends,
    )


def _nodes(case: Case, topic: str, odd: list[str], kind: Kind) -> Finding:
    names = [path.rpartition("/")[2] for path in odd]
    listed = ", ".join(map(shown, names[:3])) + (" ..." if len(names) > 3 else "")
    mends = tuple(mend for path in odd for mend in case.mends_of_tree(path))
    remedy = fix_command(case.group) if mends else _stop_of(case, odd)
    if kind is Kind.OFFSETS_OF:
        return Finding(
            Severity.WARNING, FOREIGN_OFFSETS, case.group, topic,
            f"offset nodes that are no partitions': {listed}",
            "no JVM member reads them: what they say is not where the group goes on", remedy,
            mends=mends,
        )
    pykafka = any(map(_PYKAFKA.fullmatch, names))
    layout = "pykafka's layout, leader-partition" if pykafka else "an unknown layout"
    return Finding(
        Severity.ERROR, FOREIGN_OWNERS, case.group, topic,
        f"owner nodes that are no partitions': {listed} ({layout})",
        "JVM members do not see them and own the same partitions as well: everything is read twice",
        remedy, mends=mends,
    )


def _stop_of(case: Case, roots: list[str]) -> str:
    sessions = {
        session for root in roots for path in case.below(root)
        if (session := case.session_of(path))
    }
    held = ", ".join(f"0x{session:x}" for session in sorted(sessions)) or "of another client"
    return (
        f"stop the process that holds session {held}, or give it a group.id of its own;"
        " then doctor again"
    )
