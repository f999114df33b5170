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
    from zkconsumer.config import ConsumerConfig
    from zkconsumer.zk.connection import Connection

ENVIRONMENT = "ZKCONSUMER_ZOOKEEPER"

PLACEHOLDER = "zkconsumer.tools.no-group"
"""The group.id of a connection that operates on no one group; nothing is ever written below it."""

OneGroup = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="The group.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="GROUP", help="A group; may be given several times."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC[:P,P...]",
        help="A topic, or some of its partitions; may be given several times.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """The values of the common options; `operator` makes it."""

    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper", "--zkconnect", "-z", metavar="H:P[,H:P...][/CHROOT]",
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
            min=0.001, metavar="S",
            help="Seconds to wait for ZooKeeper, and for the brokers; by default 6.",
        ),
    ] = None
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o",
            help="How to write the result. legacy: as Kafka's tool of 1.1.1, where there was one"
            " (lag); as other releases: `zkconsumer legacy`.",
        ),
    ] = Output.TABLE
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours; nor with NO_COLOR in the environment.")
    ] = False

    # ---- where ZooKeeper is ----------------------------------------------------------------------

    def settings(self, group: str | None = None) -> ConsumerConfig:
        """The settings for operating on a group; without one, those of the file, or none.

        An option wins over a property, that one over the file, and that over the environment.
        Raises ConfigError.
        """
        from zkconsumer.config import ConsumerConfig  # noqa: PLC0415

        first = {"group.id": PLACEHOLDER}
        if os.environ.get(ENVIRONMENT):
            first["zookeeper.connect"] = os.environ[ENVIRONMENT]
        given = dict(map(pair, self.properties or ()))
        overrides: dict[str, Any] = {}
        if group is not None:
            overrides["group_id"] = group
        if self.zookeeper is not None:
            overrides["zookeeper_connect"] = self.zookeeper
        elif not {"zookeeper.connect"} & {*first, *given, *self._names_in_file()}:
            raise _no_zookeeper()
        if self.timeout is not None:
            overrides["zookeeper_connection_timeout_s"] = self.timeout
        file = [] if self.config is None else [self.config]
        return ConsumerConfig.from_properties(first, *file, given, **overrides)

    def _names_in_file(self) -> Iterable[str]:
        from zkconsumer.config_files import read_properties  # noqa: PLC0415

        return [] if self.config is None else [name for name, _, _ in read_properties(self.config)]

    def connect(self, group: str | None = None) -> Connection:
        """A connection to enter. Raises ConfigError; on entering as `Connection` says."""
        from zkconsumer.zk.connection import Connection  # noqa: PLC0415

        return Connection(self.settings(group))

    def group(self, given: str | None) -> str:
        """The group that was named, if not on the command line then as group.id.

        Raises ConfigError where none was, InvalidNameError for one that cannot be.
        """
        from zkconsumer.core.paths import validate_group  # noqa: PLC0415

        if given is not None:
            return validate_group(given)
        found = self.settings().group_id
        if found == PLACEHOLDER:
            raise ConfigError(
                "no group was named", remedy="--group GROUP, or group.id in the file of --config"
            )
        return found

    # ---- how it is written -----------------------------------------------------------------------

    @property
    def screen(self) -> Screen:
        """What standard output is."""
        from zkconsumer.cli.output import screen  # noqa: PLC0415

        return screen(color=not self.no_color)

    def write(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        """Write rows as `--output` says."""
        from zkconsumer.cli.output import write  # noqa: PLC0415

        write(rows, columns, self.output, to=self.screen)

    def write_sections(self, sections: Mapping[str, Table]) -> None:
        """Write several tables as `--output` says."""
        from zkconsumer.cli.output import write_sections  # noqa: PLC0415

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
    from zkconsumer.core.paths import validate_topic  # noqa: PLC0415

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
