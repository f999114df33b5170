"""Each extra alone, and the sdist without extras, in an empty environment of each Python."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.packages import LIMIT_S, ROOT, Built, interpreters, outside, pip

from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.ports import free_port

PYTHONS = interpreters()
LOGS = ROOT / "tests" / "golden" / "history" / "incident.tar.gz"
CONSUME = "consume -z ZOOKEEPER -g GROUP --topic TOPIC --from-beginning --max-messages 10"
CONNECTOR = """
from zkconsumer import ConsumerConfig, ConsumerConnector
config = ConsumerConfig(
    group_id="GROUP", zookeeper_connect="ZOOKEEPER", auto_offset_reset="smallest"
)
"""
ARROW = f"""{CONNECTOR}
with ConsumerConnector(config) as connector:
    (stream,) = connector.create_message_streams({{"TOPIC": 1}})["TOPIC"]
    count = 0
    while count < 10:
        count += stream.poll_arrow(timeout_s=60).num_rows
print(count, "messages")
"""
METRICS = f"""{CONNECTOR}
from dataclasses import replace
from urllib.request import urlopen
with ConsumerConnector(replace(config, metrics_port=PORT)) as connector:
    connector.create_message_streams({{"TOPIC": 1}})
    print(urlopen("http://127.0.0.1:PORT/metrics").read().decode())
"""
SPARK = """
from zkconsumer.sandbox import spark as sparks
from pathlib import Path
spark = sparks.session(Path("spark").absolute())
given = spark.read.format("zkconsumer").option("zookeeper", "ZOOKEEPER")
print(given.option("subscribe", "TOPIC").load().count(), "messages")
table = spark.read.format("zkconsumer-history").option("table", "members").load("LOGS")
assert table.count() > 0
spark.stop()
"""
HDFS = """
import shutil
from fsspec.core import url_to_fs
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import find_servers
description = Description(find_servers(["local://LOGS"]))
description.read()
print(len(description.result().tables.members), "members")
url_to_fs("hdfs://127.0.0.1:1/")
url_to_fs("webhdfs://127.0.0.1:1/")
"""
CHARTS = """
import pygal
assert pygal.Line().render()
print("drawn")
"""
SANDBOX = """
from zkconsumer.sandbox import Sandbox
with Sandbox("servers") as sandbox:
    sandbox.create_topic("new")
    print(sandbox.zookeeper_connect)
"""
SASL = """
from zkconsumer import ConsumerConfig
from zkconsumer.zk.credentials import client_options
given = {"zookeeper_auth_scheme": "sasl", "zookeeper_auth_credential": "a:b"}
config = ConsumerConfig(group_id="g", zookeeper_connect="h", **given)
print(client_options(config)["sasl_options"]["username"])
"""
LAB = """
import signal, subprocess, sys
from urllib.request import urlopen
words = [sys.executable, "-m", "zkconsumer", "lab", "--no-browser", "--port", "PORT"]
with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as lab:
    for line in lab.stdout:
        if "http" in line:
            print(urlopen("http://127.0.0.1:PORT/").read().decode())
            lab.send_signal(signal.SIGINT)
"""
TOP = """
import fcntl, os, pty, struct, sys, termios
process, screen = pty.fork()
if not process:
    words = [sys.executable, "-m", "zkconsumer", "top", "-z", "ZOOKEEPER"]
    os.execv(sys.executable, words)
fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
shown = b""
while b"MEMBERS" not in shown.upper():
    shown += os.read(screen, 4096)
os.write(screen, b"q")
print("shown, exit code", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""
# Extra -> a command or a program that fails without the extra's packages, and a text in its output;
# "" is the package without extras.
USES = {
    "": (CONSUME, "message-9"),
    "arrow": (ARROW, "10 messages"),
    "charts": (CHARTS, "drawn"),
    "fast": (f"{CONSUME} --property fetch.engine=columns", "message-9"),
    "hdfs": (HDFS, "members"),
    "lab": (LAB, "<title>"),
    "metrics": (METRICS, "zkconsumer_messages_total"),
    "sandbox": (SANDBOX, "127.0.0.1"),
    "sasl": (SASL, "a"),
    "spark": (SPARK, "10 messages"),
    "top": (TOP, "shown, exit code 0"),
}


def test_the_supported_pythons_are_tried() -> None:
    """At least the Python of this run is tried; the names of the cases tell which others are."""
    assert PYTHONS


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str]) -> tuple[str, str]:
    """ZooKeeper's address, and a topic with ten messages."""
    name = unique("extra")
    sandbox.create_topic(name)
    sandbox.produce(name, [f"message-{number}" for number in range(10)])
    return sandbox.zookeeper_connect, name


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("extra", USES, ids=lambda extra: extra or "none")
@pytest.mark.parametrize("version", PYTHONS)
def test_each_extra_works_without_the_others(
    built: Built, tmp_path: Path, topic: tuple[str, str], version: str, extra: str
) -> None:
    """With only this extra installed, what the extra is for works on real data."""
    environment = tmp_path / "venv"
    subprocess.run([PYTHONS[version], "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    # Without an extra, pip builds the package from the sdist.
    requirement = f"{built.wheel}[{extra}]" if extra else str(built.sdist)
    pip("--python", str(python), "install", requirement)
    used, expected = USES[extra]
    for name, value in {
        "ZOOKEEPER": topic[0],
        "GROUP": f"{topic[1]}-{version}",
        "TOPIC": topic[1],
        "PORT": str(free_port()),
        "LOGS": str(LOGS),
    }.items():
        used = used.replace(name, value)
    is_program = "\n" in used
    words = [python, "-c", used] if is_program else [f"{python.parent}/zkconsumer"]
    done = outside(tmp_path, *words, *([] if is_program else shlex.split(used)))
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
