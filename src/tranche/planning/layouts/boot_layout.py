"""From the boot settings to a declared layout: profile numbers become names, by each GPU's own numbers."""

from __future__ import annotations

from collections import Counter

from tranche.core.errors import LayoutUnknown, MigNotSupported, ProfileUnknown
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.partition import PARTITION, LayoutName, PartitionSpec
from tranche.core.profile import ProfileName
from tranche.core.spelling import did_you_mean
from tranche.core.state import GpuState, NodeState
from tranche.planning.layouts.generate import generate_layouts

Slices = tuple[tuple[ProfileName, int], ...]

_ALL_DISABLED = Layout("all-disabled", (LayoutSpec(mig_enabled=False),))


def boot_layout(wanted: PartitionSpec | LayoutName, file: LayoutFile, node: NodeState) -> Layout:
    """The requested layout, for this machine. The file's layouts win over generated ones.

    Every GPU that can be cut gets the slices of a partition; GPUs without MIG are skipped. A number means the profile with that
    number on each GPU, so one list may give different slices on different boards.

    Raises MigNotSupported (no GPU can be cut), ProfileUnknown (a GPU has no profile of that number) and LayoutUnknown. Does not
    check whether the slices fit together.
    """
    if isinstance(wanted, LayoutName):
        return _named(wanted.text, file, node)
    capable = [gpu for gpu in node if gpu.mig_capable or gpu.lost]
    if not capable:
        names = ", ".join(sorted({gpu.name for gpu in node})) or "no GPU"
        raise MigNotSupported(
            f"{PARTITION}={wanted.text} needs GPUs that can be cut, and this machine has {names}",
            hint="see: tranche gpus",
        )
    # A lost GPU reports no profiles: the other GPUs' slices stand in, and the decision lists it as lost.
    slices = {gpu.index: _slices(wanted, gpu) for gpu in capable if not gpu.lost}
    answers = list(dict.fromkeys(slices.values()))
    if len(answers) <= 1:
        return Layout(wanted.text, (LayoutSpec(True, answers[0] if answers else ()),))
    lost = [LayoutSpec(True, answers[0], (gpu.index,)) for gpu in capable if gpu.lost]
    specs = [
        LayoutSpec(True, answer, tuple(index for index, found in slices.items() if found == answer))
        for answer in answers
    ]
    return Layout(wanted.text, (*lost, *specs))


def _slices(wanted: PartitionSpec, gpu: GpuState) -> Slices:
    counts: Counter[ProfileName] = Counter()
    for profile, count in wanted.slices:
        counts[_by_number(profile, gpu) if isinstance(profile, int) else profile] += count
    return tuple(sorted(counts.items()))


def _by_number(number: int, gpu: GpuState) -> ProfileName:
    for profile in gpu.profiles:
        if profile.id == number:
            return profile.name
    numbered = ", ".join(f"{each.id} ({each.name})" for each in gpu.profiles if each.id is not None)
    raise ProfileUnknown(
        f"{gpu.label} ({gpu.name}) has no profile with the number {number}",
        hint=f"its numbers are {numbered}"
        if numbered
        else "what it can be cut into is not known while MIG mode is off",
    )


def _named(name: str, file: LayoutFile, node: NodeState) -> Layout:
    if name in file.names:
        return file.select(name)
    if name == _ALL_DISABLED.name:
        return _ALL_DISABLED  # a machine without MIG has it already
    generated = generate_layouts(node)
    if name in generated.names:
        return generated.select(name)
    meant = did_you_mean(name, {*file.names, *generated.names})
    declared = f"{file.source} has: {', '.join(file.names)}; " if file.layouts else ""
    raise LayoutUnknown(
        f"{PARTITION}={name} names no layout",
        hint=f"{meant}{declared}this machine's GPUs bring: {', '.join(generated.names)}",
    )
