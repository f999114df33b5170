"""The lab's page in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from lab.conftest import LIMIT_MS, LabPage, LabProcess, running_lab
from playwright.sync_api import Browser, Route, expect

from zkconsumer.lab.server import WEB, encode
from zkconsumer.lab.tours import TOURS
from zkconsumer.sandbox.ports import free_port

Open = Callable[..., LabPage]
TWO = "#world=" + '{"members":2,"partitions":4}'


def test_step_back_and_jump(lab: LabProcess, open_page: Open) -> None:
    """Keys step forward and back, and jump to changes of owner."""
    one = open_page().go(lab.url + TWO)
    one.has(".column", 2)
    one.has(".partitions .cell.read", 4)
    one.keys("ArrowRight", "ArrowRight")
    one.at(2)
    one.keys("ArrowLeft")
    one.at(1)
    one.keys("]", "k")
    one.shows("g_1 gets SIGKILL")
    one.has(".partitions .cell.stalled", 2)
    one.keys("Shift+ArrowRight")
    one.shows("have no owner")
    one.has(".partitions .cell.free", 2)
    one.keys("Shift+ArrowRight")
    one.shows("g_0 owns t-2")
    one.keys("Home")
    one.has(".partitions .cell.read", 4)
    expect(one.page.locator(".place")).to_contain_text("move 0 of")


def test_the_threads_of_a_member(lab: LabProcess, open_page: Open) -> None:
    """The column of a member with several threads shows which thread owns which partition."""
    one = open_page().go(lab.url + '#world={"members":2,"threads":2,"partitions":6}')
    threads = one.page.locator("[data-member='0'] .thread")
    expect(threads).to_have_text(["thread 0t-0t-1", "thread 1t-2t-3"], timeout=LIMIT_MS)
    one.keys("k", "Shift+ArrowRight")
    one.shows("have no owner")
    one.has("[data-member='0'] .thread", 0)
    for cell in one.page.locator(".partitions .cell").all():
        expect(cell).to_be_in_viewport(ratio=1)


def test_a_fork_and_its_address(lab: LabProcess, open_page: Open) -> None:
    """An action at an earlier move creates a second run; the page's address reproduces it."""
    one = open_page().go(lab.url + TWO)
    one.keys("ArrowRight", "ArrowRight", "ArrowRight")
    one.at(3)  # Move 1 may be shown before all keys are handled.
    one.keys("ArrowLeft", "ArrowLeft")
    one.at(1)
    one.page.locator("[data-member='0'] .head").click()
    one.page.get_by_role("menuitem", name="freeze").click()
    one.shows("g_0 gets SIGSTOP")
    one.at(2)
    one.has(".column.frozen", 1)
    one.page.get_by_role("tab", name="runs").click()
    one.has(".runs li", 2)
    one.page.get_by_role("button", name="compare").click()
    one.has(".axis .lanes", 2)
    one.page.wait_for_url(re.compile(r"moves=1,freeze:0&at=2$"))
    other = open_page().go(one.page.url)
    other.shows("g_0 gets SIGSTOP")
    other.has(".column.frozen", 1)


def test_an_action_after_a_pause_continues_the_run(lab: LabProcess, open_page: Open) -> None:
    """A paused run ends at the move that is shown, so an action there creates no second run."""
    one = open_page().go(lab.url + TWO)
    one.page.get_by_label("moves per second").select_option(label="50 / s")
    place = one.page.locator(".place")
    one.keys("Space")
    expect(place).to_contain_text(re.compile(r"move \d\d+ of"), timeout=LIMIT_MS)
    one.keys("j")  # an action while the run plays
    one.has(".column", 3)
    one.keys("Space")
    expect(place).to_have_text(re.compile(r"^move (\d+) of \1$"), timeout=LIMIT_MS)
    one.page.locator("[data-member='0'] .head").click()
    one.page.get_by_role("menuitem", name="freeze").click()
    one.shows("g_0 gets SIGSTOP")
    expect(place).to_have_text(re.compile(r"^move (\d+) of \1$"))
    one.page.wait_for_url(re.compile(r"moves=\d+,join:2(,\d+)?,freeze:0&"))
    expect(one.page.get_by_role("tab", name="runs")).to_have_count(0)


def test_play_and_scrub(lab: LabProcess, open_page: Open) -> None:
    """Play advances the run, pause stops it, and the slider jumps to any move."""
    one = open_page().go(lab.url + "#scenario=a-zombie-wakes")
    one.page.get_by_label("moves per second").select_option(label="50 / s")
    one.keys("Space")
    place = one.page.locator(".place")
    expect(place).not_to_contain_text(re.compile(r"move [0-9] of"), timeout=LIMIT_MS)
    one.keys("Space")
    expect(one.page.get_by_label("play (space)")).to_be_visible()
    one.page.get_by_label("moment of the run").fill("60")
    one.at(60)
    one.page.locator(".axis svg").first.click(position={"x": 300, "y": 10})
    expect(place).not_to_contain_text("move 60 of", timeout=LIMIT_MS)


def test_the_chosen_action_happens(lab: LabProcess, open_page: Open) -> None:
    """The panel lists the possible actions, and performs the action that the user chooses."""
    one = open_page().go(lab.url + TWO)
    one.page.get_by_role("tab", name="next").click()
    one.has(".choices .next", 1)
    one.keys("1")
    one.at(1)
    one.page.locator(".choices button", has_text="sync").last.click()
    one.shows("sync with the leader")
    one.at(2)


@pytest.mark.parametrize("name", TOURS)
def test_a_tour(lab: LabProcess, open_page: Open, name: str) -> None:
    """A user can step through a tour and back, leave it for an action, and resume it."""
    tour = TOURS[name]
    one = open_page().go(f"{lab.url}#tour={name}&step=0")
    panel = one.page.locator(".tour")
    for step in tour.steps:
        expect(panel).to_contain_text(step.text, timeout=LIMIT_MS)
        expect(panel).not_to_contain_text(step.answer)
        one.page.get_by_role("button", name="show the answer").click()
        expect(panel).to_contain_text(step.answer)
        if step is not tour.steps[-1]:
            one.page.locator(".tour .primary").click()
    if tour.table:
        one.has(".counted tbody tr", 5 if name == "herd" else 4)
        one.has(".growth polyline", 4 if name == "herd" else 0)
    one.page.locator(".tour .buttons button").first.click()
    expect(panel).to_contain_text(tour.steps[-2].text)
    if name == "bridge":
        one.keys("[")  # selects a new member, because g_0 has left
    one.keys("k")
    expect(panel).to_contain_text("You have left the state of this step", timeout=LIMIT_MS)
    one.page.get_by_role("button", name="return to it").click()
    expect(panel).not_to_contain_text("You have left")


def test_a_tour_hides_the_future(lab: LabProcess, open_page: Open) -> None:
    """The lanes hide what follows a step until the learner asks for its answer."""
    one = open_page().go(f"{lab.url}#tour=split-brain&step=1")
    one.has(".veil", 1)
    one.page.get_by_role("button", name="show the answer").click()
    one.has(".veil", 0)
    one.page.locator(".tour .primary").click()
    one.has(".veil", 1)


def test_space_plays_after_a_click(lab: LabProcess, open_page: Open) -> None:
    """Space plays although the last click left the focus on a button."""
    one = open_page().go(lab.url + TWO)
    one.page.get_by_role("button", name="next change of owner (shift →)").click()
    one.keys("Space")
    expect(one.page.get_by_label("pause (space)")).to_be_visible()


def test_space_presses_a_button_that_the_keyboard_has_chosen(
    lab: LabProcess, open_page: Open
) -> None:
    """Space presses the button to which the user has moved the focus with the Tab key."""
    one = open_page().go(lab.url + TWO)
    one.page.get_by_label("play (space)").click()
    one.page.get_by_label("pause (space)").click()
    place = one.page.locator(".place").inner_text()
    one.keys("Tab")  # to the button "one move forward"
    one.keys("Space")
    expect(one.page.locator(".place")).not_to_have_text(place, timeout=LIMIT_MS)
    expect(one.page.get_by_label("play (space)")).to_be_visible()


def test_shortened_names_differ(lab: LabProcess, open_page: Open) -> None:
    """Names that are too long for a column show an ellipsis, and no two partitions look alike."""
    world = (
        '{"members":1,"spare":0,"partitions":2,"topics":["customer1orders1","supplier1orders1"]}'
    )
    one = open_page().go(f"{lab.url}#world={world}")
    one.page.get_by_label("end of the run (End)").click()
    names = one.page.locator(".partitions .cell").evaluate_all(
        "cells => cells.map(cell => [cell.title.split(':')[0], cell.children[0].textContent])"
    )
    long = {name: text for name, text in names if name.startswith(("customer", "supplier"))}
    assert len(long) == 4
    assert len(set(long.values())) == 4
    assert all("…" in text for text in long.values())
    lanes = one.page.locator(".lanes .label").evaluate_all(
        "labels => labels.map(label => label.firstChild.textContent)"
    )
    assert len(set(lanes)) == len(lanes)


def test_another_tour_hides_its_answers(lab: LabProcess, open_page: Open) -> None:
    """An answer that the learner has opened in a tour leaves those of other tours hidden."""
    one = open_page().go(lab.url)
    for key in ("Shift+R", "Shift+Q"):
        one.keys(key)
        expect(one.page.locator(".tour h2 span")).to_contain_text("2 of", timeout=LIMIT_MS)
        one.has(".answer", 0)
        one.page.get_by_role("button", name="show the answer").click()
        one.has(".answer", 1)


def test_the_split_brain_is_visible(lab: LabProcess, open_page: Open) -> None:
    """The tour of the split brain shows six partitions that two members deliver."""
    one = open_page().go(f"{lab.url}#tour=split-brain&step=3")
    expect(one.page.locator(".tour")).to_contain_text("Two members now", timeout=LIMIT_MS)
    one.has(".partitions .cell.double", 6)


def test_the_page_survives_a_restart(open_page: Open) -> None:
    """After a restart of the server, the page continues in the same state."""
    port = str(free_port())  # No other program takes this port during the restart.
    with running_lab("--port", port) as first:
        one = open_page().go(first.url + TWO)
        one.keys("ArrowRight", "ArrowRight")
        one.at(2)
    one.keys("k")
    expect(one.page.locator(".lost")).to_be_visible(timeout=LIMIT_MS)
    with running_lab("--port", port):
        one.shows("g_0 gets SIGKILL")
        one.at(3)
        expect(one.page.locator(".lost")).to_have_count(0)


def test_every_dialog_and_both_themes(lab: LabProcess, open_page: Open) -> None:
    """Keys open and close each dialog, a new group can be opened, and the theme changes."""
    one = open_page(color_scheme="dark").go(lab.url + TWO)
    for key, title in (("t", "Tours and scenarios"), ("e", "Export this run"), ("?", "Help")):
        one.keys(key)
        expect(one.page.get_by_role("dialog", name=title)).to_be_visible()
        one.keys("Escape")
        expect(one.page.get_by_role("dialog")).to_have_count(0)
    one.keys("w")
    one.page.locator("input[name=members]").fill("5")
    one.page.locator("select[name=jvm]").select_option(label="every second one")
    one.page.get_by_role("button", name="open the world").click()
    one.has(".column", 5)
    expect(one.page.locator(".kind", has_text="JVM")).to_have_count(2)
    background = "getComputedStyle(document.body).backgroundColor"
    before = one.page.evaluate(background)
    one.keys("d")
    one.page.wait_for_function(f"{background} !== {before!r}")


def test_protocols_side_by_side(lab: LabProcess, open_page: Open) -> None:
    """The page shows the owners of one script on each protocol, also at the page's address."""
    one = open_page().go(lab.url)
    one.keys("x")
    one.page.locator("input[name=script]").fill("kill g_1")
    one.page.locator("input[name=consumer]").check()
    one.page.locator("dialog .primary").click()
    one.has(".protocol", 3)
    one.has(".costs tbody tr", 3)
    for strip in one.page.locator(".strip").all():
        assert {*strip.locator("text").all_text_contents()} == {"0", "1", "2"}
    one.page.get_by_label("moment of the comparison").fill("10")
    states = one.page.locator(".protocol-name p")
    expect(states).to_contain_text(["all owned"] * 2 + ["by a member that is not running"])
    one.page.wait_for_url(re.compile(r"compare=kill"))
    other = open_page().go(one.page.url, ".protocol")
    other.has(".protocol", 3)
    one.page.get_by_role("button", name="close").click()
    one.has(".column", 3)


def test_an_unreadable_address(lab: LabProcess, open_page: Open) -> None:
    """If an address cannot be read, the page shows an error and still opens a group."""
    one = open_page().go(lab.url + "#world={oops&moves=<img src=x onerror=alert(1)>")
    expect(one.page.get_by_role("status")).to_contain_text("is not", timeout=LIMIT_MS)
    assert one.page.locator("img[src=x]").count() == 0


def test_a_watch_in_transit_is_dropped(lab: LabProcess, open_page: Open) -> None:
    """The page shows a watch event in transit; if the user drops it, the connection breaks."""
    one = open_page().go(lab.url + TWO)
    one.keys("j")
    watch = one.page.locator("[data-member='0'] .way.down .chip", has_text="watch")
    for move in range(2, 40):
        if watch.count():
            break
        one.keys("ArrowRight")
        one.at(move)
    watch.first.click()
    one.page.get_by_role("menuitem", name="drop it").click()
    one.shows("the connection of g_0 breaks")
    one.has("[data-member='0'].link-lost", 1)


def test_a_group_with_a_coordinator(lab: LabProcess, open_page: Open) -> None:
    """A dialog opens a coordinated group, whose members, brokers and messages are objects."""
    one = open_page().go(lab.url)
    one.keys("w")
    one.page.locator("select[name=protocol]").select_option("classic-eager")
    one.page.locator("input[name=members]").fill("2")
    one.page.get_by_role("button", name="open the world").click()
    expect(one.page.locator(".zookeeper")).to_contain_text("Stable, generation 1", timeout=LIMIT_MS)
    expect(one.page.locator(".band")).to_contain_text("Models of Kafka's members")
    one.has(".partitions .cell.read", 6)
    one.page.locator(".server").nth(1).click()
    one.page.get_by_role("menuitem", name="it becomes the coordinator").click()
    one.shows("broker 1 becomes the coordinator")
    expect(one.page.locator(".server").nth(1)).to_contain_text("coordinator")
    one.keys("]", "k")
    one.shows("g_1 gets SIGKILL")
    one.has(".partitions .cell.stalled", 3)
    one.keys("Shift+ArrowRight")
    one.has(".partitions .cell.free", 3)
    one.page.wait_for_url(re.compile("classic-eager.*coordinate:1,kill:1"))
    reply = one.page.locator("[data-member='0'] .chip").first
    place = one.page.locator(".place")
    for _ in range(40):
        if reply.count():
            break
        move = int(place.inner_text().split()[1])
        one.keys("ArrowRight")
        one.at(move + 1)
    reply.click()
    one.page.get_by_role("menuitem", name="delay it by 10 s").click()
    one.shows("late by 10 s")
    one.page.wait_for_url(re.compile("delay_re"))
    other = open_page().go(one.page.url)
    other.shows("late by 10 s")


@pytest.mark.parametrize(
    ("file", "body", "words"),
    [
        ("lanes.js", None, "lanes.js cannot be loaded"),
        ("app.js", "throw new Error('broken on purpose')", "broken on purpose in app.js"),
        ("about.json", None, "the lab's server does not answer"),
        ("colours.js", "export const other = 1", "'paint'"),
    ],
)
def test_a_page_that_cannot_start_says_so(
    lab: LabProcess, chromium: Browser, file: str, body: str | None, words: str
) -> None:
    """If a script is missing or fails, the page shows one sentence and stops loading."""
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    page.route(
        f"**/{file}",
        lambda route: (
            route.fulfill(status=404, body="")
            if body is None
            else route.fulfill(content_type="text/javascript", body=body)
        ),
    )
    page.goto(lab.url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The lab cannot start: ", timeout=LIMIT_MS)
    expect(alert).to_contain_text("Reload the page")
    expect(alert).to_have_count(1)
    expect(alert).to_contain_text(words)
    expect(page.locator("[aria-busy=true], .loading:visible")).to_have_count(0)
    context.close()


def test_a_slow_command(lab: LabProcess, open_page: Open) -> None:
    """While a new world or a comparison takes long, the page says that the lab is computing."""
    one = open_page()
    held: list[Route] = []
    is_slow = False

    def hold(route: Route) -> None:
        if is_slow:
            held.append(route)
        else:
            route.continue_()

    one.page.route("**/command", hold)
    one.go(lab.url + TWO)
    is_slow = True
    one.keys("x")
    one.page.locator("dialog .primary").click()
    status = one.page.get_by_role("status")
    expect(status).to_contain_text("The lab is computing", timeout=LIMIT_MS)
    is_slow = False
    held[0].continue_()
    one.has(".protocol", 2)
    one.has(".toast", 0)


def test_a_command_at_which_the_server_fails(lab: LabProcess, open_page: Open) -> None:
    """If the server fails at a command, the page says so and does not send it again."""
    one = open_page()
    sent: list[str] = []

    def fail_once(route: Route) -> None:
        body = route.request.post_data or ""
        if '"act"' in body:
            sent.append(body)
        if len(sent) == 1:
            route.fulfill(status=500, body="Internal Server Error")
        else:
            route.continue_()

    one.page.route("**/command", fail_once)
    one.go(lab.url + TWO)
    with one.page.expect_console_message(lambda message: "status of 500" in message.text):
        one.keys("k")
    status = one.page.get_by_role("status")
    expect(status).to_contain_text("server failed to execute", timeout=LIMIT_MS)
    assert len(sent) == 1
    assert [error for error in one.errors if "status of 500" in error]
    one.errors.clear()
    one.keys("k")
    one.shows("g_0 gets SIGKILL")


def as_a_site(route: Route) -> None:
    """Answer with the page as a static site has it."""
    reply = route.fetch()
    mark = '<meta name="lab-worker" content="1"><meta charset'
    route.fulfill(response=reply, body=reply.text().replace("<meta charset", mark))


def test_a_site_without_its_runtime_says_so(lab: LabProcess, chromium: Browser) -> None:
    """If the worker of a static site cannot load Pyodide, the page shows one sentence."""
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    page.route(lab.url, as_a_site)
    page.goto(lab.url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("pyodide.mjs cannot be loaded", timeout=LIMIT_MS)
    expect(page.locator("[aria-busy=true], .loading:visible")).to_have_count(0)
    context.close()


def test_a_site_needs_no_engine_for_its_first_picture(lab: LabProcess, chromium: Browser) -> None:
    """The page shows the stored first picture, and then says that its engine cannot start."""
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    page.route(lab.url, as_a_site)
    page.route("**/first.json", lambda route: route.fulfill(path=WEB / "first.json"))
    page.goto(lab.url)
    expect(page.locator("[data-member]")).to_have_count(3)
    expect(page.get_by_role("alert")).to_contain_text("pyodide.mjs cannot be loaded")
    context.close()


def test_the_first_commands_have_stored_answers(lab: LabProcess, chromium: Browser) -> None:
    """A page whose address names no group sends the commands of `first.json`, and no other."""
    context = chromium.new_context()
    page = context.new_page()
    sent: list[dict[str, object]] = []
    page.on("request", lambda one: one.url.endswith("/command") and sent.append(one.post_data_json))
    page.goto(lab.url)
    expect(page.locator("[data-member]")).to_have_count(3)
    stored = json.loads((WEB / "first.json").read_bytes())
    assert [encode({key: one[key] for key in one if key != "tab"}) for one in sent] == [*stored]
    context.close()


def test_an_address_is_shared(lab: LabProcess, open_page: Open) -> None:
    """The page copies its address; if the browser refuses, the page asks the user to copy it."""
    for permissions, words in (
        ([], "refuses to copy"),
        (["clipboard-read", "clipboard-write"], "is copied"),
    ):
        one = open_page(permissions=permissions).go(lab.url + TWO)
        one.page.get_by_role("button", name="share").click()
        expect(one.page.get_by_role("status")).to_contain_text(words, timeout=LIMIT_MS)
    assert one.page.evaluate("navigator.clipboard.readText()") == one.page.url


def test_a_message_is_closed(lab: LabProcess, open_page: Open) -> None:
    """An explanation closes with its button, with Escape, and when the user opens a menu."""
    one = open_page().go(lab.url)
    closes: list[Callable[[], None]] = [
        lambda: one.page.get_by_role("button", name="close the message").click(),
        lambda: one.keys("Escape"),
        lambda: one.page.locator(".zk-name").click(),
    ]
    for close in closes:
        one.page.locator(".partitions .cell").first.click()
        one.page.get_by_role("menuitem", name="why").click()
        one.has(".toast", 1)
        close()
        one.has(".toast", 0)


def test_a_new_run_ends_a_comparison(lab: LabProcess, open_page: Open) -> None:
    """The lanes of two runs share one axis, until another world or tour opens."""
    one = open_page().go(lab.url + "#world={}&moves=20&at=5")
    one.keys("j")
    one.shows("g_3 starts")
    one.page.get_by_role("tab", name="runs").click()
    one.page.get_by_role("button", name="compare", exact=True).click()
    one.has(".lanes", 2)
    for lanes in one.page.locator(".lanes").all():
        expect(lanes.locator(".label").last).to_be_in_viewport()
    # The fork has 6 moves and the first run has 20, so its lanes end before the middle of the axis.
    short, long = (
        lanes.locator("rect[rx='2']").first for lanes in one.page.locator(".lanes").all()
    )
    one.at(6)
    boxes = short.bounding_box(), long.bounding_box()
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["width"] < boxes[1]["width"] / 2
    one.keys("t")
    expect(one.page.locator(".cards button").first).to_be_focused(timeout=LIMIT_MS)
    one.keys("Enter")
    expect(one.page.locator(".tour h2")).to_be_visible(timeout=LIMIT_MS)
    one.has(".lanes", 1)


def test_a_counterexample(lab: LabProcess, open_page: Open) -> None:
    """A weakened part is searched by keyboard; the found run and its link show what breaks."""
    one = open_page().go(lab.url + TWO)
    one.keys("b")
    dialog = one.page.get_by_role("dialog", name="Break it: ask for a counterexample")
    expect(dialog.get_by_role("checkbox", name="no lease:")).to_be_checked(timeout=LIMIT_MS)
    dialog.get_by_role("button", name="search").focus()
    one.keys("Enter")
    expect(dialog).to_have_count(0, timeout=LIMIT_MS)
    expect(one.page.locator("p.said")).to_contain_text("Broken: I3", timeout=3 * LIMIT_MS)
    one.page.wait_for_url(re.compile(r"weak.*no\+lease.*asks.*I3.*moves=.*&at=\d+$"))
    other = open_page().go(one.page.url)
    expect(other.page.locator("p.said")).to_contain_text("Broken: I3", timeout=LIMIT_MS)
    other.keys("b")
    asked = other.page.get_by_role("dialog")
    asked.get_by_label("promise").select_option("comparison")
    asked.get_by_label("comparison that must hold").fill("owner(partition) = 1")
    asked.get_by_role("button", name="search").click()
    toast = other.page.locator(".toast")
    expect(toast).to_contain_text("is neither a number nor a quantity", timeout=LIMIT_MS)
