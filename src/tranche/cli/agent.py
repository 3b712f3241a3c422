"""`tranche agent`: serve this node of a Kubernetes cluster."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.agent_options import AGENT_OPTIONS, PART_OPTIONS, PLUGIN_OPTIONS, plugin_settings
from tranche.cli.extras import extra_missing
from tranche.cli.runtime import Settings, TrancheCommand, open_host, register_places
from tranche.cli.service_options import absolute_path, log_as_json
from tranche.core.errors import UsageError

if TYPE_CHECKING:
    from tranche.boot.installation import NodeInstallation
    from tranche.kubernetes.agent.metrics_server import MetricsSettings
    from tranche.kubernetes.claims.allocation_backend import AllocationBackend


def _agent(context: click.Context, **values: Any) -> None:
    settings = context.find_object(Settings)
    assert settings is not None
    try:
        from tranche.kubernetes.agent import idle
        from tranche.kubernetes.serving import logs

        logs.set_up(sys.stderr, as_json=log_as_json(values["log_format"]), verbose=values["verbose"])
        if values["idle_without_gpu"] and not idle.idle_until_gpu(
            values["health_host"], values["health_port"], idle.machine_has_gpu
        ):
            return
        from tranche.kubernetes.agent.parts import AgentOptions
        from tranche.kubernetes.agent.process import run_agent
        from tranche.kubernetes.mig_manager.drain import InUsePolicy
        from tranche.kubernetes.mig_manager.manager import MigSettings
        from tranche.kubernetes.rollout.budget import parse_budget
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche agent'", "kubernetes", error) from error
    options = AgentOptions(
        node_name=values["node_name"] or platform.node().lower(),
        kubeconfig=values["kubeconfig"],
        namespace=values["namespace"],
        pod_resources_socket=values["pod_resources_socket"],
        health_host=values["health_host"],
        health_port=values["health_port"],
        period=values["refresh_seconds"],
        plugin=plugin_settings(values, os.environ),
        metrics=_metrics(values),
        daemon_set=values["daemon_set"],
        cdi_folder=values["cdi_folder"],
        kubelet_folder=values["kubelet_folder"],
        pod_uid=values["pod_uid"],
        without=values["without"],
        layouts=MigSettings(
            config_map=values["layouts"],
            default_layout=values["default_layout"],
            policy=InUsePolicy(values["in_use"]),
            with_reboot=values["with_reboot"],
            host_root=values["host_root"],
            operator_namespaces=frozenset(values["operator_namespace"]),
            heeds_mode="dra" not in values["without"],
        ),
        budget=parse_budget(values["max_unavailable"]) if values["max_unavailable"] else None,
        tell_view=values["tell_view"],
        boot=_boot(values),
        stand_by=values["stand_by"],
        backend=_backend(values),
    )
    if "mig-manager" not in values["without"]:
        _refuse_to_stop_host_services(os.environ)
    if values["with_reboot"] and not values["host_root"].is_dir():
        raise UsageError(
            f"--with-reboot needs the host's root folder, and found none at {values['host_root']}",
            hint="mount it there (the chart does so with migManager.withReboot=true), or give its path with --host-root",
        )
    # Sockets and state belong to this process alone: nothing else on a cluster's node reads them.
    os.umask(0o077)
    register_places(settings, anywhere=True).refuse_shared()
    with open_host(settings, anywhere=True) as host:
        host.places.keep_private()
        run_agent(host, options, os.environ)


def _backend(values: dict[str, Any]) -> AllocationBackend | None:
    """The administrator's choice; None to find out."""
    from tranche.kubernetes.claims.allocation_backend import AllocationBackend, backend_by_word

    return AllocationBackend.NONE if "dra" in values["without"] else backend_by_word(values["tier"])


def _metrics(values: dict[str, Any]) -> MetricsSettings | None:
    from tranche.kubernetes.agent.metrics_server import MetricsSettings
    from tranche.metrics.samples import MetricNameSet

    if "metrics" in values["without"]:
        return None
    return MetricsSettings(
        values["health_host"],
        values["metrics_port"],
        MetricNameSet(values["metrics_names"]),
        default_layout="" if "mig-manager" in values["without"] else values["default_layout"],
    )


def _boot(values: dict[str, Any]) -> NodeInstallation | None:
    """What the agent installs for the next boot; None without --boot-program. UsageError for a word the unit cannot hold."""
    if values["boot_program"] is None:
        return None
    from tranche.boot.installation import WAIT_SECONDS, NodeInstallation
    from tranche.core.partition import parse_partition

    partition, seconds = values["boot_partition"], values["boot_timeout"]
    if partition:
        parse_partition(partition)
    return NodeInstallation(
        values["host_root"],
        absolute_path(values["boot_program"], "--boot-program"),
        partition,
        WAIT_SECONDS if seconds is None else seconds,
    )


def _refuse_to_stop_host_services(environ: Mapping[str, str]) -> None:
    """UsageError if NVIDIA's MIG manager would stop services of the host during a change, which Tranche does not do."""
    variable = "WITH_SHUTDOWN_HOST_GPU_CLIENTS"
    if environ.get(variable, "").lower() in ("1", "t", "true"):
        raise UsageError(
            f"{variable} is not supported: the agent does not stop services of the host",
            hint="remove the variable, and stop services that use the GPUs (dcgm, nvsm) before a layout change",
        )


command = TrancheCommand(
    "agent",
    callback=click.pass_context(_agent),
    params=[
        *AGENT_OPTIONS,
        click.Option(
            ["--without"],
            type=click.Choice(tuple(PART_OPTIONS)),
            multiple=True,
            help="Leave out a part of the agent, because another program does its work; repeatable.",
        ),
        *PLUGIN_OPTIONS,
        *(option for options in PART_OPTIONS.values() for option in options),
    ],
    help="""Run the agent of a Kubernetes node until SIGTERM.

    The chart runs one agent on each node, as a DaemonSet.""",
)
