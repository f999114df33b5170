"""TLS with certificates of both sides, and SASL, on a real ZooKeeper."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.internals import client_of
from support.members.group import SETTINGS, MemberUnderTest
from support.zk.secure import PASSWORD, USER, SecureZooKeeper

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.errors import AccessDeniedError, ConfigError, ZooKeeperUnreachableError
from zkconsumer.protocol import paths
from zkconsumer.sandbox import BrokerServer, ZooKeeperServer
from zkconsumer.sandbox.topics import ServerTopics
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.observer import Observer

SASL = {
    "zookeeper_auth_scheme": "sasl",
    "zookeeper_auth_credential": f"{USER}:{PASSWORD}",
    "zookeeper_acl": "creator",
}


def _config(secure: SecureZooKeeper, group: str, **more: Any) -> ConsumerConfig:
    return ConsumerConfig(group_id=group, **{**SETTINGS, **secure.settings, **more})


def _refused(secure: SecureZooKeeper, reason: str, **more: Any) -> None:
    """Check that a member cannot connect, and that its error has the reason, a regex."""
    said = ""
    for limit_s in (4.0, 60.0):  # A busy server may take longer than the first limit.
        with pytest.raises(ZooKeeperUnreachableError) as caught:
            ConsumerConnector(_config(secure, "g", zookeeper_connection_timeout_s=limit_s, **more))
        said = str(caught.value)
        if re.search(reason, said):
            return
    raise AssertionError(said)


@pytest.mark.parametrize("auth", [{}, SASL], ids=["certificate", "sasl"])
def test_a_member_joins_over_tls(
    secure: SecureZooKeeper,
    secure_broker: BrokerServer,
    unique: Callable[[str], str],
    auth: dict[str, Any],
) -> None:
    """Over TLS a member owns all partitions; with SASL its znodes belong to both identities."""
    topic, group = unique("topic"), unique("group")
    ServerTopics(secure.plain.connect).create_topic(topic, partitions=3)
    assert secure_broker.alive
    member = MemberUnderTest(_config(secure, group, **auth))
    try:
        member.subscribe(topic)
        member.settled(0, 1, 2)
        if auth:
            rules, _ = client_of(member.connector).get_acls(paths.ids(group))
            assert ("sasl", USER) in [(one.id.scheme, one.id.id) for one in rules]
            # Clients with the same certificate have the same rights.
            assert {one.id.scheme for one in rules} == {"sasl", "x509"}
    finally:
        member.close()


def test_a_server_of_an_unknown_authority_is_refused(secure: SecureZooKeeper) -> None:
    """If another authority signed the server's certificate, there is no session but an error."""
    reason = "TLS.*(verify failed|unable to get|self-signed)"
    _refused(secure, reason, zookeeper_ssl_ca=str(secure.stranger.file))


def test_a_server_of_another_name_is_refused(secure: SecureZooKeeper) -> None:
    """A certificate for another host is refused, unless the check of names is switched off."""
    port = secure.connect.rpartition(":")[2]
    other = f"localhost:{port}"
    _refused(secure, "mismatch", zookeeper_connect=other)
    skip = {"zookeeper_connect": other, "zookeeper_ssl_insecure_skip_hostname": True}
    ConsumerConnector(_config(secure, "g", **skip)).shutdown()


def test_verification_can_be_switched_off_by_name(secure: SecureZooKeeper) -> None:
    """With `insecure.skip.verify` any certificate is accepted."""
    skip = {
        "zookeeper_ssl_ca": str(secure.stranger.file),
        "zookeeper_ssl_insecure_skip_verify": True,
    }
    ConsumerConnector(_config(secure, "g", **skip)).shutdown()


def test_a_client_without_a_certificate_is_refused(secure: SecureZooKeeper) -> None:
    """If a client has no certificate, the server grants no session."""
    none = dict.fromkeys(
        ("zookeeper_ssl_certificate", "zookeeper_ssl_key", "zookeeper_ssl_key_password")
    )
    _refused(secure, "no ZooKeeper session", **none)


def test_plain_text_to_the_tls_port_is_refused(secure: SecureZooKeeper) -> None:
    """Without TLS, a client gets no session on the TLS port."""
    plain = ConsumerConfig(
        group_id="g", zookeeper_connect=secure.connect, zookeeper_connection_timeout_s=1.0
    )
    with pytest.raises(ZooKeeperUnreachableError):
        ConsumerConnector(plain)


PLAIN = [
    ("3.4.6", r"ZooKeeper 3\.4\.6, which has no TLS for clients .*upgrade ZooKeeper to 3\.5"),
    ("3.8.4", r"ZooKeeper 3\.8\.4, whose port there speaks plain text .*secureClientPort"),
]


@pytest.mark.parametrize(("release", "said"), PLAIN, ids=[release for release, _ in PLAIN])
def test_tls_to_a_plain_port_names_the_server_s_release(
    zookeeper_of: Callable[[str], ZooKeeperServer], release: str, said: str
) -> None:
    """TLS to ZooKeeper 3.4 or to a plain port is a ConfigError in every client."""
    config = ConsumerConfig(
        group_id="g",
        zookeeper_connect=zookeeper_of(release).connect,
        zookeeper_ssl_enable=True,
        zookeeper_connection_timeout_s=1.0,
    )
    with pytest.raises(ConfigError, match=said):
        ConsumerConnector(config)
    with pytest.raises(ConfigError, match=said):
        Observer(config.zookeeper_connect, "g", config=config, timeout_s=1.0).__enter__()
    with pytest.raises(ConfigError, match=said), ZooKeeperClient(config):
        pass


def test_a_wrong_sasl_password_is_named_at_the_start(secure: SecureZooKeeper) -> None:
    """A wrong SASL password causes an error at once, which does not contain the password."""
    wrong = {**SASL, "zookeeper_auth_credential": f"{USER}:canary-wrong"}
    with pytest.raises(AccessDeniedError) as caught:
        ConsumerConnector(_config(secure, "g", **wrong))
    assert "canary" not in str(caught.value)


def test_digest_md5_to_a_server_in_fips_mode_names_the_mode(tmp_path: Path) -> None:
    """ZooKeeper 3.9 refuses DIGEST-MD5 by default; the error names FIPS mode."""
    fips = {"zookeeper.fips-mode": "true"}
    with (
        SecureZooKeeper(tmp_path, release="3.9.6", properties=fips) as secure,
        pytest.raises(AccessDeniedError, match=r"zookeeper\.fips-mode=false"),
    ):
        ConsumerConnector(_config(secure, "g", **SASL, zookeeper_connection_timeout_s=20.0))


@pytest.mark.parametrize(
    "change",
    [
        {"zookeeper_ssl_ca": "/nowhere/ca.pem"},
        {"zookeeper_ssl_ca": __file__},
        {"zookeeper_ssl_key": "/nowhere/key.pem"},
        {"zookeeper_ssl_key_password": "canary-wrong"},
        {"zookeeper_ssl_key_password": None},
    ],
)
def test_files_that_cannot_be_used_are_named(
    secure: SecureZooKeeper, change: dict[str, Any]
) -> None:
    """A missing or wrong file, or a wrong password of a key, is a ConfigError."""
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.") as caught:
        ConsumerConnector(_config(secure, "g", **change))
    assert Path(caught.value.where).suffix in (".pem", ".py")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"zookeeper_ssl_ca": "ca.pem"},
        {"zookeeper_ssl_insecure_skip_verify": True},
        {"zookeeper_ssl_enable": True, "zookeeper_ssl_key": "k.pem"},
        {"zookeeper_ssl_enable": True, "zookeeper_ssl_key_password": "canary-x"},
        {"zookeeper_auth_scheme": "sasl"},
        {
            "zookeeper_auth_scheme": "sasl",
            "zookeeper_sasl_mechanism": "GSSAPI",
            "zookeeper_auth_credential": "a:canary-x",
        },
    ],
)
def test_settings_that_do_not_go_together(bad: dict[str, Any]) -> None:
    """TLS settings without TLS and incomplete pairs are refused, and no secret is shown."""
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig(group_id="g", zookeeper_connect="localhost", **bad)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("package", ["puresasl", "kerberos"])
def test_sasl_without_its_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a package for SASL is missing, the connector names zkconsumer's extra to install."""
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    config = ConsumerConfig(
        group_id="g",
        zookeeper_connect="127.0.0.1:1",
        zookeeper_auth_scheme="sasl",
        zookeeper_sasl_mechanism="GSSAPI",
    )
    with pytest.raises(ConfigError, match=r"zkconsumer\[kerberos\]"):
        ConsumerConnector(config)
