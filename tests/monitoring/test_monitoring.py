"""docs/monitoring: dashboard and alert rules use only metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from zkconsumer.admin.lag import GAUGES as GROUP_GAUGES
from zkconsumer.admin.lag import Status
from zkconsumer.consumer.metrics import Collector, MetricsSnapshot
from zkconsumer.consumer.stream_fetcher import ReportKind
from zkconsumer.member.commands import NoticeKind
from zkconsumer.member.phases import Phase

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PAGE = (MONITORING / "README.md").read_text(encoding="utf-8")
# The values of those labels that have few values.
VALUES = {
    "status": {one.value for one in Status},
    "phase": {one.value for one in Phase},
    "event": {one.value for kind in (NoticeKind, ReportKind) for one in kind},
}
SAMPLE = MetricsSnapshot(
    client_id="web",
    group_id="billing",
    consumer_id="billing_web",
    phase="settled",
    connected=True,
    lease_s=4.0,
    requests=9,
    blocked=0,
    events={"seeks": 1},
    rebalances=2,
    rebalance_s=0.5,
    zookeeper_commits=3,
    kafka_commits=0,
    messages={"orders": 7},
    fetched_bytes={"orders": 70.0},
    owned={"orders": 2},
    queued={("orders", "billing_web-0"): 5},
    lag={("orders", "0"): 1},
)


def _metrics() -> dict[str, frozenset[str]]:
    """Return metric -> labels, as members and the group exporter serve them."""
    found = {name: frozenset(labels) for name, _, labels in GROUP_GAUGES}
    collector = Collector()
    collector.reads.append(lambda: SAMPLE)
    for family in collector.collect():
        for sample in family.samples:
            found[sample.name] = frozenset(sample.labels)
    return found


METRICS = _metrics()


def _queries() -> Iterator[tuple[str, str]]:
    """Return each query of the alerts, panels and variables, with its place."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            text = variable["query"]["query"]
            words = re.fullmatch(r"query_result\((.*)\)|label_values\((.*), *(\w+)\)", text)
            assert words, text
            yield f"variable {variable['name']}", words[1] or f"sum by ({words[3]}) ({words[2]})"


QUERIES = [pytest.param(query, id=place) for place, query in _queries()]


def _labels_of(node: Any) -> set[str]:
    """Return the labels of a query's result; check the metrics and labels that the query uses."""
    match node:
        case promql.VectorSelector():
            return _selected(node)
        case promql.MatrixSelector():
            return _labels_of(node.vector_selector)
        case promql.AggregateExpr():
            below = _labels_of(node.expr)
            named = set(node.modifier.labels) if node.modifier else set()
            assert named <= below, f"no labels {named - below}"
            return named
        case promql.BinaryExpr():
            left, right = _labels_of(node.lhs), _labels_of(node.rhs)
            matching = node.modifier.matching if node.modifier else None
            named = set(matching.labels) if matching else set()
            assert named <= left & right, f"no labels {named - (left & right)}"
            return left or right
        case promql.ParenExpr() | promql.UnaryExpr():
            return _labels_of(node.expr)
        case promql.Call():
            labels = set().union(*map(_labels_of, node.args))
            is_relabelled = node.func.name == "label_replace"
            return labels | ({node.args[1].val} if is_relabelled else set())
        case promql.NumberLiteral() | promql.StringLiteral():
            return set()
    raise AssertionError(f"{type(node).__name__} is not expected")


def _selected(node: Any) -> set[str]:
    matchers = node.matchers.matchers
    names = {node.name} if node.name else _named(matchers)
    assert names and names <= METRICS.keys(), f"no metrics {names - METRICS.keys()}"
    for name in names:
        for one in matchers:
            if one.name == "__name__":
                continue
            assert one.name in METRICS[name], f"{name} has no label {one.name}"
            wanted = set(one.value.split("|"))
            assert "$" in one.value or wanted <= VALUES.get(one.name, wanted), one.value
    return set.intersection(*(set(METRICS[name]) for name in names))


def _named(matchers: list[Any]) -> set[str]:
    return {name for one in matchers if one.name == "__name__" for name in one.value.split("|")}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_existing_metrics(query: str) -> None:
    """Each query parses, and zkconsumer serves each of its metrics, labels and values."""
    _labels_of(promql.parse(query.replace("$__rate_interval", "5m")))


@pytest.mark.parametrize(
    "query",
    [
        "zkconsumer_group_lags > 0",
        'zkconsumer_group_status{status="DEAD"} == 1',
        "sum by (consumer) (zkconsumer_group_lag)",
        "zkconsumer_group_lag and on (consumer_id) zkconsumer_lag",
    ],
)
def test_a_wrong_query_is_found(query: str) -> None:
    """The check itself finds a wrong metric, a wrong value, and a wrong label."""
    with pytest.raises(AssertionError, match=r"no metrics|DEAD|no labels"):
        _labels_of(promql.parse(query))


def test_the_texts_name_labels_of_their_query() -> None:
    """Texts of alerts and legends of panels use only labels that the query's result has."""
    named = 0
    for rule in RULES:
        used = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        assert set(used) <= _labels_of(promql.parse(rule["expr"])), rule["alert"]
        named += len(used)
    assert named >= len(RULES)
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "5m")
            used = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert set(used) <= _labels_of(promql.parse(query)), panel["title"]
            named += len(used)
    assert named >= len(RULES) + len(DASHBOARD["panels"])


def test_every_alert_and_metric_is_covered() -> None:
    """The page explains each alert, and the dashboard or an alert uses each metric."""
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed == [rule["alert"] for rule in RULES]
    text = " ".join(query for _, query in _queries())
    assert {name for name in METRICS if not re.search(rf"\b{name}\b", text)} == set()


def test_the_panels_do_not_overlap() -> None:
    """Each panel has its own id and its own place within the 24 columns."""
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & mine, panel["title"]
        cells |= mine
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_prometheus_accepts_the_rules(tmp_path: Path, promtool: str) -> None:
    """Prometheus' own tool accepts the rules, which fire exactly when they should."""
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    cases = shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", cases]):
        done = subprocess.run(
            [promtool, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
