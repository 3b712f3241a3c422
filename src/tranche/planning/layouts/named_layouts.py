"""Layouts by name: those for the machine's own GPUs, under mig-parted's names, declared ones, and the one named at boot.

`all-disabled` and `all-enabled` switch MIG mode. `all-<profile>` cuts every GPU into as many slices of the profile as fit (`+` is
written `.` in the name). `all-balanced` gives 7-slice GPUs two 1g, one 2g and one 3g, and 4-slice GPUs two 1g and one 2g, each
the smallest of its size without attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import GpuNotFound, LayoutInvalid, LayoutUnknown, MigNotSupported, ProfileUnknown, TrancheError
from tranche.core.grid import remaining_capacity
from tranche.core.layout import Layout, LayoutFile, LayoutSpec, parse_device_filter
from tranche.core.partition import PARTITION, PartitionSpec
from tranche.core.profile import ProfileName
from tranche.core.spelling import did_you_mean
from tranche.core.state import GpuState, NodeState
from tranche.planning.layouts.reconfigure import lost_error

Slices = tuple[tuple[ProfileName, int], ...]

_ALL_DISABLED = Layout("all-disabled", (LayoutSpec(mig_enabled=False),))
_BALANCED: Mapping[int, Mapping[int, int]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


def generate_layouts(node: NodeState) -> LayoutFile:
    """The layouts that this machine can have.

    Raises MigNotSupported when no GPU can be cut, HardwareError when the driver has lost all that could be, ProfileUnknown when
    their profiles are unknown.
    """
    capable = [gpu for gpu in node if gpu.mig_capable]
    if not capable and (lost := [gpu.full_name for gpu in node if gpu.lost]):
        raise lost_error("layouts of this machine", lost, "")
    if not capable:
        raise MigNotSupported("no MIG-capable devices found on the system", hint="see: tranche gpus")
    profiles = {gpu.pci_device_id: gpu.profiles for gpu in capable if gpu.profiles}
    if not profiles:
        raise ProfileUnknown(
            "no MIG profiles discovered for MIG-capable GPUs",
            hint="the driver names profiles only while MIG mode is on; enable it, then try again",
        )
    layouts = [
        _ALL_DISABLED,
        Layout("all-enabled", (LayoutSpec(mig_enabled=True),)),
    ]
    if balanced := {product: slices for product, found in profiles.items() if (slices := _balanced(found))}:
        layouts.append(Layout("all-balanced", _specs(balanced, several=len(profiles) > 1)))
    for name in sorted({profile.name for found in profiles.values() for profile in found}):
        counts = {
            product: ((name, most_instances(profile)),)
            for product, found in profiles.items()
            for profile in found
            if profile.name == name
        }
        layouts.append(Layout("all-" + str(name).replace("+", "."), _specs(counts, several=len(profiles) > 1)))
    return LayoutFile(tuple(sorted(layouts, key=lambda layout: layout.name)), "this machine")


def most_instances(profile: GpuInstanceProfile) -> int:
    """How many instances of the profile fit on an empty GPU.

    Uses placements, because NVML's own count is too high on some A30 drivers; uses the count if no placements are known.
    """
    return remaining_capacity(profile, ()) if profile.starts else profile.max_instances


def _brought(name: str, node: NodeState, declared: LayoutFile, unknown: str, others: str) -> Layout:
    """The layout of that name that the machine's GPUs bring; LayoutUnknown with these words, after the `others` in the hint."""
    if name == _ALL_DISABLED.name:
        return _ALL_DISABLED  # a machine without MIG has it already
    generated = generate_layouts(node)
    if name in generated.names:
        return generated.select(name)
    meant = did_you_mean(name, {*declared.names, *generated.names})
    raise LayoutUnknown(unknown, hint=f"{meant}{others}this machine's GPUs offer: {', '.join(generated.names)}")


def _balanced(profiles: Iterable[GpuInstanceProfile]) -> Slices:
    """The balanced slices of one product; empty if a size is missing or the product has another number of slices."""
    plain = [profile for profile in profiles if not profile.name.has_attributes]
    counts = _BALANCED.get(max((profile.slices for profile in plain), default=0), {})
    slices: list[tuple[ProfileName, int]] = []
    for size, count in counts.items():
        candidates = [profile for profile in plain if profile.slices == size]
        if not candidates:
            return ()
        chosen = max(candidates, key=lambda profile: (most_instances(profile), -profile.name.memory_gb))
        slices.append((chosen.name, count))
    return tuple(sorted(slices))


def _specs(by_product: Mapping[str, Slices], *, several: bool) -> tuple[LayoutSpec, ...]:
    """One spec for each different cut; filters only if the machine has several products."""
    products: dict[Slices, list[str]] = {}
    for product, slices in sorted(by_product.items()):
        products.setdefault(slices, []).append(product)
    return tuple(
        LayoutSpec(True, slices, None, tuple(map(parse_device_filter, named)) if several else ())
        for slices, named in sorted(products.items(), key=lambda pair: pair[1])
    )


@dataclass(frozen=True, slots=True)
class LayoutList:
    """`config_map`, "namespace/name", declares layouts; "" for none. `declared` is None while it does not exist.

    `broken` says why it cannot be read, with the `hint` of that error; "" if it can.
    """

    config_map: str = ""
    declared: LayoutFile | None = None
    broken: str = ""
    hint: str = ""

    def select(self, name: str, node: NodeState) -> Layout:
        """The layout of that name for that machine; the ConfigMap wins.

        Raises LayoutInvalid for a malformed ConfigMap, LayoutUnknown for a name that neither has, MigNotSupported for a layout
        that cuts GPUs on a machine without MIG, GpuNotFound for one that matches no GPU on the machine.
        """
        if self.broken:
            raise LayoutInvalid(self.broken, hint=self.hint)
        declared = self.declared or LayoutFile()
        if name in declared.names:
            layout = declared.select(name)
            _check_meant_for(layout, node, self.config_map)
            return layout
        return _brought(
            name, node, declared, f"selected mig-config not present: {name}", f"{self._describe(declared)}; "
        )

    def names(self, node: NodeState) -> tuple[str, ...]:
        """Every name that `select` accepts, sorted; empty if the ConfigMap is unreadable."""
        if self.broken:
            return ()
        declared = (self.declared or LayoutFile()).names
        brought = {_ALL_DISABLED.name, *_generated(node)} - set(declared)
        return tuple(sorted({*brought, *(name for name in declared if self._meant_for(name, node))}))

    def _meant_for(self, name: str, node: NodeState) -> bool:
        try:
            self.select(name, node)
        except TrancheError:
            return False
        return True

    def _describe(self, declared: LayoutFile) -> str:
        if not self.config_map:
            return "no ConfigMap of layouts is configured"
        if self.declared is None:
            return f"ConfigMap {self.config_map} does not exist"
        return f"ConfigMap {self.config_map} has: {', '.join(declared.names) or 'no layouts'}"


def _generated(node: NodeState) -> tuple[str, ...]:
    try:
        return generate_layouts(node).names
    except TrancheError:
        return ()


def _check_meant_for(layout: Layout, node: NodeState, source: str) -> None:
    """A layout may ignore some GPUs, but must not name absent ones.

    An entry with a filter for another product is for another kind of node and does not apply here. An entry for this node's
    products must not name an index that the node lacks.
    """
    present = {gpu.index for gpu in node}
    for entry in layout.specs:
        absent = sorted(set(entry.devices or ()) - present)
        if absent and any(entry.matches_product(gpu) for gpu in node):
            raise GpuNotFound(
                f"layout '{layout.name}' names GPU {', '.join(map(str, absent))}, "
                f"but this machine has only {len(present)} GPU{'s' if len(present) != 1 else ''}",
                hint=f"correct 'devices' in ConfigMap {source}",
            )
    matched = [(gpu, spec) for gpu in node if (spec := layout.spec_for(gpu)) is not None]
    if not matched:
        raise GpuNotFound(
            f"layout '{layout.name}' matches no GPU on this machine",
            hint=f"correct 'device-filter' and 'devices' in ConfigMap {source}, or choose another layout",
        )
    if any(spec.mig_enabled for _, spec in matched) and not any(gpu.mig_capable for gpu, _ in matched):
        names = ", ".join(sorted({gpu.name for gpu, _ in matched}))
        raise MigNotSupported(
            f"layout '{layout.name}' needs GPUs that can be partitioned, but this machine has {names}"
        )


def boot_layout(wanted: PartitionSpec | str, file: LayoutFile, node: NodeState) -> Layout:
    """The requested layout, for this machine. The file's layouts win over generated ones.

    Every GPU that can be cut gets the slices of a partition; GPUs without MIG are skipped. A number means the profile with that
    number on each GPU, so one list may give different slices on different boards.

    Raises MigNotSupported (no GPU can be cut), ProfileUnknown (a GPU has no profile of that number) and LayoutUnknown. Does not
    check whether the slices fit together.
    """
    if isinstance(wanted, str):
        if wanted in file.names:
            return file.select(wanted)
        declared = f"{file.source} has the layouts {', '.join(file.names)}; " if file.layouts else ""
        return _brought(wanted, node, file, f"{PARTITION}={wanted} does not name a layout", declared)
    capable = [gpu for gpu in node if gpu.mig_capable or gpu.lost]
    if not capable:
        names = ", ".join(sorted({gpu.name for gpu in node})) or "no GPU"
        raise MigNotSupported(
            f"{PARTITION}={wanted.text} needs GPUs that can be partitioned, but this machine has {names}",
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
        hint=f"its numbers are {numbered}" if numbered else "its profiles are unknown while MIG mode is off",
    )
