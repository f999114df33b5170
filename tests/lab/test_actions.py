"""The page performs every action that it offers on an object; one key opens each situation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab.conftest import LIMIT_MS, LabPage, LabProcess
from playwright.sync_api import expect

Open = Callable[..., LabPage]

START = 30
"""The move after which each action is performed: by then the members have committed."""

WORLD = '#world={"members":3,"partitions":6,"auto_commit_s":1}&moves=' + str(START)

OBJECTS = {
    "member": "[data-member='0'] .head",
    "connection": "[data-member='0'] .link",
    "place of a new member": ".join",
    "partition": ".partitions .cell",
    "ZooKeeper": ".zk-name",
    "server": ".server",
    "broker": ".broker",
    "id znode": ".tree section:has(h2:text('ids')) .znode",
    "owner znode": ".tree section:has(h2:text('owners')) .znode",
}

COORDINATED = '#world={"protocol":"classic-cooperative","members":3}&moves=' + str(START)

OF_COORDINATORS = {
    "member of a coordinated group": "[data-member='0'] .head",
    "connection of a coordinated group": "[data-member='0'] .link",
    "message in transit": "[data-member='0'] .chip",
    "coordinator": ".zk-name",
    "Kafka's broker": ".server >> nth=1",
    "member at the coordinator": ".tree section:has(h2:text('coordinator/members')) .znode",
}

BRIDGED = (
    '#world={"protocol":"bridge-eager","members":2,"spare":0,"partitions":4,"flow":0}'
    f"&moves=join:10,13,join:12,{START - 15}"
)

OF_BRIDGES = {
    "bridge": "[data-member='10'] .head",
    "old member of a group with a bridge": "[data-member='0'] .head",
    "new member of a group with a bridge": "[data-member='12'] .head",
    "broker in ZooKeeper of a group with a bridge": ".broker >> nth=0",
    "coordinator of a group with a bridge": ".zk-name >> nth=1",
}

SITUATIONS = {
    "R": "Two members want one partition",
    "B": "gives up",
    "G": "gives up",
    "Z": "A zombie wakes",
    "Q": "quorum",
}


@pytest.mark.parametrize("what", [*OBJECTS, *OF_COORDINATORS, *OF_BRIDGES])
def test_every_action_on_an_object(lab: LabProcess, open_page: Open, what: str) -> None:
    """Each entry of an object's menu either makes a move or shows an explanation."""
    worlds = ((OBJECTS, WORLD), (OF_COORDINATORS, COORDINATED), (OF_BRIDGES, BRIDGED))
    objects, address = next(one for one in worlds if what in one[0])
    one = open_page().go(lab.url + address)
    item = one.page.locator(objects[what]).first
    item.click()
    labels = one.page.get_by_role("menuitem").all_inner_texts()
    one.keys("Escape")
    assert labels
    for label in labels:
        one.page.get_by_label("moment of the run").fill(str(START))
        one.at(START)
        item.click()
        one.page.get_by_role("menuitem", name=label, exact=True).click()
        if label.endswith("why?"):
            status = one.page.get_by_role("status")
            expect(status).to_contain_text("assigns", timeout=LIMIT_MS)
            continue
        if label.endswith("…"):
            one.page.locator("dialog .primary").click()
        one.at(START + 1)


@pytest.mark.parametrize("key", SITUATIONS)
def test_a_key_prepares_a_situation(lab: LabProcess, open_page: Open, key: str) -> None:
    """One key opens the tour at the step that shows a situation."""
    one = open_page().go(lab.url)
    one.keys(f"Shift+{key}")
    expect(one.page.locator(".tour h2")).to_contain_text(SITUATIONS[key], timeout=LIMIT_MS)
    expect(one.page.locator(".tour h2 span")).not_to_contain_text("1 of")
