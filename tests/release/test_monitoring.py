"""Rules, dashboards and runbooks fit the metrics that there are; one wrong value in any of them is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release.dashboards import DASHBOARDS
from release.grafana import dashboard_json
from release.monitoring import MONITORING, dashboard_problems, problems
from release.promql import PromqlNames, names_in

from tests.support.length import some_of

pytestmark = pytest.mark.prometheus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of deploy/monitoring to spoil."""
    return Path(shutil.copytree(MONITORING, tmp_path / "monitoring"))


def test_all_is_well() -> None:
    assert problems() == []


Wrong = tuple[str, str, str, str]
"""A file, what is right in it, what is wrong instead, and what is said of it."""

TOGETHER: dict[str, tuple[Wrong, ...]] = {
    "names": (
        ("rules.yaml", "tranche_gpu_lost == 1", "tranche_gpu_lots == 1", "there is no metric tranche_gpu_lots"),
        ("rules.yaml", "by (instance, profile)", "by (instance, profil)", "no metric has a label profil"),
        ("rules.yaml", "severity: critical", "severity: urgent", "no severity of critical, warning, info"),
        (
            "rules.yaml",
            "docs/runbooks/TrancheXid.md",
            "docs/runbooks/TrancheXids.md",
            "no page docs/runbooks/TrancheXids.md",
        ),
        (
            "dashboards/node.json",
            "tranche_gpu_power_watts",
            "tranche_gpu_power",
            "there is no metric tranche_gpu_power",
        ),
        ("dashboards/fleet.json", "sum by (namespace)", "sum by namespace", "fleet.json, Held, in GPUs"),
    ),
    "syntax": (
        ("rules.yaml", "expr: tranche_gpu_lost == 1", "expr: tranche_gpu_lost == (1", "unclosed left parenthesis"),
    ),
    "a threshold and a sum": (
        ("rules.yaml", "> 4 * 3600", "> 5 * 3600", "TrancheRequestWaiting"),
        ("rules.test.yaml", "value: 300}", "value: 301}", "instance:tranche_gpu_power_watts:sum"),
    ),
    "a delay": (("rules.yaml", "for: 1m", "for: 20m", "TrancheGpuLost"),),
    "a case": (("rules.test.yaml", 'values: "0x9 1x10"', 'values: "0x20"', "TrancheGpuLost"),),
    "a unit": (("dashboards/waste.json", '"watt"', '"wat"', "run python -m release dashboards"),),
}
"""One look takes a second of processor, so what is wrong in ways that differ is looked at together."""


@pytest.mark.parametrize("which", some_of(TOGETHER, 3))
def test_one_wrong_value_is_found(folder: Path, which: str) -> None:
    for file, right, wrong, _ in TOGETHER[which]:
        path = folder / file
        text = path.read_text()
        assert right in text
        path.write_text(text.replace(right, wrong, 1))
    found = problems(folder)
    for *_, said in TOGETHER[which]:
        assert any(said in problem for problem in found), found


def test_an_alert_without_a_test_and_a_page_without_an_alert_are_found(folder: Path, tmp_path: Path) -> None:
    rules = folder / "rules.yaml"
    rules.write_text(rules.read_text().replace("alert: TrancheXid", "alert: TrancheNew"))
    found = problems(folder)
    assert "alert TrancheNew has no test in which it fires" in found
    assert "docs/runbooks/TrancheXid.md is about no alert" in found


def _unit(panel: dict[str, Any]) -> None:
    panel["fieldConfig"]["defaults"]["unit"] = ""


def _description(panel: dict[str, Any]) -> None:
    panel["description"] = ""


def _source(panel: dict[str, Any]) -> None:
    panel["targets"][0]["datasource"]["uid"] = "prometheus-1"


def _rate(panel: dict[str, Any]) -> None:
    panel["targets"][0]["expr"] = "rate(tranche_nvml_errors_total[5m])"


def _variable(panel: dict[str, Any]) -> None:
    panel["targets"][0]["expr"] = 'tranche_gpu_lost{instance="$node"}'


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_unit, "it has no unit"),
        (_description, "it has no description"),
        (_source, "it does not use the data source that was chosen"),
        (_rate, "a rate needs [$__rate_interval]"),
        (_variable, "there is no variable $node"),
    ],
)
def test_the_lint_of_dashboards(spoil: Callable[[dict[str, Any]], None], said: str) -> None:
    dashboard = json.loads(json.dumps(dashboard_json(DASHBOARDS[0])))
    assert list(dashboard_problems(dashboard)) == []
    spoil(dashboard["panels"][0])
    assert list(dashboard_problems(dashboard)) == [f"Nodes: {said}"]


def test_panels_lie_side_by_side_and_none_over_another() -> None:
    for each in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in dashboard_json(each)["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert max(x for x, _ in cells) < 24
            assert not cells & taken
            taken |= cells


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("up == 0", {"up"}, set()),
        ('sum by (a, b) (rate(x_total{c="d, e"}[5m])) > 4 * 3600', {"x_total"}, {"a", "b", "c"}),
        ('x{a!~"b|c"} and on (d) group_left (e) y offset 5m', {"x", "y"}, {"a", "d", "e"}),
        ("count(lvl:x:sum) without (a) or vector(0)", {"lvl:x:sum"}, {"a"}),
        ("histogram_quantile(0.9, x_bucket) < +Inf", {"x_bucket"}, set()),
        ("label_values and ignoring(a) b", {"label_values", "b"}, {"a"}),
    ],
)
def test_names_in_an_expression(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert names_in(expression) == PromqlNames(frozenset(metrics), frozenset(labels))
