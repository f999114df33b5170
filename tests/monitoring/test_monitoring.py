"""docs/monitoring: dashboard and alert rules use only metrics and labels that exist."""

from __future__ import annotations

import copy
import json
import operator
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from support.wait import LIMIT_S

from zkconsumer.admin.exporter import OWN, READINGS, REGISTERED, UNREGISTERED
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
    "kind": {REGISTERED, UNREGISTERED},
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
    stuck=0,
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
    found = {name: frozenset(["cluster", *labels]) for name, _, labels in (*OWN, *READINGS)}
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
            is_without = node.modifier and node.modifier.type == promql.AggModifierType.Without
            return below - named if is_without else named
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


def test_groups_of_several_clusters_are_apart() -> None:
    """No panel and no alert adds up groups that have one name in two clusters."""
    places = 0
    for place, query in _queries():
        if "zkconsumer_group_" in query and not place.startswith("variable"):
            for labels in re.findall(r" by \(([^)]*)\)", query):
                assert "cluster" in labels, (place, query)
                places += 1
    assert places


def test_the_counters_of_the_rules_start_at_0() -> None:
    """A member exports each event of the rules before the first one: else none increases from 0."""
    collector = Collector()
    collector.reads.append(lambda: replace(SAMPLE, events={}))
    (events,) = [one for one in collector.collect() if one.name == "zkconsumer_events"]
    exported = {one.labels["event"]: one.value for one in events.samples}
    text = " ".join(rule["expr"] for rule in RULES)
    named = {one for found in re.findall(r'event=~"([^"]+)"', text) for one in found.split("|")}
    assert VALUES["event"] <= exported.keys()
    assert {name: exported.get(name) for name in named} == dict.fromkeys(named, 0)


def test_every_alert_and_metric_is_covered() -> None:
    """The page explains each alert, and the dashboard or an alert uses each metric."""
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed == [rule["alert"] for rule in RULES]
    text = " ".join(query for _, query in _queries())
    assert {name for name in METRICS if not re.search(rf"\b{name}\b", text)} == set()


# The parts of Grafana's classic JSON model (Dashboard JSON model, Panel JSON model, Variables) that
# the dashboard uses. Grafana itself ignores what it does not know, and shows an empty panel.
SOURCE = {
    "type": "object",
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
    "required": ["type", "uid"],
    "additionalProperties": False,
}
POSITION = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 23},
        "y": {"type": "integer", "minimum": 0},
        "w": {"type": "integer", "minimum": 1, "maximum": 24},
        "h": {"type": "integer", "minimum": 1},
    },
    "required": ["x", "y", "w", "h"],
    "additionalProperties": False,
}
ROW = {
    "properties": {
        "type": {"const": "row"},
        "collapsed": {"const": False},
        # The panels of a row that is not collapsed follow it in the list of the dashboard.
        "panels": {"const": []},
    },
    "required": ["collapsed", "panels"],
}
TARGET = {
    "type": "object",
    "properties": {
        "refId": {"type": "string", "pattern": "^[A-Z]$"},
        "datasource": SOURCE,
        "editorMode": {"enum": ["code", "builder"]},
        "expr": {"type": "string", "minLength": 1},
        "legendFormat": {"type": "string"},
        "instant": {"type": "boolean"},
        "range": {"type": "boolean"},
    },
    "required": ["refId", "datasource", "expr"],
    "additionalProperties": False,
}
CHART = {
    "properties": {
        "type": {"enum": ["stat", "timeseries"]},
        "description": {"type": "string"},
        "datasource": SOURCE,
        "targets": {"type": "array", "items": TARGET, "minItems": 1},
        "fieldConfig": {
            "type": "object",
            "properties": {"defaults": {"type": "object"}, "overrides": {"type": "array"}},
            "required": ["defaults", "overrides"],
            "additionalProperties": False,
        },
        "options": {"type": "object"},
    },
    "required": ["datasource", "targets", "fieldConfig", "options"],
}
PANEL = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"type": "string"},
        "title": {"type": "string", "minLength": 1},
        "gridPos": POSITION,
    },
    "required": ["id", "type", "title", "gridPos"],
    "if": {"properties": {"type": {"const": "row"}}},
    "then": ROW,
    "else": CHART,
}
VARIABLE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^\w+$"},
        "type": {"enum": ["datasource", "query"]},
        "datasource": SOURCE,
        "refresh": {"enum": [1, 2]},
        "sort": {"type": "integer", "minimum": 0, "maximum": 8},
    },
    "required": ["name", "type", "query"],
    "if": {"properties": {"type": {"const": "query"}}},
    "then": {"required": ["datasource", "definition", "refresh"]},
    "else": {"properties": {"query": {"const": "prometheus"}}},
}
MODEL = {
    "type": "object",
    "properties": {
        "id": {"type": "null"},  # the id in the database of another Grafana would be overwritten
        "uid": {"type": "string", "minLength": 8, "maxLength": 40},
        "title": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        # Grafana 9 introduced 37; 42 is the last version of the classic model.
        "schemaVersion": {"type": "integer", "minimum": 37, "maximum": 42},
        "version": {"type": "integer"},
        "editable": {"type": "boolean"},
        "graphTooltip": {"enum": [0, 1, 2]},
        "refresh": {"type": "string", "pattern": "^\\d+[smh]$"},
        "time": {"type": "object", "required": ["from", "to"]},
        "timezone": {"type": "string"},
        "templating": {
            "type": "object",
            "properties": {"list": {"type": "array", "items": VARIABLE}},
            "required": ["list"],
        },
        "annotations": {"type": "object", "required": ["list"]},
        "links": {"type": "array"},
        "panels": {"type": "array", "items": PANEL, "minItems": 1},
    },
    "required": ["uid", "title", "schemaVersion", "time", "templating", "panels"],
    "additionalProperties": False,
}


def check_model(dashboard: Any) -> None:
    """Check the dashboard against Grafana's model, and its references to ids and variables."""
    Draft202012Validator(MODEL).validate(dashboard)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)), "two panels have one id"
    variables = {one["name"]: one["type"] for one in dashboard["templating"]["list"]}
    assert len(variables) == len(dashboard["templating"]["list"]), "two variables have one name"
    assert variables.get("datasource") == "datasource", "no variable is the data source"
    for panel in dashboard["panels"]:
        targets = panel.get("targets", ())
        letters = {target["refId"] for target in targets}
        assert len(letters) == len(targets), "two queries of a panel have one letter"
        for target in targets:
            used = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables.keys(), f"no variables {used - variables.keys()}"


def test_the_dashboard_fits_the_model_of_grafana() -> None:
    """The dashboard has the fields of Grafana's model; its ids, letters and variables fit."""
    check_model(DASHBOARD)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schemaVersion",), "39", "is not of type 'integer'"),
        (("uid",), "zk", "is too short"),
        (("panels", 2, "id"), 2, "two panels have one id"),
        (("panels", 1, "datasource", "uid"), "P1809F7CD0C75ACF3", "datasource"),
        (("panels", 1, "gridPos", "w"), 25, "25 is greater than the maximum of 24"),
        (("panels", 0, "panels"), [{}], "was expected"),
        (("panels", 6, "targets", 1, "refId"), "A", "two queries of a panel have one letter"),
        (("panels", 1, "targets", 0, "expr"), "$team", "no variables {'team'}"),
        (("templating", "list", 0, "name"), "source", "no variable is the data source"),
    ],
)
def test_a_wrong_dashboard_is_found(
    place: tuple[str | int, ...], value: object, message: str
) -> None:
    """The check itself finds a wrong type, position, id, data source and variable."""
    wrong = copy.deepcopy(DASHBOARD)
    *path, last = place
    reduce(operator.getitem, path, wrong)[last] = value
    with pytest.raises((AssertionError, ValidationError), match=re.escape(message)):
        check_model(wrong)


def test_the_panels_do_not_overlap() -> None:
    """Each panel has its own place within the 24 columns."""
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
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
