"""Whether a machine shows a layout. Ignores GPUs that the layout does not name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tranche.core.layout import Layout, LayoutSpec, describe_slices
from tranche.core.state import GpuState, NodeState


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
    present = Counter(ci.name for instance in gpu.instances for ci in instance.compute_instances)
    asked = dict(spec.slices)
    if present != asked:
        return f"it has {describe_slices(present) or 'no slices'}, not {describe_slices(asked) or 'none'}"
    empty = [f"{i.profile} at {i.placement}" for i in gpu.instances if not i.compute_instances]
    return f"it has {', '.join(empty)} without a compute instance" if empty else ""
