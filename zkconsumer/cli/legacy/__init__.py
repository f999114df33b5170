"""`zkconsumer legacy NAME [old arguments]`: Kafka's old tools, with the same output byte for byte.

The exit codes are those of the old tools. The exit code is 1 if the JVM would end with an
exception. The exit code is 3 if ZooKeeper is unreachable; some old tools return 0 in that case.
"""

from __future__ import annotations

import importlib
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import typer

from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.cli.options import Common, warn_of_secrets
from zkconsumer.cli.output import error_text
from zkconsumer.errors import ChrootMissingError, ZkConsumerError, ZooKeeperUnreachableError
from zkconsumer.protocol.java import JavaError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class _Entry(NamedTuple):
    """A tool: its Java class, the function that implements it, and its first and last release."""

    java_class: str
    module: str
    function: str = "run"
    first: KafkaRelease = KafkaRelease.R0_8
    last: KafkaRelease = KafkaRelease.R1


_TOOLS = {
    "ConsumerOffsetChecker": _Entry(
        "kafka.tools.ConsumerOffsetChecker",
        "offset_checker",
        "check_offsets",
        last=KafkaRelease.R0_11,
    ),
    "ExportZkOffsets": _Entry("kafka.tools.ExportZkOffsets", "offsets", "export"),
    "ImportZkOffsets": _Entry("kafka.tools.ImportZkOffsets", "offsets", "import_"),
    "UpdateOffsetsInZK": _Entry("kafka.tools.UpdateOffsetsInZK", "offsets", "update"),
    "VerifyConsumerRebalance": _Entry(
        "kafka.tools.VerifyConsumerRebalance", "offset_checker", "verify_rebalance"
    ),
    "ConsumerGroupCommand": _Entry(
        "kafka.admin.ConsumerGroupCommand", "consumer_groups", first=KafkaRelease.R0_9
    ),
    "ConsoleConsumer": _Entry("kafka.tools.ConsoleConsumer", "console_consumer"),
    "GetOffsetShell": _Entry("kafka.tools.GetOffsetShell", "shell"),
}

Name = Enum("Name", {name: name for name in _TOOLS})  # type: ignore[misc]  # from a table


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    }
)
def legacy(
    context: typer.Context,
    name: Annotated[
        Name,
        typer.Argument(
            metavar="NAME",
            help=f"Name of the tool, followed by the tool's arguments: {', '.join(_TOOLS)}.",
        ),
    ],
    *,
    release: Annotated[
        KafkaRelease | None,
        typer.Option(help="Kafka release to imitate; default: the newest that has the tool."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Properties file with authentication and TLS for ZooKeeper."
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="A property that overrides the --config file; repeatable.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="S",
            help="Seconds to wait for ZooKeeper (default 30) and for the brokers (default 10).",
        ),
    ] = None,
    backup_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Directory of the backups of overwritten and deleted znodes."
        ),
    ] = Path(),
) -> None:
    """Run one of Kafka's old tools, with its old arguments and output.

    For example: zkconsumer legacy --release 0.9.0.1 ConsumerGroupCommand --zookeeper h:2181 --list
    """
    entry = _TOOLS[name.value]
    warn_of_secrets(properties)
    common = Common(config=config, properties=properties, timeout=timeout)
    _run(entry, release or entry.last, context.args, common, backup_dir)


def _run(
    entry: _Entry, release: KafkaRelease, arguments: list[str], common: Common, backups: Path
) -> None:
    from zkconsumer.cli.legacy.joptsimple import OptionError
    from zkconsumer.cli.legacy.tool import Tool, ToolExit

    if not (release.since(entry.first) and entry.last.since(release)):
        _end(
            f"Error: Could not find or load main class {entry.java_class}\n"
            f"Caused by: java.lang.ClassNotFoundException: {entry.java_class}"
        )
    module = importlib.import_module(f"{__name__}.{entry.module}")
    tool = Tool(
        java_class=entry.java_class,
        release=release,
        arguments=arguments,
        common=common,
        backups=backups,
    )
    try:
        getattr(module, entry.function)(tool)
    except ToolExit as ended:
        raise typer.Exit(ended.code) from None
    except (JavaError, OptionError) as error:
        _end(f'Exception in thread "main" {error.kind}: {error}')
    except (ZooKeeperUnreachableError, ChrootMissingError):
        raise
    except ZkConsumerError as error:
        _end(f"zkconsumer: {error_text(error)}")


def _end(words: str) -> NoReturn:
    sys.stderr.write(f"{words}\n")
    raise typer.Exit(1)
