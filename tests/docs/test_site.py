"""The documentation site builds without a warning, and each link has a target."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, expect

import zkconsumer
from zkconsumer.cli import COMMANDS

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S = 200
LIMIT_MS = 120_000
# Elements that show whether lists, tables, code and emphasis were rendered.
ELEMENTS = ("h2", "h3", "h4", "li", "tr", "pre", "em", "strong")


class _Page(HTMLParser):
    """Collects a page's anchors, the targets of its links, and the resources it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store the anchor and the link of an element."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") != "canonical":
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by MkDocs, which fails at any warning, for instance about a link."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "_site.py", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """The parsed pages. On the page for missing pages, links start at the server's root."""
    return {path: _Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_has_a_target(pages: dict[Path, _Page]) -> None:
    """Each link within the site leads to a file, and to an anchor on this page."""
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            anchor = unquote(parts.fragment)
            if not there.is_file() or (
                anchor and there in pages and anchor not in pages[there].anchors
            ):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_no_other_host_is_contacted(pages: dict[Path, _Page]) -> None:
    """Each page loads only files of the site."""
    for path, page in pages.items():
        assert not [one for one in page.loaded if "//" in one], path.name
        for one in page.loaded:
            assert one.startswith("data:") or (path.parent / urlsplit(one).path).is_file(), one


def test_the_search_finds_every_part(site: Path) -> None:
    """The search index contains the pages, each public name, and each command."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = {one["title"] for one in index["docs"]}
    assert {f"zkconsumer {name}" for name in COMMANDS} <= titles
    found = {title.partition("(")[0].strip().rpartition(".")[2] for title in titles}
    text = " ".join(titles)
    assert {name for name in zkconsumer.__all__ if name not in found | set(text.split())} == set()


def test_the_search_needs_no_server(site: Path, chromium: Browser) -> None:
    """If a browser opens the site's files without a server, the search still finds a page."""
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.goto((site / "docs" / "library.html").as_uri())
    page.locator("input.md-search__input").press_sequentially("KafkaGroupStalled")
    found = page.locator(".md-search-result__link").first
    expect(found).to_have_attribute("href", re.compile("monitoring"), timeout=LIMIT_MS)
    page.close()


def test_a_page_shows_what_the_repository_shows(site: Path) -> None:
    """Each page has the same lists, tables, code and emphasis as in the repository."""
    markdown = MarkdownIt("commonmark").enable("table")
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        name = page.relative_to(ROOT).with_suffix(".html")
        shown = site / (name.with_name("index.html") if page.name == "README.md" else name)
        (article,) = re.findall(r"<article.*?</article>", shown.read_text("utf-8"), re.DOTALL)
        wanted = markdown.render(page.read_text(encoding="utf-8"))
        assert _counts(article) == _counts(wanted), name


def _counts(text: str) -> dict[str, int]:
    return {name: len(re.findall(rf"<{name}\b", text)) for name in ELEMENTS}
