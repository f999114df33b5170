"""Which program a live member runs: what its znodes prove, and what remains unknown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from lab.conftest import LIMIT_MS, LabPage, running_lab
from playwright.sync_api import expect
from support.captures import captured
from support.jvm.member import JvmMember
from support.wait import LIMIT_S, wait_for

from zkconsumer.admin.findings import ExaminedGroup
from zkconsumer.admin.groups import GroupImage
from zkconsumer.lab.identify import Identity, MemberProgram, formats, identities
from zkconsumer.lab.live import GroupPicture
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.protocol.releases import profile
from zkconsumer.protocol.requests import Node, Stat
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.observer import Change, ChangeKind

SESSION = 0x1234
STATIC = encode_registration(Registration({"t": 1}, timestamp_ms=1400000000000))
DOUBLY = '{"version":1,"subscription":{"a\\\\/b":1},"pattern":"white_list","timestamp":"1"}'
"""The regular expression `a/b`, in the form that Kafka 1.0.1 and later write."""


def identity(
    payload: bytes | None, name: str = "g_a", owners: Mapping[int, int] | None = None
) -> Identity:
    """Return the identity of a member that owns partitions; `owners`: partition -> czxid."""
    nodes = {paths.member("g", name): Node(payload, Stat(1, 1, 0, SESSION))}
    for partition, czxid in (owners or {}).items():
        path = paths.owner("g", TopicPartition("t", partition))
        nodes[path] = Node(f"{name}-0".encode(), Stat(czxid, czxid, 0, SESSION))
    topics = {"t": b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}'}
    return identities(ExaminedGroup(GroupImage("g", nodes), topics))[name]


def test_captured_registrations() -> None:
    """A JVM member's registration shows its release, and never counts as another program's."""
    found = []
    for one in captured("registrations"):
        payload = one["payload"].encode()
        forms = formats(payload)
        if forms is None:
            continue  # The topic's name contains a quote or a backslash.
        assert {*one["releases"]} <= {form.release for form in forms}
        found.append(identity(payload).program)
    assert len(found) > 120
    assert set(found) == {MemberProgram.UNKNOWN, MemberProgram.JVM}


def test_the_format_names_the_releases() -> None:
    """Blanks in a registration show 0.8.0; how a slash is escaped shows the possible releases."""
    regex = Registration({"a/b": 1}, Pattern.WHITE_LIST, 1)
    releases = {
        release: identity(encode_registration(regex, profile=profile(release))).releases
        for release in ("0.8.0", "0.8.1", "0.9.0.1")
    }
    assert releases == {
        "0.8.0": "0.8.0",
        "0.8.1": "0.8.1-0.8.1.1",
        "0.9.0.1": "0.8.1-1.0.0",
    }
    assert identity(STATIC).releases == "0.8.1-1.1.1"
    assert identity(DOUBLY.encode()).releases == "0.8.1-0.8.1.1 or 1.0.1-1.1.1"


def test_a_registration_that_only_the_jvm_writes() -> None:
    """zkconsumer refuses a regular expression that its readers would misread; the JVM does not."""
    assert identity(DOUBLY.encode()).program is MemberProgram.JVM
    once = DOUBLY.replace(r"\\/", r"\/").encode()
    assert identity(once).program is MemberProgram.UNKNOWN


def test_owner_znodes_of_one_transaction() -> None:
    """Two owner znodes with the same czxid show zkconsumer; different czxids prove nothing."""
    found = identity(STATIC, owners={0: 7, 1: 9, 2: 9})
    assert found.program is MemberProgram.ZKCONSUMER
    assert "t-1 and t-2" in found.why
    assert identity(STATIC, owners={0: 7, 1: 8}).program is MemberProgram.UNKNOWN
    both = identity(DOUBLY.encode(), owners={0: 7, 1: 7})
    assert both.program is MemberProgram.OTHER


FOREIGN = {
    "kafka-node": b'{"version":1,"subscription":{"t": 1},"pattern":"white_list","timestamp":"1"}',
    "kazoo-go": b'{"pattern":"static","subscription":{"t":1},"timestamp":1,"version":1}',
    "pykafka": b"t",
    "no payload": None,
    "ill-formed UTF-8": b"\xff",
    "wrong order of five topics": b'{"version":1,"subscription":{"t1":1,"t2":1,"t3":1,"t4":1,"t5"'
    b':1},"pattern":"static","timestamp":"1"}',
}


@pytest.mark.parametrize("client", FOREIGN)
def test_another_client(client: str) -> None:
    """Bytes that neither Kafka's consumer nor zkconsumer writes show another client."""
    found = identity(FOREIGN[client])
    assert (found.program, found.releases) == (MemberProgram.OTHER, "")


def test_another_client_s_id() -> None:
    """An id that does not begin with the name of the group shows another client."""
    assert identity(STATIC, name="host:1f2e").program is MemberProgram.OTHER


def test_an_unusual_subscription_is_unknown() -> None:
    """If the lab cannot parse a subscription, the program is unknown."""
    payload = b'{"version":1,"subscription":{"a":1,"b":1},"pattern":"white_list","timestamp":"1"}'
    assert identity(payload).program is MemberProgram.UNKNOWN


def test_a_session_keeps_its_program() -> None:
    """Evidence that has disappeared still counts for the same session, but for no other session."""
    picture = GroupPicture("g")
    picture.change(Change(ChangeKind.MEMBER, "g_a", None, Registration({"t": 1})))
    proven = identity(STATIC, owners={0: 7, 1: 7})
    unknown = identity(STATIC)
    kinds = []
    for one in (unknown, proven, unknown, unknown._replace(session=SESSION + 1)):
        picture.identify({"g_a": one})
        kinds.append(picture.members[0]["k"])
    assert kinds == ["unknown", "zk", "zk", "unknown"]
    assert picture.identify({"g_a": unknown._replace(session=SESSION + 1)}) is None


@contextmanager
def zkconsumer_member(zookeeper: str, group: str, topic: str) -> Iterator[None]:
    """A real member in its own process."""
    command = [sys.executable, "-m", "zkconsumer", "consume", "-z", zookeeper, "-g", group]
    with subprocess.Popen(
        [*command, "--topic", topic], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=LIMIT_S)


def test_real_members(
    sandbox: Sandbox,
    unique: Callable[[str], str],
    tmp_path: Path,
    open_page: Callable[..., LabPage],
) -> None:
    """The page of a live group names the programs of a zkconsumer member and of a JVM member."""
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic, partitions=4)
    with ExitStack() as stack:
        stack.enter_context(zkconsumer_member(sandbox.zookeeper_connect, group, topic))
        lab = stack.enter_context(running_lab("-z", sandbox.zookeeper_connect, "-g", group))
        page = open_page().go(lab.url)
        kinds = page.page.locator(".column .kind")
        expect(kinds).to_have_text(["zkconsumer"], timeout=LIMIT_MS)
        jvm = JvmMember(
            "1.1.1",
            sandbox.zookeeper_connect,
            group,
            name="jvm",
            directory=tmp_path,
            pattern=("Whitelist", f"{topic}|a/b"),
        )
        stack.callback(jvm.end)
        expect(kinds).to_have_text(["zkconsumer", "JVM"], timeout=3 * LIMIT_MS)
        releases = "Kafka 0.8.1-0.8.1.1 or 1.0.1-1.1.1"
        expect(page.page.locator(".column .release")).to_have_text([releases])
        page.has(".partitions .cell.read", 4)
        page.page.locator("[data-member='0'] .head").click()
        page.page.get_by_role("menuitem", name="which program").click()
        status = page.page.get_by_role("status")
        expect(status).to_contain_text("one transaction created its owner znodes")
        wait_for(lambda: jvm.quiet_s > 1.0, "the JVM member's rebalances to end")
        jvm.leave()
