"""Members in a Kerberos realm: at ZooKeeper and at brokers, with tickets that expire.

The Kerberos server is real (MIT's, Debian's packages), and so are the packages of the extra
`kerberos`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Self

import pytest
from kazoo.exceptions import NoAuthError
from support.packages import ROOT, kerberos_packages, pip
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import BrokerServer, Sandbox, ZooKeeperServer
from zkconsumer.sandbox.ports import HOST, free_port

RELEASES = ("0.9.0.1", "0.10.2.2", "3.9.1")
MESSAGES = 10
_PRINCIPAL, _SERVICE = "kafka.sasl.kerberos.principal", "kafka.sasl.kerberos.service.name"
USER = "alice"
AT_ZOOKEEPER = {
    "zookeeper.auth.scheme": "sasl",
    "zookeeper.sasl.mechanism": "GSSAPI",
    "zookeeper.acl": "creator",
}
AT_BROKERS = {
    "broker.listener": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "GSSAPI",
    "fetch.engine": "columns",
}
PASSWORD = {
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "bob",
    "kafka.sasl.password": "@password",
}
# The tickets of this user last so briefly that a test can wait for their end.
HASTY, HASTY_LIFE = "hasty", "3 seconds"


# ---- the realm -------------------------------------------------------------------------------

REALM = "TEST.REALM"
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
# The programs in Debian's packages krb5-kdc, krb5-admin-server, krb5-user and libkrb5-dev.
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist", "krb5-config")


def missing_programs() -> list[str]:
    """Return the Kerberos programs that this machine lacks."""
    return [one for one in PROGRAMS if shutil.which(one, path=_PATH) is None]


class Realm:
    """A Kerberos server with principals and keytabs; a context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._port = free_port()
        self.config = directory / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n"
            " dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = {HOST}:{self._port}\n }}\n"
            f"[domain_realm]\n {HOST} = {REALM}\n"
        )
        profile = directory / "kdc.conf"
        profile.write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = {HOST}:{self._port}\n'
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principals\n"
            f"  key_stash_file = {directory}/stash\n"
            "  supported_enctypes = aes256-cts-hmac-sha1-96:normal\n }\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        self._environment = {
            **os.environ,
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(profile),
        }

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._server = subprocess.Popen(
            [self._which("krb5kdc"), "-n"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            eventually(self._accepts)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(LIMIT_S)
        finally:
            self._server.kill()

    def _accepts(self) -> bool:
        assert self._server.poll() is None, (self.directory / "kdc.log").read_text()
        with socket.socket() as one:
            return one.connect_ex((HOST, self._port)) == 0

    def keytab(self, principal: str, *, life: str = "1 day") -> Path:
        """Create a principal whose tickets last for `life`; return the file that has its key."""
        file = self.directory / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "addprinc", "-randkey", "-maxlife", life, principal)
        self._run("kadmin.local", "ktadd", "-k", str(file), principal)
        return file

    def environment(self, **names: object) -> dict[str, str]:
        """Return the environment of a process without a ticket; `names` are further variables."""
        own = {"KRB5_CONFIG": self.config, "KRB5CCNAME": self.directory / "no-ticket", **names}
        return {**os.environ, **{name: str(value) for name, value in own.items()}}

    def get_ticket(self, principal: str, cache: Path, *, life: str) -> None:
        """Write a new ticket, which lasts for `life`, into `cache`."""
        keytab = self.directory / f"{principal}.keytab"
        self._run("kinit", "-l", life, "-c", str(cache), "-k", "-t", str(keytab), principal)

    def is_valid(self, cache: Path) -> bool:
        """Return whether the ticket in `cache` is still valid."""
        command = [self._which("klist"), "-s", "-c", str(cache)]
        return subprocess.run(command, env=self._environment, check=False).returncode == 0

    def _which(self, program: str) -> str:
        found = shutil.which(program, path=_PATH)
        assert found is not None, program
        return found

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._which(program), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def jaas(section: str, keytab: Path, principal: str) -> str:
    """Return a section of a JAAS file with which a server logs in."""
    return (
        f"{section} {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        f'storeKey=true doNotPrompt=true keyTab="{keytab}" principal="{principal}@{REALM}"; }};\n'
    )


# ---- its members ------------------------------------------------------------------------------


class Cluster:
    """A ZooKeeper and a broker that accept the tickets of a realm, and the member processes."""

    def __init__(self, directory: Path, realm: Realm, packages: Path, *, release: str) -> None:
        self.realm, self._packages = realm, packages
        self.keytabs = {one: realm.directory / f"{one}.keytab" for one in (USER, HASTY)}
        self.sandbox = Sandbox(directory, release=release, tick_time_s=0.1)
        file = directory / "jaas.conf"
        file.write_text(
            jaas("Server", realm.directory / f"zookeeper-{HOST}.keytab", f"zookeeper/{HOST}")
            + jaas("KafkaServer", realm.directory / f"kafka-{HOST}.keytab", f"kafka/{HOST}")
        )
        properties = {
            "java.security.auth.login.config": file,
            "java.security.krb5.conf": realm.config,
        }
        provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        self.sandbox.zookeeper = ZooKeeperServer(
            directory / "zookeeper",
            tick_time_s=0.1,
            settings={"authProvider.1": provider},
            properties=properties,
        )
        port = free_port()
        overrides = {
            "listeners": f"PLAINTEXT://{HOST}:{port},SASL_PLAINTEXT://{HOST}:{free_port()}",
            "sasl.kerberos.service.name": "kafka",
        }
        if not release.startswith("0.9."):
            overrides["sasl.enabled.mechanisms"] = "GSSAPI"
        self.sandbox.brokers = (
            BrokerServer(
                directory / "broker-0",
                zookeeper_connect=self.sandbox.zookeeper_connect,
                port=port,
                release=release,
                overrides=overrides,
                properties={**properties, "zookeeper.sasl.client": "false"},
            ),
        )

    def member(
        self,
        topic: str,
        properties: Mapping[str, object],
        *options: str,
        output: int | IO[bytes] = subprocess.PIPE,
        errors: int | IO[bytes] = subprocess.PIPE,
        **environment: object,
    ) -> subprocess.Popen[bytes]:
        """Start a member that writes the messages of the topic to `output`."""
        more = ("--from-beginning", *options)
        return self.run(
            "consume", topic, properties, *more, output=output, errors=errors, **environment
        )

    def run(
        self,
        name: str,
        topic: str,
        properties: Mapping[str, object],
        *options: str,
        output: int | IO[bytes] = subprocess.PIPE,
        errors: int | IO[bytes] = subprocess.PIPE,
        **environment: object,
    ) -> subprocess.Popen[bytes]:
        """Start a command for a topic and the group of the same name."""
        given = [f"--property={name}={value}" for name, value in properties.items()]
        command = ["-g", topic, "-t", topic, "-z", self.sandbox.zookeeper_connect, *given]
        return subprocess.Popen(
            [sys.executable, "-m", "zkconsumer", name, *command, *options],
            env=self.realm.environment(PYTHONPATH=f"{ROOT}:{self._packages}", **environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A Kerberos server with the principals of the servers and of two users."""
    if missing := missing_programs():
        pytest.skip(f"programs of Kerberos are missing: {', '.join(missing)}")
    with Realm(tmp_path_factory.mktemp("realm")) as one:
        for principal in (f"zookeeper/{HOST}", f"kafka/{HOST}", USER):
            one.keytab(principal)
        one.keytab(HASTY, life=HASTY_LIFE)
        yield one


@pytest.fixture(scope="session")
def kerberized(
    tmp_path_factory: pytest.TempPathFactory, realm: Realm
) -> Iterator[Callable[[str], Cluster]]:
    """Return the cluster with this broker release; each part starts when it is first requested."""
    packages = tmp_path_factory.mktemp("packages")
    pip("install", "--target", str(packages), *kerberos_packages())
    with ExitStack() as stack:

        @cache
        def started(release: str) -> Cluster:
            directory = tmp_path_factory.mktemp(f"kerberos-{release}")
            one = Cluster(directory, realm, packages, release=release)
            stack.enter_context(one.sandbox)
            return one

        yield started


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    return unique("kerberos")


def of_keytab(keytab: object, cache: object = "MEMORY:") -> dict[str, object]:
    """Return the variables with which Kerberos itself gets tickets from a keytab."""
    return {"KRB5_CLIENT_KTNAME": keytab, "KRB5CCNAME": cache}


def filled(cluster: Cluster, topic: str) -> Cluster:
    cluster.sandbox.create_topic(topic, partitions=1)
    cluster.sandbox.produce(topic, MESSAGES)
    return cluster


@pytest.mark.parametrize("release", RELEASES)
def test_a_member_reads_and_commits(
    kerberized: Callable[[str], Cluster], release: str, topic: str
) -> None:
    """With keytabs a member reads all messages, and other users cannot read its znodes."""
    cluster = filled(kerberized(release), topic)
    keytab = cluster.keytabs[USER]
    own = {"kafka.sasl.kerberos.keytab": keytab, "kafka.sasl.kerberos.principal": USER}
    member = cluster.member(
        topic,
        AT_ZOOKEEPER | AT_BROKERS | own,
        f"--max-messages={MESSAGES}",
        **of_keytab(keytab),
    )
    said, errors = member.communicate(timeout=LIMIT_S)
    assert (member.returncode, len(said.splitlines())) == (0, MESSAGES), errors
    with peer_of(cluster.sandbox.zookeeper_connect) as client, pytest.raises(NoAuthError):
        client.get(paths.offset(topic, TopicPartition(topic, 0)))


def test_lag(kerberized: Callable[[str], Cluster], topic: str) -> None:
    """`lag` logs in with Kerberos at ZooKeeper and at a broker, and reads the ends of the logs."""
    cluster = filled(kerberized(RELEASES[-1]), topic)
    environment = of_keytab(cluster.keytabs[USER])
    properties = AT_ZOOKEEPER | AT_BROKERS
    member = cluster.member(topic, properties, "--max-messages=4", **environment)
    _, errors = member.communicate(timeout=LIMIT_S)
    assert member.returncode == 0, errors
    del properties["fetch.engine"]
    command = cluster.run("lag", topic, properties, "-o", "jsonl", **environment)
    told, errors = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 0, errors
    row = json.loads(told)
    found = [row[name] for name in ("offset", "source", "log_start", "log_end", "lag")]
    assert found == [4, "zookeeper", 0, MESSAGES, MESSAGES - 4]


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (AT_ZOOKEEPER, "No Kerberos credentials available"),
        (
            {**AT_ZOOKEEPER, "zookeeper.sasl.service": "nosuch"},
            "Server nosuch/.* not found in Kerberos database",
        ),
        (
            {**AT_ZOOKEEPER, "zookeeper.sasl.service": "kafka"},
            "refused the credential.*zookeeper.sasl.service.*log",
        ),
        (AT_BROKERS, "no Kerberos login at kafka@.*: No Kerberos credentials available.*kinit"),
        (
            {**AT_BROKERS, "kafka.sasl.kerberos.keytab": "/none.keytab"},
            r"no Kerberos ticket for the keytab: .*/none.keytab.*klist -k",
        ),
        (
            {**AT_BROKERS, "kafka.sasl.kerberos.keytab": USER, _PRINCIPAL: "bob"},
            r"no Kerberos ticket for bob: .*klist -k",
        ),
        (
            {**AT_BROKERS, "kafka.sasl.kerberos.keytab": USER, _SERVICE: "nosuch"},
            "no Kerberos login at nosuch@.* not found in Kerberos database.*service.name",
        ),
        (
            {**AT_BROKERS, "kafka.sasl.kerberos.keytab": USER, _SERVICE: "zookeeper"},
            "refuses the login: .*service.name.*see its log",
        ),
        ({**AT_BROKERS, **PASSWORD}, "does not offer the SASL mechanism PLAIN .*: GSSAPI"),
    ],
    ids=[
        "no ticket for ZooKeeper",
        "wrong service of ZooKeeper",
        "another service of ZooKeeper",
        "no ticket for the broker",
        "no keytab",
        "keytab of another",
        "unknown service",
        "another service",
        "mechanism",
    ],
)
def test_a_mistake_is_one_sentence(
    kerberized: Callable[[str], Cluster],
    properties: dict[str, str],
    told: str,
    topic: str,
    tmp_path: Path,
) -> None:
    """A missing ticket, or a wrong keytab, principal, service or mechanism, gives one line."""
    cluster = filled(kerberized(RELEASES[-1]), topic)
    keytab = str(cluster.keytabs[USER])
    (tmp_path / "password").write_text("canary")
    values = {USER: keytab, "@password": f"@{tmp_path}/password"}
    given = {name: values.get(value, value) for name, value in properties.items()}
    ticket = of_keytab(keytab) if "zookeeper.sasl.service" in given else {}
    member = cluster.member(topic, given, **ticket)
    _, errors = member.communicate(timeout=LIMIT_S)
    lines = [one for one in errors.decode().splitlines() if one.startswith("zkconsumer: ")]
    assert member.returncode not in (0, None)
    assert len(lines) == 1, errors.decode()
    assert re.search(told, lines[0])


def test_a_keytab_outlives_its_tickets(
    kerberized: Callable[[str], Cluster], topic: str, tmp_path: Path
) -> None:
    """After its ticket has ended, a member with a keytab logs in at a restarted ZooKeeper."""
    cluster = filled(kerberized(RELEASES[-1]), topic)
    cache = tmp_path / "ticket"
    with running(cluster, topic, tmp_path, **of_keytab(cluster.keytabs[HASTY], cache)) as member:
        eventually(lambda: member.count == MESSAGES)
        eventually(lambda: not cluster.realm.is_valid(cache))
        restart(cluster)
        cluster.sandbox.produce(topic, MESSAGES)
        eventually(lambda: member.count == 2 * MESSAGES)
        assert cluster.realm.is_valid(cache)


def test_a_renewed_ticket_lets_a_member_log_in_again(
    kerberized: Callable[[str], Cluster], topic: str, tmp_path: Path
) -> None:
    """If its ticket has expired, a member without a keytab continues once there is a new one."""
    cluster = filled(kerberized(RELEASES[-1]), topic)
    cache = tmp_path / "ticket"
    cluster.realm.get_ticket(USER, cache, life="1d")
    with running(cluster, topic, tmp_path, KRB5CCNAME=cache) as member:
        eventually(lambda: member.count == MESSAGES)
        cluster.realm.get_ticket(USER, cache, life="1s")
        eventually(lambda: not cluster.realm.is_valid(cache))
        restart(cluster)
        eventually(lambda: "Ticket expired" in member.errors)
        cluster.realm.get_ticket(USER, cache, life="1d")
        cluster.sandbox.produce(topic, MESSAGES)
        eventually(lambda: member.count == 2 * MESSAGES)


@dataclass
class Running:
    """The process of a member, the file of its messages, and the file of its log."""

    process: subprocess.Popen[bytes]
    file: Path
    log: Path

    @property
    def count(self) -> int:
        """Return the number of messages that the member has written."""
        return len(self.file.read_bytes().splitlines())

    @property
    def errors(self) -> str:
        """Return what the member has logged."""
        return self.log.read_text()


@contextmanager
def running(
    cluster: Cluster, topic: str, directory: Path, **environment: object
) -> Iterator[Running]:
    """Run a member that logs in at ZooKeeper only, until the block ends."""
    file, log = directory / "messages", directory / "log"
    with file.open("wb") as output, log.open("wb") as errors:
        process = cluster.member(topic, AT_ZOOKEEPER, output=output, errors=errors, **environment)
    try:
        yield Running(process, file, log)
    finally:
        process.kill()
        process.wait()


def restart(cluster: Cluster) -> None:
    cluster.sandbox.zookeeper.stop()
    cluster.sandbox.zookeeper.start()
