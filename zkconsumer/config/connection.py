"""The connect string of ZooKeeper: servers, and one chroot after the last of them.

Which security settings go together; what would send a password in clear text is refused.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from zkconsumer.config.property_types import HOSTS
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.config.consumer import ConnectionConfig


def split_connect(connect: str) -> tuple[str, str]:
    """(hosts, chroot) of a ZooKeeper connect string; the chroot is empty or begins with `/`.

    A host without a port gets 2181, as in the Java client. Raises ConfigError.
    """
    hosts, slash, path = connect.partition("/")
    servers = [_server(one.strip(), connect) for one in hosts.split(",")]
    if not path:
        return ",".join(servers), ""
    if re.search(r",[^/,]+:[0-9]+", path):
        raise _bad_connect(connect, "the chroot stands once, after the last server")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise _bad_connect(connect, "the chroot is a path without empty parts, `.` and `..`")
    return ",".join(servers), slash + path


def _server(text: str, connect: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?", text, re.ASCII)
    if match is None:
        raise _bad_connect(connect, f"{text!r} is not host:port")
    port = int(match[2] or 2181)
    if not 0 < port < 65536:
        raise _bad_connect(connect, f"{port} is not a port")
    return f"{match[1]}:{port}"


def _bad_connect(connect: str, why: str) -> ConfigError:
    return ConfigError(
        f"bad value {connect!r} of zookeeper.connect: {why}",
        where="zookeeper.connect",
        remedy=f"allowed: {HOSTS.allowed}",
    )


# ---- config security -----------------------------------------------------------------------------


def check_security(config: ConnectionConfig) -> None:
    """Raises ConfigError for settings that contradict each other or that are unsafe together."""
    _check_auth(config)
    _check_tls(config)


def _check_auth(config: ConnectionConfig) -> None:
    scheme, credential = config.zookeeper_auth_scheme, config.zookeeper_auth_credential
    needs = scheme == "digest" or (
        scheme == "sasl" and config.zookeeper_sasl_mechanism == "DIGEST-MD5"
    )
    if needs != (credential is not None):
        raise ConfigError(
            "zookeeper.auth.scheme and zookeeper.auth.credential need each other (GSSAPI: none)",
            where="zookeeper.auth.scheme",
            remedy="set both, or neither",
        )
    if config.zookeeper_acl == "creator" and scheme is None:
        raise ConfigError(
            "zookeeper.acl=creator without authentication: ZooKeeper would refuse every node",
            where="zookeeper.acl",
            remedy="set zookeeper.auth.scheme and zookeeper.auth.credential as well",
        )
    in_clear = scheme == "digest" and not config.zookeeper_ssl_enable
    if in_clear and not config.zookeeper_auth_insecure_plaintext:
        hosts = split_connect(config.zookeeper_connect)[0].split(",")
        far = [host for host in hosts if not _is_loopback(host.rpartition(":")[0])]
        if far:
            raise ConfigError(
                f"the digest password would go over the network in clear text, to {far[0]}",
                where="zookeeper.auth.scheme",
                remedy="set zookeeper.ssl.enable=true, or, where the network is trusted, "
                "zookeeper.auth.insecure.plaintext=true",
            )


def _check_tls(config: ConnectionConfig) -> None:
    if not config.zookeeper_ssl_enable:
        idle = {
            "zookeeper.ssl.ca": config.zookeeper_ssl_ca,
            "zookeeper.ssl.certificate": config.zookeeper_ssl_certificate,
            "zookeeper.ssl.key": config.zookeeper_ssl_key,
            "zookeeper.ssl.key.password": config.zookeeper_ssl_key_password,
            "zookeeper.ssl.insecure.skip.hostname": config.zookeeper_ssl_insecure_skip_hostname,
            "zookeeper.ssl.insecure.skip.verify": config.zookeeper_ssl_insecure_skip_verify,
        }
        for name, value in idle.items():
            if value:
                raise ConfigError(
                    f"{name} without zookeeper.ssl.enable: nothing would be encrypted",
                    where=name,
                    remedy="set zookeeper.ssl.enable=true",
                )
    if (config.zookeeper_ssl_certificate is None) != (config.zookeeper_ssl_key is None):
        raise ConfigError(
            "zookeeper.ssl.certificate and zookeeper.ssl.key need each other",
            where="zookeeper.ssl.certificate",
            remedy="set both, or neither",
        )
    if config.zookeeper_ssl_key_password is not None and config.zookeeper_ssl_key is None:
        raise ConfigError(
            "zookeeper.ssl.key.password without a key",
            where="zookeeper.ssl.key.password",
            remedy="set zookeeper.ssl.key as well",
        )


def _is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this machine; any name but localhost may not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
