"""A member that passes every challenge of `zkconsumer judge`. The comments name the challenges.

zkconsumer judge docs/examples/judge/solution.py --challenge claim
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from zkconsumer.judge.kit import Member, run

COMMIT_S = 2.0


class Solution(Member):
    """Owns what the range assignor gives it, and delivers only what it certainly owns."""

    def __init__(self, reset: dict[str, Any]) -> None:
        super().__init__(reset)
        self.root = f"/consumers/{self.group}"
        self.me = f"{self.root}/ids/{self.name}"
        self.of_session: int = 0  # the session for which the following fields hold
        self.is_registered = False
        self.is_verified = False  # whether the owner znodes were read on this connection
        self.owned: dict[int, str] = {}  # partition -> our thread in its owner znode
        # registrations and the topic, as long as their watches are set
        self.known: dict[str, Any] = {}
        # partition -> (offset, version) of the offset znode
        self.stored: dict[int, tuple[int, int]] = {}
        self.leased_until = 0.0
        self.committed_at = 0.0

    # ---- messages --------------------------------------------------------------------------------

    def may_deliver(self) -> bool:
        # zombie, fencing: only the leader's word that the session lives counts, from the moment
        # when the question was sent.
        return self.is_connected and self.is_verified and self.now < self.leased_until

    async def on_tick(self) -> None:
        asked_at, session = self.now, self.session
        if (await self.sync(self.root)).ok and session == self.of_session:
            self.leased_until = asked_at + self.session_s
        if self.now - self.committed_at >= COMMIT_S:
            self.committed_at = self.now
            for one, position in list(self.positions.items()):
                await self.commit(one, position)
        self.change()  # what waits for another client is tried again

    # ---- the group -------------------------------------------------------------------------------

    def on_disconnected(self) -> None:
        # watches: they end with the connection. lost-reply: owner znodes must be read again.
        self.known.clear()
        self.is_verified = False
        self.is_registered = False

    async def on_change(self) -> None:
        if self.session != self.of_session:  # session: everything ephemeral is gone
            self.of_session = self.session
            self.leased_until = 0.0
            self.owned.clear()
            self.positions.clear()
            self.stored.clear()
        for path in self.fired:
            self.known.pop(path, None)
            if path.startswith(f"{self.root}/owners/"):
                # mixed: another client may have deleted an owner znode of ours.
                self.is_verified = False
            self.is_registered &= path != self.me
        self.fired.clear()
        asked_at = self.now
        if not await self.register():
            return
        if not self.leased_until and (await self.sync(self.root)).ok:
            self.leased_until = asked_at + self.session_s
        partitions = await self.partitions()
        wanted = await self.share(partitions)
        if not self.is_verified:
            await self.verify(partitions)
        # release: only what another member or thread gets.
        await self.release([one for one, by in self.owned.items() if wanted.get(one) != by])
        await self.claim({one: by for one, by in wanted.items() if one not in self.owned})

    async def register(self) -> bool:
        if self.is_registered:
            return True
        for path in ("", "/ids", "/owners", "/offsets", *self.parents()):
            await self.create(self.root + path)
        payload = {
            "version": 1,
            "subscription": {self.topic: self.streams},
            "pattern": "static",
            "timestamp": str(self.wall_ms),
        }
        await self.create(self.me, data=json.dumps(payload), ephemeral=True)
        # lost-reply, session: whose znode is it?
        found = await self.get(self.me, watch=True)
        self.is_registered = found.ok and found.owner == self.session
        self.phase("registered" if self.is_registered else "waiting")
        return self.is_registered

    def parents(self) -> tuple[str, str]:
        return f"/owners/{self.topic}", f"/offsets/{self.topic}"

    async def partitions(self) -> list[int]:
        path = f"/brokers/topics/{self.topic}"
        while path not in self.known:
            found = await self.get(path, watch=True)
            if found.ok:
                self.known[path] = sorted(map(int, json.loads(found.data or "{}")["partitions"]))
            elif not (await self.exists(path, watch=True)).ok:  # recreated: await its creation
                self.known[path] = []
        partitions: list[int] = self.known[path]
        return partitions

    async def members(self) -> dict[str, int]:
        """Return the streams of each member; read only what is new."""
        ids = f"{self.root}/ids"
        while True:
            if ids not in self.known:
                self.known[ids] = (await self.children(ids, watch=True)).children
            # herd: read only the registrations that are new.
            paths = {name: f"{ids}/{name}" for name in self.known[ids]}
            new = [path for path in paths.values() if path not in self.known]
            read = await self.together(*(self.get(path, watch=True) for path in new))
            for path, found in zip(new, read, strict=True):
                if found.ok:
                    counts = json.loads(found.data or "{}").get("subscription", {})
                    self.known[path] = counts.get(self.topic, 0)
                else:
                    self.known.pop(ids, None)  # the member has left: list again
            if ids in self.known:
                return {name: self.known[path] for name, path in paths.items()}

    async def share(self, partitions: list[int]) -> dict[int, str]:
        """Return the partitions of this member, each with its thread."""
        members = await self.members()
        threads = [(name, f"{name}-{one}") for name in members for one in range(members[name])]
        threads.sort(key=lambda one: one[1])  # range: by thread, and not by member
        mine: dict[int, str] = {}
        for at, (name, thread) in enumerate(threads):
            each, more = divmod(len(partitions), len(threads))
            first = each * at + min(at, more)
            if name == self.name:
                mine |= dict.fromkeys(partitions[first : first + each + (at < more)], thread)
        return mine

    # ---- owner znodes ----------------------------------------------------------------------------

    def owner(self, partition: int) -> str:
        return f"{self.root}/owners/{self.topic}/{partition}"

    async def verify(self, partitions: Collection[int]) -> None:
        every = sorted({*partitions, *self.owned})
        read = await self.together(*(self.get(self.owner(one), watch=True) for one in every))
        self.owned = {
            one: found.data or ""
            for one, found in zip(every, read, strict=True)
            if found.ok and found.owner == self.session
        }
        for one in [one for one in self.positions if one not in self.owned]:
            del self.positions[one]
        self.is_verified = True
        await self.load(self.owned.keys() - self.positions.keys())

    async def release(self, partitions: Collection[int]) -> None:
        for one in sorted(partitions):
            position = self.positions.pop(one, None)  # first stop, then commit, then release
            if position is not None:
                await self.commit(one, position)
            self.owned.pop(one, None)
            found = await self.get(self.owner(one))
            if found.ok and found.owner == self.session:  # claim: never delete another's znode
                await self.delete(self.owner(one))

    async def claim(self, wanted: dict[int, str]) -> None:
        # claim: one refused claim must not keep the others unread. The next tick tries again.
        for one, thread in sorted(wanted.items()):
            await self.create(self.owner(one), data=thread, ephemeral=True)
            found = await self.get(self.owner(one), watch=True)
            if found.ok and found.owner == self.session:
                self.owned[one] = found.data or ""
                await self.load([one])

    # ---- offsets ---------------------------------------------------------------------------------

    def offset(self, partition: int) -> str:
        return f"{self.root}/offsets/{self.topic}/{partition}"

    async def load(self, partitions: Collection[int]) -> None:
        for one in sorted(partitions):
            found = await self.get(self.offset(one))
            offset = int(found.data or 0)
            self.stored[one] = offset, found.version if found.ok else -1
            if one in self.owned:
                self.positions[one] = offset
                self.phase("reading", f"{self.topic}-{one} from {offset}")

    async def commit(self, one: int, position: int) -> None:
        # zombie: with a check of the id znode, of the owner znode, and of the version.
        path = self.offset(one)
        for _ in range(5):
            before, version = self.stored.get(one, (0, -1))
            if one not in self.owned or position <= before:
                return
            if version >= 0:
                write = self.set(path, str(position), version=version)
            else:
                write = self.create(path, data=str(position))
            done = await self.multi(self.check(self.me), self.check(self.owner(one)), write)
            if done.ok:
                self.stored[one] = position, version + 1
                return
            found = await self.get(path)
            if found.ok:
                self.stored[one] = int(found.data or 0), found.version

    async def on_close(self) -> None:
        await self.release(list(self.owned))


if __name__ == "__main__":
    run(Solution)
