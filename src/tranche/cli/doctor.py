"""`tranche doctor`: whether this machine or a cluster is fit for sharing its GPUs, and what to do if it is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from tranche.cli.options import asked_of_cluster, kubeconfig_option, refuse_kubeconfig_alone
from tranche.cli.output import print_json, show
from tranche.cli.runtime import (
    DriverReader,
    Settings,
    TrancheCommand,
    child_environment,
    open_driver,
    output_option,
    register_places,
    socket_of_service,
)
from tranche.core.allocation import NodeView, shared_by_mps
from tranche.core.errors import TrancheError
from tranche.core.state import NodeState
from tranche.documents import describe
from tranche.node.health.checkup import (
    Finding,
    Status,
    check_container_toolkit,
    check_daemons,
    check_decisions,
    check_ledger,
    check_leftovers,
    check_node,
    check_permission,
    check_pods,
    check_reset_command,
    check_state_folder,
    check_strays,
    failed,
)
from tranche.node.host import Host
from tranche.node.limits.share_groups import LimitTrialRunner, ShareGroupManager
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.processes.processes import MARK
from tranche.node.recovery.adoption import find_strays
from tranche.node.state.connection import ask
from tranche.node.state.known_gpus import with_lost_named
from tranche.node.state.session import StateFolder
from tranche.node.store import records, register

if TYPE_CHECKING:
    from tranche.hardware.nvml import NvmlDriver
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.support.facts import ClusterFinding

_COLOURS = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "red"}
_NAMED = 8
_SERVICE_SECONDS = 5.0
"""How long the service may take to answer; milliseconds are usual."""


@click.command(cls=TrancheCommand)
@click.option("--cluster", is_flag=True, help="Check a Kubernetes cluster instead of this machine.")
@kubeconfig_option
@output_option()
@click.pass_obj
def command(settings: Settings, /, cluster: bool, kubeconfig: str | None, output: str) -> None:
    """Check this machine or a cluster for problems.

    The command checks the driver, MIG, permissions, the state folder and the ledger, and compares the catalogue with
    the driver. With --cluster, it checks the agents, nodes, layouts, resources, permissions and policies that your
    account can read.

    It changes nothing. The exit code is 1 if a check fails, and 0 otherwise, even with warnings.
    """
    refuse_kubeconfig_alone(kubeconfig, cluster)
    if cluster:
        _check_cluster(kubeconfig, as_json=output == "json")
    findings = machine_findings(settings)
    failures = [each for each in findings if each.status is Status.FAIL]
    if output == "json":
        print_json("Checkup", healthy=not failures, findings=[finding_document(each) for each in findings])
    else:
        _print(findings)
        if not failures and _may_run(findings) and MARK not in os.environ:
            simulate = "" if settings.simulate is None else f" --simulate {settings.simulate}"
            show(f"next: tranche{simulate} run --gpu-memory 4Gi -- nvidia-smi", err=True)
    sys.exit(1 if failures else 0)


def machine_findings(settings: Settings, answers: DriverReader | None = None) -> list[Finding]:
    """All findings on this machine, with a driver that may hang."""
    places: StateFolder | None = None
    found: list[Finding] = []
    served: Path | None = None
    try:
        served = socket_of_service(settings)
        places = register_places(settings, reading=True)
        state = [_check_service(served)] if served else [check_state_folder(places), check_ledger(places)]
    except TrancheError as error:
        state = [failed("state-folder", error)]
    whole = places if served is None and state[-1].status is not Status.FAIL else None
    try:
        found += (answers or DriverReader()).to(lambda: _of_driver(settings, whole))
    except TrancheError as error:
        found += [failed("driver", error), check_reset_command("nvidia-smi", None)]
    simulated = os.environ.get("TRANCHE_SIM_STATE")
    if served is None:
        found.append(check_permission(Path(simulated) if simulated else None))
    return [*found, *check_container_toolkit(), *state]


def _check_service(socket: Path) -> Finding:
    """Whether the service answers that gives this user shares; the user needs no rights of their own then."""
    try:
        ask(socket, "ledger", _SERVICE_SECONDS)
    except TrancheError as error:
        return failed("permission", error)
    return Finding("permission", Status.PASS, f"the service at {socket} partitions GPUs for this user")


def _may_run(findings: Sequence[Finding]) -> bool:
    return any(each.check == "permission" and each.status is Status.PASS for each in findings)


def _of_driver(settings: Settings, places: StateFolder | None) -> list[Finding]:
    """The driver's findings; compared with the ledger if `places` has a sound one."""
    with open_driver(settings) as driver:
        node = driver.observe()
        if places is not None:
            node = with_lost_named(node, places, remember=False)
            node = LimitTrialRunner(places).on_node(node, remember=False)
        found = [*check_node(node)]
        if places is not None:
            found += _strays(settings, places)
        if places is not None and os.path.exists(places.ledger):
            found += _leftovers(settings, driver, node, places)
        found.append(check_reset_command(driver.reset_command, node))
        return found


def _leftovers(settings: Settings, driver: NvmlDriver, node: NodeState, places: StateFolder) -> list[Finding]:
    with closing(Host(driver, places.state_dir, environment=child_environment(settings))) as host:
        try:
            with host.ledger.read() as db:
                allocations, fenced = register.allocations(db), records.fence(db) is not None
            leftovers = check_leftovers(host.recovery_needed(), NodeView(node, allocations))
            seen = host.daemons.node_as_said(host.observe(), shared_by_mps(allocations))
            daemons = check_daemons(seen, allocations, host.daemons.records)
            fence = _fence(host, seen, fenced=fenced) if os.geteuid() == 0 else ()
            return [check_decisions(places), *leftovers, *check_pods(allocations), *daemons, *fence]
        except TrancheError as error:
            return [failed("leftovers", error)]


def _fence(host: Host, node: NodeState, *, fenced: bool) -> list[Finding]:
    from tranche.node.fence import check_fence, service_runs, survey

    try:
        return [*check_fence(survey(host, node), served=service_runs(host.places))]
    except TrancheError as error:
        return [failed("fence", error)] if fenced else []


def _strays(settings: Settings, places: StateFolder) -> list[Finding]:
    owner = places.ledger.stat().st_uid if places.ledger.exists() else os.geteuid()
    try:
        daemons = find_strays(MpsDaemonManager(places, child_environment(settings)), owner).values()
        return [*check_strays(daemons, ShareGroupManager(places).strays())]
    except TrancheError as error:
        return [failed("mps", error)]


def _print(findings: Sequence[Finding]) -> None:
    """One line for each finding; GPUs that say the same share a line."""
    together: dict[tuple[str, Status, str, str], list[int]] = {}
    for each in findings:
        indexes = together.setdefault((each.check, each.status, each.text, each.hint), [])
        if each.gpu is not None:
            indexes.append(each.gpu)
    for (_, status, text, hint), indexes in together.items():
        where = f"GPU {describe.ranges(indexes)}: " if indexes else ""
        print_finding(status, where + text, hint)


def finding_document(found: Finding) -> dict[str, object]:
    """One finding; `check` and `status` are stable words."""
    return {
        "check": found.check,
        "status": str(found.status),
        "gpu": found.gpu,
        "message": found.text,
        "hint": found.hint,
    }


def print_finding(status: Status, text: str, hint: str) -> None:
    """One finding, as a line, and what to do about it below."""
    show(f"  {text}", mark=click.style(f"{status:<4}", fg=_COLOURS[status]))
    if hint:
        show(f"      hint: {hint}")


def _check_cluster(kubeconfig: str | None, *, as_json: bool) -> NoReturn:
    """Check the cluster, print what was found, and end with the exit code."""

    async def ask(connection: ApiConnection, _: str) -> Sequence[ClusterFinding]:
        from tranche.kubernetes.support.checkup import check_cluster
        from tranche.kubernetes.support.survey import survey

        return check_cluster(await survey(connection), now=datetime.now(UTC), own_version=version("tranche-gpu"))

    findings = asked_of_cluster(kubeconfig, ask)
    failed = any(each.status is Status.FAIL for each in findings)
    if as_json:
        from tranche.kubernetes.support.checkup import cluster_finding_document

        print_json("ClusterCheckup", healthy=not failed, findings=[cluster_finding_document(each) for each in findings])
    else:
        for each in findings:
            print_finding(each.status, _where(each) + each.text, each.hint)
    sys.exit(1 if failed else 0)


def _where(found: ClusterFinding) -> str:
    """The nodes it concerns, and the pod if it is one."""
    named = ", ".join(found.nodes[:_NAMED])
    more = f" and {len(found.nodes) - _NAMED} more" if len(found.nodes) > _NAMED else ""
    nodes = f"node{'s' if len(found.nodes) > 1 else ''} {named}{more}" if found.nodes else ""
    pods = f"pod {found.pods[0]}" if len(found.pods) == 1 else ""
    where = ", ".join(part for part in (nodes, pods) if part)
    return f"{where}: " if where else ""
