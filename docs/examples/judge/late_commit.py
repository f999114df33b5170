"""A careful member with one bug: after the end of its session it commits what it had delivered.

Kafka's old consumer does so, too. Meanwhile another member may own the partition, and may have
committed more: the late commit moves the offset back.

zkconsumer judge docs/examples/judge/late_commit.py --challenge zombie
"""

from solution import Solution

from zkconsumer.judge.kit import run


class LateCommit(Solution):
    """Never loses a position, and writes it whoever has written the offset before."""

    async def on_change(self) -> None:
        if self.session != self.of_session:
            for one, position in sorted(self.positions.items()):
                await self.commit(one, position)
        await super().on_change()

    async def commit(self, one: int, position: int) -> None:
        before, _ = self.stored.get(one, (0, -1))
        if position > before and not (await self.set(self.offset(one), str(position))).ok:
            await self.create(self.offset(one), data=str(position))
        self.stored[one] = position, 0


if __name__ == "__main__":
    run(LateCommit)
