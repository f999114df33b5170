"""The sizes that `compare` counts, compared with encoded requests."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE

from zkconsumer.protocol import requests as rq
from zkconsumer.sim.compare import wire_sizes

FRAME = 4 + 4 + 4
"""Bytes of the length, the number and the type, which kazoo writes before each request."""

PATH, DATA = "/consumers/gruppe-ä/ids/a", b'{"version":1}'

WRITES: list[tuple[rq.Create | rq.SetData | rq.Delete | rq.Check, Any]] = [
    (rq.Create(PATH, DATA, ephemeral=True), kazoo.Create(PATH, DATA, OPEN_ACL_UNSAFE, 1)),
    (rq.Create(PATH, None), kazoo.Create(PATH, None, OPEN_ACL_UNSAFE, 0)),
    (rq.SetData(PATH, DATA, 7), kazoo.SetData(PATH, DATA, 7)),
    (rq.Delete(PATH), kazoo.Delete(PATH, -1)),
    (rq.Check(PATH, 0), kazoo.CheckVersion(PATH, 0)),
]

REQUESTS: list[tuple[Any, Any]] = [
    (rq.Get(PATH, watch=True), kazoo.GetData(PATH, print)),
    (rq.Exists(PATH), kazoo.Exists(PATH, None)),
    (rq.Children(PATH), kazoo.GetChildren(PATH, None)),
    (rq.Listing(PATH, watch=True), kazoo.GetChildren2(PATH, print)),
    (rq.SyncLeader(PATH), kazoo.Sync(PATH)),
    (rq.Create(PATH, DATA), kazoo.Create(PATH, DATA, OPEN_ACL_UNSAFE, 0)),
    (
        rq.Multi(tuple(one for one, _ in WRITES)),
        kazoo.Transaction([encoded for _, encoded in WRITES]),
    ),
]


@pytest.mark.parametrize(("request_", "encoded"), REQUESTS, ids=lambda one: type(one).__name__)
def test_a_request_to_zookeeper_has_the_size_that_kazoo_sends(request_: Any, encoded: Any) -> None:
    """The counted bytes of each kind of request are those of the client that members use."""
    assert wire_sizes.of_zookeeper(request_, None) == FRAME + len(encoded.serialize())


def test_every_kind_of_request_is_compared() -> None:
    """No request that a simulated member sends to ZooKeeper is left out."""
    kinds = {type(one) for one, _ in [*REQUESTS, *WRITES]}
    assert kinds >= {rq.Get, rq.Exists, rq.Children, rq.Listing, rq.SyncLeader, rq.Multi}
    assert kinds >= {rq.Create, rq.SetData, rq.Delete, rq.Check}
