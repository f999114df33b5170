"""A real ZooKeeper with SASL, and with a TLS port that requires certificates."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER

USER, PASSWORD = "alice", "canary-sasl-1f7d"
KEY_PASSWORD = "canary-key-93ab"
_DAY = datetime.timedelta(days=1)


class Authority:
    """Issues certificates into a directory as `NAME.pem`, with the key in `NAME.key`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = directory / f"{name}.pem"
        certificate = self._certificate(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._write(self.file, certificate)

    def issue(self, name: str, *, host: str | None = None, password: str = "") -> Path:
        """Issue a certificate, for the address `host` if it is given; return the file."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(_name(name), key)
        if host is not None:
            address = x509.IPAddress(ipaddress.ip_address(host))
            certificate = certificate.add_extension(
                x509.SubjectAlternativeName([address]), critical=False
            )
        file = self._directory / f"{name}.pem"
        self._write(file, certificate)
        secret = password.encode()
        file.with_suffix(".key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(secret)
                if secret
                else serialization.NoEncryption(),
            )
        )
        return file

    def revoke(self, file: Path, *certificates: Path, days: int = 1) -> Path:
        """Write the list of revoked certificates, which is valid for `days` from now; return it."""
        now = datetime.datetime.now(datetime.UTC)
        listed = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 2 * _DAY)
            .next_update(now + days * _DAY)
        )
        for one in certificates:
            number = x509.load_pem_x509_certificate(one.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(number)
            listed = listed.add_revoked_certificate(revoked.revocation_date(now - _DAY).build())
        signed = listed.sign(self._key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return file

    def _certificate(self, subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )

    def _write(self, file: Path, certificate: x509.CertificateBuilder) -> None:
        signed = certificate.sign(self._key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


class SecureZooKeeper:
    """A secured server as a context manager; `connect` is the TLS port, `plain` the plain port."""

    def __init__(
        self,
        directory: Path,
        *,
        host: str = HOST,
        release: str = DEFAULT_ZOOKEEPER,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        server = self.authority.issue("server", host=host)
        self.client = self.authority.issue("client", password=KEY_PASSWORD)
        chain = directory / "server-chain.pem"
        chain.write_bytes(server.with_suffix(".key").read_bytes() + server.read_bytes())
        jaas = directory / "jaas.conf"
        jaas.write_text(
            "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
            f'user_{USER}="{PASSWORD}"; }};\n'
        )
        port = free_port()
        self.connect = f"{HOST}:{port}"
        self.plain = ZooKeeperServer(
            directory / "server",
            release=release,
            tick_time_s=0.1,
            settings={
                "secureClientPort": port,
                "secureClientPortAddress": HOST,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": chain,
                "ssl.trustStore.location": self.authority.file,
                "ssl.clientAuth": "need",
                "ssl.hostnameVerification": "false",
                "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            },
            # From 3.9 on, a server accepts SASL DIGEST-MD5 only if FIPS mode is off.
            properties={
                "java.security.auth.login.config": jaas,
                "zookeeper.fips-mode": "false",
                **(properties or {}),
            },
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the properties with which a member can connect."""
        return {
            "zookeeper_connect": self.connect,
            "zookeeper_ssl_enable": True,
            "zookeeper_ssl_ca": str(self.authority.file),
            "zookeeper_ssl_certificate": str(self.client),
            "zookeeper_ssl_key": str(self.client.with_suffix(".key")),
            "zookeeper_ssl_key_password": KEY_PASSWORD,
        }

    def __enter__(self) -> Self:
        self.plain.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.plain.stop()


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
