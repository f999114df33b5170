"""Measure the lab in a real Chromium, headless, on this machine.

| Case | Metric | How it is measured |
|---|---|---|
| `play 64x512` | `frames_per_s` | pictures per second while it plays 64 members, 512 partitions |
| `live` | `event_to_screen_s` | from the write of an owner znode to its cell; median of 10 |
| `scrub 10000` | `seconds` | from a jump of the slider to the second frame after it, in a run of 10,000 moves; worst of 20 |
| `start` | `seconds` | from the start of `zkconsumer lab` to the first picture in an open browser |
| `static` | `interactive_s` | from a visit of the static site with a warm cache until Python has started |
| `cold` | `first_picture_s` | from a visit of the static site with an empty cache to its first picture |
| `cold` | `interactive_s` | from the same visit until Python has started; the page keeps earlier actions |
| `cold-tour` | `first_picture_s` | the same for the address of a tour, whose picture the engine must compute |
"""  # noqa: E501 - a table

from __future__ import annotations

import argparse
import functools
import http.server
import re
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from _bench import Result, add_json, at_least, at_most, show
from _engine import chromium
from kazoo.client import KazooClient
from playwright.sync_api import Browser, Page, sync_playwright

from zkconsumer.lab.site import build
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer

LIMIT_MS = 120_000
READY = ".lab[aria-busy=false]"
PLAY_S = 8.0
JUMPS, WRITES = 20, 10

FRAMES = """async (seconds) => {
  let drawn = 0, before = "", start = performance.now();
  return await new Promise((done) => {
    const look = (now) => {
      const place = document.querySelector(".place").textContent;
      if (place !== before) drawn++;
      before = place;
      if (now - start >= seconds * 1000) done(drawn / ((now - start) / 1000));
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
}"""

JUMP = """async (to) => {
  const slider = document.querySelector(".scrub"), start = performance.now();
  slider.value = to;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  for (let n = 0; n < 2; n++) await new Promise(requestAnimationFrame);
  if (!document.querySelector(".place").textContent.includes(`move ${to} `)) throw new Error(to);
  return (performance.now() - start) / 1000;
}"""

SEEN = """() => {
  window.seen = [];
  const partitions = document.querySelector(".partitions");
  let before = partitions.querySelectorAll(".cell.read").length;
  new MutationObserver(() => {
    const now = partitions.querySelectorAll(".cell.read").length;
    if (now !== before) requestAnimationFrame(() => window.seen.push(Date.now() / 1000));
    before = now;
  }).observe(partitions, { subtree: true, childList: true, attributes: true });
}"""


@contextmanager
def lab(*arguments: str) -> Iterator[tuple[str, float]]:
    """Run `zkconsumer lab`; yield its address and the time of its start."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "zkconsumer", "lab", "--no-browser", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None, "the lab has not started"
            yield found[0], started
        finally:
            process.terminate()


def opened(browser: Browser, address: str) -> Page:
    page = browser.new_page(viewport={"width": 1920, "height": 1080}, bypass_csp=True)
    page.goto(address)
    page.wait_for_selector(".picture", timeout=LIMIT_MS)
    return page


def play(browser: Browser) -> Result:
    with lab() as (address, _):
        page = opened(browser, address + '#world={"members":64,"spare":0,"partitions":512}')
        page.get_by_label("moves per second").select_option(label="50 / s")
        page.keyboard.press("Space")
        page.wait_for_timeout(1500)
        rate = page.evaluate(FRAMES, PLAY_S)
        page.close()
    return at_least("play 64x512", "frames_per_s", rate, "1/s", 30)


def scrub(browser: Browser) -> Result:
    with lab() as (address, _):
        page = opened(browser, address + '#world={"members":5,"partitions":12}&moves=10000')
        page.wait_for_function("document.querySelector('.place').textContent.includes('10000')")
        worst = max(page.evaluate(JUMP, 37 + 7919 * n % 9900) for n in range(JUMPS))
        page.close()
    return at_most("scrub 10000", "seconds", worst, "s", 0.1)


def start(browser: Browser) -> Result:
    page = browser.new_page()
    with lab() as (address, started):
        page.goto(address)
        page.wait_for_selector(".picture", timeout=LIMIT_MS)
        seconds = time.perf_counter() - started
    page.close()
    return at_most("start", "seconds", seconds, "s", 1.0)


def live(browser: Browser) -> Result:
    group = f"bench{uuid.uuid4().hex[:6]}"
    with TemporaryDirectory() as directory, ZooKeeperServer(directory) as server:
        client = KazooClient(server.connect)
        client.start()
        client.ensure_path(paths.ids(group))
        member = f"{group}_a"
        payload = encode_registration(Registration({"t": 1}, timestamp_ms=1))
        client.create(paths.member(group, member), payload, ephemeral=True)
        client.ensure_path(paths.owners_of(group, "t"))
        with lab("-z", server.connect, "-g", group) as (address, _):
            page = opened(browser, address)
            delays = []
            for number in range(WRITES + 1):
                if number == 1:
                    page.evaluate(SEEN)
                time.sleep(0.3)
                written = time.time()
                path = paths.owner(group, TopicPartition("t", number))
                client.create(path, f"{member}-0".encode(), ephemeral=True)
                if number:
                    page.wait_for_function(f"window.seen.length >= {number}")
                    delays.append(page.evaluate("window.seen.at(-1)") - written)
                else:
                    page.wait_for_selector(".partitions .cell.read")
            page.close()
        client.stop()
        client.close()
    return at_most("live", "event_to_screen_s", statistics.median(delays), "s", 0.15)


@contextmanager
def site() -> Iterator[str]:
    """Build the static site, and serve it; yield its address."""
    with TemporaryDirectory() as directory:
        build(Path(directory))
        handler = functools.partial(Quiet, directory=directory)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}/"
            server.shutdown()


def static(browser: Browser) -> Result:
    with site() as address:
        page = opened(browser, address)
        page.wait_for_selector(READY, timeout=LIMIT_MS)
        started = time.perf_counter()
        page.reload()
        page.wait_for_selector(READY, timeout=LIMIT_MS)
        seconds = time.perf_counter() - started
        page.close()
    return at_most("static", "interactive_s", seconds, "s", 6.0)


def cold(browser: Browser) -> list[Result]:
    with site() as address:
        picture, ready = visit(browser, address)
        tour, _ = visit(browser, address + "#tour=zombie")
    return [
        at_most("cold", "first_picture_s", picture, "s", 6.0),
        at_most("cold", "interactive_s", ready, "s", 10.0),
        at_most("cold-tour", "first_picture_s", tour, "s", 10.0),
    ]


def visit(browser: Browser, address: str) -> tuple[float, float]:
    """Visit the site with an empty cache; return seconds to the picture and to Python's start."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    started = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".picture", timeout=LIMIT_MS)
    picture = time.perf_counter() - started
    page.wait_for_selector(READY, timeout=LIMIT_MS)
    ready = time.perf_counter() - started
    context.close()
    return picture, ready


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


CASES: dict[str, Callable[[Browser], Result | list[Result]]] = {
    "play": play,
    "live": live,
    "scrub": scrub,
    "start": start,
    "static": static,
    "cold": cold,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    add_json(parser)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        found = [CASES[case](browser) for case in options.case or CASES]
        browser.close()
    results = [one for some in found for one in (some if isinstance(some, list) else [some])]
    return show("lab", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
