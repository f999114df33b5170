"""A member of the classic protocol that passes its ladder. The comments name the challenges.

zkconsumer judge docs/examples/judge/solution_classic.py --ladder classic
"""

from collections.abc import Iterable
from typing import Any

from zkconsumer.judge.kit import run

Message = dict[str, Any]

FENCED = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
TICK_S = 1.0


def ignore(*_: Message) -> None:
    """Do nothing: the member needs no handler for this message."""


class Solution:
    """One member. `asked` has the request for each number without a response."""

    def __init__(self, reset: Message) -> None:
        self.is_cooperative = reset["assignor"] == "cooperative-sticky"
        self.member, self.generation = "", -1
        self.is_stable = self.is_leader = False
        self.partitions = self.planned = 0
        self.positions: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.unread: set[int] = set()  # assigned partitions whose stored offset is not known
        self.asked: dict[int, Message] = {}
        self.last_id = 0
        self.out: list[Message] = []

    def ask(self, api: str, **more: Any) -> None:
        self.last_id += 1
        common = {"api": api, "member": self.member, "generation": self.generation}
        self.asked[self.last_id] = {**common, **more}
        self.out.append({"type": "request", "id": self.last_id, **self.asked[self.last_id]})

    def awaits(self, *apis: str) -> bool:
        return any(one["api"] in apis for one in self.asked.values())

    def deliver(self, positions: dict[int, int]) -> None:
        self.positions = positions
        shown = {str(one): offset for one, offset in positions.items()}
        self.out.append({"type": "deliver", "positions": shown})

    def without(self, gone: Iterable[int]) -> dict[int, int]:
        return {one: offset for one, offset in self.positions.items() if one not in gone}

    # ---- joining ---------------------------------------------------------------------------------

    def join(self) -> None:
        """Join, or join again; before that, an eager member gives everything back."""
        if self.awaits("join_group", "sync_group"):
            return
        self.is_stable = False
        if not self.is_cooperative and self.positions:
            self.commit()  # heartbeat: before the generation ends
            self.deliver({})
        # cooperative: the leader must know what is delivered, and since which generation.
        self.ask("join_group", owned=sorted(self.positions))

    def lost(self) -> None:
        """generation: stop at once; whoever owns the partitions now delivers them."""
        self.generation = -1
        self.unread.clear()
        self.deliver({})

    def join_group(self, asked: Message, message: Message) -> None:
        if message["error"] == "MEMBER_ID_REQUIRED":
            self.member = message["member"]
            self.join()
        elif message["error"] == "NONE":
            self.member, self.generation = message["member"], message["generation"]
            self.is_leader, self.planned = message["leader"] == self.member, self.partitions
            members = message.get("members", {})
            self.ask("sync_group", assignments=self.shares(members) if members else {})

    def shares(self, members: dict[str, list[int]]) -> dict[str, list[int]]:
        """Return the leader's assignment: each member keeps what its share allows."""
        every = set(range(self.partitions))
        each, more = divmod(len(every), len(members))
        order = sorted(members, key=lambda one: (-len(members[one]), one))
        found: dict[str, list[int]] = {}
        for at, name in enumerate(order):
            kept = sorted(every.intersection(members[name]))[: each + (at < more)]
            found[name] = kept
            every.difference_update(kept)
        # cooperative: what a member still delivers waits for the next rebalance.
        free = sorted(every - {one for own in members.values() for one in own})
        for at, name in enumerate(order):
            count = max(0, each + (at < more) - len(found[name]))
            found[name] += free[:count]
            free = free[count:]
        return found

    def sync_group(self, asked: Message, message: Message) -> None:
        if message["error"] == "REBALANCE_IN_PROGRESS":
            self.join()
        elif message["error"] == "NONE":
            self.is_stable = True
            assigned = set(message["assignment"])
            gone = self.positions.keys() - assigned
            if gone:
                self.commit()
                self.deliver(self.without(gone))
            self.unread = assigned - self.positions.keys()
            self.read()
            if gone:
                self.join()  # cooperative: the second rebalance assigns what is free now

    def read(self) -> None:
        if self.unread and not self.awaits("offset_fetch"):
            self.ask("offset_fetch", partitions=sorted(self.unread))

    def offset_fetch(self, asked: Message, message: Message) -> None:
        known = self.unread.intersection(asked["partitions"])
        if message["error"] == "NONE" and known:
            stored = {one: message["offsets"].get(str(one), 0) for one in known}
            self.unread -= known
            self.committed |= stored
            self.deliver(self.positions | stored)
        self.read()

    # ---- heartbeats and commits ------------------------------------------------------------------

    def heartbeat(self, asked: Message, message: Message) -> None:
        if message["error"] == "REBALANCE_IN_PROGRESS":
            self.join()

    def commit(self) -> None:
        new = {it: at for it, at in self.positions.items() if at > self.committed.get(it, 0)}
        if new and self.generation >= 0:
            self.ask("offset_commit", offsets={str(one): at for one, at in new.items()})

    def offset_commit(self, asked: Message, message: Message) -> None:
        if message["error"] == "NONE":
            self.committed |= {int(one): at for one, at in asked["offsets"].items()}
        self.heartbeat(asked, message)

    # ---- what the judge sends --------------------------------------------------------------------

    def metadata(self, message: Message) -> None:
        self.partitions = message["partitions"]
        if not self.last_id or (self.is_leader and self.planned != self.partitions):
            self.join()

    def delivered(self, message: Message) -> None:
        if message["partition"] in self.positions:
            self.positions[message["partition"]] = message["offset"]

    def tick(self, message: Message) -> None:
        if not self.is_stable:
            self.join()
        elif not self.awaits("heartbeat"):
            self.ask("heartbeat")
            if not self.awaits("offset_commit"):
                self.commit()
            self.read()

    def disconnected(self, message: Message) -> None:
        if self.awaits("join_group", "sync_group"):
            self.is_stable = False
        self.asked.clear()  # the next tick asks again

    def close(self, message: Message) -> None:
        self.commit()
        self.ask("leave_group")

    def response(self, message: Message) -> None:
        asked = self.asked.pop(message["id"], None)
        if asked is None:
            return
        is_present = (asked["member"], asked["generation"]) == (self.member, self.generation)
        if message["error"] in FENCED and is_present and asked["api"] != "offset_fetch":
            if message["error"] == "UNKNOWN_MEMBER_ID":
                self.member = ""
            self.lost()
            self.join()
        else:
            getattr(self, asked["api"], ignore)(asked, message)

    def answer(self, message: Message) -> list[Message]:
        self.out = []
        getattr(self, message["type"], ignore)(message)
        done: Message = {"type": "done", "closed": message["type"] == "close"}
        if message["type"] in ("reset", "tick"):  # a `tick_s` replaces an earlier one
            done["tick_s"] = TICK_S
        return [*self.out, done]


if __name__ == "__main__":
    run(Solution)
