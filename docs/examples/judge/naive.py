"""The member that everybody writes first. It works, until something goes wrong.

zkconsumer judge docs/examples/judge/naive.py --challenge claim
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

Message = dict[str, Any]
Then = Callable[[Message], None] | None


class Naive:
    """One member. `ask` sends a request, and calls a function with the reply."""

    def __init__(self, reset: Message) -> None:
        self.me, self.group, self.topic = reset["member"], reset["group"], reset["topic"]
        self.streams, self.wall_ms = reset["streams"], reset["wall_ms"]
        self.root = "/consumers/" + self.group
        self.out: list[Message] = []
        self.waiting: dict[int, Then] = {}
        self.last_id = 0
        self.session: int | None = None
        self.positions: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.threads: list[str] = []
        self.names: list[str] = []

    def ask(self, then: Then, op: str, path: str, **more: Any) -> None:
        self.last_id += 1
        self.waiting[self.last_id] = then
        self.out.append({"type": "request", "id": self.last_id, "op": op, "path": path, **more})

    # ---- the group -------------------------------------------------------------------------------

    def connected(self, message: Message) -> None:
        if self.session is None:
            self.session = message["session"]
            below_topic = (f"/owners/{self.topic}", f"/offsets/{self.topic}")
            for path in ("", "/ids", "/owners", "/offsets", *below_topic):
                self.ask(None, "create", self.root + path)
            payload = json.dumps(
                {
                    "version": 1,
                    "subscription": {self.topic: self.streams},
                    "pattern": "static",
                    "timestamp": str(self.wall_ms),
                }
            )
            me = f"{self.root}/ids/{self.me}"
            self.ask(None, "create", me, data=payload, ephemeral=True)
            self.ask(self.members, "children", f"{self.root}/ids", watch=True)

    def watch(self, message: Message) -> None:
        self.ask(self.members, "children", f"{self.root}/ids")

    def members(self, reply: Message) -> None:
        self.threads, self.names = [], list(reply.get("children", ()))
        for name in self.names:
            self.ask(partial(self.registration, name), "get", f"{self.root}/ids/{name}")

    def registration(self, name: str, reply: Message) -> None:
        if "data" in reply:
            count = json.loads(reply["data"])["subscription"][self.topic]
            self.threads += [f"{name}-{number}" for number in range(count)]
        self.names.remove(name)
        if not self.names:
            self.ask(self.assign, "get", f"/brokers/topics/{self.topic}")

    def assign(self, reply: Message) -> None:
        if "data" not in reply or not self.threads:
            return
        partitions = sorted(int(one) for one in json.loads(reply["data"])["partitions"])
        for partition in list(self.positions):  # stop the world: give everything back
            self.commit()
            self.ask(None, "delete", f"{self.root}/owners/{self.topic}/{partition}")
        self.positions = {}
        self.threads.sort()
        each, more = divmod(len(partitions), len(self.threads))
        for at, thread in enumerate(self.threads):
            first = each * at + min(at, more)
            if thread.startswith(self.me + "-"):
                for partition in partitions[first : first + each + (at < more)]:
                    self.claim(partition, thread)

    def claim(self, partition: int, thread: str) -> None:
        path = f"{self.root}/owners/{self.topic}/{partition}"
        self.ask(None, "create", path, data=thread, ephemeral=True)
        self.ask(
            partial(self.offset, partition), "get", f"{self.root}/offsets/{self.topic}/{partition}"
        )

    # ---- messages --------------------------------------------------------------------------------

    def offset(self, partition: int, reply: Message) -> None:
        if "data" in reply:
            self.committed[partition] = int(reply["data"])
        self.positions[partition] = self.committed.get(partition, 0)

    def poll(self, message: Message) -> None:
        for partition, offset in sorted(self.positions.items()):
            if offset < message["ends"][partition]:
                self.positions[partition] += 1
                self.out.append({"type": "deliver", "partition": partition, "offset": offset})
                return

    def tick(self, message: Message) -> None:
        self.commit()

    def commit(self) -> None:
        for partition, offset in self.positions.items():
            if offset != self.committed.get(partition, 0):
                path = f"{self.root}/offsets/{self.topic}/{partition}"
                op = "set" if partition in self.committed else "create"
                self.committed[partition] = offset
                self.ask(None, op, path, data=str(offset))

    # ---- the protocol ----------------------------------------------------------------------------

    def answer(self, message: Message) -> list[Message]:
        self.out = []
        more: Message = {"tick_s": 2.0} if message["type"] in ("connected", "tick") else {}
        if message["type"] == "reply":
            if then := self.waiting.pop(message["id"]):
                then(message)
        elif message["type"] == "close":
            self.commit()
            more["closed"] = True
        elif handler := getattr(self, message["type"], None):
            handler(message)
        return [*self.out, {"type": "done", **more}]


if __name__ == "__main__":
    member: Naive | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "reset" or member is None:
            member = Naive(message)
        for answer in member.answer(message):
            print(json.dumps(answer))
        sys.stdout.flush()
