"""Real brokers with listeners for TLS and SASL, and a plain listener for the tests' tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from support.wait import eventually
from support.zk.secure import Authority
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.broker import BrokerServer
from zkconsumer.sandbox.ports import HOST, free_port

USER, PASSWORD = "alice", "canary-broker-77c1"
STORE_PASSWORD = "canary-store"
PROTOCOLS = {
    "SCRAM": "SASL_SSL",
    "MTLS": "SSL",
    "OAUTH": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "TLS12": "SSL",
    "OTHER": "SSL",
}
"""Listener of 3.9.1 -> its security protocol."""
_MODULES = "org.apache.kafka.common.security"


class SecureBroker:
    """A ZooKeeper and a broker of one release with secured listeners; a context manager.

    0.9.0.1 has SSL, 0.10.2.2 has SASL_PLAINTEXT with PLAIN. 3.9.1 has the listeners SCRAM
    (SASL_SSL), MTLS (SSL, with certificates of clients), OAUTH (SASL_PLAINTEXT), TLS (SSL), TLS12
    (only TLS 1.2 with one cipher suite) and OTHER (with a certificate for another address).
    """

    def __init__(self, directory: Path, *, release: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        self.client = self.authority.issue("client")
        self.unknown_client = self.stranger.issue("unknown")
        self.server = self.authority.issue("server", host=HOST)
        self.addresses: dict[str, str] = {}
        self.other_server = self.authority.issue("other-server", host="127.0.0.9")
        self._directory = directory
        self.sandbox = Sandbox(directory / "servers", release=release, tick_time_s=0.1)
        port = free_port()
        made = {"0.9.0.1": self._ssl, "0.10.2.2": self._plain, "3.9.1": self._modern}[release](port)
        overrides, properties = made
        self.sandbox.brokers = (
            BrokerServer(
                directory / "servers" / "broker-0",
                zookeeper_connect=self.sandbox.zookeeper_connect,
                port=port,
                release=release,
                overrides=overrides,
                properties=properties,
            ),
        )

    def _ssl(self, port: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return {
            "listeners": f"PLAINTEXT://{HOST}:{port},SSL://{HOST}:{free_port()}",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": pkcs12_of(self.server),
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
        }, {}

    def _plain(self, port: int) -> tuple[dict[str, Any], dict[str, Any]]:
        jaas = self._directory / "kafka-jaas.conf"
        jaas.write_text(
            f"KafkaServer {{ {_MODULES}.plain.PlainLoginModule required "
            f'username="admin" password="admin" user_{USER}="{PASSWORD}"; }};\n'
        )
        return {
            "listeners": f"PLAINTEXT://{HOST}:{port},SASL_PLAINTEXT://{HOST}:{free_port()}",
            "sasl.enabled.mechanisms": "PLAIN",
        }, {"java.security.auth.login.config": jaas}

    def _modern(self, port: int) -> tuple[dict[str, Any], dict[str, Any]]:
        names = {"PLAINTEXT": port, **{name: free_port() for name in PROTOCOLS}}
        self.addresses = {name: f"{HOST}:{one}" for name, one in names.items()}
        protocols = {"PLAINTEXT": "PLAINTEXT", **PROTOCOLS}
        return {
            "listeners": ",".join(f"{name}://{HOST}:{one}" for name, one in names.items()),
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": _with_key(self.server),
            "listener.name.other.ssl.keystore.type": "PEM",
            "listener.name.other.ssl.keystore.location": _with_key(self.other_server),
            "listener.name.tls12.ssl.enabled.protocols": "TLSv1.2",
            "listener.name.tls12.ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram."
            "ScramLoginModule required;",
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer."
            'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";',
        }, {}

    def settings(self, listener: str) -> dict[str, Any]:
        """Return keyword arguments of a configuration that connects to this listener."""
        tls = {"ssl.ca.location": str(self.authority.file)}
        login = {"sasl.username": USER, "sasl.password": PASSWORD}
        key = str(self.client.with_suffix(".key"))
        kafka: Mapping[str, Any] = {
            **dict.fromkeys(("SSL", "TLS", "TLS12", "OTHER"), tls),
            "SASL_PLAINTEXT": {"sasl.mechanism": "PLAIN", **login},
            "SCRAM": {"sasl.mechanism": "SCRAM-SHA-256", **login, **tls},
            "MTLS": {**tls, "ssl.certificate.location": str(self.client), "ssl.key.location": key},
            "OAUTH": {
                "sasl.mechanism": "OAUTHBEARER",
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": f"principal={USER}",
            },
        }[listener]
        return {
            "zookeeper_connect": self.sandbox.zookeeper_connect,
            "broker_listener": listener,
            "kafka": dict(kafka),
        }

    def __enter__(self) -> SecureBroker:
        self.sandbox.start()
        try:
            if self.sandbox.broker.release == "3.9.1":
                eventually(self._user_exists)
        except BaseException:
            self.sandbox.stop()
            raise
        return self

    def _user_exists(self) -> bool:
        """Create the user of SCRAM; a broker that has just started may not answer yet."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        user = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": self.sandbox.bootstrap, "log_level": 0})
        (done,) = admin.alter_user_scram_credentials([user], request_timeout=5.0).values()
        try:
            done.result(10.0)
        except (KafkaException, TimeoutError):
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self.sandbox.stop()


def _with_key(certificate: Path) -> Path:
    """Return a file with a certificate and its key."""
    file = certificate.with_name(f"{certificate.stem}-chain.pem")
    file.write_bytes(certificate.with_suffix(".key").read_bytes() + certificate.read_bytes())
    return file


def pkcs12_of(certificate: Path) -> Path:
    """Return a certificate and its key in the file format that JVMs before Kafka 2.7 read."""
    key: Any = serialization.load_pem_private_key(
        certificate.with_suffix(".key").read_bytes(), password=None
    )
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    file = certificate.with_suffix(".p12")
    kind = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    file.write_bytes(pkcs12.serialize_key_and_certificates(b"server", key, loaded, None, kind))
    return file
