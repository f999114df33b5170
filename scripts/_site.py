"""Build the documentation site: the command scripts/site. A warning is a failure.

usage: scripts/site [DIRECTORY]     (default: build/site)

The pages are those of the repository: README.md, CHANGELOG.md, CONTRIBUTING.md and docs/. They are
copied with the same relative paths, so their links also work in the repository. The build adds
references of the Python API (from docstrings), of the command line (from its commands), and of the
schemas. The site needs no server, and makes no request to another host.
"""

from __future__ import annotations

import html
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

import zkconsumer
from zkconsumer.cli import COMMANDS, app
from zkconsumer.errors import ZkConsumerError

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "scripts" / "site.yml"
# A link of a page: its text, and its target.
LINK = re.compile(r"(\[[^\]]+\])\(([^)\s]+)\)")
# The languages of the examples, by the endings of their files.
LANGUAGES = {".py": "python", ".js": "javascript", ".go": "go", ".java": "java"}
# The pages of the API: title, purpose, and full names. The first page also has the names of
# `zkconsumer` that no other page lists.
API = {
    "consumer": ("Consumer", "Streams, commits and callbacks.", []),
    "messages": ("Messages", "What a stream delivers.", ["Message", "Batch", "TimestampType"]),
    "asyncio": (
        "asyncio",
        "The same for asyncio.",
        ["zkconsumer.aio.ConsumerConnector", "zkconsumer.aio.Stream"],
    ),
    "admin": ("Admin", "What operators do, from Python.", ["zkconsumer.admin.api.Admin"]),
    "errors": ("Errors", "Every error of zkconsumer.", []),
}
# Its fields are the properties; docs/configuration.md explains them, so the signature is not shown.
OPTIONS = {
    "ConsumerConfig": (
        "    options:",
        "      show_signature: false",
        "      inherited_members: [from_properties]",
        "      members: [from_properties, for_group]",
    ),
}


def slug(text: str, _separator: str = "-") -> str:
    """Return the anchor of a heading, as in the repository's view."""
    return re.sub(r"[^\w -]", "", html.unescape(text)).lower().replace(" ", "-")


# ---- the repository's pages ----------------------------------------------------------------------


def copy_pages(pages: Path) -> None:
    """Copy the pages, and the files outside docs/ that they link to."""
    for page in sorted(ROOT.glob("*.md")):
        shutil.copy(page, pages)
    shutil.copy(ROOT / "LICENSE", pages)
    (pages / "assets").mkdir()
    shutil.copy(ROOT / "scripts" / "_site_worker.js", pages / "assets" / "iframe-worker.js")
    ignore = shutil.ignore_patterns("__pycache__", "records")
    shutil.copytree(ROOT / "docs", pages / "docs", ignore=ignore)
    for page in sorted(pages.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(LINK.sub(partial(_link, page, pages), text), encoding="utf-8")


def _link(page: Path, pages: Path, found: re.Match[str]) -> str:
    """Return a link that works in the site: to the page of a directory, or to a copied file."""
    text, target = found.groups()
    path, _, _ = target.partition("#")
    if "://" in target or not path:
        return found[0]
    inside = Path(os.path.normpath(page.parent / path)).relative_to(pages)
    source = ROOT / inside
    if source.is_dir():
        return f"{text}({path.rstrip('/')}/README.md)"
    if source.is_file() and not (pages / inside).exists():
        (pages / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, pages / inside)
    return found[0]


def write_indexes(pages: Path) -> None:
    """Write a page for each directory of docs/ that has none."""
    lessons = sorted((pages / "docs/lessons").glob("*.md"))
    lines = ["# Lessons", "", "Ten short lessons on group protocols, with commands to run:", ""]
    lines += [f"- [{_title(path)}]({path.name})" for path in lessons]
    (pages / "docs/lessons/README.md").write_text("\n".join(lines), encoding="utf-8")
    for folder in ("docs/examples", "docs/examples/judge"):
        write_programs(pages / folder)


def write_programs(folder: Path) -> None:
    """Write a page with all programs of a folder."""
    lines = ["# Examples", "", "Programs to copy; the tests run each of them."]
    for path in sorted(one for one in folder.iterdir() if one.suffix in LANGUAGES):
        source = path.read_text(encoding="utf-8").rstrip()
        lines += ["", f"## {path.name}", "", f"```{LANGUAGES[path.suffix]}", source, "```"]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


# ---- the reference -------------------------------------------------------------------------------


def write_api(directory: Path) -> None:
    """Write the pages of the Python API, which mkdocstrings fills from the docstrings."""
    names = {page: list(found) for page, (_, _, found) in API.items()}
    listed = {name for found in names.values() for name in found}
    for name in zkconsumer.__all__:
        if name not in listed:
            one = getattr(zkconsumer, name)
            is_error = inspect.isclass(one) and issubclass(one, ZkConsumerError)
            names["errors" if is_error else "consumer"].append(name)
    for page, (title, what, _) in API.items():
        lines = [f"# {title}", "", what]
        for name in names[page]:
            lines += ["", f"::: {name if '.' in name else _home(name)}", *OPTIONS.get(name, ())]
        (directory / f"{page}.md").write_text("\n".join(lines), encoding="utf-8")


def _home(name: str) -> str:
    one = getattr(zkconsumer, name)
    return f"{one.__module__}.{one.__qualname__}"


def write_commands(page: Path) -> None:
    """Write the reference of the command line from the commands themselves."""
    lines = ["# Command line", "", "`zkconsumer COMMAND --help` shows the same."]
    root: Any = typer.main.get_command(app)
    context = root.make_context("zkconsumer", [], resilient_parsing=True)
    for name in COMMANDS:
        lines += _command(root.get_command(context, name), f"zkconsumer {name}", 2)
    page.write_text("\n".join(lines), encoding="utf-8")


def _command(command: Any, path: str, level: int) -> Iterator[str]:
    """Yield the lines about a command, and about its subcommands."""
    context = command.make_context(path, [], resilient_parsing=True)
    yield from ("", f"{'#' * level} {path}", "")
    yield from (inspect.cleandoc(command.help or command.short_help or ""), "")
    below = getattr(command, "commands", {})
    words = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{path} {words}", "```", "")
    rows = [found for one in command.params if (found := one.get_help_record(context))]
    if rows:
        yield from ("| Option | |", "|---|---|")
        yield from (f"| {_cell(f'`{option}`')} | {_cell(text)} |" for option, text in rows)
    for name, one in below.items():
        yield from _command(one, f"{path} {name}", level + 1)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write_schemas(directory: Path) -> None:
    """Write the page of the JSON Schemas: the fields of each, and a link to the file."""
    lines = ["# JSON Schemas", "", "`zkconsumer schema NAME` prints each of these files.", ""]
    for path in sorted(directory.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"## {path.stem}", "", f"{schema['title']}: [{path.name}]({path.name})", ""]
        fields = _fields(schema)
        if fields:
            lines += ["| Field | Type |", "|---|---|"]
            lines += [f"| `{name}` | {_type(one)} |" for name, one in fields.items()]
        lines.append("")
    (directory / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    while schema.get("type") == "array":
        schema = schema["items"]
    found: dict[str, Any] = schema.get("properties", {})
    return found


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    return str(schema.get("type", "any"))


# ---- the build -----------------------------------------------------------------------------------


def write_config(directory: Path) -> None:
    """Write mkdocs.yml: site.yml, with the pages of the directories that its `nav` names."""
    text = CONFIG.read_text(encoding="utf-8")
    pages = directory / "pages"

    def filled(found: re.Match[str]) -> str:
        indent, folder = found[1], found[3]
        files = sorted(path.name for path in (pages / folder).glob("*.md"))
        files.sort(key=lambda name: name != "README.md")
        lines = [f"{indent}- {found[2]}:"]
        lines += [f"{indent}    - {folder}{name}" for name in files]
        return "\n".join(lines)

    text = re.sub(r"^( +)- ([\w ]+): (\S+/)$", filled, text, flags=re.MULTILINE)
    (directory / "mkdocs.yml").write_text(text, encoding="utf-8")


def build(out: Path) -> int:
    """Build the site into `out`, and return MkDocs' exit code."""
    with tempfile.TemporaryDirectory(prefix="zkconsumer-site-") as name:
        directory = Path(name)
        pages = directory / "pages"
        (pages / "reference/api").mkdir(parents=True)
        copy_pages(pages)
        write_indexes(pages)
        write_api(pages / "reference/api")
        write_commands(pages / "reference/commands.md")
        write_schemas(pages / "docs/schemas")
        write_config(directory)
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        command += ["--config-file", str(directory / "mkdocs.yml"), "--site-dir", str(out)]
        path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    arguments = sys.argv[1:]
    if len(arguments) > 1 or arguments in (["--help"], ["-h"]):
        sys.stdout.write(__doc__ or "")
        return 0 if len(arguments) == 1 else 2
    out = Path(arguments[0] if arguments else ROOT / "build" / "site").absolute()
    code = build(out)
    if code == 0:
        sys.stdout.write(f"{out}/index.html\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
