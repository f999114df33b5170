"""Pages without a server: the static site with Pyodide, and a run exported as one file."""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from lab.conftest import LabPage, LabProcess
from lab.test_causality import check_shiviz, events_of
from lab.test_recorded import traces
from playwright.sync_api import Route, expect
from support.wait import LIMIT_S
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.schema import schemas
from zkconsumer.errors import ConfigError
from zkconsumer.lab.engine import Engine, opened
from zkconsumer.lab.recorded import play
from zkconsumer.lab.runs import open_scenario
from zkconsumer.lab.site import (
    PACKAGE,
    WEB,
    build,
    modules,
    player,
    recorded,
    unpack_runtime,
    write_modules,
)
from zkconsumer.lab.tours import TOURS
from zkconsumer.sim.scenarios import SCENARIOS
from zkconsumer.sim.weakened import SWITCHES, Weakness

Open = Callable[..., LabPage]
SLOW_MS = 120_000
"""How long a loaded machine may take to start Python in a browser, in ms."""

SEARCH_MS = 400_000
"""How long a loaded machine may take for a search in a browser, in ms. A search takes up to 30 s on
an idle one."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The static site, on a server that only sends files; yields the site's address."""
    directory = tmp_path_factory.mktemp("site")
    build(directory)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join(LIMIT_S)


def test_the_static_site(site: str, open_page: Open) -> None:
    """The browser computes the same frames as this process, and shows tours and comparisons."""
    one = open_page()
    foreign: list[str] = []
    one.page.on(
        "request", lambda it: None if it.url.startswith((site, "data:")) else foreign.append(it.url)
    )
    one.go(site + '#world={"members":2,"partitions":4}&moves=3,kill:1,150', limit_ms=SLOW_MS)
    _, frames = Engine().command(
        {"do": "open", "world": {"members": 2, "partitions": 4}, "moves": "3,kill:1,150"}
    )
    last = frames["frames"][-1]
    expect(one.page.locator(".clock")).to_have_text(f"{last['t']:.3f} s", timeout=SLOW_MS)
    one.has(".partitions .cell.read", 4)
    one.keys("Home")
    one.keys("f")
    one.shows("g_0 gets SIGSTOP")
    world = {"protocol": "consumer", "members": 2, "partitions": 4}
    _, frames = Engine().command({"do": "open", "world": world, "moves": "20,kill:1,30"})
    address = f"#world={json.dumps(world)}&moves=20,kill:1,30"
    one.page.evaluate("(hash) => { location.hash = hash; }", address)
    expect(one.page.locator(".zookeeper")).to_contain_text("consumer", timeout=SLOW_MS)
    last = frames["frames"][-1]
    expect(one.page.locator(".clock")).to_have_text(f"{last['t']:.3f} s", timeout=SLOW_MS)
    one.page.evaluate("location.hash = '#tour=zombie&step=1'")
    expect(one.page.locator(".tour")).to_contain_text(
        TOURS["zombie"].steps[1].text, timeout=SLOW_MS
    )
    one.page.evaluate("location.hash = '#tour=bridge&step=4'")
    expect(one.page.locator(".tour")).to_contain_text(
        TOURS["bridge"].steps[4].text, timeout=SLOW_MS
    )
    one.page.evaluate("location.hash = '#compare=join&protocols=zookeeper-jvm,consumer'")
    expect(one.page.locator(".protocol")).to_have_count(2, timeout=SLOW_MS)
    assert not foreign


def test_actions_wait_for_python(site: str, open_page: Open) -> None:
    """The page keeps what is pressed before Python has started, says so, and carries it out."""
    one = open_page()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    one.page.route("**/pyodide.asm.wasm", hold)
    with one.page.expect_request("**/pyodide.asm.wasm", timeout=SLOW_MS):
        one.page.goto(site)
    one.has("[data-member]", 3)
    one.keys("ArrowRight", "ArrowRight", "k", "ArrowRight")
    status = one.page.get_by_role("status")
    expect(status).to_contain_text("carries this out as soon as Python has started")
    share = one.page.get_by_role("progressbar", name="start of Python")
    expect(share).to_have_attribute("value", re.compile(r"0\.\d+"))
    held[0].continue_()
    expect(one.page.locator(".place")).to_have_text("move 4 of 4", timeout=SLOW_MS)
    expect(status).to_have_text("")
    one.keys("ArrowLeft")
    one.shows("g_0 gets SIGKILL")


def choose(one: LabPage, *files: Path) -> None:
    """Choose files in the dialog of the browser, which the key `o` opens."""
    with one.page.expect_file_chooser() as chooser:
        # The browser passes the dialog on to Playwright only after another round trip.
        one.page.evaluate("document.title")
        one.keys("o")
    chooser.value.set_files(files)


def drop_path(one: LabPage, path: Path) -> None:
    """Drop a file or directory of this machine on the page, as the window system does."""
    session = one.page.context.new_cdp_session(one.page)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 300, "data": data})


def drop(one: LabPage, name: str, content: str) -> None:
    """Drop a file with this content on the page; `content` is an expression of JavaScript."""
    one.page.evaluate(
        f"""(name) => {{
            const data = new DataTransfer();
            data.items.add(new File([{content}], name));
            const options = {{ dataTransfer: data, bubbles: true, cancelable: true }};
            for (const type of ["dragover", "drop"])
                if (document.body.dispatchEvent(new DragEvent(type, options)))
                    throw new Error("the browser would open the file itself");
        }}""",
        name,
    )


def test_the_static_site_plays_files(site: str, open_page: Open, tmp_path: Path) -> None:
    """The site plays trace files that the user chooses or drops, and refuses others in one line."""
    directory = tmp_path / "traces"
    directory.mkdir()
    traces("a-consumer-joins", directory)
    files = sorted(directory.iterdir())
    wrong = tmp_path / "notes.txt"
    wrong.write_text("no trace\n", encoding="utf-8")
    one = open_page().go(site + '#world={"members":2,"partitions":4}', limit_ms=SLOW_MS)
    toast, band = one.page.locator(".toast span"), one.page.locator(".band")
    choose(one, wrong)
    expect(toast).to_have_text(
        "the line is not part of a trace (notes.txt:1): open a file that `trace.file` or"
        " `simulate --output jsonl` has written"
    )
    drop(one, "large.jsonl", "new Uint8Array((32 << 20) + 1)")
    expect(toast).to_contain_text("more than 32 MB (large.jsonl): open it with")
    drop(one, "deep.jsonl", "'['.repeat(100_000) + '\\n'")
    expect(toast).to_contain_text("the line is not part of a trace (deep.jsonl:1)")
    drop_path(one, directory)
    expect(toast).to_have_text(
        "the browser cannot read the file (traces): open an existing file, not a directory"
    )
    expect(band).to_contain_text("SIMULATED")

    choose(one, *files)
    expect(band).to_contain_text("RECORDED")
    expect(toast).to_have_count(0)
    _, frames = play([(path.name, path.read_text(encoding="utf-8")) for path in files], 1)
    one.keys("End")
    one.at(len(frames["frames"]))
    one.shows(frames["frames"][-1]["l"])
    one.has("[data-member]", 2)
    one.has(".partitions .cell.free", 0)
    one.page.wait_for_url(site)

    line = '{"v": 2, "t": 1, "note": "a dropped file"}'
    drop(one, "dropped.jsonl", json.dumps(f"{line}\n{line}\n"))
    expect(band).to_contain_text("dropped.jsonl")
    one.keys("End")
    one.shows("a dropped file")
    one.page.get_by_role("tab", name="runs").click()
    one.page.locator(".runs li", has_text=files[0].name).get_by_text("compare").click()
    one.has(".axis .lanes", 2)
    one.keys("t")
    one.page.get_by_role("button", name=f"6 {TOURS['zombie'].title}").click()
    expect(band).to_contain_text("SIMULATED")


def test_the_site_s_modules_are_compiled(tmp_path: Path) -> None:
    """The archives contain the compiled modules of the engine: no browser compiles them."""
    done = CliRunner().invoke(app, ["lab", "build", str(tmp_path), "--output", "json"])
    assert done.exit_code == 0, done.output
    Draft202012Validator(schemas()["lab-build"]).validate(json.loads(done.stdout))
    names = zipfile.ZipFile(tmp_path / "zkconsumer.zip").namelist()
    assert not [name for name in names if name.endswith(".py")]
    library = set(zipfile.ZipFile(tmp_path / "pyodide/python_stdlib.zip").namelist())
    assert {"dataclasses.pyc", "json/__init__.pyc"} <= library
    assert "unittest/case.py" in library


def test_equal_sources_give_equal_archives(tmp_path: Path) -> None:
    """Equal sources give equal archives, which contain the engine but no network modules."""
    write_modules(tmp_path / "a.zip")
    write_modules(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    names = set(zipfile.ZipFile(tmp_path / "a.zip").namelist())
    assert {"zkconsumer/lab/engine.py", "zkconsumer/member/machine.py"} <= names
    assert {"zkconsumer/lab/bridged.py", "zkconsumer/bridge/machine.py"} <= names
    assert not [name for name in names if name.startswith(("zkconsumer/zk/", "zkconsumer/kafka/"))]


def test_an_installation_behind_a_symbolic_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation behind a symbolic link gives the same archive."""
    write_modules(tmp_path / "a.zip")
    (tmp_path / "link").symlink_to(PACKAGE.parent)
    monkeypatch.setattr("zkconsumer.lab.site.PACKAGE", tmp_path / "link" / PACKAGE.name)
    write_modules(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_another_archive_is_refused(tmp_path: Path) -> None:
    """A runtime whose hash differs from the expected one is not unpacked."""
    wrong = tmp_path / "pyodide.tgz"
    wrong.write_bytes(b"x")
    with pytest.raises(ConfigError, match="not that of pyodide"):
        unpack_runtime(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_as_one_file(tmp_path: Path, open_page: Open) -> None:
    """The exported page plays the run without a server, and says that it is a recording."""
    scenario = SCENARIOS["a-zombie-wakes"]
    events = opened(open_scenario(1, scenario))
    file = tmp_path / "run.html"
    file.write_text(player(recorded(events), scenario.title), encoding="utf-8")
    one = open_page().go(file.as_uri())
    expect(one.page.locator(".band")).to_contain_text("RECORDED")
    one.keys("End")
    one.at(len(events[1]["frames"]))
    one.has(".partitions .cell.read", 4)
    one.keys("k", "Home")
    one.at(0)


def test_a_diagram_by_keyboard(tmp_path: Path, open_page: Open) -> None:
    """In the diagram, the arrow keys go from event to event, and show its cut and its rule."""
    frames = opened(open_scenario(1, SCENARIOS["a-zombie-wakes"]))
    file = tmp_path / "run.html"
    file.write_text(player(recorded(frames), "x"), encoding="utf-8")
    one = open_page(viewport={"width": 900, "height": 700}).go(f"{file.as_uri()}#at=40")
    one.keys("v")
    one.page.locator(".diagram").focus()
    one.keys("ArrowRight", "ArrowDown")
    words = one.page.locator("#diagram-event")
    expect(words).to_contain_text("It depends on")
    one.has(".diagram .cut", 1)
    one.has(".fault-text", 2)
    one.keys("Enter")
    move = int(re.findall(r"move (\d+)", words.inner_text())[0])
    one.at(move)
    one.page.get_by_role("tab", name="step").click()
    (line, _, _, rules), *_ = frames[1]["frames"][move - 1]["ev"]
    expect(one.page.locator(".step h2").first).to_have_text(line)
    expect(one.page.locator(".step .rule")).to_have_count(len(rules))
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 900


def test_the_page_exports_what_it_shows(lab: LabProcess, open_page: Open, tmp_path: Path) -> None:
    """Each export is usable; the page also exports itself, and JSON Lines are valid."""
    one = open_page().go(lab.url + "#scenario=a-consumer-joins")
    saved = {}
    for kind in ("html", "svg", "diagram", "shiviz", "jsonl", "frames.jsonl"):
        one.keys("e")
        with one.page.expect_download() as download:
            one.page.locator("dialog li button", has=one.page.get_by_text(kind, exact=True)).click()
        saved[kind] = tmp_path / f"x.{kind}"
        download.value.save_as(saved[kind])
    lines = saved["frames.jsonl"].read_text().splitlines()
    assert json.loads(lines[1])["l"]
    assert '"settings"' in saved["jsonl"].read_text()
    assert saved["svg"].read_text().startswith("<svg ")
    ElementTree.parse(saved["diagram"])
    frames = [json.loads(line) for line in lines[1:]]
    arrows = sum(len(received) for _, _, received, _ in events_of(frames))
    assert saved["diagram"].read_text().count("<path d=") == arrows + 1  # and the arrow head
    check_shiviz(saved["shiviz"].read_text(), frames)
    other = open_page().go(saved["html"].as_uri())
    other.keys("End")
    other.at(len(lines) - 1)
    other.keys("e")
    with other.page.expect_download() as download:
        other.page.get_by_role("button", name="a page with a player").click()
    download.value.save_as(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == saved["html"].read_text()


def test_the_page_lists_all_its_scripts() -> None:
    """`index.html` lists all scripts of the page; both exports inline the scripts of this list."""
    scripts = {str(path.relative_to(WEB))[:-3] for path in WEB.rglob("*.js")}
    assert scripts == {*modules(), "start", "worker"}


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda one: one.name)
def test_the_site_finds_a_counterexample(site: str, open_page: Open, switch: Weakness) -> None:
    """Without a server, the page searches with the weakened part until it shows what breaks."""
    one = open_page().go(site, limit_ms=SLOW_MS)
    one.keys("b")
    dialog = one.page.get_by_role("dialog")
    dialog.get_by_role("checkbox", name="no lease:").uncheck()
    dialog.get_by_role("checkbox", name=f"{switch.name}:").check()
    dialog.get_by_role("button", name="search").click()
    expect(one.page.locator("p.said")).to_contain_text("Broken: ", timeout=SEARCH_MS)
    expect(one.page.locator(".toast")).to_contain_text("chosen moves were shortened to")
