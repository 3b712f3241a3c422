"""Machines that teams share: every holder is of a namespace, and a hidden team's has words in its names that no other has."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.strategies import node_views, sharing_views
from tranche.core.allocation import Allocation, NodeView, WholeGpu, WithheldDevice
from tranche.core.keeper import ClaimKeeper, Keeper, PlacedPodKeeper, PodKeeper, ProcessKeeper
from tranche.core.state import GpuProcess, GpuState
from tranche.dashboard.cluster.snapshot import NameVisibility

OURS, THEIRS = "blue", "zebra"
"""The namespace that a viewer sees, and one that he does not; all that is theirs has the word in its name."""
OUR_SIGHT = NameVisibility(frozenset({OURS}))


def _keeper(kind: int, team: str, number: int) -> Keeper:
    name, uid = f"{team}-job-{number}", f"{team}-uid-{number}"
    match kind:
        case 0:
            return PodKeeper(
                "nvidia.com/gpu", team, name, f"{team}-main", uid, "kubelet", replicas=(f"{team}::{number}",)
            )
        case 1:
            return ClaimKeeper(team, name, uid)
        case 2:
            return PlacedPodKeeper(team, name, uid)
        case _:
            return ProcessKeeper(100 + number, 1)


def _is_ours(allocation: Allocation) -> bool:
    keeper = allocation.keeper
    return not isinstance(keeper, ProcessKeeper) and keeper.namespace == OURS


@st.composite
def shared_machines(draw: st.DrawFn) -> NodeView:
    """A node whose shares are of two teams, and of the machine's own users, with processes everywhere."""
    view = draw(st.one_of(node_views(max_gpus=2), sharing_views(max_gpus=2)))

    def held(number: int, each: Allocation) -> Allocation:
        kind, team = draw(st.integers(0, 3)), draw(st.sampled_from([OURS, THEIRS]))
        command = f"{THEIRS} --secret" if kind == 3 else ""
        request = replace(each.request, gpu_model=THEIRS) if team == THEIRS else each.request
        return each._replace(keeper=_keeper(kind, team, number), command=command, request=request)

    allocations = tuple(held(number, each) for number, each in enumerate(view.allocations))
    places: dict[object, set[bool]] = {}
    for each in allocations:
        for grant in each.grants:
            places.setdefault((grant.gpu_uuid, grant.slot), set()).add(_is_ours(each))
    ours = {place for place, found in places.items() if found == {True}}

    def running(gpu: GpuState) -> GpuState:
        def process(place: object) -> tuple[GpuProcess, ...]:
            return (GpuProcess(7, f"{OURS if place in ours else THEIRS}-train", 5),)

        instances = tuple(
            each._replace(
                stray_processes=process((gpu.uuid, gpu.key(each))),
                compute_instances=tuple(
                    piece._replace(processes=process((gpu.uuid, gpu.key(each)))) for piece in each.compute_instances
                ),
            )
            for each in gpu.instances
        )
        return replace(gpu, instances=instances, processes=process((gpu.uuid, None)))

    node = replace(view.node, gpus=tuple(map(running, view.node)))
    withheld = (WithheldDevice(WholeGpu(view.node.gpus[0].uuid), f"cordoned for {THEIRS}"),) if view.node.gpus else ()
    return replace(view, node=node, allocations=allocations, withheld=withheld)
