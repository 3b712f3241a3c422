"""Grafana dashboards as typed data, and their JSON. Only what these dashboards have; Grafana 10 and later read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_SCHEMA_VERSION = 36
_WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class PanelKind(StrEnum):
    """As Grafana calls them."""

    TIMES = "timeseries"
    STAT = "stat"
    TABLE = "table"
    BARS = "bargauge"


class GrafanaUnit(StrEnum):
    """The units that are used here, by Grafana's names."""

    NUMBER = "short"
    BYTES = "bytes"
    SHARE = "percentunit"
    WATTS = "watt"
    CELSIUS = "celsius"
    SECONDS = "s"
    MOMENT = "dateTimeFromNow"


@dataclass(frozen=True, slots=True)
class GrafanaQuery:
    """One expression; `legend` may name labels: `{{instance}}`."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class GrafanaPanel:
    """One picture; `description` says how to read it. Width is in 24ths."""

    title: str
    description: str
    unit: GrafanaUnit
    queries: tuple[GrafanaQuery, ...]
    kind: PanelKind = PanelKind.TIMES
    width: int = 12
    height: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class GrafanaVariable:
    """A choice at the dashboard's head: the values that a label has in a metric."""

    label: str
    metric: str


@dataclass(frozen=True, slots=True)
class GrafanaDashboard:
    """A page; `uid` is its lasting name."""

    uid: str
    title: str
    description: str
    panels: tuple[GrafanaPanel, ...]
    variables: tuple[GrafanaVariable, ...] = field(default=())


def dashboard_json(dashboard: GrafanaDashboard) -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["tranche"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source_variable(), *map(_variable, dashboard.variables)]},
        "panels": _placed(dashboard.panels),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: GrafanaVariable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.label,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": variable.label},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed(panels: Sequence[GrafanaPanel]) -> list[dict[str, Any]]:
    """Side by side from the left, in rows."""
    found = []
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _WIDTH:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        found.append({"id": number, "gridPos": place, **_panel(panel)})
        x, height = x + panel.width, max(height, panel.height)
    return found


def _panel(panel: GrafanaPanel) -> dict[str, Any]:
    custom: Mapping[str, Any] = {"fillOpacity": 20, "stacking": {"mode": "normal"}} if panel.stacked else {}
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
            "instant": panel.kind is not PanelKind.TIMES,
            "range": panel.kind is PanelKind.TIMES,
            **({"format": "table"} if panel.kind is PanelKind.TABLE else {}),
        }
        for place, query in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": str(panel.unit), "custom": custom} if custom else {"unit": str(panel.unit)}
    return {
        "type": str(panel.kind),
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }
