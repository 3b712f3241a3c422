"""What is known of a node as a viewer may see it: whoever is in a namespace that he may not see has no name. Pure.

A name is shown because it is known to be in a namespace that he sees, and for no other reason: what is of unknown namespaces, as
processes that no holder accounts for, is hidden from everybody who does not see all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tranche.core.allocation import Allocation, NodeView
from tranche.core.keeper import NOT_KNOWN_YET, ProcessKeeper
from tranche.core.state import ComputeInstance, GpuInstance, GpuProcess, GpuState, InstanceKey
from tranche.dashboard.cluster.sight import HIDDEN, ViewerSight, namespace_of
from tranche.documents.blocks import Document

_PROCESS = "a process"
_WITHHELD = "nothing more of it is given away"
"""What stands for the reason, which is in an administrator's own words."""
_NAMED = re.compile(r"(?<![\w./-])([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)/[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?(?![\w/-])")
"""How messages name an object of a namespace: `namespace/name`."""
_ACCOUNT = re.compile(r"system:serviceaccount:([-.a-z0-9]+):[-.a-z0-9]+")
"""How Kubernetes calls an account of a namespace."""


def veiled_overview(overview: Document, sight: ViewerSight) -> Document:
    """An Overview as the viewer may see it; the same object where there is nothing to hide."""
    if sight.everywhere:
        return overview
    seen = {each["id"] for each in overview["allocations"] if sight.sees(namespace_of(each))}
    return {
        "gpus": [_veiled_gpu(gpu, seen) for gpu in overview["gpus"]],
        "allocations": [each if each["id"] in seen else _nameless(each) for each in overview["allocations"]],
        "waiters": [],
    }


def veiled_view(view: NodeView, sight: ViewerSight) -> NodeView:
    """A view as the viewer may see it, for questions that the planning answers in words."""
    if sight.everywhere:
        return view
    seen = {each.id for each in view.allocations if sight.sees(_namespace(each))}
    holders: dict[tuple[str, InstanceKey | None], list[str]] = {}
    for each in view.allocations:
        for grant in each.grants:
            holders.setdefault((grant.gpu_uuid, grant.slot), []).append(each.id)
    known = {place for place, ids in holders.items() if seen.issuperset(ids)}
    gpus = tuple(_nameless_gpu(gpu, known) for gpu in view.node)
    allocations = tuple(each if each.id in seen else _nameless_holder(each) for each in view.allocations)
    withheld = tuple(each._replace(why=_WITHHELD) for each in view.withheld)
    return replace(view, node=replace(view.node, gpus=gpus), allocations=allocations, withheld=withheld)


def veiled_text(text: str, sight: ViewerSight) -> str:
    """A message in which objects of other namespaces have no names."""
    if sight.everywhere:
        return text
    for named in (_NAMED, _ACCOUNT):
        text = named.sub(lambda found: found[0] if sight.sees(found[1]) else HIDDEN, text)
    return text


def _veiled_gpu(gpu: Document, seen: set[str]) -> Document:
    return {
        **gpu,
        "withheld": _WITHHELD if gpu["withheld"] else None,
        "processes": _veiled_processes(gpu["processes"], gpu["allocationIds"], seen),
        "slices": [
            {
                **each,
                "processes": _veiled_processes(each["processes"], each["allocationIds"], seen),
                "devices": [
                    {**piece, "processes": _veiled_processes(piece["processes"], each["allocationIds"], seen)}
                    for piece in each["devices"]
                ],
            }
            for each in gpu["slices"]
        ],
    }


def _veiled_processes(processes: Sequence[Document], holders: Sequence[str], seen: set[str]) -> list[Document]:
    """Processes of a device; whose they are is known only where all who hold it are seen."""
    if holders and seen.issuperset(holders):
        return list(processes)
    return [{**each, "name": _PROCESS} for each in processes]


def _nameless(allocation: Document) -> Document:
    request: Mapping[str, object] = allocation["request"]
    return {
        **allocation,
        "request": {**request, "gpuModel": ""},
        "keeper": {"kind": "hidden"},
        "pid": None,
        "command": HIDDEN,
    }


def _namespace(allocation: Allocation) -> str:
    keeper = allocation.keeper
    return "" if isinstance(keeper, ProcessKeeper) else keeper.namespace


def _nameless_holder(allocation: Allocation) -> Allocation:
    return replace(allocation, request=replace(allocation.request, gpu_model=""), command=HIDDEN, keeper=NOT_KNOWN_YET)


def _nameless_gpu(gpu: GpuState, known: set[tuple[str, InstanceKey | None]]) -> GpuState:
    whole = gpu.processes if (gpu.uuid, None) in known else _nameless_processes(gpu.processes)
    instances = tuple(
        each if (gpu.uuid, gpu.key(each)) in known else _nameless_instance(each) for each in gpu.instances
    )
    return replace(gpu, processes=whole, instances=instances)


def _nameless_instance(instance: GpuInstance) -> GpuInstance:
    return replace(
        instance,
        stray_processes=_nameless_processes(instance.stray_processes),
        compute_instances=tuple(map(_nameless_piece, instance.compute_instances)),
    )


def _nameless_piece(piece: ComputeInstance) -> ComputeInstance:
    return replace(piece, processes=_nameless_processes(piece.processes))


def _nameless_processes(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(replace(each, name=_PROCESS) for each in processes)
