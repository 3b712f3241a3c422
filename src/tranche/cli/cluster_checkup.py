"""What `tranche doctor --cluster` prints, and how a command reaches the caller's cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from tranche.cli.extras import extra_missing
from tranche.cli.output import print_json, show
from tranche.node.health.checkup import Status
from tranche.node.health.software import software

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.support.findings import ClusterFinding

Result = TypeVar("Result")

_COLOURS = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "red"}
_NAMED = 8


def cluster_checkup(kubeconfig: str | None, *, as_json: bool) -> int:
    """Check the cluster and print what was found; the exit code."""
    findings = asked_of_cluster(kubeconfig, _findings)
    failed = any(each.status is Status.FAIL for each in findings)
    if as_json:
        from tranche.kubernetes.support.findings import cluster_finding_document

        print_json("ClusterCheckup", healthy=not failed, findings=[cluster_finding_document(each) for each in findings])
    else:
        for each in findings:
            print_finding(each.status, _where(each) + each.text, each.hint)
    return 1 if failed else 0


def asked_of_cluster(kubeconfig: str | None, ask: Callable[[ApiConnection], Awaitable[Result]]) -> Result:
    """What `ask` finds out over a connection to the caller's API server.

    Raises:
        UsageError: what speaks to an API server is not installed.
        KubeconfigInvalid: no API server is known.
        KubernetesUnavailable, KubernetesForbidden: it does not answer, or refuses everything.
    """
    try:
        from tranche.kubernetes.api.connection import ApiConnection
        from tranche.kubernetes.support.caller import caller_api_server
    except ModuleNotFoundError as error:
        raise extra_missing("--cluster", "kubernetes", error) from error

    async def asked() -> Result:
        connection = ApiConnection(caller_api_server(kubeconfig, os.environ, Path.home()))
        try:
            return await ask(connection)
        finally:
            await connection.close()

    return asyncio.run(asked())


async def _findings(connection: ApiConnection) -> Sequence[ClusterFinding]:
    from tranche.kubernetes.support.checkup import check_cluster
    from tranche.kubernetes.support.survey import survey

    return check_cluster(await survey(connection), now=datetime.now(UTC), own_version=software().version)


def print_finding(status: Status, text: str, hint: str) -> None:
    """One finding, as a line, and what to do about it below."""
    show(f"  {text}", mark=click.style(f"{status:<4}", fg=_COLOURS[status]))
    if hint:
        show(f"      hint: {hint}")


def _where(found: ClusterFinding) -> str:
    """The nodes it concerns, and the pod if it is one."""
    named = ", ".join(found.nodes[:_NAMED])
    more = f" and {len(found.nodes) - _NAMED} more" if len(found.nodes) > _NAMED else ""
    nodes = f"node{'s' if len(found.nodes) > 1 else ''} {named}{more}" if found.nodes else ""
    pods = f"pod {found.pods[0]}" if len(found.pods) == 1 else ""
    where = ", ".join(part for part in (nodes, pods) if part)
    return f"{where}: " if where else ""
