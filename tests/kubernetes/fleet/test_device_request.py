"""What a claim's author wrote by hand: conditions of CEL that are read, and those that are named as unread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.fleet.clusters import asked_by_hand
from tests.strategies import requests
from tranche.core.errors import TrancheError
from tranche.core.request import Isolation, Request
from tranche.kubernetes.claims.spec import SharedGpuModel, claim_spec
from tranche.kubernetes.claims.vocabulary import DeviceType
from tranche.kubernetes.fleet.device_request import DeviceRequestOption, demanded_by
from tranche.kubernetes.fleet.objects import decode_fleet_claim

ATTRIBUTE = 'device.attributes["gpu.tranche.dev"].'


def wanted(expression: str) -> DeviceRequestOption:
    request = {"deviceClassName": "gpu.tranche.dev", "selectors": [{"cel": {"expression": expression}}]}
    (demand,) = demanded_by(decode_fleet_claim(asked_by_hand(request)))
    (only,) = demand.alternatives
    return only


@given(requests())
def test_nothing_that_tranche_writes_is_unread(request: Request) -> None:
    try:
        devices = claim_spec(
            request, [SharedGpuModel(16 << 10, 15 << 30, 2), SharedGpuModel(40 << 10, 39 << 30, 8)]
        ).devices
    except TrancheError:
        return  # no device of a cluster serves it
    (demand,) = demanded_by(decode_fleet_claim({"spec": {"devices": devices}}))
    for each in demand.alternatives:
        assert each.unread == ()
        assert each.conditions.model == request.gpu_model.lower()
        weak = each.type in (None, DeviceType.SHARED) and request.isolation in (Isolation.HARD, Isolation.SOFT)
        assert ("none" not in each.conditions.isolations and bool(each.conditions.isolations)) is weak


@pytest.mark.parametrize(
    "condition",
    [
        "isolation in ['hard', 'soft']",
        "isolation in [hard]",
        f"isolation in {'[' * 100_000}]",
        "isolation in []",
        'isolation in ["hard", 1]',
        "isolation == true",
        f"cardMemoryMiB == {'9' * 5_000}",
        "cardMemoryMiB == true",
        'model.lowerAscii().contains("a100") || true || "".contains("")',
        'model.lowerAscii().contains("\\x61100")',
        'model.lowerAscii().contains("a\nb")',
    ],
    ids=[
        "other quotes",
        "a variable",
        "too deep",
        "no isolation",
        "no word among them",
        "no word",
        "too long a number",
        "no number",
        "more behind it",
        "another escape",
        "two lines",
    ],
)
def test_what_is_good_cel_and_no_json_is_named_as_unread(condition: str) -> None:
    expression = f"{ATTRIBUTE}{condition}"
    assert wanted(expression).unread == (expression,)


@given(
    st.sampled_from(["isolation in [{}]", "cardMemoryMiB == {}", 'model.lowerAscii().contains("{}")', "{}"]),
    st.text(max_size=12),
)
def test_no_condition_keeps_a_claim_from_being_read(form: str, text: str) -> None:
    found = wanted(ATTRIBUTE + form.replace("{}", text))
    assert len(found.unread) <= 1
