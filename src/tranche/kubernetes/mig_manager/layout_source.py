"""The layouts of a node: those of a ConfigMap, read as it is now, and those that its GPUs bring along."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranche.core.errors import LayoutInvalid
from tranche.core.layout import Layout, LayoutFile
from tranche.core.layout_format import parse_layouts
from tranche.core.state import NodeState
from tranche.kubernetes.api.objects import ConfigMap
from tranche.node.files.files import parse_document
from tranche.planning.layouts.named_layouts import LayoutList

KEY = "config.yaml"


@dataclass(frozen=True, slots=True)
class LayoutSource:
    """Named layouts: those of the ConfigMap, and those that tranche.planning.layouts.named_layouts makes for the machine.

    `name` is the ConfigMap's, "namespace/name", "" for none; `config_map` is None while it does not exist. Its text is read here,
    once: a long one takes seconds, so construct this on a thread.
    """

    name: str = ""
    config_map: ConfigMap | None = None
    offer: LayoutList = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            declared = None if self.config_map is None else _read(self.config_map, f"ConfigMap {self.name}")
            offer = LayoutList(self.name, declared)
        except LayoutInvalid as error:
            offer = LayoutList(self.name, LayoutFile(), error.message, error.hint)
        object.__setattr__(self, "offer", offer)

    def select(self, name: str, node: NodeState) -> Layout:
        """The layout of that name for that machine, with the errors of `LayoutList.select`."""
        return self.offer.select(name, node)


def _read(config_map: ConfigMap, source: str) -> LayoutFile:
    if KEY not in config_map.data:
        raise LayoutInvalid(f"{source} has no key '{KEY}'", hint="put the layouts under that key")
    place = f"{source}, {KEY}"
    data = parse_document(config_map.data[KEY], place, LayoutInvalid)
    try:
        return parse_layouts(data, source=source)
    except LayoutInvalid as error:
        raise LayoutInvalid(f"{place}: {error.message}", hint=error.hint) from error
