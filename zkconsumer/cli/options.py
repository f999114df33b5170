"""Options that all operators' commands share: where ZooKeeper is, and the output format.

@app.command("list")
@operator
def list_(common: Common, *, group: OneGroup = None) -> None:
    with common.connect(group) as connection:
        common.write(rows(connection), COLUMNS)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.cli.output import Column, Output, Row, Screen, Table
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
    from zkconsumer.zk.client import ZooKeeperClient

ENVIRONMENT = "ZKCONSUMER_ZOOKEEPER"

OneGroup = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Group name.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="GROUP", help="Group name; repeatable."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,P...]",
        help="A topic, or only these partitions of it; repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Values of the common options; `operator` constructs it."""

    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "--zkconnect",
            "-z",
            metavar="H:P[,H:P...][/CHROOT]",
            help=f"zookeeper.connect; default: the --config file, else ${ENVIRONMENT}.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="consumer.properties file with zookeeper.connect, group.id, authentication, TLS.",
        ),
    ] = None
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="A property that overrides the --config file; repeatable.",
        ),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="S",
            help="Seconds to wait for ZooKeeper and for the brokers; default 6.",
        ),
    ] = None
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            help="Output format. legacy prints the lag as Kafka 1.1.1's tool does;"
            " `zkconsumer legacy` imitates other releases.",
        ),
    ] = Output.TABLE
    no_color: Annotated[
        bool,
        typer.Option(
            "--no-color", help="Print no colours; NO_COLOR in the environment does the same."
        ),
    ] = False

    # ---- where ZooKeeper is ----------------------------------------------------------------------

    def settings(self, group: str) -> ConsumerConfig:
        """Return the settings of a group's members, as far as the user gave them.

        Priority, highest first: option, `--property`, `--config` file, environment.
        Raises ConfigError.
        """
        from zkconsumer.config.settings import ConsumerConfig

        return ConsumerConfig.from_properties(*self._sources(), group_id=group, **self._overrides())

    def connection_settings(self, group: str | None = None) -> ConnectionConfig:
        """Return the settings of the connection to ZooKeeper.

        The result is a ConsumerConfig if `group`, `--property` or `--config` names a group. Raises
        ConfigError.
        """
        from zkconsumer.config.settings import ConnectionConfig

        named = group if group is not None else self.named_group()
        if named is not None:
            return self.settings(named)
        return ConnectionConfig.from_properties(*self._sources(), **self._overrides())

    def _sources(self) -> list[Path | dict[str, str]]:
        """Return the sources of properties, lowest priority first."""
        environment = os.environ.get(ENVIRONMENT)
        first = {"zookeeper.connect": environment} if environment else {}
        file = [] if self.config is None else [self.config]
        return [first, *file, dict(map(pair, self.properties or ()))]

    def _overrides(self) -> dict[str, Any]:
        """Return the settings given as options. Raises ConfigError without ZooKeeper's address."""
        found: dict[str, Any] = {}
        if self.zookeeper is not None:
            found["zookeeper_connect"] = self.zookeeper
        elif not os.environ.get(ENVIRONMENT) and "zookeeper.connect" not in self._named():
            raise _no_zookeeper()
        if self.timeout is not None:
            found["zookeeper_connection_timeout_s"] = self.timeout
        return found

    def _named(self) -> dict[str, str]:
        """Return the properties of `--config` and `--property`."""
        from zkconsumer.config.properties_file import read_properties

        file = () if self.config is None else read_properties(self.config)
        found = {name: value for name, value, _ in file}
        return found | dict(map(pair, self.properties or ()))

    def connect(self, group: str | None = None) -> ZooKeeperClient:
        """Return a client, which connects when it is entered. Raises ConfigError."""
        from zkconsumer.zk.client import ZooKeeperClient

        return ZooKeeperClient(self.connection_settings(group))

    def group(self, given: str | None) -> str:
        """Return the group given on the command line, else `group.id` of the properties.

        Raises ConfigError if neither names a group, InvalidNameError for a bad name.
        """
        from zkconsumer.protocol.paths import validate_group

        if given is not None:
            return validate_group(given)
        found = self.named_group()
        if found is None:
            raise ConfigError(
                "no group is named", remedy="give --group GROUP, or group.id in the --config file"
            )
        return found

    def named_group(self) -> str | None:
        """Return `group.id` of `--config` or `--property`. Raises ConfigError for a bad name."""
        found = self._named().get("group.id")
        return None if found is None else self.settings(found).group_id

    # ---- output ----------------------------------------------------------------------------------

    @property
    def screen(self) -> Screen:
        """Return the width and colours of standard output."""
        from zkconsumer.cli.output import screen

        return screen(color=not self.no_color)

    def write(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        """Write rows in the format of `--output`."""
        from zkconsumer.cli.output import write

        write(rows, columns, self.output, to=self.screen)

    def write_sections(self, sections: Mapping[str, Table]) -> None:
        """Write several tables in the format of `--output`."""
        from zkconsumer.cli.output import write_sections

        write_sections(sections, self.output, to=self.screen)


def operator(command: Callable[..., None]) -> Callable[..., None]:
    """Add the common options to a command, which gets them as its first argument, a `Common`."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    common = list(inspect.signature(Common, eval_str=True).parameters.values())
    names = [one.name for one in common]

    def run(**given: Any) -> None:
        shared = Common(**{name: given.pop(name) for name in names})
        command(shared, **given)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *common)]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def either(argument: str | None, option: str | None) -> str | None:
    """Return the group named by an argument or by --group. Raises ConfigError if they differ."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError("two groups are named", where=f"{argument}, --group {option}")
    return option if argument is None else argument


def pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"{text!r} is not a property", where="--property", remedy="use NAME=VALUE"
        )
    return name.strip(), value


def topics_of(given: Iterable[str] | None) -> dict[str, frozenset[int] | None] | None:
    """Return topic -> partitions of the --topic options, or None without any --topic.

    The value None means all partitions of the topic. Raises ConfigError, InvalidNameError.
    """
    from zkconsumer.protocol.paths import validate_topic

    found: dict[str, frozenset[int] | None] = {}
    for text in given or ():
        name, colon, numbers = text.partition(":")
        topic = validate_topic(name)
        if not colon:
            found[topic] = None
            continue
        parts = numbers.split(",")
        if not all(one.isascii() and one.isdigit() and len(one) <= 10 for one in parts):
            raise ConfigError(
                f"{text!r} names no partitions", where="--topic", remedy="use TOPIC:0,1,2"
            )
        before = found.get(topic, frozenset())
        found[topic] = None if before is None else before | {int(one) for one in parts}
    return found or None


def _no_zookeeper() -> ConfigError:
    return ConfigError(
        "the address of ZooKeeper is missing",
        remedy=f"give --zookeeper HOST:PORT/CHROOT, {ENVIRONMENT} in the environment,"
        " or zookeeper.connect in the --config file",
    )
