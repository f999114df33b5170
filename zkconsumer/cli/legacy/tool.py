"""The common part of all imitated tools: output, arguments, exit codes, connection."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from zkconsumer.admin.legacy import Writing, ZkUtils
from zkconsumer.cli.legacy.joptsimple import Option, Options, Parser
from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.options import Common
from zkconsumer.cli.sources import parse_property
from zkconsumer.config.properties_file import read_properties
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.releases import Profile, profile
from zkconsumer.zk.client import ZooKeeperClient

if TYPE_CHECKING:
    from zkconsumer.admin.legacy import Writing

# In seconds: the old tools' session timeout, and their time limit for the first connection.
ZOOKEEPER_S = 30.0

# In seconds: the old tools' time limit for a broker's answer (`SimpleConsumer`, soTimeout).
BROKER_S = 10.0

HELP = Option("help", "Print this message.")


class ToolExit(Exception):
    """Raised to end the tool with an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def no_file(error: OSError) -> JavaError:
    """Return the JVM's exception for a file that cannot be opened."""
    words = f"{error.filename} ({error.strerror})"
    return JavaError("java.io.FileNotFoundException", words)


def connect_string(name: str) -> Option:
    """Return the option with ZooKeeper's address; its default is printed but never used."""
    return Option(name, "ZooKeeper connect string.", "", default="localhost:2181")


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One run of an old tool.

    Attributes:
        java_class: the tool's Java class, which its log lines name.
        release: the Kafka release that is imitated.
        arguments: the arguments of the old tool.
        common: zkconsumer's options: authentication and properties of the connection.
        backups: directory of the backups.
    """

    java_class: str
    release: KafkaRelease
    arguments: Sequence[str]
    common: Common
    backups: Path

    @property
    def profile(self) -> Profile:
        return profile(self.release.value)

    @property
    def name(self) -> str:
        """The tool's class without its package."""
        return self.java_class.rpartition(".")[2]

    # ---- output ----------------------------------------------------------------------------------

    def out(self, text: str) -> None:
        """Write a line to standard output."""
        sys.stdout.write(f"{text}\n")

    def err(self, text: str) -> None:
        """Write a line to standard error."""
        sys.stderr.write(f"{text}\n")

    def log(self, level: str, text: str) -> None:
        """Write a line to standard error as log4j does in the old tools' configuration."""
        now = datetime.now()
        time = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03}"
        self.err(f"[{time}] {level} {text} ({self.java_class}$)")

    def deprecated(self, since: KafkaRelease, words: str) -> None:
        """Write the deprecation warning that the tool prints first, from release `since` on."""
        if self.release.since(since):
            self.log("WARN", f"WARNING: {self.name} is deprecated and will be dropped in {words}")

    # ---- arguments -------------------------------------------------------------------------------

    def options(self, options: Iterable[Option], summary: str) -> tuple[Parser, Options]:
        """Parse the arguments of a tool that has `--help`. Raises ToolExit, OptionError."""
        parser = Parser(options, self.release)
        if not self.arguments:
            self.usage(parser, summary)
        given = parser.parse(self.arguments)
        if given.has("help"):
            sys.stdout.write(parser.help())
            raise ToolExit(0)
        return parser, given

    def usage(self, parser: Parser, words: str) -> NoReturn:
        """Print the usage and end with exit code 1 (`CommandLineUtils.printUsageAndDie`)."""
        self.err(words)
        sys.stderr.write(parser.help())
        raise ToolExit(1)

    def properties(self, file: str) -> dict[str, str]:
        """Read a properties file that the tool's arguments name. Raises JavaError, ConfigError."""

        try:
            Path(file).open("rb").close()
        except OSError as error:
            raise no_file(error) from error
        return {name: value for name, value, _ in read_properties(Path(file))}

    def require(self, parser: Parser, given: Options, *names: str) -> None:
        """Require options; a default does not count (`CommandLineUtils.checkRequiredArgs`)."""
        for name in names:
            if not given.has(name):
                self.usage(parser, f'Missing required argument "[{name}]"')

    # ---- ZooKeeper -------------------------------------------------------------------------------

    @contextmanager
    def zookeeper(
        self, connect: str, properties: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[ZkUtils]:
        """Connect to ZooKeeper; zkconsumer's options override the tool's `properties`."""
        limit_s = self.common.timeout or ZOOKEEPER_S
        config = ConnectionConfig.from_properties(
            dict(properties),
            self.own_properties(),
            zookeeper_connect=connect,
            zookeeper_session_timeout_s=ZOOKEEPER_S,
            zookeeper_connection_timeout_s=limit_s,
        )
        with ZooKeeperClient(config) as connection:
            yield ZkUtils(connection, self.profile)

    def own_properties(self) -> dict[str, str]:
        """Return the properties of `--config` and `--property`."""

        file = self.common.config
        kept = {} if file is None else {name: one for name, one, _ in read_properties(file)}
        return kept | dict(map(parse_property, self.common.properties or ()))

    @property
    def broker_limit_s(self) -> float:
        """Seconds to wait for the brokers."""
        return self.common.timeout or BROKER_S

    def writing(self, zk: ZkUtils) -> Writing:
        """Return the object with which this tool writes; it prints the path of each backup."""

        return Writing(zk.connection, f"legacy {self.name}", self.backups, self._backed_up)

    def _backed_up(self, file: Path) -> None:
        self.err(f"zkconsumer: backup: {file}")
