"""Access control lists that lock members out of what a member must do."""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.admin.findings import ExaminedGroup, Finding, Severity
from zkconsumer.errors import AccessDeniedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.requests import CREATE, DELETE, READ, WRITE, Right

LOCKED_OUT, RIGHTS_UNKNOWN = "locked-out", "rights-unknown"

ANYONE = "world:anyone"


SAMPLE = 1_000
"""Offset nodes of a group whose lists are read at first. One that is unlike the others has them all
read; of more than so many, a single one may be missed."""


def places(case: ExaminedGroup) -> list[str]:
    """Znodes whose list decides: where members create and delete, and the offsets they write.

    Not `ids`: Kafka leaves it open in a secured ZooKeeper (`zookeeper.set.acl`).
    """
    if not (case.image.registrations or case.image.owners or case.image.offsets):
        return []
    rooms = [paths.owners(case.group), paths.offsets(case.group)]
    found = [room for room in rooms if room in case.image.listed]
    found += case.image.topic_rooms
    written = [paths.offset(case.group, tp) for tp in case.image.offsets]
    return found + written[:: 1 + len(written) // SAMPLE]


def more_places(case: ExaminedGroup) -> list[str]:
    """The offsets that `places` left out, where not all that it named have the same list."""
    lists = {
        found
        for path, found in case.rights.items()
        if _is_offset(case, path) and not isinstance(found, AccessDeniedError)
    }
    if len(lists) < 2:
        return []
    written = (paths.offset(case.group, tp) for tp in case.image.offsets)
    return [path for path in written if path not in case.rights]


def _is_offset(case: ExaminedGroup, path: str) -> bool:
    room = paths.offsets(case.group)
    return path.startswith(f"{room}/") and path.count("/") == room.count("/") + 2


def _needed(case: ExaminedGroup, path: str) -> tuple[int, str]:
    if _is_offset(case, path):
        return READ | WRITE, "commit"
    if path.startswith(paths.offsets(case.group)):
        return READ | CREATE, "commit"
    return READ | CREATE | DELETE, "claim partitions"


def _able(rights: tuple[Right, ...], needed: int) -> frozenset[str]:
    """The identities that may do all of it; world:anyone alone where everybody may."""
    open_bits = 0
    for right in rights:
        open_bits |= right.permissions if right.identity == ANYONE else 0
    bits: dict[str, int] = {}
    for right in rights:
        bits[right.identity] = bits.get(right.identity, open_bits) | right.permissions
    able = frozenset(one for one, has in bits.items() if has & needed == needed)
    return frozenset({ANYONE}) if ANYONE in able else able


def of_rights(case: ExaminedGroup) -> Iterator[Finding]:
    """Znodes that not all members can use, when others of the group are open to more."""
    hidden = [path for path, found in case.rights.items() if isinstance(found, AccessDeniedError)]
    if hidden:
        yield Finding(
            Severity.NOTE,
            RIGHTS_UNKNOWN,
            case.group,
            hidden[0],
            f"the access control lists of {len(hidden)} znodes may not be read",
            "whether members are locked out was not looked for",
            "authenticate as somebody who may (zookeeper.auth.*)",
        )
    able: dict[frozenset[str], list[str]] = {}
    for path, found in case.rights.items():
        if not isinstance(found, AccessDeniedError):
            able.setdefault(_able(found, _needed(case, path)[0]), []).append(path)
    if len(able) < 2:
        if frozenset() in able:
            yield _locked(case, frozenset(), able[frozenset()], "nobody may")
        return
    widest = max(able, key=lambda who: (ANYONE in who, len(able[who])))
    for who, where in able.items():
        if who != widest and not widest <= who:
            yield _locked(case, who, where, f"only {_names(who)} may" if who else "nobody may")


def _locked(case: ExaminedGroup, who: frozenset[str], where: list[str], may: str) -> Finding:
    needed, act = _needed(case, where[0])
    others = len(where) - 1
    more = f", and {others} znodes more" if others else ""
    letters = "".join(
        letter
        for bit, letter in zip((CREATE, DELETE, READ, WRITE), "cdrw", strict=True)
        if needed & bit
    )
    remedy = f"as one who may: setAcl {where[0]} with {letters} for all members"
    if who:
        remedy += f", or run all members as {_names(who)}"
    return Finding(
        Severity.ERROR,
        LOCKED_OUT,
        case.group,
        where[0] + more,
        f"{may} {act} there, while other znodes of the group are used by others",
        f"members that authenticate otherwise, or not at all, cannot {act}",
        remedy,
    )


def _names(who: frozenset[str]) -> str:
    """Identities without what may be the hash of a password."""
    parts = sorted(one.split(":")[:2] for one in who)
    return ", ".join(":".join(part) for part in parts)
