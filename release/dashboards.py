"""The dashboards of deploy/monitoring/dashboards: fleet, node, slices by namespace, waste."""

from __future__ import annotations

import json
from pathlib import Path

from release.grafana import (
    GrafanaDashboard,
    GrafanaPanel,
    GrafanaQuery,
    GrafanaUnit,
    GrafanaVariable,
    PanelKind,
    dashboard_json,
)

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring" / "dashboards"

_NODE = GrafanaVariable("instance", "tranche_gpu_lost")
_NAMESPACE = GrafanaVariable("namespace", "tranche_slice_state")
_HERE = 'instance=~"$instance"'
_THEIRS = 'namespace=~"$namespace"'
_ON_HOPPER = "Only Hopper and later measure it; other nodes are not in the picture."


def _times(
    title: str,
    description: str,
    unit: GrafanaUnit,
    expression: str,
    legend: str,
    *,
    stacked: bool = False,
    width: int = 12,
) -> GrafanaPanel:
    return GrafanaPanel(title, description, unit, (GrafanaQuery(expression, legend),), width=width, stacked=stacked)


def _stat(title: str, description: str, expression: str, unit: GrafanaUnit = GrafanaUnit.NUMBER) -> GrafanaPanel:
    return GrafanaPanel(title, description, unit, (GrafanaQuery(expression),), PanelKind.STAT, width=4, height=4)


def _table(title: str, description: str, unit: GrafanaUnit, expression: str, *, width: int = 24) -> GrafanaPanel:
    return GrafanaPanel(title, description, unit, (GrafanaQuery(expression),), PanelKind.TABLE, width=width)


def _bars(title: str, description: str, unit: GrafanaUnit, expression: str, legend: str) -> GrafanaPanel:
    return GrafanaPanel(title, description, unit, (GrafanaQuery(expression, legend),), PanelKind.BARS)


FLEET = GrafanaDashboard(
    "tranche-fleet",
    "Tranche / Fleet",
    "All nodes: how many GPUs there are, who holds them, what is wrong.",
    (
        _stat("Nodes", "Agents that answer.", "count(tranche_build_info)"),
        _stat("GPUs", "As the driver lists them, lost ones included.", "count(tranche_gpu_lost)"),
        _stat("Slices", "Of all profiles, held or not.", "sum(instance:tranche_slices:count)"),
        _stat("GPUs lost", "The driver lists them and cannot reach them.", "sum(tranche_gpu_lost)"),
        _stat(
            "Layouts not reached",
            "Nodes that are not cut as their label asks.",
            'count(tranche_layout_state{state!="success"}) or vector(0)',
        ),
        _stat("Power", "Of all GPUs.", "sum(instance:tranche_gpu_power_watts:sum)", GrafanaUnit.WATTS),
        _times(
            "Held, in GPUs",
            "GPUs' worth of compute slices that each namespace holds. Commands of tranche run have no namespace.",
            GrafanaUnit.NUMBER,
            "sum by (namespace) (namespace:tranche_gpus_held:sum)",
            "{{namespace}}",
            stacked=True,
        ),
        _times(
            "Idle, in GPUs",
            "GPUs' worth of compute slices that nobody holds.",
            GrafanaUnit.NUMBER,
            "sum by (instance) (instance:tranche_gpus_idle:sum)",
            "{{instance}}",
            stacked=True,
        ),
        _times(
            "Slices by profile and state",
            "Missing ones are held, and not there.",
            GrafanaUnit.NUMBER,
            "sum by (profile, state) (instance:tranche_slices:count)",
            "{{profile}} {{state}}",
            stacked=True,
        ),
        _times(
            "Changes that failed",
            "Changes of GPUs that were undone or interrupted, per hour.",
            GrafanaUnit.NUMBER,
            'sum by (kind, outcome) (rate(tranche_change_duration_seconds_count{outcome!="done"}[$__rate_interval])) * 3600',
            "{{kind}} {{outcome}}",
        ),
        _table(
            "Layouts",
            "The wanted layout of each node and how far it is.",
            GrafanaUnit.NUMBER,
            "max by (instance, layout, state, reason) (tranche_layout_state)",
            width=12,
        ),
        _table(
            "Parts of agents that do not work",
            "Empty when all is well.",
            GrafanaUnit.NUMBER,
            "min by (instance, component) (tranche_component_ready) == 0",
            width=12,
        ),
        _table(
            "XIDs",
            "When each was reported last.",
            GrafanaUnit.MOMENT,
            "max by (instance, gpu_uuid, xid) (tranche_xid_last_time_seconds) * 1000",
            width=12,
        ),
        _times(
            "Age of what is known",
            "A driver or a kubelet that hangs shows here.",
            GrafanaUnit.SECONDS,
            "max by (instance, what) (tranche_observation_age_seconds)",
            "{{instance}} {{what}}",
        ),
    ),
)

NODE = GrafanaDashboard(
    "tranche-node",
    "Tranche / Node",
    "One node or a few: each GPU with its gauges, each slice with its pod.",
    (
        _table(
            "Slices",
            "Who holds which, by place.",
            GrafanaUnit.NUMBER,
            "max by (instance, gpu_uuid, placement, profile, state, namespace, pod, container, mig_uuid) "
            f"(tranche_slice_state{{{_HERE}}})",
        ),
        _times(
            "Memory used in slices",
            "Of each GPU instance.",
            GrafanaUnit.BYTES,
            f"sum by (gpu_uuid, placement, pod) (tranche_slice_memory_used_bytes{{{_HERE}}})",
            "{{gpu_uuid}} {{placement}} {{pod}}",
        ),
        _times(
            "Memory used on GPUs",
            "Of the whole GPU, the driver's reserve included.",
            GrafanaUnit.BYTES,
            f"sum by (instance, gpu_uuid) (tranche_gpu_memory_used_bytes{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Activity of slices",
            f"How busy the slice's own multiprocessors were. {_ON_HOPPER}",
            GrafanaUnit.SHARE,
            f"max by (gpu_uuid, placement, pod) (tranche_slice_sm_active_ratio{{{_HERE}}})",
            "{{gpu_uuid}} {{placement}} {{pod}}",
        ),
        _times(
            "Utilization of GPUs that are not cut",
            "No driver measures it in MIG mode.",
            GrafanaUnit.SHARE,
            f"max by (instance, gpu_uuid) (tranche_gpu_utilization_ratio{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Power",
            "Of whole GPUs; no slice has a figure of its own.",
            GrafanaUnit.WATTS,
            f"sum by (instance, gpu_uuid) (tranche_gpu_power_watts{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
            stacked=True,
        ),
        _times(
            "Temperature",
            "Of the die.",
            GrafanaUnit.CELSIUS,
            f"max by (instance, gpu_uuid) (tranche_gpu_temperature_celsius{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Duration of changes",
            "Nineteen of twenty changes were faster.",
            GrafanaUnit.SECONDS,
            "histogram_quantile(0.95, sum by (kind, le) "
            f"(rate(tranche_change_duration_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
            "{{kind}}",
        ),
        _times(
            "Errors of the driver",
            "By their names in nvml.h, per hour.",
            GrafanaUnit.NUMBER,
            f"sum by (instance, error) (rate(tranche_nvml_errors_total{{{_HERE}}}[$__rate_interval])) * 3600",
            "{{instance}} {{error}}",
        ),
        _times(
            "Requests that wait",
            "In the queue of tranche run on this node.",
            GrafanaUnit.NUMBER,
            f"max by (instance) (tranche_queue_requests{{{_HERE}}})",
            "{{instance}}",
        ),
        _times(
            "How long the first of them waits",
            "Nothing while nobody waits.",
            GrafanaUnit.SECONDS,
            f"max by (instance) (tranche_queue_oldest_wait_seconds{{{_HERE}}})",
            "{{instance}}",
        ),
    ),
    (_NODE,),
)

NAMESPACES = GrafanaDashboard(
    "tranche-namespaces",
    "Tranche / Slices by namespace",
    "What each namespace holds, and what it does with it.",
    (
        _times(
            "Held, in GPUs",
            "GPUs' worth of compute slices, whole GPUs included.",
            GrafanaUnit.NUMBER,
            f"sum by (namespace) (namespace:tranche_gpus_held:sum{{{_THEIRS}}})",
            "{{namespace}}",
            stacked=True,
        ),
        _times(
            "Slices held, by profile",
            "Counted.",
            GrafanaUnit.NUMBER,
            f'count by (namespace, profile) (tranche_slice_state{{state="held", {_THEIRS}}})',
            "{{namespace}} {{profile}}",
            stacked=True,
        ),
        _times(
            "Memory used",
            "In the slices that it holds.",
            GrafanaUnit.BYTES,
            f"sum by (namespace) (tranche_slice_memory_used_bytes{{{_THEIRS}}})",
            "{{namespace}}",
            stacked=True,
        ),
        _times(
            "Memory used, of what it holds",
            "Far below 1: smaller slices would do.",
            GrafanaUnit.SHARE,
            f"sum by (namespace) (tranche_slice_memory_used_bytes{{{_THEIRS}}}) "
            f"/ sum by (namespace) (tranche_slice_memory_total_bytes{{{_THEIRS}}})",
            "{{namespace}}",
        ),
        _times(
            "Activity, in GPUs",
            f"Multiprocessors at work, as so many GPUs. {_ON_HOPPER}",
            GrafanaUnit.NUMBER,
            f"sum by (namespace) (tranche_slice_sm_active_ratio{{{_THEIRS}}} * tranche_slice_compute_ratio{{{_THEIRS}}})",
            "{{namespace}}",
            stacked=True,
        ),
        _table(
            "Held for longest",
            "Since when each pod holds its slice.",
            GrafanaUnit.MOMENT,
            "bottomk(20, min by (namespace, pod, container, profile, instance) "
            f"(tranche_holder_start_time_seconds{{{_THEIRS}}})) * 1000",
            width=12,
        ),
    ),
    (_NAMESPACE,),
)

WASTE = GrafanaDashboard(
    "tranche-waste",
    "Tranche / Waste",
    "What nobody holds, and what somebody holds and does not use.",
    (
        _stat("Idle, in GPUs", "Nobody holds it.", "sum(instance:tranche_gpus_idle:sum)"),
        _stat("Unused, in GPUs", "A pod holds it, and has no process there.", "sum(namespace:tranche_gpus_unused:sum)"),
        _times(
            "Idle slices, by profile",
            "Nobody holds them.",
            GrafanaUnit.NUMBER,
            'sum by (profile) (instance:tranche_slices:count{state="idle"})',
            "{{profile}}",
            stacked=True,
            width=16,
        ),
        _times(
            "Held and without a process, in GPUs",
            "Pods that asked for slices and do not use them at that moment.",
            GrafanaUnit.NUMBER,
            "sum by (namespace) (namespace:tranche_gpus_unused:sum)",
            "{{namespace}}",
            stacked=True,
        ),
        _bars(
            "Memory that is held and not used",
            "By namespace, now.",
            GrafanaUnit.BYTES,
            'sum by (namespace) (tranche_slice_memory_total_bytes{namespace!=""} - tranche_slice_memory_used_bytes)',
            "{{namespace}}",
        ),
        _table(
            "Slices without a process",
            "Held by a pod, now.",
            GrafanaUnit.NUMBER,
            "max by (namespace, pod, container, instance, profile, placement) "
            '(tranche_slice_processes{namespace!=""} == 0)',
        ),
        _times(
            "Power of GPUs that nobody holds",
            "GPUs that are not cut, and idle.",
            GrafanaUnit.WATTS,
            "sum by (instance) (tranche_gpu_power_watts and on (instance, gpu_uuid) "
            '(tranche_gpu_state{state="idle"} == 1))',
            "{{instance}}",
        ),
        _times(
            "Part of the power limit",
            "What all GPUs of a node draw, of what they may.",
            GrafanaUnit.SHARE,
            "sum by (instance) (tranche_gpu_power_watts) / sum by (instance) (tranche_gpu_power_limit_watts)",
            "{{instance}}",
        ),
    ),
)

DASHBOARDS = (FLEET, NODE, NAMESPACES, WASTE)


def dashboard_files() -> dict[str, str]:
    """File name and text of each."""
    return {
        f"{each.uid.removeprefix('tranche-')}.json": json.dumps(dashboard_json(each), indent=2) + "\n"
        for each in DASHBOARDS
    }
