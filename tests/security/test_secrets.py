"""A password is sent only to ZooKeeper: no log, repr, error, trace or output contains it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.members.group import SETTINGS, Group, MemberUnderTest
from support.wait import LIMIT_S
from support.zk.secure import KEY_PASSWORD, PASSWORD, USER, SecureZooKeeper

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.errors import ZkConsumerError

CANARY = "canary-5e1f"
# kazoo also logs below the level DEBUG.
EVERYTHING = 1


def _digest(group: Group, **more: Any) -> ConsumerConfig:
    return ConsumerConfig(
        group_id=group.name,
        zookeeper_connect=group.sandbox.zookeeper_connect,
        zookeeper_auth_scheme="digest",
        zookeeper_auth_credential=f"user:{CANARY}",
        **{**SETTINGS, "zookeeper_acl": "creator", **more},
    )


def test_nothing_shows_a_digest_password(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a member's life, no log at its lowest level and no trace shows the password."""
    trace = tmp_path / "trace.jsonl"
    config = _digest(group, trace_file=str(trace))
    with caplog.at_level(EVERYTHING):
        member = MemberUnderTest(config)
        member.subscribe(group.topic)
        member.read(40)
        member.connector.commit_offsets()
        status = member.status
        member.close()
    logged = [f"{one.getMessage()} {one.exc_text or ''}" for one in caplog.records]
    assert any("scheme='digest'" in line for line in logged), "kazoo logged no request"
    for shown in (*logged, repr(config), repr(status), repr(vars(config)), trace.read_text()):
        assert CANARY not in shown


@pytest.mark.parametrize(
    "change",
    [
        {"zookeeper.connect": "somewhere:2181"},
        {"zookeeper.auth.scheme": "none"},
        {"zookeeper.auth.credential": CANARY},
        {"zookeeper.auth.scheme": "sasl", "zookeeper.sasl.mechanism": "GSSAPI"},
        {"zookeeper.ssl.key.password": CANARY},
        {"zookeeper.ssl.enable": "true", "zookeeper.ssl.key.password": CANARY},
        {"zookeeper.ssl.enable": "true", "zookeeper.ssl.key.password": ""},
        {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "300"},
        {"zookeeper.auth.credentials": CANARY},
    ],
)
def test_no_error_shows_a_password(
    change: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """If a setting is wrong, no error, cause or warning contains the password."""
    settings = {
        "group.id": "g",
        "zookeeper.connect": "127.0.0.1:1",
        "zookeeper.connection.timeout.ms": "300",
        "zookeeper.auth.scheme": "digest",
        "zookeeper.auth.credential": f"user:{CANARY}",
    }
    with caplog.at_level(EVERYTHING), pytest.raises(ZkConsumerError) as caught:
        ConsumerConnector(ConsumerConfig.from_properties(settings | change))
    error: BaseException | None = caught.value
    while error is not None:
        assert CANARY not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__
    assert CANARY not in caplog.text


@pytest.mark.parametrize("password", [PASSWORD, "canary-wrong"])
def test_nothing_shows_a_key_or_a_sasl_password(
    secure: SecureZooKeeper, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    """Neither a session over TLS with SASL nor a refused session shows a secret."""
    config = ConsumerConfig(
        group_id="g",
        zookeeper_auth_scheme="sasl",
        zookeeper_auth_credential=f"{USER}:{password}",
        **{**SETTINGS, **secure.settings},
    )
    shown, is_refused = repr(config), False
    with caplog.at_level(EVERYTHING):
        try:
            ConsumerConnector(config).shutdown()
        except ZkConsumerError as error:
            shown += f"{error} {error!r}"
            is_refused = True
    assert is_refused is (password != PASSWORD)
    assert caplog.records
    shown += caplog.text
    assert password not in shown
    assert KEY_PASSWORD not in shown


@pytest.mark.parametrize("credential", [f"user:{CANARY}", CANARY], ids=["right", "bad"])
def test_no_output_of_the_command_line_shows_a_password(
    group: Group, tmp_path: Path, credential: str
) -> None:
    """No output of `zkconsumer consume` contains the credential from the file."""
    file, trace = tmp_path / "c.properties", tmp_path / "trace.jsonl"
    file.write_text(
        f"group.id={group.name}\nzookeeper.connect={group.sandbox.zookeeper_connect}\n"
        f"zookeeper.auth.scheme=digest\nzookeeper.auth.credential={credential}\n"
        "auto.offset.reset=smallest\n"
    )
    command = [
        sys.executable,
        "-m",
        "zkconsumer",
        "consume",
        "--config",
        str(file),
        "--topic",
        group.topic,
        "--max-messages",
        "5",
        "--trace",
        str(trace),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == (0 if credential != CANARY else 2), done.stderr
    assert CANARY not in done.stdout + done.stderr
    assert CANARY not in "".join(one.read_text() for one in tmp_path.glob("*.jsonl"))
