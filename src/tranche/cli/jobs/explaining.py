"""Why a pod waits, asked of a cluster and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tranche.cli.output import print_table, show

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.fleet.explanation import FleetExplanation


async def explained_pod(api: ApiConnection, namespace: str, name: str) -> FleetExplanation:
    """Why that pod waits, or what it has."""
    from tranche.kubernetes.fleet.backend_reading import backend_in_force
    from tranche.kubernetes.fleet.reading import read_fleet, read_pod
    from tranche.kubernetes.gated.explaining import explain_waiting
    from tranche.kubernetes.gated.reading import read_gate_fleet

    pod, backend = await read_pod(api, namespace, name), await backend_in_force(api)
    fleet = await read_gate_fleet(api, pod) if pod.asks_at_gate else await read_fleet(api, namespace)
    return explain_waiting(pod, fleet, backend)


def print_explanation(found: FleetExplanation) -> None:
    """The answer, the nodes, and what would help."""
    from tranche.kubernetes.fleet.explanation import GROUP_COLUMNS, group_row, head_lines, tail_lines

    for line in head_lines(found):
        show(line)
    if found.groups:
        show()
        print_table(GROUP_COLUMNS, [group_row(each) for each in found.groups])
    for line in tail_lines(found):
        show(line)
