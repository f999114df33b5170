"""Checks the `kafka.` properties before the first connection to a broker."""

from __future__ import annotations

import logging
from typing import Final

from zkconsumer.config.kafka_properties import is_true
from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
from zkconsumer.errors import ConfigError
from zkconsumer.kafka.client_settings import without_columns
from zkconsumer.kafka.tls import tls_context
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

# ---- properties ----------------------------------------------------------------------------------

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


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
        from zkconsumer.kafka.refusals import check  # noqa: PLC0415 - imports librdkafka

        check({**config.kafka, "security.protocol": _expected_protocol(config)})
    if not is_true(config.kafka.get("enable.ssl.certificate.verification", True)):
        logger.warning("TLS to the brokers: no certificate is checked (insecure)")
    elif str(config.kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        logger.warning("TLS to the brokers: the host name is not checked (insecure)")


def _only_columns(config: ConnectionConfig) -> bool:
    """Return whether only the columnar reader connects to the brokers."""
    return isinstance(config, ConsumerConfig) and (
        (config.fetch_engine, config.offsets_storage) == ("columns", "zookeeper")
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
