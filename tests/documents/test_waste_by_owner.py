"""Who held how much, and wastes how much now: by user and by namespace, from events and from what is held now."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.documents.test_history import GPU, PROFILE, UUID, told
from tests.documents.test_picture import documents_of
from tests.strategies import sharing_views
from tranche.core.allocation import NodeView, Slice
from tranche.core.events import EventData, ShareGranted, ShareReleased
from tranche.core.grid import Placement
from tranche.core.request import MigSlice, Request
from tranche.core.share_owner import OwnerKind, ShareOwner
from tranche.documents.waste import waste_data
from tranche.documents.waste_by_owner import waste_by_owner

ADA = ShareOwner(OwnerKind.USER, "ada")
NOTHING: dict[str, Any] = {"unused": [], "tooLarge": [], "idle": []}
HOUR = 3600.0
EIGHTH = GPU["memoryBytes"] // 8


def granted(when: float, id: str, owner: ShareOwner | None, start: int = 0) -> tuple[float, EventData, str]:
    grants = (Slice(UUID, PROFILE, Placement(start, 1)),)
    return when, ShareGranted("", "w", Request(MigSlice(PROFILE)), grants, owner), id


def released(when: float, id: str) -> tuple[float, EventData, str]:
    return when, ShareReleased("its command has ended"), id


def test_each_ones_shares_are_added_up_also_those_that_have_ended() -> None:
    events = told(
        granted(0, "a", ADA),
        granted(0, "b", ADA, 1),
        granted(HOUR, "c", ShareOwner(OwnerKind.NAMESPACE, "vision"), 2),
        released(HOUR, "a"),
        released(3 * HOUR, "b"),
        released(2 * HOUR, "c"),
        granted(0, "old", None, 3),
        released(1, "old"),
    )
    first, second = waste_by_owner([GPU], events, [], NOTHING, HOUR / 2, 4 * HOUR)
    assert first["owner"] == {"kind": "user", "name": "ada"}
    assert first["shares"] == 2
    assert first["heldByteSeconds"] == EIGHTH * (HOUR / 2 + 2.5 * HOUR)
    assert second["owner"] == {"kind": "namespace", "name": "vision"}
    assert second["heldByteSeconds"] == EIGHTH * HOUR


def test_a_pods_namespace_is_what_its_keeper_says_now() -> None:
    """The kubelet says for whom a pod's devices are after they were given."""
    pod = {
        "id": "p",
        "grants": [{"gpuUUID": UUID, "profile": "1g.5gb", "placement": {"start": 0, "size": 1}}],
        "created": "1970-01-01T00:00:00.000Z",
        "keeper": {"kind": "pod", "namespace": "speech", "name": "x"},
    }
    unused = {"gpuUUID": UUID, "profile": "1g.5gb", "placement": {"start": 0, "size": 1}, "memoryBytes": EIGHTH}
    waste = {**NOTHING, "unused": [{**unused, "allocationIds": ["p"]}]}
    (found,) = waste_by_owner([GPU], [], [pod], waste, 0.0, HOUR)
    assert found == {
        "owner": {"kind": "namespace", "name": "speech"},
        "shares": 1,
        "heldByteSeconds": EIGHTH * HOUR,
        "unusedBytes": EIGHTH,
        "spareBytes": 0,
    }


def test_what_is_larger_than_needed_is_what_a_smaller_one_would_save() -> None:
    large = {"gpuUUID": UUID, "profile": "1g.5gb", "placement": None, "memoryBytes": 10, "allocationIds": ["a"]}
    waste = {**NOTHING, "tooLarge": [{**large, "enough": {"profile": "x", "memoryBytes": 4}}]}
    (found,) = waste_by_owner([GPU], told(granted(0, "a", ADA)), [], waste, HOUR, 2 * HOUR)
    assert (found["owner"], found["spareBytes"]) == ({"kind": "user", "name": "ada"}, 6)


@given(sharing_views(max_gpus=3))
def test_what_the_owners_waste_is_what_is_wasted(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    waste = waste_data(view.node, gpus, [], allocations)
    found = waste_by_owner(gpus, [], allocations, waste, 0.0, 10.0)
    held = {id for gpu in gpus for device in (gpu, *gpu["slices"]) for id in device["allocationIds"]}
    assert sum(each["shares"] for each in found) >= len(held)
    total = sum(gpu["memoryBytes"] for gpu in gpus)
    assert all(0 <= each["unusedBytes"] <= total for each in found)
    unused = sum(each["memoryBytes"] or 0 for each in waste["unused"])
    owned = sum(each["unusedBytes"] for each in found)
    assert owned <= unused
    if all(each["phase"] == "active" for each in allocations):
        assert owned == pytest.approx(unused, abs=8)
