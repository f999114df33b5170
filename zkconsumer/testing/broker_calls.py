"""A request at a fake broker that waits for its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from zkconsumer.testing.broker_versions import BrokerProfile
from zkconsumer.testing.clock import Clock
from zkconsumer.testing.controller import Controller
from zkconsumer.testing.messages import Api
from zkconsumer.testing.server import ServerEngine
from zkconsumer.testing.wire import WireMessage


@dataclass(eq=False)
class BrokerCall:
    """A request that a broker has received.

    Attributes:
        api: the kind of request.
        version: the version of the request and of its response.
        client: the client's `client.id`.
        request: the request's content.
        answer: sends the response; None ends the call without a response.
    """

    api: Api
    version: int
    client: str
    request: WireMessage
    answer: Callable[[WireMessage | None], object]


@dataclass(frozen=True)
class Site:
    """What the parts of one broker share.

    Attributes:
        id: the broker's id.
        creates_topics: whether a Metadata request creates a topic that it names.
    """

    id: int
    profile: BrokerProfile
    controller: Controller
    clock: Clock
    engine: ServerEngine
    creates_topics: bool

    @property
    def now_ms(self) -> int:
        """The time in ms since 1970."""
        return round(self.clock.now() * 1000)


Handler: TypeAlias = Callable[[Any, BrokerCall], WireMessage | None]  # Any: the request's own class
"""Returns the response, or None if the handler calls `BrokerCall.answer` itself, now or later."""

Handlers: TypeAlias = Mapping[int, Handler]
