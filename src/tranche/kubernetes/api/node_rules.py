"""Which nodes a pod may run on, as the scheduler judges it: taints, labels and required affinity. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

_KEEPS_PODS_AWAY = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps pods off a node, or claims off a device, that do not tolerate it, unless the effect is a mere preference."""

    key: str
    effect: str
    value: str = ""

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> Self:
        """From the API's own form."""
        return cls(*(str(raw.get(name) or "") for name in ("key", "effect", "value")))

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a pod or a claim tolerates. An empty `key` with `exists` tolerates everything, an empty `effect` every effect."""

    key: str = ""
    value: str = ""
    effect: str = ""
    exists: bool = False

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> Self:
        """From the API's own form."""
        key, value, effect = (str(raw.get(name) or "") for name in ("key", "value", "effect"))
        return cls(key, value, effect, raw.get("operator") == "Exists")

    def covers(self, key: str, value: str, effect: str) -> bool:
        """Whether it tolerates such a taint of a node or of a device."""
        if self.effect and self.effect != effect:
            return False
        if self.key != key:
            return not self.key and self.exists
        return self.exists or self.value == value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label, or on the node's name where `key` is `metadata.name`. `operator` is Kubernetes' word."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> Self:
        """From the API's own form."""
        return cls(str(raw.get("key")), str(raw.get("operator")), tuple(map(str, raw.get("values") or ())))

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it; an unknown condition is never met."""
        there, value = self.key in labels, labels.get(self.key, "")
        match self.operator:
            case "In":
                return there and value in self.values
            case "NotIn":
                return value not in self.values if there else True
            case "Exists":
                return there
            case "DoesNotExist":
                return not there
            case "Gt" | "Lt":
                number, limit = _integer(value), _integer(self.values[0]) if len(self.values) == 1 else None
                if not there or number is None or limit is None:
                    return False
                return number > limit if self.operator == "Gt" else number < limit
            case _:
                return False


NodeTerm = tuple[Requirement, ...]
"""Requirements that hold together; an empty term holds nowhere."""


def decode_terms(pod_spec: Mapping[str, Any]) -> tuple[NodeTerm, ...] | None:
    """The terms of a pod's required node affinity, one of which must hold; None where it has none."""
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return None
    return tuple(
        tuple(map(Requirement.decode, (*(each.get("matchExpressions") or ()), *(each.get("matchFields") or ()))))
        for each in required.get("nodeSelectorTerms") or ()
    )


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> tuple[Taint, ...]:
    """The taints that keep a pod off the node."""
    return tuple(
        taint
        for taint in taints
        if taint.effect in _KEEPS_PODS_AWAY
        and not any(each.covers(taint.key, taint.value, taint.effect) for each in tolerations)
    )


def unmet(selector: Mapping[str, str], labels: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of a node selector that the node lacks."""
    return tuple(f"{key}={value}" for key, value in sorted(selector.items()) if labels.get(key) != value)


def meets(terms: Sequence[NodeTerm] | None, name: str, labels: Mapping[str, str]) -> bool:
    """Whether the node meets one of the terms of a required node affinity. Without any (None), every node does."""
    known = {**labels, "metadata.name": name}
    return terms is None or any(term and all(each.holds(known) for each in term) for term in terms)


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
