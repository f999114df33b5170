"""Access to secured brokers: checks the properties, and turns each refusal into one error.

If a broker refuses a connection, librdkafka retries it without a limit and reports each attempt.
zkconsumer raises an error at the first report, because retries fail until a password or a
certificate is corrected.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException

from zkconsumer.config.kafka_properties import is_true
from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
from zkconsumer.errors import BrokerAccessError, BrokersUnreachableError, ConfigError, FetchError
from zkconsumer.kafka.client_settings import mechanism_of, without_columns
from zkconsumer.kafka.tls import TRUST_REMEDY, tls_context, trust_shown

Client: TypeAlias = Any
"""A consumer or an admin client of librdkafka. The two classes have no common base class."""

logger = logging.getLogger(__name__)

# ---- properties ----------------------------------------------------------------------------------

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_NO_PROVIDER: Final = "No provider for SASL mechanism GSSAPI"


def check_properties(config: ConnectionConfig) -> None:
    """Check the `kafka.` properties, and the files that they name; log a warning for insecure ones.

    librdkafka checks them, unless only the columnar reader connects to the brokers. Raises
    ConfigError.
    """
    if not config.kafka:
        return
    engine = config.fetch_engine if isinstance(config, ConsumerConfig) else "librdkafka"
    refused = None if engine == "librdkafka" else without_columns(config.kafka)
    if refused is not None:
        if engine == "columns":
            raise ConfigError(refused.what, where=refused.where, remedy=refused.remedy)
        logger.info("columns are read through librdkafka, because %s", refused.what)
    if _only_columns(config):
        tls_context(config.kafka)
    else:
        try:
            _check({**config.kafka, "security.protocol": _expected_protocol(config)})
        except (KafkaException, TypeError, ValueError) as error:
            raise invalid(error) from error
    if not is_true(config.kafka.get("enable.ssl.certificate.verification", True)):
        logger.warning("TLS to the brokers: no certificate is checked (insecure)")
    elif str(config.kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        logger.warning("TLS to the brokers: the host name is not checked (insecure)")


def _check(settings: Mapping[str, object]) -> None:
    quiet = {"group.id": "zkconsumer", "log_level": 2, "error_cb": lambda error: None}
    Consumer({**settings, **quiet}).close()


def _only_columns(config: ConnectionConfig) -> bool:
    """Return whether only the columnar reader connects to the brokers."""
    return isinstance(config, ConsumerConfig) and (
        (config.fetch_engine, config.offsets_storage) == ("columns", "zookeeper")
    )


def is_for_columns(error: ConfigError, config: ConnectionConfig | None) -> bool:
    """Return whether librdkafka lacks GSSAPI, and the columnar reader can log in instead of it.

    `error` is the error for the properties that librdkafka refuses.
    """
    return (
        config is not None
        and _NO_PROVIDER in error.what
        and mechanism_of(config.kafka) == "GSSAPI"
        and all(find_spec(name) is not None for name in ("pyarrow", "google_crc32c", "gssapi"))
    )


def _expected_protocol(config: ConnectionConfig) -> str:
    """Return the security protocol with which librdkafka checks the properties.

    The real protocol depends on the brokers' listener, which is read from ZooKeeper only later.
    """
    listener = (config.broker_listener or "").upper()
    if "security.protocol" in config.kafka or listener in _PROTOCOLS:
        return str(config.kafka.get("security.protocol", listener))
    if any(name.startswith("sasl.") for name in config.kafka):
        return "SASL_SSL"
    return "SSL" if any(name.startswith("ssl.") for name in config.kafka) else "PLAINTEXT"


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
    """An `error_cb` that stores why the brokers refuse a client's connections.

    librdkafka calls it within `poll` and `consume`.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self.last: BrokerAccessError | None = None

    def __call__(self, error: KafkaError) -> None:
        self.last = refusal(error, self._settings) or self.last

    def explain(self, client: Client, error: KafkaException) -> FetchError:
        """Return the error for a failed request of `client`: a refusal, if one was stored."""
        client.poll(0)
        known, self.last = self.last, None
        return known or BrokersUnreachableError(
            f"the brokers do not answer: {error.args[0].str()}",
            remedy="check that they are running and reachable",
        )
