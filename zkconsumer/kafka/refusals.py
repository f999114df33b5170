"""Turns librdkafka's refusal of properties, and of brokers, into one error each.

If a broker refuses a connection, librdkafka retries it without a limit and reports each attempt.
zkconsumer raises an error at the first report, because retries fail until a password or a
certificate is corrected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from zkconsumer.errors import BrokerAccessError, ConfigError, FetchError
from zkconsumer.kafka.log_answers import unanswered
from zkconsumer.kafka.tls import TRUST_REMEDY, trust_shown

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_NO_PROVIDER: Final = "No provider for SASL mechanism GSSAPI"


def check(settings: Mapping[str, object]) -> None:
    """Let librdkafka check its properties, and the files that they name. Raises ConfigError."""
    quiet = {"group.id": "zkconsumer", "log_level": 2, "error_cb": lambda error: None}
    try:
        Consumer({**settings, **quiet}).close()
    except (KafkaException, TypeError, ValueError) as error:
        raise invalid(error) from error


def invalid(error: Exception) -> ConfigError:
    """Return the error for properties that librdkafka refuses."""
    cause = error.args[0] if error.args else error
    text = cause.str() if isinstance(cause, KafkaError) else str(cause)
    remedy = "correct the property; `zkconsumer docs configuration` links to librdkafka's list"
    if _NO_PROVIDER in text:
        remedy = (
            "install zkconsumer[fast,kerberos], and consume with fetch.engine=columns and "
            "offsets.storage=zookeeper; or build confluent-kafka with libsasl2: "
            "pip install --no-binary confluent-kafka confluent-kafka"
        )
    return ConfigError(
        f"librdkafka refuses the properties: {text.removeprefix('Failed to create consumer: ')}",
        where="kafka.*",
        remedy=remedy,
    )


# ---- refused connections -------------------------------------------------------------------------

# The parts of an error's text: the protocol, the server, the cause, and the connection's state.
_TEXT: Final = re.compile(r"(?:\w+://)?(?P<server>[^/ ]+)/\S+: (?P<cause>.*?)(?: \(after [^)]*\))?")

_LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})

TRANSPORT: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""Errors of a request that no broker has answered. librdkafka reports the causes to `error_cb`."""

# The maximum number of brokers that an error names.
_MOST_BROKERS: Final = 5

_LOGIN_REMEDIES: Final = {
    "OAUTHBEARER": "check kafka.sasl.oauthbearer.*, or the token that oauth_cb returns",
    "GSSAPI": "check kafka.sasl.kerberos.* and the ticket",
}


def refusal(error: KafkaError, settings: Mapping[str, object]) -> BrokerAccessError | None:
    """Return the error of a broker that refuses the connection; None if `error` has another cause.

    `settings` are the client's settings.
    """
    match = _TEXT.fullmatch(error.str())
    server, cause = (match["server"], match["cause"]) if match else ("", error.str())
    broker = f"the broker {server}" if server else "a broker"
    if error.code() in _LOGIN:
        mechanism = str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms", "GSSAPI"))
        user = settings.get("sasl.username")
        return BrokerAccessError(
            f"{broker} refuses the login: {cause}",
            where=f"kafka.sasl.mechanism={mechanism}"
            + (f", kafka.sasl.username={user}" if user else ""),
            remedy=_LOGIN_REMEDIES.get(
                mechanism, "check kafka.sasl.username and kafka.sasl.password"
            ),
        )
    if "SSL alert" in cause:
        return BrokerAccessError(
            f"{broker} refuses the certificate of this client: {cause}",
            where=f"kafka.ssl.certificate.location={settings.get('ssl.certificate.location', '')}",
            remedy="set it and kafka.ssl.key.location to a certificate that the broker trusts",
        )
    if error.code() != KafkaError._SSL:
        return None
    if "certificate verify failed" in cause:
        return BrokerAccessError(
            f"the certificate of {broker} is not trusted, or is valid for another host",
            where=trust_shown(settings),
            remedy=TRUST_REMEDY,
        )
    return BrokerAccessError(
        f"no TLS connection to {broker}: {cause}",
        where=f"security protocol {settings.get('security.protocol', 'PLAINTEXT')}",
        remedy="set broker.listener to a listener that uses TLS",
    )


class Refusals:
    """An `error_cb` that stores why the brokers refuse a client's connections, and the last
    transport error of each broker.

    librdkafka calls it within `poll` and `consume`, and does not repeat an error that has not
    changed. The transport errors are therefore kept until the client ends.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self.last: BrokerAccessError | None = None
        self._transport: dict[str, str] = {}

    def __call__(self, error: KafkaError) -> None:
        self.last = refusal(error, self._settings) or self.last
        match = _TEXT.fullmatch(error.str())
        if match and error.code() in TRANSPORT:
            self._transport[match["server"]] = match["cause"]

    def at(self, client: Consumer | AdminClient, server: str) -> str:
        """Return the last transport error of a broker (`host:port`), or an empty string."""
        client.poll(0)
        return self._transport.get(server, "")

    def explain(self, client: Consumer | AdminClient, error: KafkaException) -> FetchError:
        """Return the error for a failed request of `client`: a refusal, if one was stored.

        The text says that the brokers do not answer only if the request had no answer.
        """
        client.poll(0)
        known, self.last = self.last, None
        if known is not None:
            return known
        cause = error.args[0]
        if cause.code() not in TRANSPORT:
            return FetchError(f"the request to the brokers failed: {cause.str()}")
        causes = [f"{server}: {why}" for server, why in self._transport.items()]
        shown = "; ".join(causes[-_MOST_BROKERS:])
        if shown:
            return unanswered(shown)
        servers = str(self._settings.get("bootstrap.servers", ""))
        return unanswered(cause.str(), servers=servers)
