"""Options that the operators' commands share: the connection to ZooKeeper, the group, the output
format.

@app.command("list")
@operator()
def list_(common: Common, *, group: OneGroup = None) -> None:
    with common.connect(common.group(group)) as connection:
        common.write(rows(connection), COLUMNS)

The wrapper of `operator` adds the common options. For a parameter of the type `OneGroup` or
`Groups` it also adds the argument GROUP, which is equivalent to `--group`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import typer

from zkconsumer.cli import completion
from zkconsumer.cli.output import (
    ROWS,
    Column,
    Output,
    Row,
    Screen,
    Table,
    Unknown,
    say,
    screen,
    select,
    select_sections,
    write,
    write_document,
    write_sections,
)
from zkconsumer.errors import ConfigError
from zkconsumer.frozen import dataclass

if TYPE_CHECKING:
    from zkconsumer.cli.sources import Sources
    from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.clients import ClientAddresses

Value: TypeAlias = Any  # Any: the annotation of an option's parameter has its type


def _group(help_: str) -> object:
    return typer.Option(
        "--group", "-g", metavar="GROUP", help=help_, autocompletion=completion.groups
    )


OneGroup = Annotated[str | None, _group("Group name.")]
Groups = Annotated[list[str] | None, _group("Group name; repeatable.")]
OnlyOption = Annotated[str | None, _group("The group's name.")]
"""A group in a command whose arguments are not groups but files, topics or offsets."""
OnlyOptions = Annotated[list[str] | None, _group("Name of a group; repeatable.")]
"""Groups in a command whose arguments are not groups."""
AllGroups = Annotated[
    bool, typer.Option("--all-groups", help="All groups, even if the settings name one.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,P...]",
        help="A topic, or only these partitions of it; repeatable.",
        autocompletion=completion.topics,
    ),
]


AdminPort = Annotated[
    int,
    typer.Option(
        "--zookeeper-admin-port",
        min=1,
        max=65535,
        metavar="PORT",
        envvar="ZKCONSUMER_ZOOKEEPER_ADMIN_PORT",
        help="Port of ZooKeeper's admin server, which is asked for the addresses of clients if"
        " the server does not permit `cons`.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Values of the options that say where ZooKeeper is; `operator` constructs it."""

    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "--zkconnect",
            "-z",
            metavar="H:P[,H:P...][/CHROOT]",
            help="zookeeper.connect; default: the --config file, the environment, the context.",
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Context that names the cluster (`zkconsumer context`).",
            autocompletion=completion.contexts,
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
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Log the requests to ZooKeeper and their replies to standard error."
        ),
    ] = False

    # ---- where ZooKeeper is ----------------------------------------------------------------------

    def settings(self, group: str, **more: object) -> ConsumerConfig:
        """Return the settings of a group's members from all sources that the user has set.

        `zkconsumer.cli.sources.Source` is the order of precedence. `more` overrides all sources.
        Raises ConfigError.
        """
        from zkconsumer.config.settings import ConsumerConfig

        sources = self._complete().lowest_first()
        return ConsumerConfig.from_properties(*sources, group_id=group, **self._limit(), **more)

    def member_settings(self, group: str) -> ConsumerConfig | None:
        """Return what `settings` returns; None for a group whose name Kafka does not allow."""
        from zkconsumer.protocol.paths import is_topic

        return self.settings(group) if is_topic(group) else None

    def connection_settings(self, group: str | None = None) -> ConnectionConfig:
        """Return the settings of the connection to ZooKeeper.

        The result is a ConsumerConfig if `group` or a source names a group that a consumer can
        join. Raises ConfigError.
        """
        from zkconsumer.config.settings import ConnectionConfig

        named = group if group is not None else self.named_group()
        members = None if named is None else self.member_settings(named)
        if members is not None:
            return members
        return ConnectionConfig.from_properties(*self._complete().lowest_first(), **self._limit())

    @cached_property
    def sources(self) -> Sources:
        """The settings of all sources. Raises ConfigError."""
        from zkconsumer.cli.sources import sources_of

        return sources_of(self.zookeeper, self.properties, self.config, self.context)

    def _complete(self) -> Sources:
        """Return the sources. Raises ConfigError if none has ZooKeeper's address."""
        if self.sources.get("zookeeper.connect") is None:
            raise ConfigError(
                "the address of ZooKeeper is missing",
                remedy="give --zookeeper HOST:PORT/CHROOT, ZKCONSUMER_ZOOKEEPER in the environment,"
                " zookeeper.connect in the --config file, or a context (`zkconsumer context add`)",
            )
        return self.sources

    def _limit(self) -> dict[str, object]:
        return {} if self.timeout is None else {"zookeeper_connection_timeout_s": self.timeout}

    def within(self, context: str | None) -> Self:
        """Return the same options with this context, if one is named."""
        return self if context is None else replace(self, context=context)

    def connect(self, group: str | None = None) -> ZooKeeperClient:
        """Return a client, which connects when it is entered. Raises ConfigError."""
        from zkconsumer.zk.client import ZooKeeperClient

        return ZooKeeperClient(self.connection_settings(group))

    # ---- which group -----------------------------------------------------------------------------

    def group(self, given: str | None) -> str:
        """Return the group given on the command line, or else the group that another source names.

        The group may have a name that Kafka does not allow, since other clients create such groups.
        Raises ConfigError if no source names a group, InvalidNameError for a name that no znode can
        have.
        """
        from zkconsumer.protocol.paths import validate_group_znode

        if given is not None:
            return validate_group_znode(given)
        found = self._group_of_sources()
        if found is None:
            raise ConfigError(
                "no group is named",
                remedy="give the argument GROUP, --group GROUP, ZKCONSUMER_GROUP, group.id in the"
                " --config file, or a context with a group",
            )
        return found

    def groups(self, given: Sequence[str] | None, *, all_groups: bool) -> list[str] | None:
        """Return the groups that a reading command concerns; None means all groups.

        If the command line names no group, the result is the group that another source names, or
        else all groups. Raises ConfigError if groups are named twice or beside --all-groups,
        InvalidNameError.
        """
        from zkconsumer.protocol.paths import validate_group_znode

        names = list(map(validate_group_znode, given or ()))
        if all_groups and names:
            raise ConfigError(
                "--all-groups and named groups exclude each other",
                where=", ".join(names),
                remedy="leave out one of the two",
            )
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"group {repeated[0]} is named twice", where="--group")
        if names or all_groups:
            return names or None
        found = self._group_of_sources()
        return None if found is None else [found]

    def groups_to_change(
        self, given: Sequence[str] | None, *, all_groups: bool
    ) -> list[str] | None:
        """Return the groups that a command changes; None means all, and requires --all-groups.

        Raises what `groups` raises, and ConfigError if no group is named.
        """
        names = self.groups(given, all_groups=all_groups)
        if names is None and not all_groups:
            raise ConfigError(
                "no group is named, and a change of all groups must be requested",
                remedy="give --group GROUP, or --all-groups",
            )
        return names

    def _group_of_sources(self) -> str | None:
        """Return what `named_group` returns, and say on standard error where it comes from: the
        user has not typed the group that limits the answer."""
        found = self.named_group()
        if found is not None and (source := self.sources.get("group.id")) is not None:
            say(f"group {found}, from {source.place}")
        return found

    def named_group(self) -> str | None:
        """Return the group that a source other than --group names. Raises ConfigError."""
        found = self.sources.get("group.id")
        return None if found is None else self.settings(found.value).group_id


@dataclass(frozen=True, kw_only=True)
class Format:
    """Value of the option --output of a command whose result is one document."""

    output: Annotated[
        Output,
        typer.Option("--output", "-o", help="Output format."),
    ] = Output.TABLE

    @property
    def is_for_people(self) -> bool:
        """Whether the output format is a table, and not one for programs."""
        return self.output in (Output.TABLE, Output.WIDE, Output.STORY, Output.LEGACY)

    def write_document(self, document: object) -> None:
        """Write one value as JSON or YAML."""

        write_document(document, self.output)


@dataclass(frozen=True, kw_only=True)
class Display(Format):
    """Values of the options that say how a result is shown; `operator` constructs it."""

    columns: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Show only these columns, in this order."),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="[-]NAME", help="Sort the rows by this column; - puts the highest value first."
        ),
    ] = None
    no_headers: Annotated[
        bool, typer.Option("--no-headers", help="Leave out the titles of a table or of CSV.")
    ] = False
    no_color: Annotated[
        bool,
        typer.Option(
            "--no-color", help="Print no colours; NO_COLOR in the environment does the same."
        ),
    ] = False

    @property
    def is_selected(self) -> bool:
        """Whether the user has chosen columns or an order of the rows."""
        return self.columns is not None or self.sort is not None

    @property
    def screen(self) -> Screen:
        """Return the width and colours of standard output."""

        return screen(color=not self.no_color, headers=not self.no_headers)

    def selected(self, table: Table) -> Table:
        """Return a table with the columns of --columns, sorted by --sort. Raises ConfigError."""
        return select(table, self.columns, self.sort)

    def write(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        """Write rows in the format of `--output`."""

        table = self.selected(Table(list(rows), columns))
        write(table.rows, table.columns, self.output, to=self.screen)

    def write_sections(self, sections: Mapping[str, Table]) -> None:
        """Write several tables in the format of `--output`."""

        found = select_sections(sections, self.columns, self.sort)
        write_sections(found, self.output, to=self.screen)

    def write_document(self, document: object) -> None:
        """Write one value as JSON or YAML. Raises ConfigError with --columns or --sort."""
        if self.is_selected:
            raise ConfigError(
                f"the {self.output.value} of this command is one document, without rows",
                where="--columns, --sort",
                remedy="use --output jsonl, csv or table",
            )
        super().write_document(document)


@dataclass(frozen=True, kw_only=True)
class Common(Display, Connection):
    """Values of the common options of a command that reads ZooKeeper."""


@dataclass(frozen=True, kw_only=True)
class Addressed(Common):
    """Values of the common options of a command that shows sessions, with their clients."""

    admin_port: AdminPort = 8080

    @property
    def shows_clients(self) -> bool:
        """Whether the output has the column `client`."""
        if self.columns is not None:
            return "client" in self.columns.lower()
        return self.output is not Output.TABLE

    def addresses(self, config: ConnectionConfig) -> ClientAddresses:
        """Ask ZooKeeper's servers for the addresses of their clients."""
        from zkconsumer.zk.clients import client_addresses

        return client_addresses(config, admin_port=self.admin_port)

    def shown_addresses(self, config: ConnectionConfig) -> ClientAddresses | None:
        """Return what `addresses` returns if the output has the column `client`, else None."""
        return self.addresses(config) if self.shows_clients else None


def client_cell(session: int, addresses: ClientAddresses | None) -> str | Unknown | None:
    """Return the address of a session's client as a cell; None without a session, or if the
    servers were not asked because the table does not have the column."""
    if not session or addresses is None:
        return None
    return addresses.of(session) or Unknown(addresses.why_unknown)


# ---- commands ------------------------------------------------------------------------------------


_ARGUMENTS = {
    OneGroup: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP", help="Group name, as with --group.", autocompletion=completion.groups
        ),
    ],
    Groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP", help="Group names, as with --group.", autocompletion=completion.groups
        ),
    ],
}
_ARGUMENT = "_argument"


def operator(
    *, formats: Sequence[Output] = ROWS, of: Sequence[type] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds common options to a command.

    The command gets the values of the options as its first argument, whose annotation (`Common`,
    `Connection`, `Display` or `Format`) selects the options. With `of`, the command gets one
    argument for each of these classes. `formats` are the output formats.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        classes = list(of) or [own[0].annotation]
        own = own[len(classes) :]
        shared = {one: _options(one, tuple(formats)) for one in classes}

        def run(**given: Value) -> None:
            made = [
                one(**{name: _plain(given.pop(name)) for name in options})
                for one, options in shared.items()
            ]
            for one in made:
                if isinstance(one, Connection):
                    _prepare(one)
            for name in [name for name in given if name.endswith(_ARGUMENT)]:
                option = name.removesuffix(_ARGUMENT)
                given[option] = merged(given.pop(name), given[option])
            command(*made, **given)

        parameters = [more for one in own for more in _expanded(one)]
        parameters += [one for options in shared.values() for one in options.values()]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for Typer
        return run

    return decorate


def _options(of: type, formats: tuple[Output, ...]) -> dict[str, inspect.Parameter]:
    """Return the options of a class, with the output formats that the command has."""
    found = dict(inspect.signature(of, eval_str=True).parameters)
    if "output" in found:
        choice = _choice(formats)
        option = typer.Option("--output", "-o", help="Output format.")
        found["output"] = found["output"].replace(
            annotation=Annotated[choice, option], default=choice("table")
        )
    return found


@cache
def _choice(formats: tuple[Output, ...]) -> Value:
    return Enum("Output", {one.name: one.value for one in formats})


def _plain(value: Value) -> Value:
    """Return an option's value; a format of a command's own enumeration becomes its Output."""
    return Output(value.value) if isinstance(value, Enum) else value


def _expanded(one: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameter; if it is a group, put the argument GROUP before it."""
    if one.annotation not in (OneGroup, Groups):
        return [one]
    argument = one.replace(name=one.name + _ARGUMENT, annotation=_ARGUMENTS[one.annotation])
    return [argument, one]


def merged(argument: Value, option: Value) -> Value:
    """Return the groups of the argument and of --group. Raises ConfigError if two differ."""
    if isinstance(argument, list) or isinstance(option, list):
        return [*(argument or ()), *(option or ())] or None
    if argument is not None and option is not None and argument != option:
        raise ConfigError("two groups are named", where=f"{argument}, --group {option}")
    return option if argument is None else argument


def warn_of_secrets(properties: Iterable[str] | None) -> None:
    """Warn of secrets in `--property`, because other users see them in the list of processes."""
    if not properties:
        return  # commands that read files then need no settings, whose import is slow
    from zkconsumer.config.secrets import CREDENTIAL, CREDENTIAL_NAME, is_secret

    for text in properties or ():
        name, _, value = text.partition("=")
        if is_secret(name) and value and not value.startswith("@"):
            variable = f", {CREDENTIAL}" if name.strip() == CREDENTIAL_NAME else ""
            say(
                f"{name} is in the command line, which other users can see: use {name}=@FILE"
                f"{variable} or the --config file"
            )


def _prepare(connection: Connection) -> None:
    """Warn of secrets in arguments, and start the log of --debug."""
    warn_of_secrets(connection.properties)
    if connection.debug:
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("kazoo").setLevel(logging.DEBUG)
        logging.getLogger("numba").setLevel(logging.INFO)  # at DEBUG, numba logs its compiler


def topics_of(given: Iterable[str] | None) -> dict[str, frozenset[int] | None] | None:
    """Return topic -> partitions of the --topic options; None if there is no --topic.

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


def whole_topics(given: Iterable[str] | None, *, remedy: str = "") -> list[str] | None:
    """Return the topics of --topic in a command that cannot select partitions, or None.

    `remedy` says what to do instead. Raises ConfigError if partitions are given, InvalidNameError.
    """
    found = topics_of(given)
    for topic, partitions in (found or {}).items():
        if partitions is not None:
            raise ConfigError(
                "this command concerns whole topics",
                where=f"--topic {topic}:{','.join(map(str, sorted(partitions)))}",
                remedy=remedy or f"give --topic {topic}",
            )
    return None if found is None else list(found)
