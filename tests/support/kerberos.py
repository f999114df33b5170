"""A real Kerberos server (MIT's, Debian's packages), and the packages of the extra `kerberos`."""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from support.packages import ROOT, pip
from support.wait import LIMIT_S, eventually
from zkconsumer.sandbox.ports import HOST, free_port

REALM = "TEST.REALM"
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
# The programs in Debian's packages krb5-kdc, krb5-admin-server, krb5-user and libkrb5-dev.
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist", "krb5-config")


def missing_programs() -> list[str]:
    """Return the Kerberos programs that this machine lacks."""
    return [one for one in PROGRAMS if shutil.which(one, path=_PATH) is None]


def install_packages(directory: Path) -> None:
    """Build and install the packages of the extra `kerberos`, which has no wheels for Linux."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    lines = declared["options.extras_require"]["kerberos"].splitlines()
    wanted = [one for one in lines if one and not one.startswith(("#", "zkconsumer["))]
    pip("install", "--target", str(directory), *wanted)


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
