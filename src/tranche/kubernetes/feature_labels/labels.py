"""The labels by which workloads find nodes with the right GPUs: those of NVIDIA's GPU feature discovery, key for key. Pure.

The first of several models describes the node; the labels of slices are per profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tranche.core.board import family_of_capability
from tranche.core.quantity import MIB
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, NodeState
from tranche.hardware.host_facts import HostFacts
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy, SharedResource, can_share
from tranche.kubernetes.node.resources import (
    DOMAIN,
    GPU_RESOURCE,
    MigStrategy,
    advertise,
    single_problem,
    slices_of,
)

TIMESTAMP_LABEL = f"{DOMAIN}/gfd.timestamp"
ACCELERATOR_LABEL = "k8s.amazonaws.com/accelerator"
"""Written where virtual GPUs are offered. Others write it too, with values of their own or by hand: see `changed_labels`."""

_MPS_LABEL = f"{DOMAIN}/mps.capable"
_VIRTUAL = "vgpu"
_GPU_PARTS = (
    *("product", "count", "replicas", "sharing-strategy", "memory", "family", "compute.major", "compute.minor"),
    *("machine", "mode", "multiprocessors", "slices.gi", "slices.ci"),
    *("engines.copy", "engines.decoder", "engines.encoder", "engines.jpeg", "engines.ofa"),
)
_CUDA_PARTS = (
    *("driver.major", "driver.minor", "driver.rev", "runtime.major", "runtime.minor"),
    *("driver-version.major", "driver-version.minor", "driver-version.revision", "driver-version.full"),
    *("runtime-version.major", "runtime-version.minor", "runtime-version.full"),
)
_OWN = frozenset(
    {
        TIMESTAMP_LABEL,
        *(f"{GPU_RESOURCE}.{part}" for part in _GPU_PARTS),
        *(f"{DOMAIN}/cuda.{part}" for part in _CUDA_PARTS),
        *(f"{DOMAIN}/{name}" for name in ("mig.capable", "mig.strategy", "mps.capable")),
    }
)
_SLICE_PARTS = "|".join(re.escape(part) for part in _GPU_PARTS)
_OWN_SLICE = re.compile(rf"{re.escape(DOMAIN)}/mig-(?:\d+c\.)?\d+g\.\d+gb[^/]*\.(?:{_SLICE_PARTS})")
_LONGEST_VALUE = 63
_NOT_IN_A_LABEL = re.compile(r"[^A-Za-z0-9_. -]")
_MODES = {"0x030000": "graphics", "0x030200": "compute"}


def is_feature_label(key: str) -> bool:
    """Whether this module writes that label, and so may remove it when it is no longer valid."""
    return key in _OWN or _OWN_SLICE.fullmatch(key) is not None


def feature_labels(
    node: NodeState, strategy: MigStrategy, facts: HostFacts, sharing: ReplicaPolicy = NOT_SHARED
) -> dict[str, str]:
    """The labels of the node; none for a machine without a GPU. Lost GPUs are ignored.

    Where only some devices of a resource are shared, or each differently, its first device describes it.
    """
    gpus = [gpu for gpu in node if not gpu.lost]
    if not gpus:
        return {}
    resources = advertise(node, strategy).resources
    rules = {each.name: sharing.rule(each.name, 0, each.devices[0]) if each.devices else None for each in resources}
    shared = {
        name: rule
        for name, rule in rules.items()
        if rule is not None and not can_share(rule.sharing, rule.replicas, node.sharing)
    }
    by_mps = sharing.by_mps and not node.sharing.why_not(Sharing.MPS)
    labels = {
        f"{GPU_RESOURCE}.machine": _label_text(facts.product) or "unknown",
        f"{GPU_RESOURCE}.mode": _mode(gpus, facts),
        f"{DOMAIN}/mig.capable": _bool(any(gpu.mig_capable for gpu in gpus)),
        _MPS_LABEL: _bool(by_mps),
        **_versions(node),
        **_whole(gpus, shared.get(GPU_RESOURCE)),
    }
    if strategy is not MigStrategy.NONE:
        labels[f"{DOMAIN}/mig.strategy"] = strategy
    if strategy is MigStrategy.SINGLE and any(gpu.mig_enabled for gpu in gpus):
        labels |= _single(node, gpus, shared.get(GPU_RESOURCE))
    if strategy is MigStrategy.MIXED:
        labels |= _mixed(gpus, shared)
    if sharing.virtual and by_mps:
        labels[ACCELERATOR_LABEL] = _VIRTUAL
    return labels


def changed_labels(present: Mapping[str, str], wanted: Mapping[str, str], now: float) -> dict[str, str | None]:
    """The patch from the labels on the node to the wanted ones; the timestamp moves only with another label.

    The patch that withdraws sharing by MPS also removes the label of virtual GPUs, if an agent wrote it.
    """
    changes: dict[str, str | None] = {
        key: None for key in present if is_feature_label(key) and key not in wanted and key != TIMESTAMP_LABEL
    }
    shared = _bool(True)
    if present.get(_MPS_LABEL) == shared != wanted.get(_MPS_LABEL) and present.get(ACCELERATOR_LABEL) == _VIRTUAL:
        changes[ACCELERATOR_LABEL] = None
    changes |= {key: value for key, value in wanted.items() if present.get(key) != value}
    if wanted and (changes or TIMESTAMP_LABEL not in present):
        changes[TIMESTAMP_LABEL] = str(int(now))
    if not wanted and TIMESTAMP_LABEL in present:
        changes[TIMESTAMP_LABEL] = None
    return changes


def _versions(node: NodeState) -> dict[str, str]:
    labels: dict[str, str] = {}
    parts = node.driver_version.split(".")
    if 2 <= len(parts) <= 3:
        major, minor, revision = (*parts, "")[:3]
        labels |= {
            f"{DOMAIN}/cuda.driver.major": major,
            f"{DOMAIN}/cuda.driver.minor": minor,
            f"{DOMAIN}/cuda.driver.rev": revision,
            f"{DOMAIN}/cuda.driver-version.major": major,
            f"{DOMAIN}/cuda.driver-version.minor": minor,
            f"{DOMAIN}/cuda.driver-version.revision": revision,
            f"{DOMAIN}/cuda.driver-version.full": node.driver_version,
        }
    if node.cuda_version is not None:
        cuda_major, cuda_minor = map(str, node.cuda_version)
        labels |= {
            f"{DOMAIN}/cuda.runtime.major": cuda_major,
            f"{DOMAIN}/cuda.runtime.minor": cuda_minor,
            f"{DOMAIN}/cuda.runtime-version.major": cuda_major,
            f"{DOMAIN}/cuda.runtime-version.minor": cuda_minor,
            f"{DOMAIN}/cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        }
    return labels


def _whole(gpus: list[GpuState], shared: SharedResource | None) -> dict[str, str]:
    """The labels of the first model's GPUs, cut or not; `replicas` is 0 when all are cut, as none is offered whole."""
    model = [gpu for gpu in gpus if gpu.name == gpus[0].name]
    if all(gpu.mig_enabled for gpu in model):
        labels = _resource(GPU_RESOURCE, _label_text(gpus[0].name), len(model), 0, "none")
    else:
        replicas, strategy, suffix = _how(shared)
        labels = _resource(GPU_RESOURCE, _product_text(gpus[0].name, suffix), len(model), replicas, strategy)
    labels[f"{GPU_RESOURCE}.memory"] = str(gpus[0].memory // MIB)
    if gpus[0].compute_capability is not None:
        major, minor = gpus[0].compute_capability
        family = family_of_capability(major, minor)
        labels[f"{GPU_RESOURCE}.family"] = "undefined" if family is None else family.label
        labels[f"{GPU_RESOURCE}.compute.major"] = str(major)
        labels[f"{GPU_RESOURCE}.compute.minor"] = str(minor)
    return labels


def _single(node: NodeState, gpus: list[GpuState], shared: SharedResource | None) -> dict[str, str]:
    cut = [gpu for gpu in gpus if gpu.mig_enabled]
    if single_problem(node):
        labels = _resource(GPU_RESOURCE, _product_text(cut[0].name, "MIG INVALID"), 0, 0, "")
        return {**labels, f"{GPU_RESOURCE}.memory": "0"}
    pieces = [device for gpu in cut for device in slices_of(gpu)]
    return _slice_labels(GPU_RESOURCE, cut[0], pieces[0].instance, pieces[0].piece, len(pieces), shared)


def _mixed(gpus: list[GpuState], shared: Mapping[str, SharedResource]) -> dict[str, str]:
    labels: dict[str, str] = {}
    by_name: dict[str, list[tuple[GpuState, GpuInstance | None, ComputeInstance]]] = {}
    for gpu in gpus:
        for device in slices_of(gpu):
            if device.piece is not None:
                by_name.setdefault(device.piece.name.resource_name, []).append((gpu, device.instance, device.piece))
    for name, pieces in sorted(by_name.items()):
        gpu, instance, piece = pieces[0]
        resource = f"{DOMAIN}/{name}"
        how = shared.get(resource)
        labels |= _slice_labels(resource, gpu, instance, piece, len(pieces), how)
    return labels


def _slice_labels(
    resource: str,
    gpu: GpuState,
    instance: GpuInstance | None,
    piece: ComputeInstance | None,
    count: int,
    shared: SharedResource | None,
) -> dict[str, str]:
    assert instance is not None
    assert piece is not None
    name = piece.name.resource_name.removeprefix("mig-")
    replicas, strategy, suffix = _how(shared)
    labels = _resource(resource, _product_text(gpu.name, f"MIG {name} {suffix}"), count, replicas, strategy)
    offered = gpu.profile(piece.name)
    inside = next((ci for ci in offered.compute_profiles if ci.name == piece.name), None) if offered else None
    numbers = {
        "memory": None if instance.memory is None else instance.memory // MIB,
        "multiprocessors": inside.sm if inside is not None else None,
        "slices.gi": instance.profile.slices,
        "slices.ci": piece.slices,
        "engines.copy": offered.copy_engines if offered is not None else None,
        "engines.decoder": offered.decoders if offered is not None else None,
        "engines.encoder": offered.encoders if offered is not None else None,
        "engines.jpeg": offered.jpeg if offered is not None else None,
        "engines.ofa": offered.ofa if offered is not None else None,
    }
    return labels | {f"{resource}.{part}": str(number) for part, number in numbers.items() if number is not None}


def _how(rule: SharedResource | None) -> tuple[int, str, str]:
    """How many times each device of a resource is offered, by what strategy, and the ending of the product's name. A renamed
    resource needs no ending: its name already says that replicas are not whole devices.
    """
    if rule is None:
        return 1, "none", ""
    return rule.replicas, rule.sharing, "SHARED" if rule.offered_as == rule.name else ""


def _resource(resource: str, product: str, count: int, replicas: int, sharing: str) -> dict[str, str]:
    return {
        f"{resource}.product": product,
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(replicas),
        f"{resource}.sharing-strategy": sharing,
    }


def _mode(gpus: list[GpuState], facts: HostFacts) -> str:
    classes = {facts.pci_classes.get(gpu.pci_bus_id, "") for gpu in gpus}
    return _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown"


def _label_text(text: str) -> str:
    """Text that a label's value may hold: drops other characters and turns runs of spaces into a hyphen."""
    return "-".join(_NOT_IN_A_LABEL.sub("", text).split())[:_LONGEST_VALUE].strip("-_.")


def _product_text(model: str, suffix: str) -> str:
    """A product with its suffix; where both together are too long, the model loses its end and the suffix stays whole."""
    end = f"-{_label_text(suffix)}" if suffix else ""
    return _label_text(model)[: _LONGEST_VALUE - len(end)].strip("-_.") + end


def _bool(value: bool) -> str:
    return str(value).lower()
