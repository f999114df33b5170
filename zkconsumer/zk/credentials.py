"""Authentication and TLS of a ZooKeeper session, and a check of the credential before joining.

zkconsumer makes its own TLS context, because kazoo's has three faults: it also trusts the system's
authorities if a CA is configured, it does not check host names by default, and it keeps the key's
password.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import socket
import ssl
from collections.abc import Callable

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL, Permissions

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import AccessDeniedError, ConfigError, require
from zkconsumer.protocol import paths
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk.attempts import ask
from zkconsumer.zk.kazoo_transport import release_in

logger = SafeLogger(logging.getLogger(__name__))

_CHANGES = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN
# ZooKeeper 3.6 and later return this instead of a hash to users who may not administer the znode.
_HIDDEN = "x"

TLS_SINCE = (3, 5)
"""The first release of ZooKeeper that offers TLS to its clients."""

# Limit, in seconds, of the answer to `srvr`. A TLS port does not answer `srvr`, so an error of the
# handshake is reported this much later.
_PLAIN_ANSWER_S = 2.0


def client_options(config: ConnectionConfig) -> dict[str, object]:
    """Return KazooClient's keyword arguments for authentication and for the ACL of new znodes.

    Raises ConfigError if SASL is configured and a package that it needs is not installed.
    """
    scheme, credential = config.zookeeper_auth_scheme, config.zookeeper_auth_credential
    options: dict[str, object] = {
        "use_ssl": config.zookeeper_ssl_enable,
        "default_acl": CREATOR_ALL_ACL if config.zookeeper_acl == "creator" else None,
    }
    if scheme == "digest":
        options["auth_data"] = [("digest", credential)]  # a Secret, because kazoo logs it at DEBUG
    elif scheme == "sasl":
        if config.zookeeper_sasl_mechanism == "GSSAPI":
            where = "zookeeper.sasl.mechanism=GSSAPI"
            require("puresasl", "kerberos", extra="kerberos", where=where)
        else:
            require("puresasl", extra="sasl", where="zookeeper.auth.scheme=sasl")
        sasl = {
            "mechanism": config.zookeeper_sasl_mechanism,
            "service": config.zookeeper_sasl_service,
        }
        if credential is not None:
            sasl["username"], _, sasl["password"] = credential.partition(":")
        options["sasl_options"] = sasl
    return options


def tls_context(config: ConnectionConfig) -> ssl.SSLContext | None:
    """Return the TLS context with the configured certificates; None if TLS is not configured.

    Raises ConfigError, which names the file, if a file cannot be read or is not a PEM file.
    """
    if not config.zookeeper_ssl_enable:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.zookeeper_ssl_ca:
        _load("zookeeper.ssl.ca", config.zookeeper_ssl_ca, context.load_verify_locations)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if config.zookeeper_ssl_certificate:
        key, password = config.zookeeper_ssl_key, config.zookeeper_ssl_key_password
        # The password is never None: OpenSSL would ask for it at the terminal if the key is
        # encrypted.
        _load(
            "zookeeper.ssl.certificate",
            config.zookeeper_ssl_certificate,
            lambda file: context.load_cert_chain(file, key, password or ""),
        )
    if config.zookeeper_ssl_insecure_skip_hostname or config.zookeeper_ssl_insecure_skip_verify:
        context.check_hostname = False
        logger.warning("TLS to ZooKeeper: the host name is not checked (insecure)")
    if config.zookeeper_ssl_insecure_skip_verify:
        context.verify_mode = ssl.CERT_NONE
        logger.warning("TLS to ZooKeeper: no certificate is checked (insecure)")
    return context


def _load(name: str, file: str, load: Callable[[str], object]) -> None:
    try:
        load(file)
    except OSError as error:  # SSLError is an OSError; neither has the password
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise ConfigError(
            f"{name} cannot be used: {reason}",
            where=file,
            remedy="use a PEM file that this process may read, with the right key and password",
        ) from None


class TlsFault(OSError):
    """A TLS handshake failed; the text begins with `TLS:`."""


class TlsSockets:
    """Opens encrypted connections to ZooKeeper's servers."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._names: dict[str, str] = {}
        self._failed: tuple[str, int] | None = None

    def open(self, address: tuple[str, int], *, hostname: object, timeout: float) -> ssl.SSLSocket:
        """Connect to an IP address whose certificate must be valid for `hostname`."""
        # For four-letter commands kazoo passes the port as host name, so use the earlier host name.
        if isinstance(hostname, str):
            self._names[address[0]] = hostname
        name = self._names.get(address[0], address[0])
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secure = self._context.wrap_socket(plain, server_hostname=name)
        except OSError as error:  # also a server that resets the connection, or never answers
            plain.close()
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", None)
            self._failed = address
            raise TlsFault(f"TLS: {reason or str(error) or type(error).__name__}") from error
        except BaseException:
            plain.close()
            raise
        self._failed = None
        return secure

    def refuse_plain_port(self) -> None:
        """Raise ConfigError if the last failed handshake was with a plain-text port.

        A plain-text port reads the handshake as a request of impossible length, and closes
        the connection without a reason. So this method sends `srvr` in plain text. Every
        release answers this command with any whitelist, and the command contains no secret.
        The error names the server's release.
        """
        if self._failed is None:
            return
        said = ask(self._failed, b"srvr", limit_s=_PLAIN_ANSWER_S)
        release = release_in(said.decode(errors="replace"))
        if not release:
            return
        named = f"{self._failed[0]}:{self._failed[1]} is ZooKeeper {'.'.join(map(str, release))}"
        if release < TLS_SINCE:
            raise ConfigError(
                f"TLS is configured, and the server at {named}, which has no TLS for clients",
                where="zookeeper.ssl.enable",
                remedy="upgrade ZooKeeper to 3.5 or later, or set zookeeper.ssl.enable=false",
            )
        raise ConfigError(
            f"TLS is configured, and the server at {named}, whose port there speaks plain text",
            where="zookeeper.connect",
            remedy="name the server's secureClientPort, or set zookeeper.ssl.enable=false",
        )


def check_credential(client: KazooClient, config: ConnectionConfig, group: str) -> None:
    """Compare a digest credential with the ACLs of the group's existing znodes.

    ZooKeeper accepts any digest password at the login and refuses only later operations. But the
    ACLs of znodes that this user created show whether the password is the same.

    Raises AccessDeniedError if the ACLs belong to another password, or are not readable.
    """
    if config.zookeeper_auth_scheme != "digest" and config.zookeeper_acl != "creator":
        return
    parents = (paths.ids(group), paths.owners(group), paths.offsets(group))
    open_rooms = []
    for path in (parents[0].rpartition("/")[0], *parents):
        try:
            rules, _ = client.get_acls(path)
        except kz.NoNodeError:
            continue
        except kz.NoAuthError as error:
            raise _denied(config, path) from error
        if config.zookeeper_auth_scheme == "digest":
            _compare(config, path, [rule.id.id for rule in rules if rule.id.scheme == "digest"])
        if any(rule.id.scheme == "world" and rule.perms & _CHANGES for rule in rules):
            open_rooms.append(path)
    if open_rooms and config.zookeeper_acl == "creator":
        logger.warning(
            "zookeeper.acl=creator, but these znodes existed before, and any client may change"
            " them:"
            " %s; set their ACLs",
            ", ".join(open_rooms),
        )


def _compare(config: ConnectionConfig, path: str, identities: list[str]) -> None:
    credential = str(config.zookeeper_auth_credential)
    user = credential.partition(":")[0]
    # SHA-1 as in ZooKeeper's DigestAuthenticationProvider; it is used only for this comparison.
    digest = hashlib.sha1(credential.encode(), usedforsecurity=False).digest()
    ours = f"{user}:{base64.b64encode(digest).decode()}"
    same_user = [one for one in identities if one.partition(":")[0] == user]
    if same_user and ours not in same_user:
        hidden = all(one == f"{user}:{_HIDDEN}" for one in same_user)
        if not hidden or len(identities) == len(same_user):
            raise _denied(config, path)


def _denied(config: ConnectionConfig, path: str) -> AccessDeniedError:
    user = str(config.zookeeper_auth_credential).partition(":")[0]
    return AccessDeniedError(
        f"user {user!r} has another password at this znode, or no right to it",
        where=path,
        remedy="check zookeeper.auth.credential, or change the znode's ACL",
    )
