"""Taints, labels and affinity as Kubernetes documents them, read from its own objects."""

from __future__ import annotations

from typing import Any

import pytest

from tranche.kubernetes.api.node_rules import Taint, Toleration, decode_terms, meets, unmet, untolerated

TAINT = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
LABELS = {"zone": "x", "cores": "8"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "a100"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "t4"}, False),
        ({"key": "gpu"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "a100"}, False),
    ],
)
def test_a_toleration_covers_what_kubernetes_says(toleration: dict[str, Any], tolerated: bool) -> None:
    away = untolerated([Taint.decode(TAINT)], [Toleration.decode(toleration)])
    assert [str(each) for each in away] == ([] if tolerated else ["gpu=a100"])


def test_a_preference_keeps_nobody_away() -> None:
    assert untolerated([Taint.decode({**TAINT, "effect": "PreferNoSchedule"})], []) == ()


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        ({"key": "zone", "operator": "In", "values": ["x", "y"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["x"]}, False),
        ({"key": "rack", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "rack", "operator": "Exists"}, False),
        ({"key": "rack", "operator": "DoesNotExist"}, True),
        ({"key": "cores", "operator": "Gt", "values": ["7"]}, True),
        ({"key": "cores", "operator": "Lt", "values": ["8"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["7"]}, False),
        ({"key": "cores", "operator": "Gt", "values": ["--7"]}, False),
        ({"key": "cores", "operator": "Gt", "values": []}, False),
        ({"key": "zone", "operator": "Like", "values": ["x"]}, False),
    ],
)
def test_a_requirement_holds_as_kubernetes_says(wanted: dict[str, Any], met: bool) -> None:
    assert meets(_terms({"matchExpressions": [wanted]}), "n1", LABELS) is met
    assert meets(_terms({"matchExpressions": [wanted]}, {"matchFields": _named("n1")}), "n1", LABELS)


def test_one_term_is_enough_and_an_empty_one_holds_nowhere() -> None:
    assert decode_terms({}) is None
    assert meets(None, "n1", {})
    assert not meets(_terms({}), "n1", LABELS)
    assert not meets((), "n1", LABELS)
    assert not meets(_terms({"matchFields": _named("n2")}), "n1", LABELS)
    assert unmet({"zone": "x", "rack": "1"}, LABELS) == ("rack=1",)


def _named(name: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "In", "values": [name]}]


def _terms(*terms: dict[str, Any]) -> Any:
    required = {"nodeSelectorTerms": list(terms)}
    return decode_terms({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
