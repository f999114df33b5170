"""Access control lists that deny members an operation that a member needs, or deny the doctor."""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.admin.findings import ExaminedGroup, Finding, Severity
from zkconsumer.admin.verify import ACCESS_DENIED
from zkconsumer.errors import AccessDeniedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.requests import CREATE, DELETE, READ, WRITE, Right

LOCKED_OUT, RIGHTS_UNKNOWN = "locked-out", "rights-unknown"

ANYONE = "world:anyone"


SAMPLE = 1_000
"""Number of a group's offset znodes whose access control lists are read first. All lists are read
only if these lists differ, so in a group with more offsets a single different list may be
missed."""


def places(examined: ExaminedGroup) -> list[str]:
    """Return the znodes whose access control lists matter to members.

    These are the parents below which members create and delete znodes, and the offsets they write.
    `ids` is not among them: Kafka leaves it open in a secured ZooKeeper (`zookeeper.set.acl`).
    """
    if not (examined.image.registrations or examined.image.owners or examined.image.offsets):
        return []
    parents = [paths.owners(examined.group), paths.offsets(examined.group)]
    found = [parent for parent in parents if parent in examined.image.listed]
    found += examined.image.topic_parents
    written = [paths.offset(examined.group, tp) for tp in examined.image.offsets]
    return found + written[:: 1 + len(written) // SAMPLE]


def more_places(examined: ExaminedGroup) -> list[str]:
    """Return the offset znodes that `places` left out, if the access control lists already read
    differ."""
    lists = {
        found
        for path, found in examined.rights.items()
        if _is_offset(examined, path) and not isinstance(found, AccessDeniedError)
    }
    if len(lists) < 2:
        return []
    written = (paths.offset(examined.group, tp) for tp in examined.image.offsets)
    return [path for path in written if path not in examined.rights]


def _is_offset(examined: ExaminedGroup, path: str) -> bool:
    parent = paths.offsets(examined.group)
    return path.startswith(f"{parent}/") and path.count("/") == parent.count("/") + 2


def _needed(examined: ExaminedGroup, path: str) -> tuple[int, str]:
    if _is_offset(examined, path):
        return READ | WRITE, "commit"
    if path.startswith(paths.offsets(examined.group)):
        return READ | CREATE, "commit"
    return READ | CREATE | DELETE, "claim partitions"


def _able(rights: tuple[Right, ...], needed: int) -> frozenset[str]:
    """Return the identities with all `needed` rights; only world:anyone if everyone has them."""
    open_bits = 0
    for right in rights:
        open_bits |= right.permissions if right.identity == ANYONE else 0
    bits: dict[str, int] = {}
    for right in rights:
        bits[right.identity] = bits.get(right.identity, open_bits) | right.permissions
    able = frozenset(one for one, has in bits.items() if has & needed == needed)
    return frozenset({ANYONE}) if ANYONE in able else able


def of_access(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield what the doctor itself may not read."""
    if denial := examined.image.denial:
        yield Finding(
            Severity.ERROR,
            ACCESS_DENIED,
            examined.group,
            denial.where,
            f"{denial.what}, so nothing of the group is repaired, and its users, its owners and the"
            " agreement of its members are not examined",
            "members that authenticate as this connection does cannot join the group",
            "authenticate as the group's members do (zookeeper.auth.*), or change the access"
            " control list",
        )


def of_rights(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield the znodes that fewer identities can use than the group's other znodes."""
    hidden = [
        path for path, found in examined.rights.items() if isinstance(found, AccessDeniedError)
    ]
    if hidden:
        yield Finding(
            Severity.NOTE,
            RIGHTS_UNKNOWN,
            examined.group,
            hidden[0],
            f"ZooKeeper denies access to the access control lists of {len(hidden)} znodes",
            "it is unknown whether members lack rights",
            "authenticate as an identity with the right to read them (zookeeper.auth.*)",
        )
    able: dict[frozenset[str], list[str]] = {}
    for path, found in examined.rights.items():
        if not isinstance(found, AccessDeniedError):
            able.setdefault(_able(found, _needed(examined, path)[0]), []).append(path)
    if len(able) < 2:
        if frozenset() in able:
            yield _locked(examined, frozenset(), able[frozenset()], "no identity may")
        return
    widest = max(able, key=lambda who: (ANYONE in who, len(able[who])))
    for who, where in able.items():
        if who != widest and not widest <= who:
            yield _locked(
                examined,
                who,
                where,
                f"only {identity_names(who)} may" if who else "no identity may",
            )


def _locked(examined: ExaminedGroup, who: frozenset[str], where: list[str], may: str) -> Finding:
    needed, act = _needed(examined, where[0])
    others = len(where) - 1
    more = f", and {others} more znodes" if others else ""
    letters = "".join(
        letter
        for bit, letter in zip((CREATE, DELETE, READ, WRITE), "cdrw", strict=True)
        if needed & bit
    )
    remedy = f"setAcl {where[0]} with {letters} for all members, as an identity that may"
    if who:
        remedy += f", or run all members as {identity_names(who)}"
    return Finding(
        Severity.ERROR,
        LOCKED_OUT,
        examined.group,
        where[0] + more,
        f"{may} {act} there, while more identities may use the group's other znodes",
        f"members with another identity, or with none, cannot {act}",
        remedy,
    )


def identity_names(who: frozenset[str]) -> str:
    """Return identities without the part that may be the hash of a password."""
    parts = sorted(one.split(":")[:2] for one in who)
    return ", ".join(":".join(part) for part in parts)
