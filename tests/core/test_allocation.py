"""What workloads were given: grants, and the view that decisions are made from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.strategies import holders_of, node_views
from tranche.core.allocation import FractionalShare, NodeView, Slice, WholeGpu
from tranche.core.errors import LedgerCorrupt
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.quantity import GIB
from tranche.core.request import Isolation
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.core.state import InstanceKey, NodeState
from tranche.core.wire import grant_from_dict, grant_to_dict

SLICE = Slice("GPU-1", parse_profile("2g.10gb"), Placement(4, 2))
WHOLE = WholeGpu("GPU-2")


def test_a_grant_is_a_whole_gpu_or_the_slot_of_an_instance() -> None:
    assert SLICE.slot == InstanceKey("GPU-1", parse_profile("2g.10gb"), Placement(4, 2))
    assert WHOLE.slot is None


def test_a_grant_says_how_it_is_made_and_how_hard_it_is_fenced() -> None:
    assert (SLICE.mechanism, WHOLE.mechanism) == ("mig", "whole")
    assert SLICE.walls.isolation is WHOLE.walls.isolation is Isolation.HARD


def test_grants_as_json() -> None:
    assert json.loads(json.dumps(grant_to_dict(SLICE))) == {
        "gpuUUID": "GPU-1",
        "mechanism": "mig",
        "isolation": "hard",
        "walls": {"memory": "own", "compute": "own", "faults": "own", "bandwidth": "own"},
        "profile": "2g.10gb",
        "placement": {"start": 4, "size": 2},
    }
    whole = json.loads(json.dumps(grant_to_dict(WHOLE)))
    assert (whole["profile"], whole["placement"], whole["mechanism"]) == (None, None, "whole")


def test_a_part_as_json_has_the_word_of_its_mechanism_and_every_wall() -> None:
    assert json.loads(json.dumps(grant_to_dict(FractionalShare(WHOLE, 3 * GIB, Sharing.MPS, compute=30)))) == {
        "gpuUUID": "GPU-2",
        "mechanism": "mps",
        "isolation": "soft",
        "walls": {"memory": "process", "compute": "ceiling", "faults": "shared", "bandwidth": "shared"},
        "profile": None,
        "placement": None,
        "memoryBytes": 3 * GIB,
        "computePercent": 30,
    }


def test_a_mechanism_of_another_version_is_refused() -> None:
    data = grant_to_dict(FractionalShare(WHOLE, 3 * GIB, Sharing.MPS))
    with pytest.raises(LedgerCorrupt, match="'preload'"):
        grant_from_dict({**data, "mechanism": "preload"})
    whole = grant_to_dict(WHOLE)
    with pytest.raises(LedgerCorrupt, match="belongs to no GPU instance"):
        grant_from_dict({**whole, "computeInstance": {"name": "1c.2g.10gb", "start": 0, "size": 1}})


def test_the_administrators_word_is_auto_where_there_is_none() -> None:
    view = NodeView(NodeState(()), uses={"GPU-1": GpuPolicy.OFF})
    assert (view.use_of("GPU-1"), view.use_of("GPU-2")) == (GpuPolicy.OFF, GpuPolicy.AUTO)


@given(node_views())
def test_a_view_accounts_for_every_grant_once(view: NodeView) -> None:
    granted = [grant for allocation in view.allocations for grant in allocation.grants]
    seen = [grant for gpu in view.node for grant in view.grants_on(gpu.uuid)]
    assert sorted(map(str, seen)) == sorted(map(str, granted))
    for allocation in view.allocations:
        for grant in allocation.grants:
            if grant.slot is not None:
                assert allocation in holders_of(view, grant.slot)
                alone = isinstance(grant, Slice)
                assert not alone or holders_of(view, grant.slot) == (allocation,)


@given(node_views())
def test_promised_places_are_the_slices_granted(view: NodeView) -> None:
    for gpu in view.node:
        slots = dict.fromkeys(grant.slot for grant in view.grants_on(gpu.uuid) if grant.slot is not None)
        assert [(o.profile, o.placement) for o in view.promised_on(gpu.uuid)] == [
            (slot.profile, slot.placement) for slot in slots
        ]
