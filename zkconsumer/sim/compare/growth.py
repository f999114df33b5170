"""The cost of one more member as the group grows: the herd effect, with fitted formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zkconsumer.frozen import dataclass
from zkconsumer.sim.compare.run import new_group, settle
from zkconsumer.sim.compare.zookeeper_group import ZOOKEEPER_GROUPS, cost_of_join

SIZES = (2, 5, 10, 20, 50, 100, 200)
"""The sizes of the groups before the join."""

PER_MEMBER = 2
"""Partitions for each member."""

WHAT = ("requests", "notifications", "bytes")

TINY = 1e-6
"""Coefficients below this value are rounding errors."""

FIT = 0.05
"""A straight line is used if no measured value differs from it by more than this fraction."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The cost of one more member's join in a group of `members`."""

    protocol: str
    members: int
    requests: int
    notifications: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FittedFormula:
    """How a cost grows with the number n of members.

    `formula` is the polynomial with the smallest relative error; `error` is the formula's largest
    relative error at the measured sizes.
    """

    protocol: str
    what: str
    formula: str
    error: float


def growth(protocols: Sequence[str], sizes: Sequence[int] = SIZES) -> Iterator[Growth]:
    """Yield the cost of a join, from small to large groups."""
    for protocol in protocols:
        for size in sizes:
            yield Growth(protocol, size, *_cost(protocol, size))


def _cost(protocol: str, size: int) -> tuple[int, int, int]:
    if protocol in ZOOKEEPER_GROUPS:
        return cost_of_join(size, size * PER_MEMBER, is_jvm=protocol == "zookeeper-jvm")
    group = new_group(protocol, size + 1, size * PER_MEMBER)
    for who in range(size):
        group.order("join", who)
    settle(group)
    before = group.traffic()
    group.order("join", size)
    settle(group)
    requests, notifications, size_of = (
        after - earlier for after, earlier in zip(group.traffic(), before, strict=True)
    )
    return requests, notifications, size_of


def laws(found: Sequence[Growth]) -> Iterator[FittedFormula]:
    """Yield the formula of each cost of each protocol."""
    for protocol in dict.fromkeys(one.protocol for one in found):
        rows = [one for one in found if one.protocol == protocol]
        for what in WHAT:
            points = [(float(one.members), float(getattr(one, what))) for one in rows]
            yield FittedFormula(protocol, what, *fitted(points))


def fitted(points: Sequence[tuple[float, float]]) -> tuple[str, float]:
    """Return the formula that fits the points, and its largest relative error."""
    if not any(y for _, y in points):
        return "0", 0.0
    line, curve = _least_squares(points, 1), _least_squares(points, 2)
    is_curve = _error(points, line) > FIT and curve[2] > 0
    best = curve if is_curve and _error(points, curve) < _error(points, line) else line
    return _formula(best), round(_error(points, best), 3)


def _error(points: Sequence[tuple[float, float]], terms: Sequence[float]) -> float:
    """Return the largest relative error of a polynomial."""
    values = [sum(c * x**k for k, c in enumerate(terms)) for x, _ in points]
    return max(abs(v - y) / max(y, 1.0) for v, (_, y) in zip(values, points, strict=True))


def _least_squares(points: Sequence[tuple[float, float]], degree: int) -> list[float]:
    """Return the coefficients that minimise the squares of the relative errors."""
    width = degree + 1
    rows = [[0.0] * (width + 1) for _ in range(width)]
    for x, y in points:
        weight = 1.0 / max(y, 1.0) ** 2
        for i in range(width):
            for j in range(width):
                rows[i][j] += weight * x ** (i + j)
            rows[i][width] += weight * y * x**i
    for i in range(width):  # Gauss's elimination; the matrix is positive definite
        for j in range(width):
            if i != j:
                share = rows[j][i] / rows[i][i]
                rows[j] = [a - share * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [rows[i][width] / rows[i][i] for i in range(width)]


def _formula(terms: Sequence[float]) -> str:
    """Format coefficients as `0.29 n^2 + 8.9 n + 3`, the highest power first."""
    parts = []
    for power in reversed(range(len(terms))):
        number = float(f"{terms[power]:.3g}") if abs(terms[power]) > TINY else 0.0
        if number:
            unit = ("", " n", " n^2")[power]
            parts.append(f"{'-' if number < 0 else '+'} {abs(number):g}{unit}")
    return " ".join(parts).removeprefix("+ ") or "0"
