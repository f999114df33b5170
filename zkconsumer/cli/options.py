"""What the operator's commands have in common: where ZooKeeper is, and how results are written.

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

OneGroup = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="The group.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="GROUP", help="A group; may be given several times."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,P...]",
        help="A topic, or some of its partitions; may be given several times.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """The values of the common options; `operator` makes it."""

    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "--zkconnect",
            "-z",
            metavar="H:P[,H:P...][/CHROOT]",
            help=f"zookeeper.connect; by default ${ENVIRONMENT}, or of --config.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A consumer.properties file: zookeeper.connect, group.id, authentication, TLS.",
        ),
    ] = None
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; wins over the file."),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="S",
            help="Seconds to wait for ZooKeeper, and for the brokers; by default 6.",
        ),
    ] = None
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            help="How to write the result. legacy: as Kafka's tool of 1.1.1, where there was one"
            " (lag); as other releases: `zkconsumer legacy`.",
        ),
    ] = Output.TABLE
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours; nor with NO_COLOR in the environment.")
    ] = False

    # ---- where ZooKeeper is ----------------------------------------------------------------------

    def settings(self, group: str) -> ConsumerConfig:
        """Return the settings of the members of a group, as far as the user gave them.

        An option wins over a property, a property over the file, the file over the environment.
        Raises ConfigError.
        """
        from zkconsumer.config.settings import ConsumerConfig

        return ConsumerConfig.from_properties(*self._sources(), group_id=group, **self._overrides())

    def connection_settings(self, group: str | None = None) -> ConnectionConfig:
        """Return where ZooKeeper is; a ConsumerConfig if an argument or a property names a group.

        Raises ConfigError.
        """
        from zkconsumer.config.settings import ConnectionConfig

        named = group if group is not None else self.named_group()
        if named is not None:
            return self.settings(named)
        return ConnectionConfig.from_properties(*self._sources(), **self._overrides())

    def _sources(self) -> list[Path | dict[str, str]]:
        """Where properties come from; later sources win."""
        environment = os.environ.get(ENVIRONMENT)
        first = {"zookeeper.connect": environment} if environment else {}
        file = [] if self.config is None else [self.config]
        return [first, *file, dict(map(pair, self.properties or ()))]

    def _overrides(self) -> dict[str, Any]:
        """The settings that options of the command line name. Raises ConfigError."""
        found: dict[str, Any] = {}
        if self.zookeeper is not None:
            found["zookeeper_connect"] = self.zookeeper
        elif not os.environ.get(ENVIRONMENT) and "zookeeper.connect" not in self._named():
            raise _no_zookeeper()
        if self.timeout is not None:
            found["zookeeper_connection_timeout_s"] = self.timeout
        return found

    def _named(self) -> dict[str, str]:
        """The properties of the file and of `--property`."""
        from zkconsumer.config.properties_file import read_properties

        file = () if self.config is None else read_properties(self.config)
        found = {name: value for name, value, _ in file}
        return found | dict(map(pair, self.properties or ()))

    def connect(self, group: str | None = None) -> ZooKeeperClient:
        """A connection to enter. Raises ConfigError; on entering as `Connection` says."""
        from zkconsumer.zk.client import ZooKeeperClient

        return ZooKeeperClient(self.connection_settings(group))

    def group(self, given: str | None) -> str:
        """The group that was named, if not on the command line then as group.id.

        Raises ConfigError where none was, InvalidNameError for one that cannot be.
        """
        from zkconsumer.protocol.paths import validate_group

        if given is not None:
            return validate_group(given)
        found = self.named_group()
        if found is None:
            raise ConfigError(
                "no group was named", remedy="--group GROUP, or group.id in the file of --config"
            )
        return found

    def named_group(self) -> str | None:
        """Return `group.id` of the file or of `--property`. Raises ConfigError for a bad name."""
        found = self._named().get("group.id")
        return None if found is None else self.settings(found).group_id

    # ---- how it is written -----------------------------------------------------------------------

    @property
    def screen(self) -> Screen:
        """What standard output is."""
        from zkconsumer.cli.output import screen

        return screen(color=not self.no_color)

    def write(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        """Write rows as `--output` says."""
        from zkconsumer.cli.output import write

        write(rows, columns, self.output, to=self.screen)

    def write_sections(self, sections: Mapping[str, Table]) -> None:
        """Write several tables as `--output` says."""
        from zkconsumer.cli.output import write_sections

        write_sections(sections, self.output, to=self.screen)


def operator(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options: it gets them as its first argument, a `Common`."""
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
    """A group that may be named by an argument, or by --group. Raises ConfigError for two."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError("two groups were named", where=f"{argument}, --group {option}")
    return option if argument is None else argument


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE in two. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is no property", where="--property", remedy="NAME=VALUE")
    return name.strip(), value


def topics_of(given: Iterable[str] | None) -> dict[str, frozenset[int] | None] | None:
    """What --topic named: topic -> its partitions, None for all of them; None where none was named.

    Raises ConfigError, InvalidNameError.
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
                f"{text!r} names no partitions", where="--topic", remedy="TOPIC:0,1,2"
            )
        before = found.get(topic, frozenset())
        found[topic] = None if before is None else before | {int(one) for one in parts}
    return found or None


def _no_zookeeper() -> ConfigError:
    return ConfigError(
        "nothing says where ZooKeeper is",
        remedy=f"--zookeeper HOST:PORT/CHROOT, {ENVIRONMENT} in the environment,"
        " or zookeeper.connect in the file of --config",
    )
