"""Events: every kind has data of its own, which survives being written down."""

from __future__ import annotations

from typing import get_args

from hypothesis import given

from tests.strategies import node_views, requests
from tranche.core.allocation import NodeView
from tranche.core.events import (
    BootEnded,
    ChangeBegun,
    DaemonFault,
    DaemonRecovered,
    EventData,
    FaultShared,
    FenceChanged,
    GpuCordoned,
    GpuLost,
    GpuRecovered,
    GpuUncordoned,
    HeldTwice,
    LimitExceeded,
    LimitsLost,
    PlanRecovered,
    PlanUndone,
    PolicyChanged,
    QuotaChanged,
    ReleaseBegun,
    RequestCancelled,
    ReservationEnded,
    ReservationMade,
    ServerEnded,
    ShareGranted,
    ShareKept,
    SharePreempted,
    ShareReleased,
    SharingRefused,
    StepDone,
    TimeExtended,
    UndoIncomplete,
    event_data_from_dict,
    event_data_to_dict,
    event_name,
)
from tranche.core.keeper import Actor, OwnerKind, PodKeeper, ProcessKeeper, ShareOwner
from tranche.core.request import Request
from tranche.core.sharing import Sharing

ACTOR = Actor("dashboard", "ada")
STEP = StepDone("p", {"action": "ResetGpu", "gpu": "GPU-0"})


def some(view: NodeView, request: Request) -> list[EventData]:
    """One of each kind."""
    grants = tuple(grant for allocation in view.allocations for grant in allocation.grants)
    return [
        ChangeBegun("p", "layout x"),
        STEP,
        ShareGranted("", "w", request, grants),
        ShareGranted("", "w", request, grants, ShareOwner(OwnerKind.USER, "ada")),
        ChangeBegun("p", "layout x", ACTOR),
        RequestCancelled("w"),
        RequestCancelled("w", ACTOR),
        ShareKept((7,)),
        ShareKept((7, 8), suspected=True),
        HeldTwice(PodKeeper("nvidia.com/gpu", "default", "a"), grants),
        HeldTwice(ProcessKeeper(7, 70, 1, "digest", ((8, 80), (9, 90)), suspected=True), grants),
        ReleaseBegun((7, 8)),
        ReleaseBegun((7,), ACTOR),
        ShareReleased("ended"),
        ShareReleased("taken back", ACTOR),
        PlanUndone("p", "HardwareError", "GPU-0"),
        UndoIncomplete("p", "GpuBusy"),
        PlanRecovered("p", "layout x"),
        LimitsLost(grants),
        LimitExceeded(grants),
        FaultShared("GPU-0"),
        SharingRefused(Sharing.MEMORY_LIMITS, "the driver refuses them"),
        DaemonFault("GPU-0", "its server is in state FAULT"),
        DaemonRecovered("GPU-0"),
        ServerEnded(7),
        GpuLost(),
        GpuRecovered(),
        PolicyChanged("GPU-0", "mig"),
        GpuCordoned("ada", "its fan"),
        GpuCordoned("ada", "", ACTOR),
        GpuUncordoned("ada", ACTOR),
        PolicyChanged("", None),
        QuotaChanged("ann", 150, 1 << 40, None, 3600),
        QuotaChanged("", None, None, None, None),
        FenceChanged((0, 1000)),
        FenceChanged(None),
        TimeExtended(7200),
        SharePreempted("4f0c2a1b"),
        ReservationMade("r", ("GPU-0", "GPU-1"), 10.0, 20.5, "ann", "ada"),
        ReservationEnded("r", "ada removed it"),
        BootEnded("b", "7*19", "HardwareError"),
    ]


@given(node_views(), requests())
def test_the_data_of_every_kind_survives_being_written_down(view: NodeView, request: Request) -> None:
    found = some(view, request)
    assert {type(each) for each in found} == set(get_args(EventData))
    for data in found:
        again = event_data_from_dict(event_name(data), event_data_to_dict(data))
        assert (type(again), again) == (type(data), data)


def test_a_step_is_called_by_its_own_kind() -> None:
    assert event_name(STEP) == "ResetGpu"


def test_no_data_is_read_of_an_unknown_kind() -> None:
    assert event_data_from_dict("Sung", {"key": "d"}) is None
