"""The layout that a machine has now, as short as the format allows."""

from __future__ import annotations

from collections import Counter

from tranche.core.device_filter import parse_device_filter
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
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
        alike.setdefault((gpu.mig_enabled, _slice_counts(gpu)), []).append(gpu)
    specs = []
    for (enabled, slices), members in alike.items():
        products = sorted({gpu.pci_device_id for gpu in members})
        covered = sorted(index for product in products for index in of_product[product])
        indexes = sorted(gpu.index for gpu in members)
        filters = tuple(map(parse_device_filter, products)) if len(of_product) > 1 and len(alike) > 1 else ()
        everywhere = indexes == covered and len(gpus) == len(node.gpus)
        specs.append(LayoutSpec(enabled, slices, None if everywhere else tuple(indexes), filters))
    return LayoutFile((Layout(name, tuple(specs)),) if specs else (), "the export")


def _slice_counts(gpu: GpuState) -> tuple[tuple[ProfileName, int], ...]:
    counts = Counter(ci.name for instance in gpu.instances for ci in instance.compute_instances)
    return tuple(sorted(counts.items()))
