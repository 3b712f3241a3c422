"""The step that sets the length of turns: what it says, when it is in effect, what undoes it, and for whom it is planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.test_daemons import GIB, T4
from tranche.core.allocation import FractionalShare, NodeView, WholeGpu
from tranche.core.sharing import Sharing, Timeslice
from tranche.core.state import NodeState
from tranche.planning.steps import SetTimeslice, step_from_dict
from tranche.planning.steps.plan import Plan, with_daemons

LENGTHS = [None, *Timeslice]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_step_survives_being_written_down(length: Timeslice | None) -> None:
    step = SetTimeslice("GPU-0", length)
    assert step_from_dict(step.to_dict()) == step


@pytest.mark.parametrize("before", LENGTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_what_undoes_a_step_puts_back_what_it_found(before: Timeslice | None, length: Timeslice | None) -> None:
    gpu = replace(T4, timeslice=before)
    step = SetTimeslice(gpu.uuid, length)
    after = step.apply(gpu)
    assert step.in_effect(after)
    undone = after
    for inverse in step.inverse(step.observe(gpu, frozenset()), after):
        assert isinstance(inverse, SetTimeslice)
        undone = inverse.apply(undone)
    assert undone == gpu
    assert not step.takes
    assert not step.changes_cut


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("wanted", [None, Timeslice.SHORT])
@pytest.mark.parametrize("there", [None, Timeslice.SHORT, Timeslice.LONG])
def test_it_is_planned_for_those_who_take_turns_where_it_is_wanted_and_not_there(
    sharing: Sharing, wanted: Timeslice | None, there: Timeslice | None
) -> None:
    gpu = replace(T4, timeslice=there, timeslice_wanted=wanted)
    part = FractionalShare(WholeGpu(gpu.uuid), 3 * GIB, sharing)
    plan = with_daemons(Plan("a part"), (part,), NodeView(NodeState((gpu,))))
    found = [step for step in plan.steps if isinstance(step, SetTimeslice)]
    expected = sharing is not Sharing.MPS and wanted is not None and wanted is not there
    assert found == ([SetTimeslice(gpu.uuid, wanted)] if expected else [])
