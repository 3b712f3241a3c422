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
_ON_HOPPER = "Only Hopper and later GPUs measure it; other nodes are missing here."


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
    "All nodes: number of GPUs, their holders, and faults.",
    (
        _stat("Nodes", "Agents that answer.", "count(tranche_build_info)"),
        _stat("GPUs", "GPUs that the driver lists, including lost ones.", "count(tranche_gpu_lost)"),
        _stat("Slices", "Slices of all profiles, held or idle.", "sum(instance:tranche_slices:count)"),
        _stat("GPUs lost", "GPUs that the driver lists but cannot reach.", "sum(tranche_gpu_lost)"),
        _stat(
            "Layouts not reached",
            "Nodes that do not have the layout of their label.",
            'count(tranche_layout_state{state!="success"}) or vector(0)',
        ),
        _stat("Power", "Power of all GPUs.", "sum(instance:tranche_gpu_power_watts:sum)", GrafanaUnit.WATTS),
        _times(
            "Held, in GPUs",
            "Compute slices that each namespace holds, in GPUs. Commands of tranche run have no namespace.",
            GrafanaUnit.NUMBER,
            "sum by (namespace) (namespace:tranche_gpus_held:sum)",
            "{{namespace}}",
            stacked=True,
        ),
        _times(
            "Idle, in GPUs",
            "Idle compute slices, in GPUs.",
            GrafanaUnit.NUMBER,
            "sum by (instance) (instance:tranche_gpus_idle:sum)",
            "{{instance}}",
            stacked=True,
        ),
        _times(
            "Slices by profile and state",
            "Missing slices are held but absent.",
            GrafanaUnit.NUMBER,
            "sum by (profile, state) (instance:tranche_slices:count)",
            "{{profile}} {{state}}",
            stacked=True,
        ),
        _times(
            "Changes that failed",
            "Undone or interrupted changes of GPUs, per hour.",
            GrafanaUnit.NUMBER,
            'sum by (kind, outcome) (rate(tranche_change_duration_seconds_count{outcome!="done"}[$__rate_interval])) * 3600',
            "{{kind}} {{outcome}}",
        ),
        _table(
            "Layouts",
            "The layout that each node should have, and its state.",
            GrafanaUnit.NUMBER,
            "max by (instance, layout, state, reason) (tranche_layout_state)",
            width=12,
        ),
        _table(
            "Components of agents that do not work",
            "Empty when all is well.",
            GrafanaUnit.NUMBER,
            "min by (instance, component) (tranche_component_ready) == 0",
            width=12,
        ),
        _table(
            "XIDs",
            "When each XID was last reported.",
            GrafanaUnit.MOMENT,
            "max by (instance, gpu_uuid, xid) (tranche_xid_last_time_seconds) * 1000",
            width=12,
        ),
        _times(
            "Age of readings",
            "A driver or kubelet that hangs shows up here.",
            GrafanaUnit.SECONDS,
            "max by (instance, what) (tranche_observation_age_seconds)",
            "{{instance}} {{what}}",
        ),
    ),
)

NODE = GrafanaDashboard(
    "tranche-node",
    "Tranche / Node",
    "One or a few nodes: each GPU with its gauges, each slice with its pod.",
    (
        _table(
            "Slices",
            "Holders of slices, by placement.",
            GrafanaUnit.NUMBER,
            "max by (instance, gpu_uuid, placement, profile, state, namespace, pod, container, mig_uuid) "
            f"(tranche_slice_state{{{_HERE}}})",
        ),
        _times(
            "Memory used in slices",
            "Memory used in each GPU instance.",
            GrafanaUnit.BYTES,
            f"sum by (gpu_uuid, placement, pod) (tranche_slice_memory_used_bytes{{{_HERE}}})",
            "{{gpu_uuid}} {{placement}} {{pod}}",
        ),
        _times(
            "Memory used on GPUs",
            "Memory used on the whole GPU, including the driver's reserve.",
            GrafanaUnit.BYTES,
            f"sum by (instance, gpu_uuid) (tranche_gpu_memory_used_bytes{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Activity of slices",
            f"Activity of the slice's multiprocessors. {_ON_HOPPER}",
            GrafanaUnit.SHARE,
            f"max by (gpu_uuid, placement, pod) (tranche_slice_sm_active_ratio{{{_HERE}}})",
            "{{gpu_uuid}} {{placement}} {{pod}}",
        ),
        _times(
            "Utilization of uncut GPUs",
            "The driver does not measure it in MIG mode.",
            GrafanaUnit.SHARE,
            f"max by (instance, gpu_uuid) (tranche_gpu_utilization_ratio{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Power",
            "Power of whole GPUs; the driver does not measure slices.",
            GrafanaUnit.WATTS,
            f"sum by (instance, gpu_uuid) (tranche_gpu_power_watts{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
            stacked=True,
        ),
        _times(
            "Temperature",
            "Temperature of the GPU's die.",
            GrafanaUnit.CELSIUS,
            f"max by (instance, gpu_uuid) (tranche_gpu_temperature_celsius{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Duration of changes",
            "95 % of changes were faster.",
            GrafanaUnit.SECONDS,
            "histogram_quantile(0.95, sum by (kind, le) "
            f"(rate(tranche_change_duration_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
            "{{kind}}",
        ),
        _times(
            "Driver errors",
            "Errors by name in nvml.h, per hour.",
            GrafanaUnit.NUMBER,
            f"sum by (instance, error) (rate(tranche_nvml_errors_total{{{_HERE}}}[$__rate_interval])) * 3600",
            "{{instance}} {{error}}",
        ),
        _times(
            "Waiting requests",
            "Requests in the queue of tranche run on this node.",
            GrafanaUnit.NUMBER,
            f"max by (instance) (tranche_queue_requests{{{_HERE}}})",
            "{{instance}}",
        ),
        _times(
            "Longest wait",
            "Empty while no request waits.",
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
    "What each namespace holds and uses.",
    (
        _times(
            "Held, in GPUs",
            "Compute slices, in GPUs, including whole GPUs.",
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
            "Memory used in the namespace's slices.",
            GrafanaUnit.BYTES,
            f"sum by (namespace) (tranche_slice_memory_used_bytes{{{_THEIRS}}})",
            "{{namespace}}",
            stacked=True,
        ),
        _times(
            "Memory used, as a fraction of memory held",
            "Far below 1, smaller slices are enough.",
            GrafanaUnit.SHARE,
            f"sum by (namespace) (tranche_slice_memory_used_bytes{{{_THEIRS}}}) "
            f"/ sum by (namespace) (tranche_slice_memory_total_bytes{{{_THEIRS}}})",
            "{{namespace}}",
        ),
        _times(
            "Activity, in GPUs",
            f"Active multiprocessors, in GPUs. {_ON_HOPPER}",
            GrafanaUnit.NUMBER,
            f"sum by (namespace) (tranche_slice_sm_active_ratio{{{_THEIRS}}} * tranche_slice_compute_ratio{{{_THEIRS}}})",
            "{{namespace}}",
            stacked=True,
        ),
        _table(
            "Longest held",
            "When each pod got its slice.",
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
    "Idle GPUs and slices, and held ones without use.",
    (
        _stat("Idle, in GPUs", "Compute without a holder.", "sum(instance:tranche_gpus_idle:sum)"),
        _stat(
            "Unused, in GPUs",
            "Compute that pods hold without a process on it.",
            "sum(namespace:tranche_gpus_unused:sum)",
        ),
        _times(
            "Idle slices, by profile",
            "Slices without a holder.",
            GrafanaUnit.NUMBER,
            'sum by (profile) (instance:tranche_slices:count{state="idle"})',
            "{{profile}}",
            stacked=True,
            width=16,
        ),
        _times(
            "Held without a process, in GPUs",
            "Compute of pods that hold slices but do not use them at that moment.",
            GrafanaUnit.NUMBER,
            "sum by (namespace) (namespace:tranche_gpus_unused:sum)",
            "{{namespace}}",
            stacked=True,
        ),
        _bars(
            "Memory held but not used",
            "By namespace, now.",
            GrafanaUnit.BYTES,
            'sum by (namespace) (tranche_slice_memory_total_bytes{namespace!=""} - tranche_slice_memory_used_bytes)',
            "{{namespace}}",
        ),
        _table(
            "Slices without a process",
            "Slices that a pod holds, now.",
            GrafanaUnit.NUMBER,
            "max by (namespace, pod, container, instance, profile, placement) "
            '(tranche_slice_processes{namespace!=""} == 0)',
        ),
        _times(
            "Power of GPUs without a holder",
            "Idle uncut GPUs.",
            GrafanaUnit.WATTS,
            "sum by (instance) (tranche_gpu_power_watts and on (instance, gpu_uuid) "
            '(tranche_gpu_state{state="idle"} == 1))',
            "{{instance}}",
        ),
        _times(
            "Power draw, as a fraction of the limit",
            "Power draw of all GPUs of a node, divided by their power limits.",
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
