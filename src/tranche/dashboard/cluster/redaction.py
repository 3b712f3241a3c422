"""What is known of a node, as a viewer may see it: holders in hidden namespaces have no name. Pure.

A name is shown only because it is known to be in a namespace that the viewer sees. What is in unknown namespaces, such as
processes without a known holder, is hidden from all viewers who do not see everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tranche.core.allocation import Allocation, NodeView
from tranche.core.keeper import NOT_KNOWN_YET, ProcessKeeper
from tranche.core.state import GpuProcess, GpuState, InstanceKey
from tranche.dashboard.cluster.snapshot import HIDDEN, NameVisibility, namespace_of
from tranche.documents.blocks import Document

_PROCESS = "a process"
_WITHHELD = "withheld (reason not shown)"
"""Stands for the reason, which is in an administrator's own words."""
_WORDED = frozenset({"cordoned", "faulty", "kept"})
"""The states of vacant room that have such a reason."""
_WORD = re.compile(r"[\w./:@-]*\w")
_BORDER = re.compile(r"[./:@_]")
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
"""A valid name of a namespace."""
_OBJECT = re.compile(r"[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?")
_ACCOUNT = re.compile(r"system:serviceaccounts?:([^:/@]+)")
"""Kubernetes' name of an account, or of all accounts, of a namespace."""
_BELOW = re.compile(r"(?:^|/)(?:namespaces?|ns)/+([^/:@]+)")
_KINDS = frozenset(
    each + more for each in ("pod", "claim", "resourceclaim", "job", "event", "lease") for more in ("", "s")
)


def redacted_overview(overview: Document, sight: NameVisibility) -> Document:
    """An Overview as the viewer may see it; the same object if there is nothing to hide."""
    if sight.everywhere:
        return overview
    seen = {each["id"] for each in overview["allocations"] if sight.sees(namespace_of(each))}
    return {
        "gpus": [_redacted_gpu(gpu, seen) for gpu in overview["gpus"]],
        "allocations": [each if each["id"] in seen else _nameless(each) for each in overview["allocations"]],
        "waiters": [],
    }


def redacted_view(view: NodeView, sight: NameVisibility) -> NodeView:
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
    kept = tuple(each._replace(names=each.names and HIDDEN, user=HIDDEN) for each in view.reservations)
    node = replace(view.node, gpus=gpus)
    return replace(view, node=node, allocations=allocations, withheld=withheld, reservations=kept)


def redacted_text(text: str, sight: NameVisibility, named: Collection[str]) -> str:
    """A message without the names of hidden namespaces and their objects, as far as they can be recognised.

    `named` are the known namespaces: every word that is the name of a hidden one, or contains it as a part, is removed. For other
    namespaces, words of the form `namespace/name` are removed.
    """
    if sight.everywhere:
        return text
    hidden = frozenset(each for each in named if not sight.sees(each))
    return _WORD.sub(lambda found: HIDDEN if _tells(found[0], sight, hidden) else found[0], text)


def _tells(word: str, sight: NameVisibility, hidden: frozenset[str]) -> bool:
    """Whether a word names something that may not be seen."""
    whole = word.split("/")
    pieces = [each for each in whole if each]
    if len(whole) == len(pieces) == 2 and sight.sees(pieces[0]) and _OBJECT.fullmatch(pieces[1]):
        return False
    if any(each.strip("-") in hidden for each in _BORDER.split(word)):
        return True
    if any(not sight.sees(found[1]) for pattern in (_ACCOUNT, _BELOW) for found in pattern.finditer(word)):
        return True
    if word.startswith("/") or all(map(str.isdecimal, pieces)):
        return False
    if len(pieces) > 2 and pieces[0] in _KINDS:
        pieces = pieces[1:]
    return (
        len(pieces) > 1
        and _LABEL.fullmatch(pieces[0]) is not None
        and _OBJECT.fullmatch(pieces[1]) is not None
        and not sight.sees(pieces[0])
    )


def _redacted_gpu(gpu: Document, seen: set[str]) -> Document:
    return {
        **gpu,
        "withheld": _WITHHELD if gpu["withheld"] else None,
        "reserved": None,
        "vacant": [{**each, "why": _WITHHELD} if each["state"] in _WORDED else each for each in gpu["vacant"]],
        "processes": _redacted_processes(gpu["processes"], gpu["allocationIds"], seen),
        "slices": [
            {
                **each,
                "processes": _redacted_processes(each["processes"], each["allocationIds"], seen),
                "devices": [
                    {**piece, "processes": _redacted_processes(piece["processes"], each["allocationIds"], seen)}
                    for piece in each["devices"]
                ],
            }
            for each in gpu["slices"]
        ],
    }


def _redacted_processes(processes: Sequence[Document], holders: Sequence[str], seen: set[str]) -> list[Document]:
    """Processes of a device; their owner is known only if all holders of the device are visible."""
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
        "owner": None,
        "command": HIDDEN,
    }


def _namespace(allocation: Allocation) -> str:
    keeper = allocation.keeper
    return "" if isinstance(keeper, ProcessKeeper) else keeper.namespace


def _nameless_holder(allocation: Allocation) -> Allocation:
    return allocation._replace(request=replace(allocation.request, gpu_model=""), command=HIDDEN, keeper=NOT_KNOWN_YET)


def _nameless_gpu(gpu: GpuState, known: set[tuple[str, InstanceKey | None]]) -> GpuState:
    whole = gpu.processes if (gpu.uuid, None) in known else _nameless_processes(gpu.processes)
    instances = tuple(
        each if (gpu.uuid, gpu.key(each)) in known else each.with_processes(_nameless_processes)
        for each in gpu.instances
    )
    return replace(gpu, processes=whole, instances=instances)


def _nameless_processes(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(each._replace(name=_PROCESS) for each in processes)
