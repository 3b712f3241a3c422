"""Whether rules, their tests, runbooks and dashboards fit one another and the metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from release.dashboards import dashboard_files
from release.errors import ReleaseError
from release.programs import debian_program
from release.promql import names_in
from tranche.metrics import catalogue, dcgm

ROOT = Path(__file__).parents[1]
MONITORING = ROOT / "deploy" / "monitoring"

_SEVERITIES = ("critical", "warning", "info")
_ANNOTATIONS = ("summary", "description", "runbook")
# What Prometheus itself adds to a scrape.
_OF_PROMETHEUS = frozenset({"up"})
_LABELS_OF_PROMETHEUS = frozenset({"instance", "job", "le"})
_OF_KUBE_STATE_METRICS = frozenset(
    {
        "kube_daemonset_status_desired_number_scheduled",
        "kube_daemonset_status_number_available",
        "kube_deployment_status_replicas_available",
        "kube_pod_container_resource_requests",
        "kube_pod_status_unschedulable",
    }
)
_LABELS_OF_KUBE_STATE_METRICS = frozenset({"namespace", "pod", "resource", "daemonset", "deployment"})
_RANGE = re.compile(r"\b(?:rate|increase)\s*\(")
_VARIABLES = {"$__rate_interval": "5m", "$__range": "6h", "$__interval": "1m"}


@dataclass(frozen=True, slots=True)
class Expression:
    """One PromQL expression and where it stands."""

    place: str
    text: str


def promtool() -> Path:
    """Debian's promtool, or the one on PATH."""
    return debian_program("prometheus", "usr/bin/promtool")


@cache
def why_no_prometheus() -> str:
    """Why Debian's Prometheus cannot be had here; empty when it can."""
    try:
        debian_program("prometheus", "usr/bin/prometheus")
        promtool()
    except ReleaseError as error:
        return str(error)
    return ""


def problems(folder: Path = MONITORING, root: Path = ROOT) -> list[str]:
    """All that is wrong, a line each."""
    rules = yaml.safe_load((folder / "rules.yaml").read_text())
    tests = yaml.safe_load((folder / "rules.test.yaml").read_text())
    found = _promtool("check", "rules", str(folder / "rules.yaml"))
    if found:
        return found  # nothing else can be said of rules that are none
    found += _promtool("test", "rules", str(folder / "rules.test.yaml"))
    found += _alert_problems(rules, tests, root)
    written = {file.name: file.read_text() for file in sorted((folder / "dashboards").glob("*.json"))}
    if written != dashboard_files():
        found.append("the dashboards are not those of release/dashboards.py: run python -m release dashboards")
    dashboards = {name: json.loads(text) for name, text in written.items()}
    for name, dashboard in dashboards.items():
        found += [f"{name}: {problem}" for problem in dashboard_problems(dashboard)]
    shown = [each for name, dashboard in dashboards.items() for each in dashboard_expressions(name, dashboard)]
    found += _name_problems([*rule_expressions(rules), *shown], recorded(rules))
    return found + _as_rules(shown)


def rule_expressions(rules: Mapping[str, Any]) -> list[Expression]:
    """The expression of each rule."""
    return [
        Expression(f"rule {rule.get('alert') or rule['record']}", rule["expr"])
        for group in rules["groups"]
        for rule in group["rules"]
    ]


def recorded(rules: Mapping[str, Any]) -> frozenset[str]:
    """The metrics that rules make."""
    return frozenset(rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule)


def dashboard_expressions(name: str, dashboard: Mapping[str, Any]) -> list[Expression]:
    """Each panel's expressions, with a value for each variable of Grafana's."""
    return [
        Expression(f"{name}, {panel['title']}", _without_variables(target["expr"]))
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def dashboard_problems(dashboard: Mapping[str, Any]) -> Iterator[str]:
    """What people who open a dashboard would stumble over."""
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    if "datasource" not in variables:
        yield "it has no variable for the data source"
    for panel in dashboard["panels"]:
        title = panel.get("title") or f"panel {panel.get('id')}"
        if not panel.get("title"):
            yield f"{title}: it has no title"
        if not panel.get("description"):
            yield f"{title}: it has no description"
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            yield f"{title}: it has no unit"
        for target in panel["targets"]:
            if target.get("datasource", {}).get("uid") != "${datasource}":
                yield f"{title}: it does not use the data source that was chosen"
            text = target["expr"]
            if _RANGE.search(text) and "$__rate_interval" not in text:
                yield f"{title}: a rate needs [$__rate_interval]"
            for name in re.findall(r"\$(\w+)", text):
                if name not in variables and f"${name}" not in _VARIABLES:
                    yield f"{title}: there is no variable ${name}"


def _alert_problems(rules: Mapping[str, Any], tests: Mapping[str, Any], root: Path) -> Iterator[str]:
    cases = [case for test in tests["tests"] for case in test.get("alert_rule_test", ())]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    guide = (root / "docs" / "guides" / "monitoring.md").read_text()
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    for name, rule in alerts.items():
        if name not in fired:
            yield f"alert {name} has no test in which it fires"
        if "for" in rule and name not in silent:
            yield f"alert {name} has no test in which it does not fire yet"
        if rule.get("labels", {}).get("severity") not in _SEVERITIES:
            yield f"alert {name} has no severity of {', '.join(_SEVERITIES)}"
        annotations = rule.get("annotations", {})
        yield from (f"alert {name} has no {each}" for each in _ANNOTATIONS if not annotations.get(each))
        page = annotations.get("runbook", "")
        if page and (Path(page).stem != name or not (root / page).is_file()):
            yield f"alert {name} has no page {page}"
        if f"| [{name}](../runbooks/{name}.md) | {rule['labels'].get('severity')} |" not in guide:
            yield f"alert {name} is not in docs/guides/monitoring.md with its severity"
    for page in sorted((root / "docs" / "runbooks").glob("*.md")):
        if page.stem not in alerts:
            yield f"docs/runbooks/{page.name} is about no alert"
        if "`tranche bundle`" not in (lines := page.read_text().splitlines())[-1] or "#who-can-help" not in lines[-1]:
            yield f"docs/runbooks/{page.name} does not end with tranche bundle, and whom to ask"
    exprs = {case["expr"] for test in tests["tests"] for case in test.get("promql_expr_test", ())}
    yield from (f"recording rule {name} has no test" for name in sorted(recorded(rules) - exprs))


def _name_problems(expressions: Iterable[Expression], made: frozenset[str]) -> Iterator[str]:
    families = (*catalogue.FAMILIES, *dcgm.FAMILIES)
    metrics = {name for family in families for name in family.series} | made | _OF_PROMETHEUS | _OF_KUBE_STATE_METRICS
    labels = {label for family in families for label in family.labels}
    labels |= _LABELS_OF_PROMETHEUS | _LABELS_OF_KUBE_STATE_METRICS
    for each in expressions:
        names = names_in(each.text)
        yield from (f"{each.place}: there is no metric {name}" for name in sorted(names.metrics - metrics))
        yield from (f"{each.place}: no metric has a label {name}" for name in sorted(names.labels - labels))


def _as_rules(expressions: Iterable[Expression]) -> list[str]:
    """What promtool says of expressions, each as a recording rule of its own."""
    listed = list(expressions)
    rules = [{"record": f"dashboard:expression_{place}", "expr": each.text} for place, each in enumerate(listed)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dashboards.yaml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
        said = _promtool("check", "rules", str(file))
    return [
        re.sub(r'"dashboard:expression_(\d+)"', lambda match: f'"{listed[int(match[1])].place}"', line) for line in said
    ]


def _promtool(*arguments: str) -> list[str]:
    """What it says when it fails; nothing when it succeeds."""
    done = subprocess.run([str(promtool()), *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    return [line for line in lines if line and line not in ("FAILED", "FAILED:")] or ["promtool failed"]


def _without_variables(text: str) -> str:
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    return re.sub(r'"\$\w+"', '".*"', text)
