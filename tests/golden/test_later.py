"""The results of Kafka 3.9.1's assignors, partitioners and AdminUtils, line by line."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from support.captures import captured
from support.jvm.kafka_391 import ask
from support.jvm.later_cases import case, decisions, placements

from zkconsumer.protocol.later.assignors import Assignor
from zkconsumer.protocol.later.cases import read_case
from zkconsumer.protocol.later.coordination import (
    MemberState,
    ReconcilingMember,
    reconcile,
    vote,
)
from zkconsumer.protocol.later.placement import (
    bytes_hash,
    murmur2,
    partition_of_hash,
    partition_of_key,
    place_replicas,
)
from zkconsumer.protocol.model import TopicPartition, coordinator_partition

FRESH_CASES = 4000


def reconciled(request: dict[str, Any]) -> dict[str, Any]:
    """Return the next state of a KIP-848 member."""

    def partitions(found: list[list[Any]]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(topic, number) for topic, number in found)

    before, owned = request["member"], request["owned"]
    after = reconcile(
        ReconcilingMember(
            MemberState(before["state"]),
            before["epoch"],
            before["previous_epoch"],
            partitions(before["assigned"]),
            partitions(before["revoking"]),
        ),
        target_epoch=request["target_epoch"],
        target=partitions(request["target"]),
        owned=None if owned is None else partitions(owned),
        held=partitions(request["held"]),
    )
    return {
        "state": after.state.value,
        "epoch": after.epoch,
        "previous_epoch": after.previous_epoch,
        "assigned": sorted(map(list, after.assigned)),
        "revoking": sorted(map(list, after.revoking)),
    }


def computed(request: dict[str, Any]) -> dict[str, Any]:
    """Return zkconsumer's answer to a request."""
    match request.get("call"):
        case "coordinator":
            return {"partition": coordinator_partition(request["group"], request["partitions"])}
        case "partitioner":
            key, count = bytes.fromhex(request["key"]), request["partitions"]
            code = bytes_hash(key)
            return {
                "murmur2": murmur2(key),
                "new": partition_of_key(key, count),
                "hash": code,
                "old": partition_of_hash(code, count),
            }
        case "placement":
            racks = request["racks"]
            found = place_replicas(
                request["brokers"],
                request["partitions"],
                request["replicas"],
                start=request["start"],
                shift=request["start"],
                first_partition=request["first_partition"],
                racks={int(one): rack for one, rack in racks.items()} if racks else None,
            )
            return {str(one): replicas for one, replicas in found.items()}
        case "vote":
            return {"assignor": vote(request["members"])}
        case "reconcile":
            return reconciled(request)
    return read_case(request, f"case {request['case']}").result()


@pytest.mark.parametrize("name", ["assignors", "decisions", "placement"])
def test_captured(name: str) -> None:
    """Each captured request gets the answer of Kafka's class."""
    wrong = [line for line in captured(f"later/{name}") if computed(line) != line["answer"]]
    assert wrong == []


def test_every_assignor_has_many_cases() -> None:
    """There are at least 2,000 captured cases: 250 per assignor, and not only errors."""
    cases = captured("later/assignors")
    kinds = Counter((one["assignor"], "error" in one["answer"]) for one in cases)
    assert kinds.total() >= 2000
    assert all(kinds[one.value, False] >= 250 for one in Assignor)
    assert kinds["sticky", True] and kinds["cooperative-sticky", True] and kinds["uniform", True]


def test_fresh_cases() -> None:
    """For new random cases, Kafka's classes and zkconsumer give the same answers."""
    seed = random.SystemRandom().randrange(2**40)
    requests = [case(seed + one) for one in range(FRESH_CASES)]
    requests += decisions(random.Random(seed), 300)
    requests += placements(random.Random(seed), 500)
    answers = ask(requests)
    wrong = [
        (request, answer)
        for request, answer in zip(requests, answers, strict=True)
        if computed(request) != answer
    ]
    assert wrong == [], f"seed {seed}"
