"""What an agent makes of the label that names its node's layout, for people who want to know before they set it. Pure.

The agents of a cluster mostly say the same, so a reader of a thousand reports keeps it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tranche.core.errors import LayoutInvalid, UsageError
from tranche.core.layout_format import layouts_to_data, parse_layouts
from tranche.kubernetes.telling.packing import packed, unpacked
from tranche.planning.layouts.named_layouts import LayoutList

FORMAT = 1
"""Other formats are unreadable."""
MOST_LAYOUT_BYTES = 32 * 1024
"""With the view, this stays below Kubernetes' limit for an object's annotations."""

_KEPT = 64


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """`managed`: whether the agent cuts GPUs by layouts at all. `in_use`: what it does about slices in use, as InUsePolicy.

    With `heeds_mode` only a node of mode static has layouts; with `turns` the node waits for its turn among all nodes. `offer` is
    None if there are too many layouts to report.
    """

    managed: bool = False
    in_use: str = ""
    heeds_mode: bool = False
    turns: bool = False
    offer: LayoutList | None = None


NOT_MANAGED = LayoutReport()
"""For an agent without a MIG manager."""


def layouts_to_text(layouts: LayoutReport) -> str:
    """The annotation's text, without the layouts themselves if there are too many."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "managed": layouts.managed,
        "inUse": layouts.in_use,
        "heedsMode": layouts.heeds_mode,
        "turns": layouts.turns,
        "offer": None,
    }
    if layouts.offer is None:
        return packed(data)
    text = packed({**data, "offer": _offer_data(layouts.offer)})
    return text if len(text) <= MOST_LAYOUT_BYTES else packed(data)


@lru_cache(_KEPT)
def layouts_from_text(text: str) -> LayoutReport:
    """Parses the annotation; UsageError if it is unreadable or has another format."""
    try:
        data = unpacked(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']} is unknown")
        return LayoutReport(
            managed=data["managed"] is True,
            in_use=str(data["inUse"]),
            heeds_mode=data["heedsMode"] is True,
            turns=data["turns"] is True,
            offer=None if data["offer"] is None else _offer_from(data["offer"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, RecursionError, LayoutInvalid) as error:
        raise UsageError(f"cannot read an agent's layout report: {error}") from error


def _offer_data(offer: LayoutList) -> dict[str, Any]:
    return {
        "configMap": offer.config_map,
        "layouts": None if offer.declared is None else layouts_to_data(offer.declared),
        "broken": offer.broken,
        "hint": offer.hint,
    }


def _offer_from(data: dict[str, Any]) -> LayoutList:
    name = str(data["configMap"])
    told = data["layouts"]
    declared = None if told is None else parse_layouts(told, source=f"ConfigMap {name}")
    return LayoutList(name, declared, str(data["broken"]), str(data["hint"]))
