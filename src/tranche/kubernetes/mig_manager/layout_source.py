"""Reads the ConfigMap of layouts."""

from __future__ import annotations

from collections.abc import Mapping

from tranche.core.errors import LayoutInvalid
from tranche.core.layout import LayoutFile
from tranche.core.layout_format import parse_layouts
from tranche.node.files.files import parse_document
from tranche.planning.layouts.named_layouts import LayoutList

KEY = "config.yaml"


def read_layouts(name: str, config_map: Mapping[str, str] | None) -> LayoutList:
    """The layouts of the ConfigMap `name`, "namespace/name"; `config_map` is None while it does not exist.

    A long text takes seconds, so call this on a thread.
    """
    try:
        return LayoutList(name, None if config_map is None else _read(config_map, f"ConfigMap {name}"))
    except LayoutInvalid as error:
        return LayoutList(name, LayoutFile(), error.message, error.hint)


def _read(config_map: Mapping[str, str], source: str) -> LayoutFile:
    if KEY not in config_map:
        raise LayoutInvalid(f"{source} has no key '{KEY}'", hint="put the layouts under that key")
    place = f"{source}, {KEY}"
    data = parse_document(config_map[KEY], place, LayoutInvalid)
    try:
        return parse_layouts(data, source=source)
    except LayoutInvalid as error:
        raise LayoutInvalid(f"{place}: {error.message}", hint=error.hint) from error
