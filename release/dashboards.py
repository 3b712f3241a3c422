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
_ON_HOPPER = "Measured only on Hopper and later GPUs; other nodes are not shown."


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
    "GPUs, their holders and their faults on all nodes.",
    (
        _stat("Nodes", "Agents that answer.", "count(tranche_build_info)"),
        _stat("GPUs", "GPUs that the driver lists, including lost ones.", "count(tranche_gpu_lost)"),
        _stat("Slices", "Slices of all profiles, held or idle.", "sum(instance:tranche_slices:count)"),
        _stat("GPUs lost", "GPUs that the driver lists but cannot reach.", "sum(tranche_gpu_lost)"),
        _stat(
            "Layouts not applied",
            "Nodes without the layout that their label names.",
            'count(tranche_layout_state{state!="success"}) or vector(0)',
        ),
        _stat("Power", "Power draw of all GPUs.", "sum(instance:tranche_gpu_power_watts:sum)", GrafanaUnit.WATTS),
        _times(
            "Held, in GPUs",
            "Compute slices that each namespace holds, in GPUs. Commands started with tranche run have no namespace.",
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
            "Missing slices are held but do not exist.",
            GrafanaUnit.NUMBER,
            "sum by (profile, state) (instance:tranche_slices:count)",
            "{{profile}} {{state}}",
            stacked=True,
        ),
        _times(
            "Failed changes",
            "GPU changes that were undone or interrupted, per hour.",
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
            "Agent components that are not ready",
            "Empty while all components are ready.",
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
            "Rises while a driver or a kubelet hangs.",
            GrafanaUnit.SECONDS,
            "max by (instance, what) (tranche_observation_age_seconds)",
            "{{instance}} {{what}}",
        ),
    ),
)

NODE = GrafanaDashboard(
    "tranche-node",
    "Tranche / Node",
    "GPUs, slices and pods on the selected nodes.",
    (
        _table(
            "Slices",
            "The holder of each slice, by placement.",
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
            "Slice activity",
            f"Activity of the slice's multiprocessors. {_ON_HOPPER}",
            GrafanaUnit.SHARE,
            f"max by (gpu_uuid, placement, pod) (tranche_slice_sm_active_ratio{{{_HERE}}})",
            "{{gpu_uuid}} {{placement}} {{pod}}",
        ),
        _times(
            "Utilization of GPUs without MIG mode",
            "The driver does not measure utilization in MIG mode.",
            GrafanaUnit.SHARE,
            f"max by (instance, gpu_uuid) (tranche_gpu_utilization_ratio{{{_HERE}}})",
            "{{instance}} {{gpu_uuid}}",
        ),
        _times(
            "Power",
            "Power draw of whole GPUs; the driver does not measure it for slices.",
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
            "95th percentile.",
            GrafanaUnit.SECONDS,
            "histogram_quantile(0.95, sum by (kind, le) "
            f"(rate(tranche_change_duration_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
            "{{kind}}",
        ),
        _times(
            "Driver errors",
            "Driver errors per hour, with their names in nvml.h.",
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
            "Number of slices.",
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
            "If this is far below 1, smaller slices are enough.",
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
    "GPUs and slices that are idle, or held but unused.",
    (
        _stat("Idle, in GPUs", "Compute without a holder.", "sum(instance:tranche_gpus_idle:sum)"),
        _stat(
            "Unused, in GPUs",
            "Compute that pods hold but no process uses.",
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
            "Compute of slices that pods held without running a process.",
            GrafanaUnit.NUMBER,
            "sum by (namespace) (namespace:tranche_gpus_unused:sum)",
            "{{namespace}}",
            stacked=True,
        ),
        _bars(
            "Memory held but not used",
            "Current values, by namespace.",
            GrafanaUnit.BYTES,
            'sum by (namespace) (tranche_slice_memory_total_bytes{namespace!=""} - tranche_slice_memory_used_bytes)',
            "{{namespace}}",
        ),
        _table(
            "Slices without a process",
            "Slices that a pod holds now, but no process uses.",
            GrafanaUnit.NUMBER,
            "max by (namespace, pod, container, instance, profile, placement) "
            '(tranche_slice_processes{namespace!=""} == 0)',
        ),
        _times(
            "Power of GPUs without a holder",
            "Idle whole GPUs.",
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
    """File name and text of each dashboard."""
    return {
        f"{each.uid.removeprefix('tranche-')}.json": json.dumps(dashboard_json(each), indent=2) + "\n"
        for each in DASHBOARDS
    }
