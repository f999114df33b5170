"""The sources of settings in their order of precedence, and the file of contexts.

A context has a name, ZooKeeper's address, a properties file and a group. The file `contexts.json`
in the user's configuration directory holds all contexts and the name of the current one. The file
holds no secrets, which belong in the properties file of the context.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from zkconsumer.config.properties_file import read_properties
from zkconsumer.config.secrets import CREDENTIAL, CREDENTIAL_NAME, SCHEME_NAME
from zkconsumer.errors import ConfigError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.suggestions import did_you_mean

ZOOKEEPER, GROUP = "ZKCONSUMER_ZOOKEEPER", "ZKCONSUMER_GROUP"
CONFIG, CONTEXT = "ZKCONSUMER_CONFIG", "ZKCONSUMER_CONTEXT"
_OF_ENVIRONMENT = {"zookeeper.connect": ZOOKEEPER, "group.id": GROUP}


# ---- precedence ----------------------------------------------------------------------------------


class SettingSource(Enum):
    """Sources of settings in their order of precedence; the first that has a setting wins.

    The commands, `context show` and docs/operators.md use this table.
    """

    OPTION = "an option such as --zookeeper and --group, or the argument GROUP"
    PROPERTY = "--property NAME=VALUE"
    CONFIG_OPTION = "the file that --config names"
    ENVIRONMENT = f"{ZOOKEEPER}, {GROUP}, {CREDENTIAL}"
    CONFIG_ENVIRONMENT = f"the file that {CONFIG} names, if --config is not given"
    CONTEXT = f"the context that --context names, else {CONTEXT}, else `context use`"
    CONFIG_CONTEXT = f"the context's file, if neither --config nor {CONFIG} is given"


_NAMED_BY = {SettingSource.CONFIG_OPTION: "--config", SettingSource.CONFIG_ENVIRONMENT: CONFIG}


class Found(NamedTuple):
    """A setting with its source and its place: the option, the variable, the file, the context."""

    value: str
    source: SettingSource
    place: str


@dataclass(frozen=True)
class Sources:
    """The properties of each source; the source with the highest precedence comes first."""

    layers: Sequence[tuple[SettingSource, Path | Mapping[str, str]]]
    context: str | None = None
    chosen_by: str | None = None
    _read: dict[Path, dict[str, str]] = field(default_factory=dict)

    def lowest_first(self) -> list[Path | Mapping[str, str]]:
        """Return the properties for `ConsumerConfig.from_properties`, in which a later source
        overrides an earlier one."""
        return [one for _, one in reversed(self.layers)]

    def get(self, name: str) -> Found | None:
        """Return a property with its source. Raises ConfigError for an unreadable file."""
        for source, one in self.layers:
            given = self._properties(one) if isinstance(one, Path) else one
            if name in given:
                return Found(given[name], source, self._place(source, one, name))
        return None

    def file(self) -> Found | None:
        """Return the path of the properties file with its source; None if there is no file."""
        for source, one in self.layers:
            if isinstance(one, Path):
                return Found(str(one), source, _NAMED_BY.get(source) or f"context {self.context}")
        return None

    def _place(self, source: SettingSource, one: Path | Mapping[str, str], name: str) -> str:
        if isinstance(one, Path):
            return f"file {one}"
        if source is SettingSource.CONTEXT:
            return f"context {self.context}"
        variables = {**_OF_ENVIRONMENT, CREDENTIAL_NAME: CREDENTIAL}
        options = {SettingSource.OPTION: "--zookeeper", SettingSource.PROPERTY: "--property"}
        return options.get(source) or variables[name]

    def _properties(self, file: Path) -> dict[str, str]:

        if file not in self._read:
            self._read[file] = {name: value for name, value, _ in read_properties(file)}
        return self._read[file]


def sources_of(
    zookeeper: str | None,
    properties: Sequence[str] | None,
    config: Path | None,
    context: str | None,
) -> Sources:
    """Return the properties of all sources, for the options of a command.

    Only one properties file is read, so that no credential of one cluster is sent to another.
    Raises ConfigError for an unknown context, and for an empty `zookeeper`: a script whose variable
    is empty must not change the cluster of another source.
    """
    if zookeeper is not None and not zookeeper.strip():
        raise ConfigError(
            "the address of ZooKeeper is empty",
            where="--zookeeper",
            remedy="give HOST:PORT/CHROOT, or leave out the option",
        )
    found_context = selected_context(context)
    environment = {
        name: os.environ[variable]
        for name, variable in _OF_ENVIRONMENT.items()
        if os.environ.get(variable)
    }
    layers: list[tuple[SettingSource, Path | Mapping[str, str]]] = [
        (SettingSource.OPTION, {} if zookeeper is None else {"zookeeper.connect": zookeeper}),
        (SettingSource.PROPERTY, dict(map(parse_property, properties or ()))),
        (SettingSource.ENVIRONMENT, environment),
        (SettingSource.CONTEXT, {} if found_context is None else found_context.properties),
    ]
    order = list(SettingSource)
    files = [
        (SettingSource.CONFIG_OPTION, config),
        (SettingSource.CONFIG_ENVIRONMENT, os.environ.get(CONFIG)),
        (SettingSource.CONFIG_CONTEXT, found_context and found_context.config),
    ]
    layers += [(source, Path(file)) for source, file in files if file][:1]
    layers.sort(key=lambda layer: order.index(layer[0]))
    chosen_by = "--context" if context else CONTEXT if os.environ.get(CONTEXT) else "context use"
    found = (
        Sources(layers)
        if found_context is None
        else Sources(layers, context=found_context.name, chosen_by=chosen_by)
    )
    if os.environ.get(CREDENTIAL) and found.get(SCHEME_NAME) is not None:
        environment[CREDENTIAL_NAME] = os.environ[CREDENTIAL]
    return found


def parse_property(text: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(
            f"{text!r} is not a property", where="--property", remedy="use NAME=VALUE"
        )
    return name.strip(), value


# ---- the file of contexts ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Context:
    """A named cluster: ZooKeeper's address, a properties file, a group; each may be missing."""

    name: str
    zookeeper: str | None = None
    config: str | None = None
    group: str | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the context sets besides those of its file."""
        given = {"zookeeper.connect": self.zookeeper, "group.id": self.group}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Contexts:
    """All contexts by name, and the name of the current one."""

    contexts: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """Return the context of this name. Raises ConfigError if there is none."""
        if name not in self.contexts:
            raise ConfigError(
                f"no context is called {name!r}",
                where=str(contexts_file()),
                remedy=did_you_mean(
                    name, self.contexts, otherwise="list the contexts: `zkconsumer context list`"
                ),
            )
        return self.contexts[name]


def contexts_file() -> Path:
    """Return the path of the file of contexts, in $XDG_CONFIG_HOME or ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "zkconsumer" / "contexts.json"


def load_contexts() -> Contexts:
    """Read the file of contexts; without a file there are none. Raises ConfigError."""
    path = contexts_file()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        fields = {"zookeeper", "config", "group"}
        found = {
            str(name): Context(name=str(name), **{key: one.get(key) for key in fields})
            for name, one in document["contexts"].items()
        }
        return Contexts(found, document.get("current"))
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(
            f"the contexts cannot be read: {error.strerror}", where=str(path)
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "the file of contexts is malformed",
            where=str(path),
            remedy="repair or delete the file, and add the contexts again",
        ) from error


def save_contexts(all_: Contexts) -> None:
    """Replace the file of contexts atomically. Raises ConfigError."""
    path = contexts_file()
    document = {
        "current": all_.current,
        "contexts": {
            name: {key: value for key, value in asdict(one).items() if key != "name" and value}
            for name, one in all_.contexts.items()
        },
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".contexts")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
        os.replace(name, path)
    except OSError as error:
        raise ConfigError(
            f"the contexts cannot be written: {error.strerror}", where=str(path)
        ) from error


def selected_context(option: str | None = None) -> Context | None:
    """Return the context of `--context` or ZKCONSUMER_CONTEXT, or the current one, or None."""
    name = option or os.environ.get(CONTEXT)
    all_ = load_contexts()
    if name:
        return all_.named(name)
    return all_.contexts.get(all_.current) if all_.current else None
