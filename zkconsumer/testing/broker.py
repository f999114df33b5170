"""A fake Kafka broker: its port, the requests that arrive there, and its faults.

The modules whose names begin with `broker_` answer the requests. A request that the release does
not have, or that no fake broker serves, is refused by its name in the log.

Kafka: `kafka.network.SocketServer` and `kafka.server.KafkaApis`.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final

from zkconsumer.errors import FakeServerError
from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.testing import messages as ms
from zkconsumer.testing import wire
from zkconsumer.testing.broker_calls import BrokerCall, Handler, Site
from zkconsumer.testing.broker_groups import GroupRequests
from zkconsumer.testing.broker_logs import LogRequests
from zkconsumer.testing.broker_topics import TopicRequests
from zkconsumer.testing.broker_transactions import TransactionRequests, Transactions
from zkconsumer.testing.broker_versions import API_VERSIONS
from zkconsumer.testing.cluster_metadata import LiveBroker
from zkconsumer.testing.errors import ErrorCode
from zkconsumer.testing.faults import Delay, Fault, Injection, Injections
from zkconsumer.testing.messages import APIS, Api
from zkconsumer.testing.server import HOST, FramedConnection, Port
from zkconsumer.testing.wire import STRING, WireMessage

# Requests of Kafka 3.9 that no fake broker serves, for the log.
_OTHERS: Final[Mapping[int, str]] = {
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    17: "SaslHandshake",
    23: "OffsetForLeaderEpoch",
    25: "AddOffsetsToTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    34: "AlterReplicaLogDirs",
    35: "DescribeLogDirs",
    36: "SaslAuthenticate",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    48: "DescribeClientQuotas",
    60: "DescribeCluster",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    66: "ListTransactions",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    71: "GetTelemetrySubscriptions",
}

logger = SafeLogger(logging.getLogger(__name__))


class _Connection(FramedConnection):
    """A client's connection; like a real broker, it handles one request after the other."""

    max_frame_bytes = 104_857_600  # the default of socket.request.max.bytes

    def __init__(self, port: Port, broker: FakeBroker) -> None:
        super().__init__(port)
        self._broker = broker
        self._requests: deque[bytes] = deque()
        self._held: list[tuple[bytes | None, float]] = []
        self._is_busy = self._is_working = False

    def received(self, frame: bytes) -> None:
        """Handle a request when those before it have been answered."""
        self._requests.append(frame)
        self._work_off()

    def _work_off(self) -> None:
        if self._is_working:
            return
        self._is_working = True
        while self._requests and not self._is_busy and self.is_open:
            self._is_busy = True
            self._broker._serve(self, self._requests.popleft())
        self._is_working = False

    def work(self) -> None:
        """Continue after `pause`, or handle what has arrived."""
        held, self._held = self._held, []
        for response, delay_s in held:
            self.respond(response, delay_s=delay_s)
        super().work()

    def respond(self, response: bytes | None, *, delay_s: float = 0.0) -> None:
        """Send the response to the current request, if it has one, and begin the next.

        A frozen broker sends the response when it continues.
        """
        if self.port.is_paused:
            self._held.append((response, delay_s))
            return
        self._is_busy = False
        if response is not None and self.is_open:
            self.send(response, delay_s=delay_s)
        self._work_off()


class FakeBroker:
    """One broker of a `FakeCluster`, which makes it. Its methods may be called on any thread.

    Attributes:
        id: the broker's id.
        release: its release, such as `0.8.2.2`.
    """

    def __init__(self, site: Site, transactions: Transactions) -> None:
        self.id, self.release = site.id, site.profile.release
        self._site = site
        self._port = Port(site.engine, lambda at: _Connection(at, self), 0)
        self._injections: Injections[BrokerCall] = Injections()
        self._groups = GroupRequests(site)
        parts = (
            LogRequests(site),
            TopicRequests(site),
            TransactionRequests(site, transactions),
            self._groups,
        )
        self._handlers: dict[int, Handler] = {API_VERSIONS: self._api_versions}
        for part in parts:
            self._handlers |= part.handlers

    @property
    def groups(self) -> GroupRequests:
        """The groups that this broker coordinates."""
        return self._groups

    @property
    def bootstrap(self) -> str:
        """The broker's address, `127.0.0.1:port`."""
        return self._port.address

    @property
    def port(self) -> int:
        """The broker's port; 0 before its first start if the system chooses it."""
        return self._port.number

    @property
    def is_running(self) -> bool:
        """Whether clients can connect."""
        return self._port.is_listening

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, and register in ZooKeeper; do nothing if the broker is running.

        Raises:
            FakeServerError: another broker with this id is registered.
        """
        if self.is_running:
            return
        self._port.open()
        node = LiveBroker(self.id, HOST, self._port.number)
        try:
            self._site.engine.call(lambda: self._site.controller.register(node))
        except BaseException:
            self._port.close()
            raise
        self._site.clock.listen(self._advanced)

    def stop(self) -> None:
        """Stop the broker in an orderly way: its partitions get other leaders. Its logs stay."""
        self.kill()
        self._site.engine.call(lambda: self._site.controller.unregister(self.id))

    def kill(self) -> None:
        """End the broker as a crash does: until `expire`, it stays registered and the leader."""
        if self.is_running:
            self._site.clock.forget(self._advanced)
            self._port.close()

    def expire(self) -> None:
        """Let the broker's ZooKeeper session expire. A running broker registers again at once."""

        def expire() -> None:
            self._site.controller.unregister(self.id)
            if self.is_running:
                self._site.controller.register(LiveBroker(self.id, HOST, self._port.number))

        self._site.engine.call(expire)

    def restart(self) -> None:
        """Stop the broker in an orderly way, and start it again at the same port."""
        self.stop()
        self.start()

    # ---- faults ---------------------------------------------------------------------------------

    def inject(
        self,
        fault: Fault | Delay,
        request: str = "",
        *,
        client_id: str = "",
        times: int | None = 1,
    ) -> Injection[BrokerCall]:
        """Let a fault hit the next requests of a kind.

        Args:
            fault: what happens; `Fault` and `Delay` describe it.
            request: the kind of request, such as "Fetch" or "Produce"; "": every kind.
            client_id: the client whose requests are hit; "": every client.
            times: how many requests are hit; None: each one, until `cancel`.

        Raises:
            FakeServerError: no fake broker serves this kind of request.
        """
        names = sorted(api.name for api in APIS.values())
        if request and request not in names:
            raise FakeServerError(
                f"no fake broker serves {request}", remedy=f"choose one of {', '.join(names)}"
            )

        def fits(call: BrokerCall) -> bool:
            return request in ("", call.api.name) and client_id in ("", call.client)

        injection = Injection(fault, fits, times)
        return self._site.engine.call(lambda: self._injections.add(injection))

    def cut(self) -> None:
        """End all connections; clients can connect again."""
        self._site.engine.call(self._port.cut)

    def pause(self) -> None:
        """Freeze the broker: it accepts connections, and answers nothing until `resume`."""
        self._port.is_paused = True

    def resume(self) -> None:
        """End `pause`: the broker handles what has arrived during the pause."""
        self._site.engine.call(self._port.resume)

    def _advanced(self) -> None:
        self._site.engine.call(self._groups.tick)

    # ---- requests -------------------------------------------------------------------------------

    def _serve(self, connection: _Connection, frame: bytes) -> None:
        """Answer a request, now or later; end the connection if it cannot be read."""
        reader = FieldReader(memoryview(frame))
        try:
            key, version, number = reader.int16(), reader.int16(), reader.int32()
            api = APIS.get(key)
            client = STRING.old.read(reader) or ""
            highest = self._site.profile.versions.get(key, -1)
            if api is None or not 0 <= version <= highest:
                self._refuse(connection, key, version, number)
                return
            flexible = version >= api.flexible
            if flexible:
                wire.skip_tags(reader)
            request = wire.decode(api.request, version, reader, flexible=flexible)
        except MalformedError as error:
            logger.warning("broker %d: a request cannot be read: %s", self.id, error)
            connection.cut()
            return
        answer = partial(self._answer, connection, api, version, number)
        call = BrokerCall(api, version, client, request, answer)
        fault = self._injections.take(call)
        if fault is Fault.CUT_BEFORE:
            connection.cut()
            return
        if fault is Fault.CUT_AFTER:
            call.answer = lambda _: connection.cut()
        elif fault is Fault.SILENCE:
            connection.is_silent = True
        elif isinstance(fault, Delay):
            call.answer = partial(answer, delay_s=fault.seconds)
        response = self._handlers[key](request, call)
        if response is not None:
            call.answer(response)

    def _refuse(self, connection: _Connection, key: int, version: int, number: int) -> None:
        """Refuse a request that this release does not have, or that no fake broker serves."""
        if key == API_VERSIONS and API_VERSIONS in self._site.profile.versions:
            # The client tries again with version 0 (KIP-511).
            answer = self._versions(ErrorCode.UNSUPPORTED_VERSION)
            self._answer(connection, APIS[API_VERSIONS], 0, number, answer)
            return
        name = APIS[key].name if key in APIS else _OTHERS.get(key, f"request {key}")
        level = logging.DEBUG if key == API_VERSIONS else logging.WARNING
        logger.log(
            level,
            "broker %d: UNSUPPORTED_VERSION: a fake broker of release %s does not serve version %d"
            " of %s; the connection ends",
            *(self.id, self.release, version, name),
        )
        connection.close()

    def _answer(
        self,
        connection: _Connection,
        api: Api,
        version: int,
        number: int,
        response: WireMessage | None,
        *,
        delay_s: float = 0.0,
    ) -> None:
        if response is None:
            connection.respond(None)
            return
        flexible = version >= api.flexible
        # A client that does not know the broker's versions yet can read this header (KIP-511).
        tags = b"\0" if flexible and api.key != API_VERSIONS else b""
        head = struct.pack(">i", number) + tags
        body = wire.encode(response, version, flexible=flexible)
        connection.respond(head + body, delay_s=delay_s)

    def _api_versions(self, _request: ms.ApiVersionsRequest, _call: BrokerCall) -> WireMessage:
        return self._versions(ErrorCode.NONE)

    def _versions(self, code: ErrorCode) -> ms.ApiVersionsResponse:
        versions = self._site.profile.versions
        return ms.ApiVersionsResponse(
            error_code=code,
            api_keys=[
                ms.ApiVersion(api_key=key, min_version=0, max_version=highest)
                for key, highest in sorted(versions.items())
            ],
        )
