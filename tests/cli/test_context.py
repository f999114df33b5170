"""Contexts, and which source of settings overrides which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from zkconsumer.cli import app
from zkconsumer.cli.lag_exporter import clusters_of
from zkconsumer.cli.options import Common
from zkconsumer.cli.sources import (
    CONFIG,
    CONTEXT,
    GROUP,
    ZOOKEEPER,
    SettingSource,
    contexts_file,
    load_contexts,
)
from zkconsumer.config.secrets import CREDENTIAL
from zkconsumer.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a user who has no contexts and none of zkconsumer's variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (CONFIG, CONTEXT, CREDENTIAL, GROUP, ZOOKEEPER):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["context", *words])


def properties(path: Path, **values: str) -> Path:
    path.write_text("".join(f"{name.replace('_', '.')}={text}\n" for name, text in values.items()))
    return path


def test_add_use_list_remove(home: Path) -> None:
    """The first context becomes the current one; a removed context is no longer listed."""
    assert run("add", "prod", "-z", "zk1:2181/kafka", "-g", "billing").exit_code == 0
    assert run("add", "test", "-z", "zk2:2181").exit_code == 0
    assert load_contexts().current == "prod"
    assert Common().connection_settings().zookeeper_connect == "zk1:2181/kafka"
    assert Common().group(None) == "billing"
    assert run("use", "test").exit_code == 0
    rows = json.loads(run("list", "-o", "json").stdout)
    assert [(row["name"], row["current"], row["zookeeper"]) for row in rows] == [
        ("prod", False, "zk1:2181/kafka"),
        ("test", True, "zk2:2181"),
    ]
    assert run("remove", "test").exit_code == 0
    assert (load_contexts().current, list(load_contexts().contexts)) == (None, ["prod"])
    with pytest.raises(ConfigError, match="address of ZooKeeper is missing"):
        Common().connection_settings()


def test_precedence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ZooKeeper and for the group, each source overrides the sources below it in the table."""
    files = {
        name: properties(home / name, zookeeper_connect=f"{name}:1", group_id=name)
        for name in ("context-file", "variable-file", "option-file")
    }
    run("add", "bare", "--config", str(files["context-file"]))
    run("add", "full", "--config", str(files["context-file"]), "-z", "context:1", "-g", "context")
    given: dict[str, Any] = {}

    def found() -> tuple[str, str]:
        common = Common(**given)
        name = common.group(None)
        return common.connection_settings().zookeeper_connect, name

    steps: list[tuple[str, Any]] = [
        ("context-file", lambda: None),
        ("context", lambda: given.update(context="full")),
        ("variable-file", lambda: monkeypatch.setenv(CONFIG, str(files["variable-file"]))),
        ("variable", lambda: monkeypatch.setenv(ZOOKEEPER, "variable:1")),
        ("option-file", lambda: given.update(config=files["option-file"])),
        (
            "property",
            lambda: given.update(properties=["zookeeper.connect=property:1", "group.id=property"]),
        ),
    ]
    seen = []
    for name, step in steps:
        step()
        if name == "variable":
            monkeypatch.setenv(GROUP, "variable")
        seen.append(name)
        if name == "variable-file":
            # If an environment variable names a file, the file overrides the context's own fields.
            assert found() == ("variable-file:1", "variable-file")
        else:
            assert found() == (f"{name}:1", name)
    assert (
        Common(**given, zookeeper="option:1").connection_settings().zookeeper_connect == "option:1"
    )
    assert Common(**given).group("option") == "option"
    assert len(seen) + 1 == len(SettingSource)


def test_one_file_only(home: Path) -> None:
    """The credential in a context's file is not used if another file is given."""
    own = properties(
        home / "own", zookeeper_auth_scheme="digest", zookeeper_auth_credential="me:canary"
    )
    run("add", "prod", "-z", "127.0.0.1:1", "--config", str(own))
    assert Common().connection_settings().zookeeper_auth_credential == "me:canary"
    other = properties(home / "other", zookeeper_connect="127.0.0.1:2")
    assert Common(config=other).connection_settings().zookeeper_auth_credential is None


def test_show(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`context show` names each setting's place and rank, and the precedence, but no secret."""
    file = properties(home / "file", zookeeper_auth_scheme="digest")
    run("add", "prod", "-z", "127.0.0.1:1", "--config", str(file))
    monkeypatch.setenv(CREDENTIAL, "me:canary")
    monkeypatch.setenv(GROUP, "billing")
    result = run("show", "-o", "json")
    shown = json.loads(result.stdout)
    settings = {row["setting"]: tuple(row.values())[1:] for row in shown["settings"]}
    ranks = {source: rank for rank, source in enumerate(SettingSource, start=1)}
    assert settings == {
        "context": ("prod", "context use", ranks[SettingSource.CONTEXT]),
        "properties file": (str(file), "context prod", ranks[SettingSource.CONFIG_CONTEXT]),
        "zookeeper.connect": ("127.0.0.1:1", "context prod", ranks[SettingSource.CONTEXT]),
        "group.id": ("billing", GROUP, ranks[SettingSource.ENVIRONMENT]),
        "zookeeper.auth.scheme": ("digest", f"file {file}", ranks[SettingSource.CONFIG_CONTEXT]),
        "zookeeper.auth.credential": ("(not shown)", CREDENTIAL, ranks[SettingSource.ENVIRONMENT]),
    }
    assert [row["source"] for row in shown["precedence"]] == [one.value for one in SettingSource]
    assert "canary" not in result.output
    given = run(
        "show", "-z", "zk9:1", "--property", "group.id=g", "--config", str(file), "--no-headers"
    )
    places = {
        line.split()[0]: " ".join(line.split()[2:]) for line in given.stdout.splitlines()[1:7]
    }
    assert (places["zookeeper.connect"], places["group.id"]) == ("--zookeeper 1", "--property 2")
    assert Common().connection_settings().zookeeper_auth_credential == "me:canary"


def test_the_group_of_a_context_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A group that the command line does not name is named on standard error, with its source."""
    run("add", "prod", "-z", "zk1:2181/kafka", "-g", "billing")
    assert Common().groups(None, all_groups=False) == ["billing"]
    assert capsys.readouterr().err == "zkconsumer: group billing, from context prod\n"
    assert Common().groups(["other"], all_groups=False) == ["other"]
    assert Common().groups(None, all_groups=True) is None
    assert capsys.readouterr().err == ""


def test_clusters_by_context(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--cluster` takes the address and the file of its context, even beside other sources."""
    file = properties(
        home / "file", zookeeper_connect="file:1", zookeeper_session_timeout_ms="7000"
    )
    run("add", "direct", "-z", "zk1:2181/kafka", "-g", "billing")
    run("add", "by-file", "--config", str(file))
    monkeypatch.setenv(ZOOKEEPER, "other:1")
    common = Common()
    found = clusters_of(common, ["direct", "by-file", "named=zk3:2181"], common.connection_settings)
    assert [(one.name, one.settings.zookeeper_connect) for one in found] == [
        ("direct", "zk1:2181/kafka"),
        ("by-file", "file:1"),
        ("named", "zk3:2181"),
    ]
    assert found[1].settings.zookeeper_session_timeout_s == 7.0
    (only,) = clusters_of(common, None, common.connection_settings)
    assert only.name == "other:1"  # not the current context, whose address is not used
    monkeypatch.delenv(ZOOKEEPER)
    (only,) = clusters_of(Common(), None, Common().connection_settings)
    assert only.name == "direct"
    for wrong, why in ((["direct", "direct"], "named twice"), (["dirct"], "did you mean 'direct'")):
        with pytest.raises(ConfigError, match=why):
            clusters_of(common, wrong, common.connection_settings)


def test_the_name_of_a_context(home: Path) -> None:
    """`context add` refuses a name that no shell can show or complete, and says if it replaces."""
    for name in ("", "..", "a b", "a/b", "a\x1b[31m"):
        result = run("add", name, "-z", "zk1:2181")
        assert result.exit_code == 2
        assert "is not a legal name of a context" in result.stderr
    assert not contexts_file().exists()
    assert "context prod is saved" in run("add", "prod", "-z", "zk1:2181").stderr
    assert "context prod is replaced" in run("add", "prod", "-z", "zk2:2181").stderr


def test_an_empty_option_is_not_a_missing_option(home: Path) -> None:
    """`--zookeeper ''`, of a script whose variable is empty, does not use another source."""
    run("add", "prod", "-z", "zk1:2181")
    with pytest.raises(ConfigError, match="address of ZooKeeper is empty"):
        Common(zookeeper="").connection_settings()
    with pytest.raises(ConfigError, match="'=x' is not a property"):
        Common(properties=["=x"]).connection_settings()


def test_a_secret_in_the_command_line() -> None:
    """A secret in `--property` causes a warning that hides it; `@FILE` and other values do not."""
    base = ["owners", "-g", "a/b", "-z", "127.0.0.1:1", "--property"]
    for text, is_told in (
        ("zookeeper.auth.credential=me:canary", True),
        ("kafka.sasl.password=canary", True),
        ("zookeeper.auth.credential=@canary", False),
        ("client.id=canary", False),
    ):
        result = CliRunner().invoke(app, [*base, text])
        assert ("other users can see" in result.stderr) is is_told, text
        assert not is_told or "canary" not in result.output
        assert (CREDENTIAL in result.stderr) is (text == "zookeeper.auth.credential=me:canary")
    tool = ["ConsumerGroupCommand", "--list", "--zookeeper", "127.0.0.1:1"]
    given = ["--timeout", "0.1", "--property", "kafka.sasl.password=canary"]
    result = CliRunner().invoke(app, ["legacy", *given, *tool])
    assert "other users can see" in result.stderr
    assert "canary" not in result.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("use", "nobody"), "no context is called 'nobody'"),
        (("remove", "nobody"), "no context is called 'nobody'"),
        (("show", "nobody"), "no context is called 'nobody'"),
        (("add", "x"), "names no cluster"),
        (("add", "x", "-z", "h:x"), "h:x"),
        (("add", "x", "--config", "missing"), "does not exist"),
    ],
)
def test_wrong_use(words: tuple[str, ...], why: str) -> None:
    """Wrong use gives one line and exit code 2, and no file is written."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr
    assert not contexts_file().exists()


def test_a_malformed_file() -> None:
    """If the file of contexts is malformed, the error names the file."""
    contexts_file().parent.mkdir(parents=True)
    for text in ("[]", "{", '{"contexts": {"a": 1}}'):
        contexts_file().write_text(text)
        result = run("list")
        assert (result.exit_code, str(contexts_file()) in result.stderr) == (2, True)
