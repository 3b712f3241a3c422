"""The layout that a machine has now, as short as the format allows, and whether it is the declared one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tranche.core.layout import Layout, LayoutFile, LayoutSpec, describe_slices, parse_device_filter
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState, NodeState


def export_layout(node: NodeState, name: str) -> LayoutFile:
    """One layout of that name with every GPU's present mode and slices.

    Identical GPUs share a spec. `devices` is `all` if the spec covers every GPU of its products. Filters appear only if the
    machine has several products and several specs. Lost GPUs are left out, and then nothing is `all`. An instance without a
    compute instance is no slice, so the format cannot express it.
    """
    gpus = [gpu for gpu in node if not gpu.lost]
    of_product: dict[str, list[int]] = {}
    alike: dict[tuple[bool, tuple[tuple[ProfileName, int], ...]], list[GpuState]] = {}
    for gpu in gpus:
        of_product.setdefault(gpu.pci_device_id, []).append(gpu.index)
        alike.setdefault((gpu.mig_enabled, tuple(sorted(_present(gpu).items()))), []).append(gpu)
    specs = []
    for (enabled, slices), members in alike.items():
        products = sorted({gpu.pci_device_id for gpu in members})
        covered = sorted(index for product in products for index in of_product[product])
        indexes = sorted(gpu.index for gpu in members)
        filters = tuple(map(parse_device_filter, products)) if len(of_product) > 1 and len(alike) > 1 else ()
        everywhere = indexes == covered and len(gpus) == len(node.gpus)
        specs.append(LayoutSpec(enabled, slices, None if everywhere else tuple(indexes), filters))
    return LayoutFile((Layout(name, tuple(specs)),) if specs else (), "the export")


def _present(gpu: GpuState) -> Counter[ProfileName]:
    return Counter(ci.name for instance in gpu.instances for ci in instance.compute_instances)


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """One GPU that differs from the layout."""

    gpu: GpuState
    text: str

    def __str__(self) -> str:
        return f"{self.gpu.label}: {self.text}"


def find_mismatches(node: NodeState, layout: Layout, *, mode_only: bool = False) -> tuple[_Mismatch, ...]:
    """Every GPU that differs from the layout, with the differences; `mode_only` compares only MIG modes.

    Skips GPUs that cannot be cut if applying the layout skips them.
    """
    found = []
    for gpu in node:
        spec = layout.spec_for(gpu)
        if spec is not None and (text := _difference(gpu, spec, mode_only=mode_only)):
            found.append(_Mismatch(gpu, text))
    return tuple(found)


def _difference(gpu: GpuState, spec: LayoutSpec, *, mode_only: bool) -> str:
    if gpu.lost:
        return "the GPU is lost"
    if not gpu.mig_capable:
        return "" if spec.skips_gpus_without_mig else "unable to assert MIG mode enabled on non MIG-capable GPU"
    wanted = "enabled" if spec.mig_enabled else "disabled"
    if gpu.mig_enabled != spec.mig_enabled:
        return f"MIG mode is {gpu.mode}, not {wanted}"
    if gpu.mode_pending:
        return f"MIG mode is {gpu.mode}, but a change to {gpu.pending_mode} is pending"
    if mode_only or not spec.mig_enabled:
        return ""
    present = _present(gpu)
    asked = dict(spec.slices)
    if present != asked:
        return f"it has {describe_slices(present) or 'no slices'}, not {describe_slices(asked) or 'none'}"
    empty = [f"{i.profile} at {i.placement}" for i in gpu.instances if not i.compute_instances]
    return f"it has {', '.join(empty)} without a compute instance" if empty else ""
