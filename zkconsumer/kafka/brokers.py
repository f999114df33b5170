"""From the brokers registered in ZooKeeper to the settings with which librdkafka reaches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from zkconsumer.core.paths import BROKER_IDS
from zkconsumer.core.records import Broker
from zkconsumer.errors import FetchError

PLAINTEXT: Final = "PLAINTEXT://"

# Version of the registration -> the release whose protocol is spoken without asking. Brokers before
# 0.10 close the connection when they are asked which versions they know (KIP-35), so they must not
# be asked. Registrations from version 3 on come from 0.10 and later, which answer.
_SILENT: Final = {1: "0.8.2.2", 2: "0.9.0.1"}


def broker_settings(brokers: Sequence[Broker]) -> dict[str, str | bool]:
    """librdkafka's `bootstrap.servers` and protocol settings for a cluster.

    The oldest broker decides the protocol: newer ones still speak it, and a rolling upgrade has
    both. Brokers without a PLAINTEXT endpoint are left out; the JVM (`kafka.cluster.Broker`, 0.9
    to 1.1) refuses the whole cluster for one of them. Raises FetchError when no broker has one;
    an empty `brokers` is the caller's waiting state and gives no servers.
    """
    found = servers(brokers)
    if brokers and not found:
        offered = ", ".join(end for one in brokers for end in one.endpoints) or "none"
        raise FetchError(
            "no broker has a PLAINTEXT endpoint, and the old consumer speaks nothing else",
            where=f"{BROKER_IDS}; offered: {offered}",
            remedy="add a PLAINTEXT listener to the brokers",
        )
    settings: dict[str, str | bool] = {"bootstrap.servers": ",".join(found)}
    release = _SILENT.get(max(1, min((one.version for one in brokers), default=3)))
    if release is None:
        settings["api.version.request"] = True
    else:
        settings["api.version.request"] = False
        settings["broker.version.fallback"] = release
    return settings


def servers(brokers: Iterable[Broker]) -> list[str]:
    """The `host:port` of all PLAINTEXT endpoints, each once, in their order."""
    return list(dict.fromkeys(server for one in brokers for server in _plaintext(one)))


def _plaintext(broker: Broker) -> Iterator[str]:
    """The `host:port` of each PLAINTEXT endpoint; of `host` and `port` where none is listed."""
    listed = [end.removeprefix(PLAINTEXT) for end in broker.endpoints if end.startswith(PLAINTEXT)]
    if listed:
        yield from listed
    elif broker.host and broker.port > 0:
        # Version 1 has nothing else; later ones fill these from their first PLAINTEXT endpoint,
        # also when the listener has another name (KIP-103).
        host = f"[{broker.host}]" if ":" in broker.host else broker.host
        yield f"{host}:{broker.port}"
