"""The member of the classic protocol that everybody writes first. It works until something changes.

zkconsumer judge docs/examples/judge/naive_classic.py --challenge heartbeat
"""

from typing import Any

from zkconsumer.judge.kit import run

Message = dict[str, Any]


def ignore(*_: Message) -> None:
    """Do nothing: the member needs no handler for this message."""


class Naive:
    """One member: it joins once, and sends heartbeats and commits from then on."""

    def __init__(self, reset: Message) -> None:
        self.member, self.generation, self.partitions = "", -1, 0
        self.apis: dict[int, str] = {}
        self.positions: dict[str, int] = {}
        self.out: list[Message] = []

    def ask(self, api: str, **more: Any) -> None:
        number = len(self.apis) + 1
        self.apis[number] = api
        self.out.append(
            {"type": "request", "id": number, "api": api, "member": self.member, **more}
        )

    # ---- the group -------------------------------------------------------------------------------

    def metadata(self, message: Message) -> None:
        self.partitions = message["partitions"]
        if not self.apis:
            self.ask("join_group", owned=[])

    def join_group(self, message: Message) -> None:
        self.member = message.get("member", self.member)
        if message["error"] == "MEMBER_ID_REQUIRED":
            self.ask("join_group", owned=[])
        elif message["error"] == "NONE":
            self.generation = message["generation"]
            names = sorted(message.get("members", ()))  # only the leader gets the members
            shares = {
                name: list(range(self.partitions))[at :: len(names)]
                for at, name in enumerate(names)
            }
            self.ask("sync_group", generation=self.generation, assignments=shares)

    def sync_group(self, message: Message) -> None:
        if message["error"] == "NONE":
            self.positions = {str(one): 0 for one in message["assignment"]}
            self.ask("offset_fetch", partitions=message["assignment"])

    def offset_fetch(self, message: Message) -> None:
        self.positions |= message["offsets"]
        self.out.append({"type": "deliver", "positions": self.positions})

    def heartbeat(self, message: Message) -> None:
        if message["error"] == "REBALANCE_IN_PROGRESS":
            self.ask("join_group", owned=[])

    # ---- messages --------------------------------------------------------------------------------

    def delivered(self, message: Message) -> None:
        self.positions[str(message["partition"])] = message["offset"]

    def tick(self, message: Message) -> None:
        if self.generation >= 0:
            self.ask("heartbeat", generation=self.generation)
            self.ask("offset_commit", generation=self.generation, offsets=self.positions)

    def close(self, message: Message) -> None:
        self.ask("leave_group")

    # ---- the protocol ----------------------------------------------------------------------------

    def answer(self, message: Message) -> list[Message]:
        self.out = []
        if message["type"] == "response":
            getattr(self, self.apis[message["id"]], ignore)(message)
        else:
            getattr(self, message["type"], ignore)(message)
        done: Message = {"type": "done", "closed": message["type"] == "close"}
        if message["type"] in ("reset", "tick"):  # a `tick_s` replaces an earlier one
            done["tick_s"] = 3.0
        return [*self.out, done]


if __name__ == "__main__":
    run(Naive)
