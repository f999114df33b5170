"""The connect string of ZooKeeper: servers, and one chroot after the last of them."""

from __future__ import annotations

import re

from zkconsumer.config_kinds import HOSTS
from zkconsumer.errors import ConfigError


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
