"""Measure the costs of a join, a leave and a kill on the old and later group protocols, and compare
them with the model's prediction.

On one ZooKeeper and one broker of 3.9.1, a group of 8 members with 64 partitions is started for
each client: JVM consumers of 1.1.1 and zkconsumer members on ZooKeeper; confluent-kafka with
range and with cooperative-sticky, and JVM consumers of 3.9.1, with the classic protocol. Each
member has its own process. Then one more member joins, the first one leaves, and the second one is
killed.

`settled_s` is the time from the order until the last change of an owner. `unowned_s` is the
partition-seconds without a living owner in that time. `moved` is the number of partitions whose
owner has changed. The owners are read every 20 ms: on ZooKeeper from the owner znodes, in the
classic protocol from the reports of the members' listeners. `predicted` is the value that
`zkconsumer compare` computes. The predicted value does not include the processing time of real
clients and servers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from support.jvm.member import JvmMember
from support.members.crew import MemberProcess, Program
from support.members.later_member import LaterMember
from support.members.program import Request

from zkconsumer.errors import ConfigError
from zkconsumer.protocol import paths
from zkconsumer.protocol.payloads import decode_owner
from zkconsumer.sandbox import Sandbox
from zkconsumer.sim.compare.run import check, compare, read_script

LOOK_S = 0.02
QUIET_S = 8.0  # time without a change after which a group has settled: over two heartbeats
LIMIT_S = 180.0
TOPIC = "protocols"

CLIENTS = {
    "jvm-1.1.1": "zookeeper-jvm",
    "zkconsumer": "zookeeper",
    "confluent-range": "classic-eager",
    "confluent-cooperative-sticky": "classic-cooperative",
    "jvm-3.9.1": "classic-eager",
}
"""Client -> the protocol for which the model computes the prediction."""

Owners = dict[int, str]


@dataclass(frozen=True)
class Figures:
    """The costs of one case."""

    settled_s: float
    unowned_s: float
    moved: int


class Group:
    """A group of real members of one client."""

    def __init__(self, client: str, sandbox: Sandbox, place: Path, zookeeper: KazooClient) -> None:
        self._client, self._sandbox, self._place = client, sandbox, place
        self._zookeeper = zookeeper
        self.members: dict[str, Any] = {}
        self._left: list[Any] = []

    def start(self, name: str) -> None:
        make = {"jvm-1.1.1": self._old_jvm, "zkconsumer": self._ours}.get(self._client)
        self.members[name] = make(name) if make else self._later(name)

    def leave(self, name: str) -> None:
        """Let a member leave; do not wait for its end, so that no change is missed."""
        self._left.append(self.members.pop(name))
        self._left[-1].tell("leave")

    def end(self) -> None:
        """End the remaining processes of the group."""
        for member in (*self._left, *self.members.values()):
            member.end()

    def kill(self, name: str) -> None:
        self.members.pop(name).kill()

    def _old_jvm(self, name: str) -> JvmMember:
        connect = self._sandbox.zookeeper_connect
        return JvmMember(
            "1.1.1", connect, self._client, name=name, directory=self._place, topics=[TOPIC]
        )

    def _ours(self, name: str) -> MemberProcess:
        request = Request(
            zookeeper=self._sandbox.zookeeper_connect,
            group=self._client,
            topics={TOPIC: 1},
            settings={"auto_offset_reset": "smallest", "consumer_id": name},
        )
        return MemberProcess(name, request, self._place)

    def _later(self, name: str) -> Program:
        is_jvm = self._client.startswith("jvm")
        properties = {
            "bootstrap.servers": self._sandbox.bootstrap,
            "group.id": self._client,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": (
                "range" if is_jvm else self._client.removeprefix("confluent-")
            ),
        }
        return LaterMember(
            name,
            client="jvm" if is_jvm else "confluent",
            topic=TOPIC,
            properties=properties,
            directory=self._place,
        )

    def owners(self) -> Owners:
        """Return the living owner of each partition."""
        if self._client in ("jvm-1.1.1", "zkconsumer"):
            return self._owner_znodes()
        found: Owners = {}
        for name, member in self.members.items():
            told = [one["partitions"] for one in member.events if one["event"] == "owned"]
            found |= dict.fromkeys(told[-1] if told else (), name)
        return found

    def _owner_znodes(self) -> Owners:
        root = paths.owners_of(self._client, TOPIC)
        try:
            asked = {
                int(one): self._zookeeper.get_async(f"{root}/{one}")
                for one in self._zookeeper.get_children(root)
            }
        except NoNodeError:
            return {}
        found: Owners = {}
        for number, reply in asked.items():
            try:
                thread = decode_owner(reply.get()[0], where=root)
            except NoNodeError:
                continue
            name = thread.removeprefix(f"{self._client}_").rpartition("-")[0]
            if name in self.members:
                found[number] = name
        return found


def measured(
    group: Group, order: Callable[[], None], before: Owners, partitions: int
) -> tuple[Figures, Owners]:
    """Give an order, and read the owners until they have not changed for some time."""
    started = last = changed = time.perf_counter()
    order()
    seen, pending, unowned = before, 0.0, 0.0
    while True:
        owners, now = group.owners(), time.perf_counter()
        pending += (partitions - len(seen)) * (now - last)
        if owners != seen:
            seen, changed = owners, now
            unowned, pending = unowned + pending, 0.0
        last = now
        is_done = len(seen) == partitions and set(seen.values()) == set(group.members)
        if is_done and now - changed > QUIET_S:
            moved = sum(seen[one] != owner for one, owner in before.items())
            return Figures(changed - started, unowned, moved), seen
        if now - started > LIMIT_S:
            raise SystemExit(f"not settled after {LIMIT_S:g} s: {len(seen)} owners")
        time.sleep(LOOK_S)


def predicted(protocol: str, case: str, members: int, partitions: int) -> Figures:
    """Return the model's prediction for a case."""
    steps = read_script(case, members)
    (cost,) = compare(steps, members=members, partitions=partitions, protocols=[protocol])
    return Figures(cost.settled_s, cost.unowned_s, cost.moved)


@contextmanager
def _members(group: Group) -> Iterator[None]:
    """End the remaining processes of a group."""
    try:
        yield
    finally:
        group.end()


def bench(client: str, group: Group, members: int, partitions: int) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of one client."""
    names = [f"c{number}" for number in range(1, members + 2)]
    *first, joining = names
    for name in first:
        group.start(name)
    _, owners = measured(group, lambda: None, {}, partitions)
    orders: dict[str, tuple[Callable[[], None], str, int]] = {
        "join": (lambda: group.start(joining), "join", members),
        "leave": (lambda: group.leave(names[0]), "leave g_0", members + 1),
        "kill": (lambda: group.kill(names[1]), "kill g_0", members),
    }
    for case, (order, script, size) in orders.items():
        found, owners = measured(group, order, owners, partitions)
        model = predicted(CLIENTS[client], script, size, partitions)
        for metric in ("settled_s", "unowned_s", "moved"):
            yield {
                "client": client,
                "case": case,
                "metric": {"unowned_s": "unowned_partition_seconds"}.get(metric, metric),
                "value": round(getattr(found, metric), 3),
                "predicted": getattr(model, metric),
            }


def wrong(options: argparse.Namespace) -> str | None:
    """Return what is wrong with the options; None if nothing is."""
    for client in options.clients.split(","):
        if client not in CLIENTS:
            return f"{client!r} is no client (--clients): use {', '.join(CLIENTS)}"
    if options.members < 2:
        return "a group has fewer than 2 members (--members): one member leaves, another is killed"
    try:
        read_script("join", options.members)
        check(options.partitions, [])
    except ConfigError as error:
        return str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_protocols",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    if reason := wrong(options):
        print(f"scripts/bench_protocols: {reason}", file=sys.stderr)
        return 2
    rows: list[Mapping[str, Any]] = []
    with ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox())
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="zkconsumer-bench-"))
        zookeeper = KazooClient(sandbox.zookeeper_connect)
        zookeeper.start()
        stack.callback(zookeeper.close)
        stack.callback(zookeeper.stop)
        sandbox.create_topic(TOPIC, partitions=options.partitions)
        for client in options.clients.split(","):
            directory = Path(place, client)
            directory.mkdir()
            group = Group(client, sandbox, directory, zookeeper)
            with _members(group):
                for row in bench(client, group, options.members, options.partitions):
                    rows.append(row)
                    if not options.json:
                        print(
                            "{client:<30}{case:<7}{metric:<27}{value:>10}{predicted:>12}".format(
                                **row
                            )
                        )
    if options.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
