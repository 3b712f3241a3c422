"""Whether a pod may be bound to a node, as the scheduler judges labels and taints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FleetTaint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> FleetTaint:
        """From the API's own form."""
        return cls(str(raw.get("key") or ""), str(raw.get("value") or ""), str(raw.get("effect") or ""))

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True)
class FleetToleration:
    """What a pod puts up with; an empty key stands for every one, an empty effect alike."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> FleetToleration:
        """From the API's own form."""
        words = {name: str(raw.get(name) or "") for name in ("key", "operator", "value", "effect")}
        return cls(words["key"], words["operator"] or "Equal", words["value"], words["effect"])

    def covers(self, key: str, value: str, effect: str) -> bool:
        """Whether it puts up with that taint."""
        if self.effect not in ("", effect):
            return False
        if self.operator == "Exists":
            return self.key in ("", key)
        return self.key == key and self.value == value


def untolerated(taints: Iterable[FleetTaint], tolerations: Sequence[FleetToleration]) -> tuple[FleetTaint, ...]:
    """The taints that keep the pod off the node."""
    return tuple(
        taint
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and not any(each.covers(taint.key, taint.value, taint.effect) for each in tolerations)
    )


def unmet(selector: Mapping[str, str], labels: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of a node selector that the node has not."""
    return tuple(f"{key}={value}" for key, value in sorted(selector.items()) if labels.get(key) != value)


def meets(terms: Sequence[Mapping[str, Any]], name: str, labels: Mapping[str, str]) -> bool:
    """Whether the node meets one of the terms of a required node affinity; of none, every node does."""
    return not terms or any(_meets_term(term, name, labels) for term in terms)


def _meets_term(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    wanted = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    known = {**labels, "metadata.name": name}
    return bool(wanted) and all(_meets_expression(each, known) for each in wanted)


def _meets_expression(wanted: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(str(wanted.get("key"))), [str(each) for each in wanted.get("values") or ()]
    match wanted.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.lstrip("-").isdigit() or not values or not values[0].lstrip("-").isdigit():
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
        case _:
            return False
