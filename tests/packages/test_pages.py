"""Each page's commands and programs run in the environment that the page itself installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.packages import LEFT_OUT, LIMIT_S, ROOT, Built

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port

GOLDEN = ROOT / "tests" / "golden"
LOGS = GOLDEN / "history" / "incident.tar.gz"
SERVER_LOGS = GOLDEN / "server_logs" / "3.9.6-info.tar.gz"
OFFSETS = GOLDEN / "offsets" / "3.9.1.tar.gz"
# A block of commands or a program, an installation that the text names, or indented commands.
STEP = re.compile(
    r"^```(sh|console|python)\n(.*?)^```$|`(pip install [^`\n]+)`"
    r"|^ {4}(zkconsumer (?:[^\\\n]|\\\n)+)$",
    re.M | re.S,
)
# Installs the package for a page that names no installation: the first row of docs/installing.md.
DEFAULT = "pip install ."
# A command that the test does not run -> where it is tested, or why it cannot run.
ELSEWHERE = {
    r"scripts/|\.venv/": "the commands of the checkout have their own tests",
    r"docker|127.0.0.1:2181 --group G": "tests/containers",
    r"zkconsumer (top|demo|lab)\b": "tests/cli and tests/lab: they need a terminal or a browser",
    r"--require-hashes|--no-deps|--no-binary": "tests/static/test_locks.py",
    r"^pytest|zkconsumer pytest": "tests/packages/test_testing.py",
    r"spark-submit|pip wheel|mv |hdfs\]": "tests/spark: they need a cluster",
    r"kerberos|KRB5|apt-get": "tests/security/test_kerberos.py",
    r"--connections": "tests/cli/test_history.py: it needs a recording of the servers",
    r"--offsets-topic|restore billing --offsets-log": "tests/cli/test_offsets_logs.py: its group"
    " has commits in Kafka",
    r"FILE|\[--": "tests/cli: the page describes the file or the syntax",
}
# These commands run until they are interrupted.
ENDLESS = re.compile(r"--follow|--watch|--prometheus 9308")
ENDLESS_S = 20
# The pages whose Python blocks are whole programs. That of docs/operators.md needs the group that
# an earlier command of the page deletes; tests/docs/test_operators.py runs it.
WITH_PROGRAMS = {"README.md", "docs/doctor.md"}
# The pages whose commands need members of the group; for the other pages, the group has stopped.
WITH_MEMBERS = {"docs/later.md", "docs/releases.md"}
MEMBERS = ("billing_a", "billing_b")
REGISTRATION = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1"}'
# The pages that install the extra `spark` -> an installation that only starts Spark.
WITH_SPARK = {
    "README.md": "pip install -e '.[sandbox]'",
    "docs/spark.md": "pip install 'zkconsumer[sandbox]'",
}
# Uses the format after the page's installation with the extra `spark`.
FORMAT = """
from pathlib import Path
from pyspark.sql import SparkSession
from zkconsumer.sandbox import spark as sparks
spark = sparks.session(Path("spark").absolute())
given = spark.read.format("zkconsumer").option("zookeeper", "zk1:2181/kafka")
assert given.option("subscribe", "orders").load().count() == 100
spark.stop()
"""


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield the steps of a page in order: the kind (install, command or program), and the text."""
    found = [
        (kind, text)
        for kind, text in _all_steps(page)
        if not any(re.search(pattern, text) for pattern in ELSEWHERE)
    ]
    if found and found[0][0] != "install":
        yield "install", DEFAULT
    yield from found


def _all_steps(page: str) -> Iterator[tuple[str, str]]:
    files = sorted(ROOT.glob(page))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for language, block, inline, indented in STEP.findall(text):
        if inline:
            yield "install", inline
        elif indented:
            yield "command", re.sub(r"\\\n\s*", "", indented)
        elif language == "python":
            if page in WITH_PROGRAMS:
                yield "program", block
        else:
            for line in block.replace("\\\n", "").splitlines():
                if language == "sh" or line.startswith("$ "):
                    command = line.removeprefix("$ ")
                    yield "install" if command.startswith("pip install") else "command", command


# The lessons need one environment, so they are read as one page.
LESSONS = "docs/lessons/*.md"
NAMES = [
    "README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    "docs/monitoring/README.md",
    LESSONS,
]
PAGES = [page for page in NAMES if {kind for kind, _ in steps(page)} > {"install"}]


class Reader:
    """Follows a page: an empty environment, a copy of the checkout, and a directory to work in."""

    def __init__(self, page: str, directory: Path, wheel: Path, sandbox: Sandbox) -> None:
        self._tree, self._work = directory / "tree", directory / "work"
        self._wheel, self._zookeeper = wheel, sandbox.zookeeper_connect
        shutil.copytree(ROOT, self._tree, ignore=LEFT_OUT, symlinks=True)
        venv.create(directory / "venv", with_pip=True, symlinks=True)
        if page == LESSONS:  # The lessons' commands read the files beside them.
            shutil.copytree(ROOT / "docs" / "lessons", self._work)
        else:
            self._work.mkdir()
        shutil.copy(LOGS, self._work)
        for name in ("broker1.tar.gz", "broker2.tar.gz"):
            shutil.copy(OFFSETS, self._work / name)
        self._paths = {
            "/var/lib/zookeeper": _extracted(LOGS, directory / "logs"),
            "/var/log/zookeeper": _extracted(SERVER_LOGS, self._work),
            "/var/lib/kafka": _extracted(OFFSETS, directory / "kafka"),
        }
        properties = (
            f"group.id=billing\nzookeeper.connect={self._zookeeper}\n"
            "auto.offset.reset=smallest\nconsumer.timeout.ms=2000\n"
        )
        for name in ("consumer.properties", "prod.properties", "client.properties"):
            (self._work / name).write_text(properties)
        self._ports = {port: str(free_port()) for port in ("2181", "9092", "9308")}
        homes = {f"XDG_{one}_HOME": str(directory / one) for one in ("DATA", "CONFIG", "STATE")}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        path = f"{directory / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._environ = {**kept, **homes, "PATH": path}
        self.faults: list[str] = []  # what has failed, to report everything after one run

    def install(self, command: str) -> None:
        """Run an installation in the checkout; `zkconsumer[…]` is the built wheel."""
        command = re.sub(r"'zkconsumer(\[[\w,]+\])'", rf"'{self._wheel}\1'", command)
        done = self._run(command.replace("pip ", "pip --quiet "), self._tree)
        assert done.returncode == 0, done.stderr

    def command(self, line: str) -> None:
        """Run a command; its result may be a finding or a refusal, but not a wrong usage."""
        if line.startswith("export "):
            name, _, value = self._real(line.removeprefix("export ")).partition("=")
            self._environ[name] = value
            return
        limited = f"timeout --signal=INT {ENDLESS_S} {line}" if ENDLESS.search(line) else line
        where = self._tree if line.startswith("python ") else self._work
        done = self._run(limited, where)
        wrong = any(words in done.stderr for words in ("Traceback", "zkconsumer["))
        if wrong or done.returncode in (2, 126, 127):
            self.faults.append(f"{line}: {done.returncode}: {done.stderr}")

    def program(self, text: str) -> None:
        """Run a program, which must succeed."""
        (self._work / "program.py").write_text(self._real(text))
        done = self._run("python program.py", self._work)
        if done.returncode:
            self.faults.append(f"{text}: {done.stderr}")

    def _real(self, text: str) -> str:
        """Return a text of a page with the servers and the paths of this test."""
        text = re.sub(r"zk[12]:2181/kafka", "\0", text)  # No page contains this character.
        for named, real in self._paths.items():
            text = text.replace(named, str(real))
        text = text.replace("~/.local/share", self._environ["XDG_DATA_HOME"])
        text = re.sub("2181|9092|9308", lambda port: self._ports[port.group()], text)
        text = text.replace("0.0.0.0", "127.0.0.1")
        return text.replace("\0", self._zookeeper)

    def _run(self, line: str, where: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", self._real(line)],
            cwd=where,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


def _extracted(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    return directory


@pytest.fixture
def servers(page: str, tmp_path: Path) -> Iterator[Sandbox]:
    """Servers with a topic `orders`, of whose messages a group `billing` has read two."""
    with Sandbox(tmp_path / "servers") as sandbox:
        sandbox.create_topic("orders", partitions=2)
        for partition in range(2):
            sandbox.produce("orders", 50, partition=partition)
        client = KazooClient(sandbox.zookeeper_connect)
        client.start(LIMIT_S)
        for partition in range(2):
            path = paths.offset("billing", TopicPartition("orders", partition))
            client.create(path, b"1", makepath=True)
        for member in MEMBERS if page in WITH_MEMBERS else ():
            path = paths.member("billing", member)
            client.create(path, REGISTRATION, makepath=True, ephemeral=True)
        yield sandbox
        client.stop()
        client.close()


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str, built: Built, servers: Sandbox, tmp_path: Path) -> None:
    """After the page's own installations, all its commands run, one after the other."""
    reader = Reader(page, tmp_path, built.wheel, servers)
    for kind, text in steps(page):
        if kind == "install":
            reader.install(text)
        elif kind == "command":
            reader.command(text)
        else:
            reader.program(text)
    if page in WITH_SPARK:
        reader.install(WITH_SPARK[page])
        reader.program(FORMAT)
    assert not reader.faults, "\n".join(reader.faults)
