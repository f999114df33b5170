"""Texts for the pictures of a group that uses ZooKeeper: moves and messages in a few words."""

from __future__ import annotations

from zkconsumer.consumer.executor import Resume, WatchFired
from zkconsumer.consumer.loop import SessionChanged
from zkconsumer.lab.worlds import LAB_MOVES, LabMove
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Json
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim.plan import Do
from zkconsumer.sim.world import World


def short(path: str) -> str:
    """Return a path without the prefix of the group."""
    parts = path.split("/", 3)
    return parts[3] if len(parts) == 4 and parts[1] == "consumers" else path


def request_text(request: Json) -> str:
    """Describe a request in a few words."""
    match request:
        case rq.Multi(writes=writes):
            shown = next((one for one in writes if not isinstance(one, rq.Check)), writes[0])
            more = sum(not isinstance(one, rq.Check) for one in writes) - 1
            return request_text(shown) + (f" and {more} more" if more > 0 else "")
        case rq.SyncLeader():
            return "sync with the leader"
        case rq.FetchOffsets():
            return "read offsets from Kafka"
        case rq.StoreOffsets():
            return "store offsets in Kafka"
    verb = _VERBS.get(type(request))
    return type(request).__name__ if verb is None else f"{verb} {short(request.path)}"


_VERBS = {
    rq.Get: "read",
    rq.Exists: "look for",
    rq.Children: "list",
    rq.Listing: "list",
    rq.Rights: "read the rights of",
    rq.Create: "create",
    rq.SetData: "write",
    rq.Delete: "delete",
    rq.Check: "check",
}


def item_text(item: object) -> str:
    """Describe an item of a member's inbox in a few words."""
    match item:
        case WatchFired(kind, path):
            return f"watch: {short(path)} {kind.lower()}"
        case Resume(replies=replies):
            return f"{len(replies)} replies" if len(replies) != 1 else "reply"
        case SessionChanged(session=session):
            return "disconnected" if session is None else "connected"
        case (_, Reply()):
            return "reply"
    return _spaced(type(item).__name__)


def _spaced(name: str) -> str:
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name).strip()


_SENTENCES: dict[Do, str] = {
    Do.JOIN: "{0} starts",
    Do.LEAVE: "{0} is shut down",
    Do.CONNECT: "{0} connects to ZooKeeper",
    Do.NOTICE: "{0} finds its connection broken",
    Do.READ: "{0} reads one more reply from the broken connection",
    Do.OVERTAKE: "{0} handles the connection change before older replies",
    Do.POST: "a preempted thread of {0} runs again",
    Do.NEXT_MESSAGE: "the user of {0} asks for a message",
    Do.COMMIT: "the user of {0} commits",
    Do.CUT: "the connection of {0} breaks",
    Do.BLACK_HOLE: "the network drops everything from and to {0}",
    Do.END_BLACK_HOLE: "the network of {0} works again",
    Do.EXPIRE: "ZooKeeper ends the session of {0}",
    Do.KILL: "{0} gets SIGKILL",
    Do.FREEZE: "{0} gets SIGSTOP",
    Do.THAW: "{0} gets SIGCONT",
    Do.SLOW: "the user of {0} does not finish its message",
    Do.END_SLOW: "the user of {0} finishes its messages again",
    Do.REVIVE: "{0} starts again under its id",
    Do.DELETE_ID: "another client deletes the id znode of {0}",
    Do.DELETE_OWNER: "another client deletes the owner znode of {1}",
    Do.EDIT: "an operator sets the offset of {1} to 0, and marks the edit",
    Do.ZOMBIE: "a former owner commits offset 0 of {1}",
    Do.LATE_COMMIT: "a former owner commits all delivered messages of {1}",
    Do.CORRUPT_OFFSET: "another client writes an unreadable offset of {1}",
    Do.REPAIR: "an operator makes the offset of {1} readable",
    Do.STUCK: "another client's session claims {1}",
    Do.ORPHAN: "another client creates a persistent owner znode of {1}",
    Do.UNSTICK: "the other client's owner znode of {1} is deleted",
    Do.GROW: "a partition is added",
    Do.DELETE_TOPIC: "the topic is deleted",
    Do.CREATE_TOPIC: "the topic is created",
    Do.NO_BROKERS: "the broker's znode is gone",
    Do.BROKERS: "the broker's znode is back",
    Do.BAD_REGISTRATION: "another client registers an unreadable payload",
    Do.DELETE_BAD_REGISTRATION: "the unreadable registration is deleted",
    Do.REGISTER_EMPTY: "another client registers without a payload",
    Do.WRITE_PAYLOAD: "the client that registered empty writes its payload",
    Do.PEER_LEAVES: "that client leaves the group",
    Do.LAG: "server {2} lags behind its leader",
    Do.CATCH_UP: "server {2} catches up",
    Do.ISOLATE: "server {2} loses its leader and keeps its clients",
    Do.REJOIN: "server {2} finds its leader again",
    Do.NO_QUORUM: "ZooKeeper loses its quorum",
    Do.QUORUM: "ZooKeeper has a leader again",
    Do.RESTART: "all servers of ZooKeeper restart",
    Do.LOSE_DATA: "all servers of ZooKeeper restart with the data of an old backup",
    Do.KAFKA_DOWN: "the offset coordinator fails",
    Do.KAFKA_UP: "the offset coordinator works again",
    Do.CRASH_CLIENT: "the ZooKeeper client of {0} ends with an exception",
    Do.LOCK_OUT: "ZooKeeper refuses the credential of {0}",
    Do.ADMIT: "ZooKeeper accepts the credential of {0} again",
    Do.TAKE_ID: "another client takes over the id znode of {0}",
    Do.FREE_ID: "the other client deletes the id znode of {0}",
}


def sentence(world: World, move: LabMove) -> str:
    """Return a sentence that describes a move before it is performed."""
    name = world.members[move.who].name if 0 <= move.who < len(world.members) else ""
    action = move.action
    if action is None:
        at = int(move.value)
        if move.do == "delay_request":
            return f"{spoken(move, name)}: {request_text(world.members[move.who].wire[at][1])}"
        if move.do == "delay_reply":
            return f"{spoken(move, name)}: {item_text(world.members[move.who].inbox[at])}"
        return spoken(move, name)
    if action.do is Do.SERVE:
        wire = world.members[move.who].wire
        return f"ZooKeeper executes for {name}: {request_text(wire[0][1])}" if wire else name
    if action.do is Do.RECEIVE:
        inbox = world.members[move.who].inbox
        return f"{name} receives: {item_text(inbox[0])}" if inbox else name
    if action.do is Do.TIME:
        return f"time advances to {max(world.now, world.next_moment()):.2f} s"
    return spoken(move, name)


def spoken(move: LabMove, name: str) -> str:
    """Return a sentence that describes a move on the member with this name, or on the object that
    the move names.
    """
    action = move.action
    if action is not None:
        words: str = _SENTENCES.get(action.do, action.do.value.replace("_", " ") + " {0}")
        return words.format(name or move.tp or "", move.tp, move.who).rstrip()
    words = _OF_THE_LAB.get(move.do, LAB_MOVES[move.do])
    return words.format(name, move.tp, move.who, move.value)


_OF_THE_LAB = {
    "produce": "each partition gets new messages: {3:g}",
    "pass_time": "time advances to {3:.2f} s",
    "set_offset": "another client writes offset {3:g} of {1}",
    "hold": "the network delays requests and replies of {0}",
    "let_go": "the network of {0} is fast again",
    "lose_reply": "the next reply to {0} will be lost",
    "delay_request": "the network delays a request of {0}, and those behind it",
    "delay_reply": "the network delays a reply or watch to {0}, and those behind it",
    "coordinate": "broker {2} becomes the coordinator",
    "kill_broker": "broker {2} dies",
    "revive_broker": "broker {2} starts again",
    "remove": "an operator removes {0} from the group",
}
