"""A request over several machines: the best of their own decisions, and none where none has one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gpu_on, node_views, requests_for, view_of
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.board import board_by_key
from tranche.core.errors import TrancheError
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.core.state import MigMode
from tranche.planning.decide.allocate import (
    ChosenMachine,
    Granted,
    MachineOption,
    NoMachine,
    decide,
    decide_across,
    offer,
)

MACHINES = st.dictionaries(st.sampled_from("abcd"), node_views(max_gpus=2), max_size=3)


def own_decision(view: NodeView, request: Request) -> Granted | None:
    try:
        found = decide(view, request)
    except TrancheError:
        return None
    return found if isinstance(found, Granted) else None


@given(st.data(), MACHINES)
def test_it_is_a_machines_own_decision_and_no_other_machine_does_better(
    data: st.DataObject, machines: dict[str, NodeView]
) -> None:
    request = data.draw(
        requests_for(
            data.draw(node_views(max_gpus=2)) if not machines else data.draw(st.sampled_from(list(machines.values())))
        )
    )
    own = {name: own_decision(view, request) for name, view in machines.items()}
    found = decide_across(machines, request)
    assert found == decide_across(dict(reversed(machines.items())), request)
    if isinstance(found, NoMachine):
        assert not any(own.values())
        assert found.reasons.keys() == machines.keys()
        return
    assert found.granted == own[found.name]
    chosen = offer(machines[found.name], request)
    assert isinstance(chosen, MachineOption)
    for name, granted in own.items():
        if granted is not None:
            other = offer(machines[name], request)
            assert isinstance(other, MachineOption)
            assert chosen.preferences <= other.preferences


def test_among_equals_a_machine_that_is_used_already_keeps_an_empty_one_empty() -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    profile = parse_profile("1g.5gb")
    request = Request(MigSlice(profile))
    empty = view_of(gpu_on(board, 0, mode=MigMode.ENABLED), gpu_on(board, 1, mode=MigMode.ENABLED))
    held = Slice(empty.node.gpus[1].uuid, profile, Placement(6, 1))
    allocation = Allocation("x", request, (held,), Phase.PREPARING, 0.0)
    used = view_of(*empty.node.gpus, allocations=[allocation])
    found = decide_across({"a": empty, "b": used}, request)
    assert isinstance(found, ChosenMachine)
    alone = decide_across({"b": empty, "a": empty}, request)
    assert isinstance(alone, ChosenMachine)
    assert alone.name == "a"
    assert found.name == "b"
