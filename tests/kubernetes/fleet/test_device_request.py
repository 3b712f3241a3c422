"""What a claim's author wrote by hand: conditions of CEL that are read, and those that are named as unread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.fleet.clusters import asked_by_hand
from tranche.kubernetes.fleet.device_request import DeviceAlternative, demanded_by
from tranche.kubernetes.fleet.objects import decode_fleet_claim

ATTRIBUTE = 'device.attributes["gpu.tranche.dev"].'


def wanted(expression: str) -> DeviceAlternative:
    request = {"deviceClassName": "tranche", "selectors": [{"cel": {"expression": expression}}]}
    (demand,) = demanded_by(decode_fleet_claim(asked_by_hand(request)))
    (only,) = demand.alternatives
    return only


def test_what_tranche_writes_is_read() -> None:
    assert wanted(f'{ATTRIBUTE}isolation in ["hard", "soft"]').isolations == {"hard", "soft"}
    assert wanted(f'{ATTRIBUTE}model.lowerAscii().contains("a100")').model == "a100"


@pytest.mark.parametrize(
    "condition",
    [
        "isolation in ['hard', 'soft']",
        "isolation in [hard]",
        f"isolation in {'[' * 100_000}]",
        f"cardMemoryMiB == {'9' * 5_000}",
        'model.lowerAscii().contains("\\x61100")',
        'model.lowerAscii().contains("a\nb")',
    ],
    ids=["other quotes", "a variable", "too deep", "too long a number", "another escape", "two lines"],
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
