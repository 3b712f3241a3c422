"""The layouts that a node can get by name: declared ones, and those generated for its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.errors import GpuNotFound, LayoutInvalid, LayoutUnknown, MigNotSupported, TrancheError
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.spelling import did_you_mean
from tranche.core.state import NodeState
from tranche.planning.layouts.generate import generate_layouts

_ALL_DISABLED = Layout("all-disabled", (LayoutSpec(mig_enabled=False),))


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
        that cuts GPUs on a machine without MIG, GpuNotFound for one that matches no GPU of the machine.
        """
        if self.broken:
            raise LayoutInvalid(self.broken, hint=self.hint)
        declared = self.declared or LayoutFile()
        if name in declared.names:
            layout = declared.select(name)
            _check_meant_for(layout, node, self.config_map)
            return layout
        if name == _ALL_DISABLED.name:
            return _ALL_DISABLED  # a machine without MIG has it already
        generated = generate_layouts(node)
        if name in generated.names:
            return generated.select(name)
        meant = did_you_mean(name, {*declared.names, *generated.names})
        raise LayoutUnknown(
            f"selected mig-config not present: {name}",
            hint=f"{meant}{self._describe(declared)}; this machine's GPUs bring: {', '.join(generated.names)}",
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
                f"layout '{layout.name}' names GPU {', '.join(map(str, absent))}, and this machine has {len(present)}",
                hint=f"correct 'devices' in ConfigMap {source}",
            )
    matched = [(gpu, spec) for gpu in node if (spec := layout.spec_for(gpu)) is not None]
    if not matched:
        raise GpuNotFound(
            f"layout '{layout.name}' matches no GPU of this machine",
            hint=f"correct 'device-filter' and 'devices' in ConfigMap {source}, or choose another layout",
        )
    if any(spec.mig_enabled for _, spec in matched) and not any(gpu.mig_capable for gpu, _ in matched):
        names = ", ".join(sorted({gpu.name for gpu, _ in matched}))
        raise MigNotSupported(f"layout '{layout.name}' needs GPUs that can be cut, and this machine has {names}")
