"""`zkconsumer docs`: the documentation, whose pages the package contains."""

from __future__ import annotations

import difflib
import pydoc
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

import typer

from zkconsumer.cli.output import safe
from zkconsumer.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _complete_page(incomplete: str) -> list[str]:
    return [name for name in pages() if name.startswith(incomplete)]


@app.command()
def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="PAGE",
            help="Name of a page; without it, all names.",
            autocompletion=_complete_page,
        ),
    ] = None,
    *,
    find: Annotated[
        str | None,
        typer.Option(
            "--find", "-f", metavar="TEXT", help="Print the lines that contain this text."
        ),
    ] = None,
) -> None:
    """Show a page of the documentation, or find the pages that contain a text.

    On a terminal, a page is shown in the program of the variable PAGER (by default less).

    Example: zkconsumer docs --find rebalance.backoff.ms
    """
    known = pages()
    chosen = list(known) if page is None else [_checked(page, known)]
    if find is not None:
        _print_matches({name: known[name] for name in chosen}, find)
    elif page is not None:
        pydoc.pager(known[chosen[0]])
    else:
        for name, text in known.items():
            typer.echo(f"{name:<36}{_title(text)}")


def pages() -> dict[str, str]:
    """Return the text of each page by its name: its path without `.md`."""
    return dict(sorted(_below(files("zkconsumer") / "docs", "")))


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _below(one, f"{prefix}{one.name}/")
        elif one.name.endswith((".md", ".py")):
            yield prefix + one.name.removesuffix(".md"), one.read_text(encoding="utf-8")


def _title(text: str) -> str:
    """Return the heading of a page, or the first line of an example's docstring."""
    return text.partition("\n")[0].strip('# "')


def _checked(page: str, known: dict[str, str]) -> str:
    """Return the name of a page, which may be given with `docs/` and `.md`. Raises ConfigError."""
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"no page is called {page!r}", remedy=f"{hint}`zkconsumer docs` lists the pages"
        )
    return name


def _print_matches(texts: dict[str, str], wanted: str) -> None:
    """Print each line that contains a text, in any case, with its page and the line's number.

    Raises ConfigError if there is none.
    """
    is_found = False
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            if wanted.casefold() in line.casefold():
                is_found = True
                typer.echo(f"{name}:{number}: {line.strip()}")
    if not is_found:
        raise ConfigError(
            f"no page contains {safe(wanted)!r}", remedy="`zkconsumer docs` lists the pages"
        )
