"""Random groups for the later assignors, as cases of `zkconsumer assign --assignor`.

Half of the choices lead to difficult cases: names with equal hash codes, unequal subscriptions with
previous assignments of several generations, partitions that two members claim, racks, static
members, partitions and topics that do not exist.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

ASSIGNORS = (
    *("range", "roundrobin", "sticky", "cooperative-sticky", "sticky", "cooperative-sticky"),
    *("uniform", "server-range"),
)

# These three strings have the same hash code, so names that consist of them collide, and can turn
# the bins of a hash map into trees.
EQUAL_HASHES = ("Aa", "BB", "C#")
HOSTILE = (*EQUAL_HASHES, "t", "x", "é", "\U0001f600", "\uffff", " ", "0", "Z", '"', "\\")

MAX_PARTITIONS = 60


def case(seed: int, assignors: Sequence[str] = ASSIGNORS) -> dict[str, Any]:
    """Return the case of a seed."""
    return _Draw(random.Random(f"later assignors {seed}"), seed).case(assignors)


class _Draw:
    def __init__(self, chance: random.Random, seed: int) -> None:
        self._chance, self._seed = chance, seed

    def case(self, assignors: Sequence[str]) -> dict[str, Any]:
        chance = self._chance
        racks = [f"r{one}" for one in range(chance.randrange(1, 5))] if self._one_in(2) else []
        if racks and self._one_in(20):
            racks.append("")
        topics = self._topics(racks)
        count = chance.choice([1, 2, 3, 4, 5, 8, 13, 20, 40, chance.randrange(1, 41)])
        names = self._names(count, "m")
        return {
            "case": self._seed,
            "assignor": chance.choice(list(assignors)),
            "topics": topics,
            "members": self._members(names, topics, racks),
        }

    def _one_in(self, count: int) -> bool:
        return self._chance.random() * count < 1

    def _names(self, count: int, prefix: str) -> list[str]:
        form = self._chance.choice(["numbers", "numbers", "hashes", "equal hashes", "hostile"])
        found: dict[str, None] = {}
        while len(found) < count:
            match form:
                case "numbers":
                    name = f"{prefix}{len(found)}"
                case "hashes":
                    name = f"consumer-{prefix}-{self._chance.getrandbits(64):016x}"
                case "equal hashes":
                    length = self._chance.choice([4, 5])
                    name = "".join(self._chance.choices(EQUAL_HASHES, k=length))
                case _:
                    length = self._chance.randrange(1, 6)
                    name = "".join(self._chance.choices(HOSTILE, k=length))
            found[name] = None
        return list(found)

    # ---- topics ----------------------------------------------------------------------------------

    def _topics(self, racks: list[str]) -> dict[str, Any]:
        chance, left = self._chance, MAX_PARTITIONS
        names = self._names(chance.choice([0, 1, 1, 2, 3, 4, 6, 12, chance.randrange(30)]), "t")
        equal = chance.randrange(1, 8) if self._one_in(3) else None
        topics = {}
        for name in names:
            sizes = [0, 1, 2, 3, 5, 8, 13, chance.randrange(MAX_PARTITIONS + 1)]
            count = min(left, equal or chance.choice(sizes))
            left -= count
            topics[name] = {
                "partitions": count,
                "racks": [self._replicas(racks) for _ in range(count)]
                if racks and not self._one_in(10)
                else None,
            }
        return topics

    def _replicas(self, racks: list[str]) -> list[str]:
        count = self._chance.randrange(0 if self._one_in(20) else 1, 4)
        if self._one_in(5):
            return self._chance.choices(racks, k=count)
        return self._chance.sample(racks, min(len(racks), count))

    # ---- members ---------------------------------------------------------------------------------

    def _members(
        self, names: list[str], topics: dict[str, Any], racks: list[str]
    ) -> dict[str, Any]:
        chance = self._chance
        known = [*topics, *(["missing"] if self._one_in(10) else [])]
        common = [one for one in known if chance.random() < 0.85] or known
        equal = self._one_in(2)
        generations = chance.choice([[-1], [5], [5, 5, 5, 4], [5, 4, 3, -1], [0, -1]])
        instances = self._names(len(names), "i") if self._one_in(3) else []
        owned = self._owned(names, topics)
        members = {}
        for place, name in enumerate(names):
            wanted = list(common) if equal else self._some(known)
            chance.shuffle(wanted)
            instance = instances[place] if instances and chance.random() < 0.6 else None
            if instances and self._one_in(20):
                instance = chance.choice(instances)
            members[name] = {
                "topics": wanted,
                "instance": instance,
                "rack": chance.choice([*racks, "r9"]) if racks and chance.random() < 0.85 else None,
                "owned": owned[name],
                "generation": chance.choice(generations),
            }
        return members

    def _some(self, topics: list[str]) -> list[str]:
        share = self._chance.choice([0.3, 0.6, 0.9])
        found = [one for one in topics if self._chance.random() < share]
        if not found and topics and not self._one_in(10):
            found = [self._chance.choice(topics)]
        return found

    def _owned(self, names: list[str], topics: dict[str, Any]) -> dict[str, dict[str, list[int]]]:
        """Return previous assignments: balanced, skewed, partial, or with contradictory claims."""
        chance = self._chance
        owned: dict[str, dict[str, list[int]]] = {name: {} for name in names}
        every = [(name, one) for name in topics for one in range(topics[name]["partitions"])]
        if not every or self._one_in(4):
            return owned
        chance.shuffle(every)
        share, twice = chance.choice([1, 1, 0.7, 0.4]), chance.choice([0, 0, 0.1, 0.4])
        owners = names if self._one_in(2) else names[: max(1, len(names) // 2)]
        in_order = self._one_in(3)
        claims = []
        for place, partition in enumerate(every):
            owner = owners[place % len(owners)] if in_order else chance.choice(owners)
            if chance.random() < share:
                claims.append((owner, *partition))
            if chance.random() < twice:
                claims.append((chance.choice(names), *partition))
        if self._one_in(10):
            claims.append((chance.choice(names), every[0][0], chance.choice([99, -1, 60])))
        if self._one_in(20):
            claims.append((chance.choice(names), "deleted", 0))
        for owner, topic, partition in claims:
            numbers = owned[owner].setdefault(topic, [])
            if partition not in numbers or self._one_in(50):
                numbers.append(partition)
        return owned


# ---- coordinators, partitioners, placement -------------------------------------------------------


def placements(chance: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yield random requests for `support.jvm.kafka_391.Live.answer`, `count` of each kind."""
    # The hash code of the second name is the smallest 32-bit integer.
    names = ["", "polygenelubricants", "orders", "é\U0001f600"]
    names += [f"group-{chance.getrandbits(40):x}" for _ in range(count - len(names))]
    for name in names:
        yield {"call": "coordinator", "group": name, "partitions": chance.choice([50, 1, 7])}
    for _ in range(count):
        key = chance.randbytes(chance.randrange(40)).hex()
        yield {"call": "partitioner", "key": key, "partitions": chance.randrange(1, 200)}
    for _ in range(count):
        brokers = chance.sample(range(20), chance.randrange(1, 13))
        racks = (
            {str(one): chance.choice("abcd") for one in brokers} if chance.random() < 0.6 else None
        )
        yield {
            "call": "placement",
            "brokers": brokers,
            "racks": racks,
            "partitions": chance.randrange(1, 30),
            "replicas": chance.randrange(1, len(brokers) + 1),
            "start": chance.randrange(15),
            "first_partition": chance.choice([0, 0, 3]),
        }


# ---- the coordinator's decisions -----------------------------------------------------------------

NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky", "Aa", "BB")
STATES = ("STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS")


def decisions(chance: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yield random votes and reconciliations, `count` of each."""
    for _ in range(count):
        common = chance.choice(NAMES)
        members = {}
        for one in range(chance.randrange(1, 12)):
            names = set(chance.sample(NAMES, chance.randrange(4))) | {common}
            members[f"m{chance.getrandbits(20):x}-{one}"] = chance.sample(sorted(names), len(names))
        yield {"call": "vote", "members": members}
    for _ in range(count):
        topics = [f"t{one}" for one in range(chance.randrange(1, 4))]
        every = [[topic, number] for topic in topics for number in range(chance.randrange(1, 5))]

        def some(partitions: list[Any]) -> list[Any]:
            share = chance.choice([0, 0.3, 0.7, 1])
            return [one for one in partitions if chance.random() < share]

        assigned, epoch = some(every), chance.randrange(1, 6)
        state = chance.choice(STATES)
        free = [one for one in every if one not in assigned]
        yield {
            "call": "reconcile",
            "topics": topics,
            "member": {
                "state": state,
                "epoch": epoch,
                "previous_epoch": epoch - 1,
                "assigned": assigned,
                "revoking": some(free) if state == "UNREVOKED_PARTITIONS" else [],
            },
            "target_epoch": epoch + chance.randrange(3),
            "target": some(every),
            "owned": None if chance.random() < 0.3 else some(every),
            "held": assigned + some(free),
        }
