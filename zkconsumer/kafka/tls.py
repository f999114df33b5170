"""TLS of the columnar reader, from librdkafka's properties `ssl.*`.

Python's `ssl` and librdkafka both use OpenSSL. This module makes the calls of OpenSSL that
librdkafka makes for the same properties (librdkafka 2.16: `rdkafka_ssl.c`), so both readers accept
and refuse the same brokers. `config.kafka_properties.BY_BOTH` lists the properties.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from zkconsumer.config.kafka_properties import is_true
from zkconsumer.errors import ConfigError

# The value of `ssl.ca.location` that stands for the system's authorities.
_PROBE: Final = "probe"

# Maximum size of a PEM text in bytes. A chain of certificates is shorter; a longer text is refused,
# because it would fill the memory file below.
_LARGEST_PEM: Final = 1 << 20


# The remedy for a broker's certificate that is not trusted.
TRUST_REMEDY: Final = (
    "set kafka.ssl.ca.location to the file of the authority that issued the certificate, and check "
    "that the certificate names this host and is not revoked"
)


def trust_shown(settings: Mapping[str, object]) -> str:
    """Return the properties that decide which certificates are trusted, with their values."""
    location = settings.get("ssl.ca.location", "(text)" if "ssl.ca.pem" in settings else "")
    revoked = settings.get("ssl.crl.location")
    return f"kafka.ssl.ca.location={location}" + (
        f", kafka.ssl.crl.location={revoked}" if revoked else ""
    )


def tls_context(settings: Mapping[str, object]) -> ssl.SSLContext:
    """Return the context for connections to brokers.

    `settings` are librdkafka's properties. Raises ConfigError, which names the property, if a file
    cannot be read or a value is invalid.
    """
    # `ssl.create_default_context` would set flags that librdkafka does not set, and that differ
    # between Python's releases.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if not is_true(settings.get("enable.ssl.certificate.verification", True)):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _trust(context, settings)
    if ciphers := settings.get("ssl.cipher.suites"):
        with _naming("ssl.cipher.suites", settings):
            context.set_ciphers(str(ciphers))
    _present(context, settings)
    return context


def _trust(context: ssl.SSLContext, settings: Mapping[str, object]) -> None:
    """Load the authorities and the list of revoked certificates."""
    location = str(settings.get("ssl.ca.location") or "")
    text = str(settings.get("ssl.ca.pem") or "")
    if location and location != _PROBE:
        with _naming("ssl.ca.location", settings):
            is_directory = Path(location).is_dir()
            context.load_verify_locations(
                cafile=None if is_directory else location,
                capath=location if is_directory else None,
            )
    elif not text:
        context.load_default_certs()
    if text:
        with _naming("ssl.ca.pem", settings):
            context.load_verify_locations(cadata=text)
    if revoked := settings.get("ssl.crl.location"):
        with _naming("ssl.crl.location", settings):
            context.load_verify_locations(cafile=str(revoked))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _present(context: ssl.SSLContext, settings: Mapping[str, object]) -> None:
    """Load the certificate and the key of this client, if the properties name them."""
    password = str(settings.get("ssl.key.password") or "")
    with ExitStack() as files:
        certificate, key = (
            str(settings.get(f"ssl.{one}.location") or "")
            or files.enter_context(_as_file(str(settings.get(f"ssl.{one}.pem") or "")))
            for one in ("certificate", "key")
        )
        if not certificate and not key:
            return
        names = [
            name
            for name in settings
            if name.startswith(("ssl.certificate.", "ssl.key.")) and name != "ssl.key.password"
        ]
        with _naming(" and kafka.".join(sorted(names)), settings):
            # Without a password, OpenSSL would ask on the terminal.
            context.load_cert_chain(certificate or key, key or None, lambda: password)


@contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """Yield the path of a temporary file with this text; "" without text.

    Python's `ssl` loads a client's certificate and key only from files. On Linux the file is in
    memory, so the key is not written to a disk.
    """
    if not pem:
        yield ""
        return
    data = pem.encode()
    if len(data) > _LARGEST_PEM:
        raise ConfigError(f"a PEM text has {len(data)} bytes; the limit is {_LARGEST_PEM}")
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("zkconsumer-pem"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/dev/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory() as private:  # only this user can open the directory
        path = Path(private, "pem")
        path.write_bytes(data)
        yield str(path)


@contextmanager
def _naming(name: str, settings: Mapping[str, object]) -> Iterator[None]:
    """Turn the errors of OpenSSL and of files into a ConfigError that names the property."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"kafka.{name} cannot be used: {error}",
            where=", ".join(
                f"kafka.{one}={settings[one]}"
                for one in name.split(" and kafka.")
                if not one.endswith(".pem")
            ),
            remedy="correct the property, or the file that it names",
        ) from error
