"""Random scripts of requests to a group coordinator, and the machine that answers them.

`ScriptedClients` are a few clients of one group. Usually they send what a real client would send
after the same answers; sometimes they send an unusual request. `play` runs them against the real
coordinator (`support.jvm.live_coordinator`) or the machine. The result is a script: every event
with the answers that it caused, and the group's state after the event. `replayed` runs the events
of a script again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from zkconsumer.later import group_coordinator, group_events
from zkconsumer.later.consumer_group import ConsumerGroup
from zkconsumer.protocol.later import messages
from zkconsumer.protocol.later.consumer_protocol import encode_subscription
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition, coordinator_partition

Event = dict[str, Any]
Answers = dict[str, Any]

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"group.max.size": 2},
    {"group.initial.rebalance.delay.ms": 0},
)
CONSUMER_CONFIGS: tuple[dict[str, Any], ...] = ({}, {}, {"group.consumer.max.size": 2})
TOPICS = ("t0", "t1", "t2")


class Backend(Protocol):
    """A coordinator on which a script runs."""

    def begin(self, config: Mapping[str, Any], group: str) -> None:
        """Start with an empty log, as leader of the group's partition."""

    def apply(self, number: int, event: Event) -> tuple[Answers, Any]:
        """Return the answers that an event causes, and the group's state after it."""


def play(backend: Backend, seed: int) -> dict[str, Any]:
    """Return a seed's script; `fresh` is the end of the member id that the coordinator chose.

    Even seeds play the classic protocol, odd seeds KIP-848.
    """
    chance = random.Random(f"coordinator {seed}")
    group = chance.choice(["g", "polygenelubricants", "orders", f"group-{seed}"])
    config = chance.choice(CONSUMER_CONFIGS if seed % 2 else CONFIGS)
    backend.begin(config, group)
    players = ScriptedConsumers(chance, group) if seed % 2 else ScriptedClients(chance, group)
    steps: list[Any] = []
    before: Any = None
    for number in range(chance.randrange(8, 30)):
        event = players.next(number)
        answers, state = backend.apply(number, event)
        players.learn(answers)
        steps.append([_compact(event), answers, state if state != before else "="])
        before = state
    return {"seed": seed, "config": config, "group": group, "steps": steps}


def replayed(backend: Backend, script: Mapping[str, Any]) -> str:
    """Return the first difference between a script and a coordinator's answers; "" for none."""
    backend.begin(script["config"], script["group"])
    before: Any = None
    for number, (event, answers, state) in enumerate(script["steps"]):
        found = backend.apply(number, _complete(event, script["group"]))
        expected = (answers, before if state == "=" else state)
        before = expected[1]
        if found != expected:
            return f"seed {script['seed']}, step {number}, {event}:\n{found}\nnot\n{expected}"
    return ""


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "join": {
        "member": "",
        "instance": None,
        "type": "consumer",
        "session": 10_000,
        "rebalance": 60_000,
        "version": 9,
        "fresh": "",
    },
    "sync": {"instance": None, "type": "consumer", "assignments": {}, "protocol": None},
    "heartbeat": {"instance": None},
    "commit": {"instance": None},
    "fetch": {"member": None, "epoch": -1},
    "beat": {
        "instance": None,
        "rebalance": None,
        "topics": None,
        "assignor": None,
        "owned": None,
        "fresh": "",
    },
}


def _compact(event: Event) -> Event:
    common = DEFAULTS.get(event["op"], {})
    kept = {name: one for name, one in event.items() if name not in common or one != common[name]}
    kept.pop("group", None)
    return kept


def _complete(event: Event, group: str) -> Event:
    return {**DEFAULTS.get(event["op"], {}), **event, "group": group}


# ---- the clients ---------------------------------------------------------------------------------


class _Client:
    """What a client knows, and the number of the request whose answer it awaits."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name, self.instance = name, instance
        self.member, self.generation = "", -1
        self.protocols: list[list[str]] = []
        self.protocol: str | None = None
        self.others: list[str] = []
        self.phase = "join"
        self.waits: int | None = None


class ScriptedClients:
    """The clients of one group."""

    def __init__(self, chance: random.Random, group: str) -> None:
        self._chance, self._group = chance, group
        count = chance.choice([1, 2, 2, 3, 3, 4, 6])
        statics = chance.choice([0, 0, 0.5, 1])
        self._clients = []
        for place in range(count):
            instance = f"i{place}" if chance.random() < statics else None
            self._clients.append(_Client(f"c{place}", instance))
        self._names = chance.choice([["range"], ["range", "sticky"], ["Aa", "BB", "range"]])
        self._version = chance.choice([9, 9, 9, 4, 3, 5])
        self._kind = chance.choice(["consumer"] * 5 + ["connect"])
        self._phase = "leading"
        self._sent: dict[int, tuple[_Client, Event]] = {}
        self._old: list[tuple[str, int]] = [("ghost", 0)]
        self._quiet = chance.choice([0.1, 0.3])
        self._odd = chance.choice([0.0, 0.1, 0.3])
        self._begin()

    def _begin(self) -> None:
        """Prepare the state that only one protocol needs."""

    def next(self, number: int) -> Event:
        """Return the next event."""
        event = self._event(number)
        event["group"] = self._group
        return event

    def _event(self, number: int) -> Event:
        chance = self._chance
        if self._phase != "leading" or chance.random() < 0.01:
            moved = self._move()
            if moved is not None:
                return moved
        if chance.random() < self._quiet:
            return self._wait()
        client = chance.choice(self._clients)
        event = self._odd_event(client) if chance.random() < self._odd else self._usual(client)
        if event is None:
            return self._wait()
        self._sent[number] = (client, event)
        if event["op"] in ("join", "sync"):
            client.waits = number
        return event

    def _wait(self) -> Event:
        steps = [125, 500, 1000, 2000, 3000, 3125, 4875, 6000, 9875, 10_000, 30_000, 60_000]
        if self._chance.random() < 0.05:
            steps = [600_000, 300_000, 8 * 86_400_000]
        return {"op": "advance", "ms": self._chance.choice(steps)}

    def _move(self) -> Event | None:
        """Let another broker take over, and this broker come back."""
        order = {"leading": "resign", "resigned": "elect", "loading": "load"}
        if self._phase != "leading" and self._chance.random() < 0.5:
            return None
        op = order[self._phase]
        self._phase = {"resign": "resigned", "elect": "loading", "load": "leading"}[op]
        return {"op": op}

    def _usual(self, client: _Client) -> Event | None:
        chance = self._chance
        if client.waits is not None:
            # If the member of a parked request was removed, the request is never answered.
            if chance.random() < 0.7:
                return None
            return chance.choice([self._heartbeat, self._leave, self._join, self._sync])(client)
        match client.phase:
            case "join":
                return self._join(client)
            case "sync":
                return self._sync(client)
        draw = chance.random()
        if draw < 0.5:
            return self._heartbeat(client)
        if draw < 0.62:
            return self._leave(client)
        if draw < 0.75:
            return self._commit(client)
        if draw < 0.8:
            return {"op": "fetch", "member": None, "epoch": -1}
        if client.instance and draw < 0.9:
            self._old.append((client.member, client.generation))
            client.member = ""
        return self._join(client)

    def _odd_event(self, client: _Client) -> Event:
        """Return an event of a zombie, or with a wrong generation, instance or time."""
        chance = self._chance
        member, generation = chance.choice(self._old)
        instance = chance.choice([None, client.instance, "i0", "i9"])
        kind = chance.randrange(9)
        if kind == 0:
            return {**self._heartbeat(client), "member": member, "generation": generation}
        if kind == 1:
            return {**self._heartbeat(client), "generation": client.generation + 1}
        if kind == 2:
            return {**self._sync(client), "instance": instance}
        if kind == 3:
            return {**self._commit(client), "member": member, "generation": generation}
        if kind == 4:
            return {**self._commit(client), "member": "", "generation": -1, "instance": None}
        if kind == 5:
            leavers = [[member, instance], ["", instance], [client.member, client.instance]]
            return {"op": "leave", "leavers": chance.sample(leavers, chance.randrange(1, 3))}
        if kind == 6:
            odd = [["other", ""]] if chance.random() < 0.7 else []
            return {**self._join(client), "protocols": odd}
        if kind == 7:
            return {**self._join(client), "member": member, "instance": instance}
        changes = [{"session": 5_000}, {"instance": instance}, {"type": "other"}, {"member": ""}]
        return {**self._join(client), **chance.choice(changes)}

    def _join(self, client: _Client) -> Event:
        chance = self._chance
        if not client.protocols or chance.random() < 0.2:
            topics = tuple(chance.sample(TOPICS, chance.randrange(1, 3)))
            data = encode_subscription(Subscription(topics)).hex()
            names = chance.sample(self._names, chance.randrange(1, len(self._names) + 1))
            if chance.random() < 0.8 and self._names[-1] not in names:
                names.append(self._names[-1])
            client.protocols = [[name, data if chance.random() < 0.9 else "00"] for name in names]
        return {
            "op": "join",
            "client": client.name,
            "member": client.member,
            "instance": client.instance,
            "protocols": client.protocols,
            "type": self._kind,
            "session": chance.choice([10_000, 10_000, 6_000, 45_000]),
            "rebalance": chance.choice([60_000, 60_000, 2_000, 5_000, 300_000]),
            "version": self._version,
            "fresh": "",
        }

    def _sync(self, client: _Client) -> Event:
        chance = self._chance
        others = [one for one in client.others if chance.random() < 0.95]
        return {
            "op": "sync",
            "member": client.member,
            "generation": client.generation,
            "instance": client.instance,
            "assignments": {one: f"{place:02x}" for place, one in enumerate(others)},
            "type": self._kind if chance.random() < 0.9 else None,
            "protocol": client.protocol if chance.random() < 0.95 else chance.choice([None, "x"]),
        }

    @staticmethod
    def _heartbeat(client: _Client) -> Event:
        return {
            "op": "heartbeat",
            "member": client.member,
            "generation": client.generation,
            "instance": client.instance,
        }

    def _leave(self, client: _Client) -> Event:
        self._old.append((client.member, client.generation))
        return {"op": "leave", "leavers": [[client.member, client.instance]]}

    def _commit(self, client: _Client) -> Event:
        chance = self._chance
        return {
            "op": "commit",
            "member": client.member,
            "generation": client.generation,
            "instance": client.instance,
            "offsets": [[chance.choice(TOPICS), chance.randrange(2), chance.randrange(100)]],
        }

    # ---- what the clients learn ------------------------------------------------------------------

    def learn(self, answers: Answers) -> None:
        """Let the clients receive their answers."""
        for number, answer in answers.items():
            client, event = self._sent[int(number)]
            if client.waits == int(number):
                client.waits = None
            self._learn(client, event, answer)

    def _learn(self, client: _Client, event: Event, answer: Any) -> None:
        error = answer.get("error", 0)
        if event["op"] == "join" and error == 79:
            client.member = answer["member"]
        elif event["op"] == "join" and not error:
            client.member = answer["member"]
            client.generation = answer["generation"]
            client.protocol = answer.get("protocol")
            client.others = [one[0] for one in answer.get("members", ())]
            client.phase = "sync"
        elif event["op"] == "sync" and not error:
            client.phase = "steady"
        elif event["op"] == "leave" or error in (25, 22, 82):
            self._old.append((client.member, client.generation))
            client.phase, client.member = "join", client.member if error == 22 else ""
        elif error == 27:
            client.phase = "join"


class _Consumer(_Client):
    """A client of KIP-848: its owned partitions, and the partitions assigned to it."""

    def __init__(self, name: str, instance: str | None) -> None:
        super().__init__(name, instance)
        self.epoch = 0
        self.owned: list[list[Any]] = []
        self.assigned: list[list[Any]] = []


class ScriptedConsumers(ScriptedClients):
    """The clients of one group of KIP-848."""

    def _begin(self) -> None:
        self._consumers = {one: _Consumer(one.name, one.instance) for one in self._clients}
        self._counts: dict[str, int] = {}

    def _event(self, number: int) -> Event:
        if not self._counts or self._chance.random() < 0.04:
            names = self._chance.sample(TOPICS, self._chance.randrange(1, 4))
            for name in names:
                count = self._counts.get(name, 0)
                self._counts[name] = count + self._chance.randrange(0 if count else 1, 4)
            return {"op": "topics", "topics": dict(self._counts)}
        return super()._event(number)

    def _usual(self, client: _Client) -> Event | None:
        chance, consumer = self._chance, self._consumers[client]
        if consumer.epoch == 0:
            return self._full(consumer)
        draw = chance.random()
        if draw < 0.06:
            kind = -2 if consumer.instance and chance.random() < 0.8 else -1
            return {**self._beat(consumer), "epoch": kind, "owned": None}
        if draw < 0.12:
            return {**self._commit(consumer), "generation": consumer.epoch}
        if draw < 0.16:
            return {"op": "fetch", "member": consumer.member, "epoch": consumer.epoch}
        if draw < 0.22:
            topics = chance.sample(TOPICS, chance.randrange(1, 4))
            return {**self._beat(consumer), "topics": topics}
        return self._beat(consumer)

    def _beat(self, consumer: _Consumer) -> Event:
        """Return a heartbeat; the client applies the last answer first, or sometimes late."""
        chance = self._chance
        if chance.random() < 0.8:
            consumer.owned = [one for one in consumer.owned if one in consumer.assigned]
        if chance.random() < 0.9 and all(one in consumer.assigned for one in consumer.owned):
            consumer.owned = list(consumer.assigned)
        return {
            "op": "beat",
            "member": consumer.member,
            "epoch": consumer.epoch,
            "instance": consumer.instance,
            "rebalance": None,
            "topics": None,
            "assignor": None,
            "owned": sorted(consumer.owned) if chance.random() < 0.8 else None,
            "fresh": "",
        }

    def _full(self, consumer: _Consumer) -> Event:
        chance = self._chance
        member = consumer.member if chance.random() < 0.5 else f"{consumer.name}-{len(self._old)}"
        topics = [one for one in TOPICS if chance.random() < 0.7] or ["t0"]
        consumer.owned = []
        return {
            **self._beat(consumer),
            "member": member,
            "epoch": 0,
            "rebalance": chance.choice([60_000, 5_000, 300_000]),
            "topics": topics,
            "assignor": chance.choice([None, None, "uniform", "range"]),
            "owned": [],
        }

    def _odd_event(self, client: _Client) -> Event:
        """Return an event of a zombie, or with a wrong epoch or instance, or without fields."""
        chance, consumer = self._chance, self._consumers[client]
        member, epoch = chance.choice(self._old)
        beat = self._beat(consumer)
        changes: list[Event] = [
            {"epoch": consumer.epoch + 1},
            {"epoch": max(consumer.epoch - 1, 0)},
            {"member": member, "epoch": epoch},
            {"instance": chance.choice([None, "i0", "i9", ""])},
            {"epoch": 0, "topics": ["t0"], "rebalance": 60_000, "owned": []},
            {"epoch": 0},
            {"epoch": chance.choice([-1, -2, -3])},
            {"assignor": "other"},
            {"member": ""},
        ]
        if chance.random() < 0.2:
            wrong = chance.choice([consumer.epoch - 1, -1, 0])
            return {**self._commit(consumer), "member": member, "generation": wrong}
        return {**beat, **chance.choice(changes)}

    def _learn(self, client: _Client, event: Event, answer: Any) -> None:
        consumer, error = self._consumers[client], answer.get("error", 0)
        if event["op"] != "beat":
            return
        if error in (25, 69, 110):
            self._old.append((consumer.member, consumer.epoch))
            consumer.epoch, consumer.assigned, consumer.owned = 0, [], []
        elif not error and answer.get("member"):
            if consumer.member != answer["member"]:
                consumer.owned = []
            consumer.member = answer["member"]
            consumer.epoch = max(answer.get("epoch", 0), 0)
            consumer.assigned = answer.get("assignment", consumer.assigned)


# ---- the machine ---------------------------------------------------------------------------------


class Machine:
    """The coordinator's machine as a backend."""

    def begin(self, config: Mapping[str, Any], group: str) -> None:
        """Start with an empty log, as leader of the group's partition."""
        settings = group_events.BrokerSettings(
            initial_delay_s=config.get("group.initial.rebalance.delay.ms", 3000) / 1000,
            max_size=config.get("group.max.size", config.get("group.consumer.max.size", 2**31 - 1)),
        )
        self._group, self._place = group, coordinator_partition(group)
        self._now_ms, self._records = 0, {}
        self._coordinator = group_coordinator.GroupCoordinator(settings)
        self._step(group_events.Elected(self._place))
        self._step(group_events.Loaded(self._place, {}))

    def _step(self, event: group_events.Event) -> Answers:
        self._coordinator, replies = group_coordinator.step(
            self._coordinator, event, self._now_ms / 1000
        )
        return {str(one.number): answer_json(one.response) for one in replies}

    def apply(self, number: int, event: Event) -> tuple[Answers, Any]:
        """Return the answers that an event causes, and the group's state after it."""
        answers: Answers = {}
        match event["op"]:
            case "advance":
                target = self._now_ms + event["ms"]
                while (due := group_coordinator.next_deadline(self._coordinator)) * 1000 <= target:
                    self._now_ms = round(due * 1000)
                    answers.update(self._step(group_events.Tick()))
                self._now_ms = target
            case "resign":
                self._records = group_coordinator.stored(self._coordinator, self._place)
                answers = self._step(group_events.Resigned(self._place))
            case "elect":
                answers = self._step(group_events.Elected(self._place))
            case "load":
                answers = self._step(group_events.Loaded(self._place, self._records))
            case "topics":
                topics = {
                    name: Topic(count, id=(1, TOPICS.index(name)))
                    for name, count in event["topics"].items()
                }
                answers = self._step(group_events.TopicsChanged(topics))
            case _:
                request = request_of(event)
                client, fresh = event.get("client", "client"), event.get("fresh", "")
                received = group_events.Received(number, request, client, fresh)
                answers = self._step(received)
        return answers, self._state()

    def _state(self) -> Any:
        partition = self._coordinator.partitions.get(self._place)
        if partition is None:
            return {"error": 16}
        if partition.loading:
            return {"error": 14}
        group = partition.groups.get(self._group)
        if group is None:
            return {"state": "Dead", "members": []}
        if isinstance(group, ConsumerGroup):
            return {
                "state": group.phase.value,
                "epoch": group.epoch,
                "target_epoch": group.target_epoch,
                "members": {
                    name: [
                        one.current.epoch,
                        plain(one.current.assigned),
                        plain(group.target.get(name, ())),
                    ]
                    for name, one in sorted(group.members.items())
                },
            }
        return {"state": group.phase.value, "members": sorted(group.members)}


def request_of(event: Event) -> messages.Request:
    """Return the request of an event."""
    group = event["group"]
    match event["op"]:
        case "join":
            return messages.JoinGroup(
                group,
                event["member"],
                tuple(
                    messages.Protocol(one, bytes.fromhex(data)) for one, data in event["protocols"]
                ),
                event["instance"],
                event["session"] / 1000,
                event["rebalance"] / 1000,
                event["type"],
                event["version"],
            )
        case "sync":
            return messages.SyncGroup(
                group,
                event["member"],
                event["generation"],
                {one: bytes.fromhex(data) for one, data in event["assignments"].items()},
                event["instance"],
                event["type"],
                event["protocol"],
            )
        case "heartbeat":
            return messages.Heartbeat(
                group, event["member"], event["generation"], event["instance"]
            )
        case "leave":
            return messages.LeaveGroup(
                group, tuple(messages.Leaver(one, instance) for one, instance in event["leavers"])
            )
        case "commit":
            offsets = {
                TopicPartition(topic, number): OffsetAndMetadata(offset)
                for topic, number, offset in event["offsets"]
            }
            return messages.OffsetCommit(
                group, offsets, event["member"], event["generation"], event["instance"]
            )
        case "fetch":
            return messages.OffsetFetch(group, None, event["member"], event["epoch"])
        case "beat":
            timeout = event["rebalance"]
            owned = event["owned"]
            return messages.ConsumerGroupHeartbeat(
                group,
                event["member"],
                event["epoch"],
                event["instance"],
                None,
                None if timeout is None else timeout / 1000,
                None if event["topics"] is None else tuple(event["topics"]),
                event["assignor"],
                None if owned is None else frozenset(TopicPartition(*one) for one in owned),
            )
    raise ValueError(event["op"])


def answer_json(response: messages.Response) -> dict[str, Any]:
    """Return a response in the format in which the live coordinator's answers are written."""
    found: dict[str, Any] = {"error": int(response.error)}
    match response:
        case messages.Joined():
            found |= {
                "member": response.member,
                "generation": response.generation,
                "type": response.protocol_type,
                "protocol": response.protocol,
                "leader": response.leader,
                "skip": response.skip_assignment,
                "members": [
                    [one.member, one.instance, one.metadata.hex()] for one in response.members
                ],
            }
        case messages.Synced():
            found |= {
                "assignment": response.assignment.hex(),
                "type": response.protocol_type,
                "protocol": response.protocol,
            }
        case messages.Left():
            found["leavers"] = [
                [one.member, one.instance, int(error)] for one, error in response.leavers
            ]
        case messages.ConsumerGroupAnswer():
            found |= {"member": response.member, "epoch": response.epoch}
            if response.assignment is not None:
                return {**short(found), "assignment": plain(response.assignment)}
        case messages.OffsetsFetched():
            found["offsets"] = sorted(
                [*one, stored.offset] for one, stored in response.offsets.items()
            )
    return short(found)


def plain(partitions: Iterable[TopicPartition]) -> list[list[Any]]:
    """Return partitions as JSON."""
    return sorted(list(one) for one in partitions)


def short(answer: dict[str, Any]) -> dict[str, Any]:
    """Leave out empty values, and a generation of -1, which stands for "none"."""
    return {
        name: value
        for name, value in answer.items()
        if value not in (None, "", 0, [], False) and (name, value) != ("generation", -1)
    }
