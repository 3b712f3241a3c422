"""Where the layouts of a node come from: a ConfigMap that is read as it is now, and the names that its GPUs bring along."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranche.core.errors import GpuNotFound, LayoutInvalid, LayoutUnknown, MigNotSupported
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.layout_format import parse_layouts
from tranche.core.spelling import did_you_mean
from tranche.core.state import NodeState
from tranche.kubernetes.api.objects import ConfigMap
from tranche.node.files import parse_document
from tranche.planning.generate import generate_layouts

KEY = "config.yaml"

_ALL_DISABLED = Layout("all-disabled", (LayoutSpec(mig_enabled=False),))


@dataclass(frozen=True, slots=True)
class LayoutSource:
    """Named layouts: those of the ConfigMap, and beside them those that tranche.planning.generate makes for the machine.

    `name` says which ConfigMap is meant, "namespace/name", "" for none; `config_map` is None while it does not exist. Its text
    is read here, once: a long one takes seconds, so this is made on a thread.
    """

    name: str = ""
    config_map: ConfigMap | None = None
    _declared: LayoutFile = field(init=False, repr=False, compare=False)
    _broken: LayoutInvalid | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            declared = LayoutFile() if self.config_map is None else _read(self.config_map, f"ConfigMap {self.name}")
        except LayoutInvalid as error:
            declared = LayoutFile()
            object.__setattr__(self, "_broken", error)
        object.__setattr__(self, "_declared", declared)

    def select(self, name: str, node: NodeState) -> Layout:
        """The layout of that name for that machine; the ConfigMap's where both have one.

        Raises LayoutInvalid for a malformed ConfigMap, LayoutUnknown for a name that neither has, MigNotSupported for a layout
        that cuts GPUs on a machine that has none to cut, GpuNotFound for one that is about no GPU of the machine.
        """
        if self._broken is not None:
            raise LayoutInvalid(self._broken.message, hint=self._broken.hint)
        declared = self._declared
        if name in declared.names:
            layout = declared.select(name)
            _check_meant_for(layout, node, self.name)
            return layout
        if name == _ALL_DISABLED.name:
            return _ALL_DISABLED  # a machine without MIG has it already
        generated = generate_layouts(node)
        if name in generated.names:
            return generated.select(name)
        meant = did_you_mean(name, {*declared.names, *generated.names})
        raise LayoutUnknown(
            f"selected mig-config not present: {name}",
            hint=f"{meant}{self._describe()}; this machine's GPUs bring: {', '.join(generated.names)}",
        )

    def _describe(self) -> str:
        if not self.name:
            return "no ConfigMap of layouts is configured"
        if self.config_map is None:
            return f"ConfigMap {self.name} does not exist"
        return f"ConfigMap {self.name} has: {', '.join(self._declared.names) or 'no layouts'}"


def _read(config_map: ConfigMap, source: str) -> LayoutFile:
    if KEY not in config_map.data:
        raise LayoutInvalid(f"{source} has no key '{KEY}'", hint="put the layouts under that key")
    place = f"{source}, {KEY}"
    data = parse_document(config_map.data[KEY], place, LayoutInvalid)
    try:
        return parse_layouts(data, source=source)
    except LayoutInvalid as error:
        raise LayoutInvalid(f"{place}: {error.message}", hint=error.hint) from error


def _check_meant_for(layout: Layout, node: NodeState, source: str) -> None:
    """A layout may say nothing about some GPUs, but what it says must be about GPUs that are there.

    An entry with a filter for another product is for another kind of node and says nothing here; an entry for this node's
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
