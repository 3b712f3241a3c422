"""The two leases of a node: what its agent says of its GPUs, and what the controller has chosen of them for pods. Pure.

Each is written by one program alone, and in the place of the version that it read: a controller that knows an older one cannot
add a choice. What the agent says is the node's whole view, so that the controller decides by the planning of one machine.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.core.allocation import Allocation, Grant, NodeView
from tranche.core.credible import credible
from tranche.core.errors import TrancheError, UsageError
from tranche.core.json_text import read_json
from tranche.core.keeper import ProcessKeeper
from tranche.core.printable import shortened
from tranche.core.state import GpuProcess, GpuState
from tranche.core.wire import grant_from_dict, grant_to_dict
from tranche.kubernetes.api.leases import Lease
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL
from tranche.planning.recording import view_from_dict, view_to_dict

GPUS = "gpus"
CHOICES = "choices"

_NODE = "tranche.dev/node"
_GENERATION = "tranche.dev/generation"
_VIEW = "tranche.dev/view"
_REFUSED = "tranche.dev/refused"
_CHOICES = "tranche.dev/choices"
_LONGEST_NAME = 200
_LONGEST_VIEW = 16 * 1024**2
_LONGEST_REASON = 300
_LONGEST_NUMBER = 18


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What an agent says of its node. `generation` grows with each change.

    `refused` says why pods, by uid, cannot have what was chosen for them.
    """

    node: str
    view: NodeView
    generation: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareChoice:
    """What was chosen for a pod: grants of one node. `seen` is the generation of the node's GPUs by which it was chosen."""

    namespace: str
    name: str
    uid: str
    grants: tuple[Grant, ...]
    seen: int = 0


@dataclass(frozen=True, slots=True)
class NodeChoices:
    """The choices of one node, by the pods' uids. `lease` is what they were read from, None before the first is made.

    `owner` is name and uid of the node object, with which a new lease goes.
    """

    node: str
    choices: Mapping[str, ShareChoice] = field(default_factory=dict)
    lease: Lease | None = None
    owner: tuple[str, str] | None = None

    def with_choices(self, added: Iterable[ShareChoice]) -> NodeChoices:
        """With these as well."""
        return replace(self, choices={**self.choices, **{each.uid: each for each in added}})

    def without(self, uids: Iterable[str]) -> NodeChoices:
        """Without those of these pods."""
        gone = set(uids)
        return replace(self, choices={uid: each for uid, each in self.choices.items() if uid not in gone})


def lease_name(kind: str, node: str) -> str:
    """The name of a node's lease of that kind."""
    word = node if len(node) <= _LONGEST_NAME else hashlib.sha256(node.encode()).hexdigest()[:32]
    return f"tranche-{kind}-{word}"


def gpus_to_lease(said: NodeGpus, owner: tuple[str, str]) -> Lease:
    """The lease in which an agent says it; `owner` is name and uid of the node object."""
    text = json.dumps(view_to_dict(lasting(said.view)), separators=(",", ":"), sort_keys=True)
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    refused = {uid: shortened(reason, _LONGEST_REASON) for uid, reason in sorted(said.refused.items())}
    annotations = {
        _NODE: said.node,
        _GENERATION: str(said.generation),
        _VIEW: packed,
        **({_REFUSED: json.dumps(refused)} if refused else {}),
    }
    name, labels = lease_name(GPUS, said.node), {PLACING_LABEL: GPUS}
    return Lease(name, said.node, labels=labels, annotations=annotations, owner_node=owner)


def gpus_from_lease(lease: Lease) -> NodeGpus:
    """What an agent says; UsageError when it cannot be read, or cannot be true: it is unknown then, and not free."""
    try:
        packed = base64.b64decode(lease.annotations[_VIEW], validate=True)
        view = credible(view_from_dict(read_json(_unpacked(packed))))
        refused = read_json(lease.annotations.get(_REFUSED, "{}"))
        return NodeGpus(
            lease.annotations[_NODE],
            view,
            int(lease.annotations[_GENERATION]),
            {str(uid): str(reason) for uid, reason in refused.items()},
        )
    except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, TrancheError) as error:
        raise UsageError(
            f"lease {lease.name} does not say what GPUs there are: {shortened(str(error), _LONGEST_REASON)}"
        ) from error


def node_of(lease: Lease) -> str:
    """The node that a lease of either kind is about, whether the rest of it can be read or not."""
    return lease.annotations.get(_NODE) or lease.name.removeprefix(f"tranche-{lease.labels.get(PLACING_LABEL, '')}-")


def generation_of(lease: Lease) -> int:
    """The generation that the lease names, whether the rest of it can be read or not; 0 where it names none."""
    text = lease.annotations.get(_GENERATION, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER else 0


def choices_to_lease(chosen: NodeChoices) -> Lease:
    """The lease of a node's choices, in the place of the version that they were read in."""
    data = {uid: _choice_to_dict(each) for uid, each in sorted(chosen.choices.items())}
    text = json.dumps(data, separators=(",", ":"))
    labels = {PLACING_LABEL: CHOICES}
    before = chosen.lease or Lease(lease_name(CHOICES, chosen.node), labels=labels, owner_node=chosen.owner)
    return replace(before, annotations={_NODE: chosen.node, _CHOICES: text})


def choices_from_lease(lease: Lease) -> NodeChoices:
    """What was chosen of a node; UsageError when it cannot be read, so that nothing is chosen beside what nobody knows."""
    try:
        data = read_json(lease.annotations[_CHOICES])
        choices = {str(uid): _choice_from_dict(str(uid), each) for uid, each in data.items()}
        return NodeChoices(lease.annotations[_NODE], choices, lease)
    except (KeyError, ValueError, TypeError, AttributeError, TrancheError) as error:
        raise UsageError(f"lease {lease.name} does not say what was chosen: {error}") from error


def lasting(view: NodeView) -> NodeView:
    """The view without what changes from moment to moment or is nobody else's business: amounts of free memory, the names of
    processes beside the first on each device, commands, and the keys of shares.
    """
    gpus = tuple(_lasting_gpu(gpu) for gpu in view.node)
    allocations = tuple(_anonymous(each) for each in view.allocations)
    return replace(view, node=replace(view.node, gpus=gpus), allocations=allocations)


def _lasting_gpu(gpu: GpuState) -> GpuState:
    instances = tuple(
        replace(
            each,
            compute_instances=tuple(
                replace(piece, processes=_first(piece.processes)) for piece in each.compute_instances
            ),
            stray_processes=_first(each.stray_processes),
        )
        for each in gpu.instances
    )
    return replace(gpu, memory_free=0, processes=_first(gpu.processes), instances=instances)


def _first(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """That there are some is what matters, and one name tells people more than none."""
    return tuple(replace(each, memory=None) for each in sorted(processes, key=lambda each: each.pid)[:1])


def _anonymous(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    if isinstance(keeper, ProcessKeeper):
        keeper = ProcessKeeper(keeper.pid, keeper.started)
    return replace(allocation, command="", keeper=keeper)


def _unpacked(packed: bytes) -> str:
    """At most as much as a node can have to say: whoever may write leases must not fill a controller's memory."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        found = file.read(_LONGEST_VIEW + 1)
    if len(found) > _LONGEST_VIEW:
        raise ValueError("it is too long")
    return found.decode()


def _choice_to_dict(choice: ShareChoice) -> dict[str, Any]:
    grants = [grant_to_dict(each) for each in choice.grants]
    return {"namespace": choice.namespace, "name": choice.name, "grants": grants, "seen": choice.seen}


def _choice_from_dict(uid: str, data: Mapping[str, Any]) -> ShareChoice:
    grants = tuple(grant_from_dict(each) for each in data["grants"])
    return ShareChoice(str(data["namespace"]), str(data["name"]), uid, grants, int(data["seen"]))
