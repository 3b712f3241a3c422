"""What an agent tells of its node is what the machine's own commands print, but for what is nobody else's business."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s, claimed
from tests.strategies import node_views, sharing_views
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu, WithheldDevice
from tranche.core.errors import UsageError
from tranche.core.grid import Placement
from tranche.core.keeper import PodKeeper, ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import GpuMemory, MigSlice, Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess
from tranche.documents.overview import overview_data
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.telling.told_view import (
    MOST_BYTES,
    ViewReport,
    steady,
    told,
    told_from_lease,
    told_node,
    told_to_lease,
)

OWNER = ("n1", "uid-n1")
views = st.one_of(node_views(), sharing_views())


def size_of(lease: Lease) -> int:
    return sum(len(key) + len(value) for key, value in lease.annotations.items())


@given(views)
def test_the_documents_made_of_the_lease_are_those_of_the_machine(view: NodeView) -> None:
    lease = told_to_lease(ViewReport("n1", told(view)), OWNER)
    heard = told_from_lease(lease)
    assert (heard.node, heard.short, told_node(lease)) == ("n1", False, "n1")
    wanted = overview_data(view, (), ())
    for each in wanted["allocations"]:
        each["command"] = ""
        each["keeper"] = {**each["keeper"], **({"keyDigest": ""} if "keyDigest" in each["keeper"] else {})}
    assert json.loads(json.dumps(overview_data(heard.view, (), ()))) == json.loads(json.dumps(wanted))


def test_what_is_withheld_is_told_with_its_reason() -> None:
    view = a100s(1)
    withheld = (WithheldDevice(WholeGpu(view.node.gpus[0].uuid), "cordoned by ana: a fan is broken"),)
    heard = told_from_lease(told_to_lease(ViewReport("n1", told(replace(view, withheld=withheld))), OWNER))
    assert heard.view.withheld == withheld


def test_commands_and_keys_stay_on_the_machine() -> None:
    request = Request(MigSlice(parse_profile("1g.5gb")))
    keeper = ProcessKeeper(7, 1, 2, "digest")
    held = Allocation("a-1", request, (), Phase.ACTIVE, 0.0, "python --password=x", keeper)
    (said,) = told(replace(a100s(1), allocations=(held,))).allocations
    assert (said.command, said.keeper) == ("", ProcessKeeper(7, 1, 2))


def test_a_gpu_of_which_a_change_takes_something_is_being_changed() -> None:
    view = a100s(2)
    first = view.node.gpus[0].uuid
    assert told(view, [first, "GPU-gone"]).changing == {first}


def test_amounts_of_memory_are_no_change_and_a_process_is_one() -> None:
    def with_process(*processes: GpuProcess, free: int = 1) -> NodeView:
        view = a100s(1)
        (gpu,) = view.node.gpus
        return replace(view, node=replace(view.node, gpus=(replace(gpu, processes=processes, memory_free=free),)))

    one, more = GpuProcess(1, "train", 100), GpuProcess(1, "train", 200)
    assert steady(with_process(one)) == steady(with_process(more, free=2))
    assert steady(with_process(one)) != steady(with_process(one, GpuProcess(2, "eval", 1)))


def test_a_full_node_fits_into_a_lease() -> None:
    """Eight GPUs, each shared by 48 pods, of which each has a process: more than any machine runs."""
    view = a100s(8)
    gib = 1024**3
    request = Request(GpuMemory(gib))
    held = tuple(
        Allocation(
            f"pod-{number:04d}-{number * 7919 % 65536:04x}",
            request,
            (FractionalShare(WholeGpu(view.node.gpus[number % 8].uuid), gib, Sharing.TIME_SLICING),),
            Phase.ACTIVE,
            1.6e9 + number,
            keeper=PodKeeper(
                "nvidia.com/gpu",
                f"team-{number % 17}",
                f"training-job-{number * 7919}-{number * 104729 % 99991:05d}",
                "main",
                f"{number * 15485863:08x}-0000-4000-8000-{number * 32452843:012x}",
                "kubelet-1",
                replicas=(f"{view.node.gpus[number % 8].uuid}::{number}",),
            ),
        )
        for number in range(384)
    )
    gpus = tuple(
        replace(gpu, processes=tuple(GpuProcess(10_000 + n * 13, f"python3.{n}", n * gib) for n in range(48)))
        for gpu in view.node.gpus
    )
    full = replace(view, node=replace(view.node, gpus=gpus), allocations=held)
    lease = told_to_lease(ViewReport("n1", told(full)), OWNER)
    assert size_of(lease) < 64 * 1024
    assert not told_from_lease(lease).short


def test_what_is_too_much_is_told_without_processes_and_then_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    view = a100s(1)
    (gpu,) = view.node.gpus
    crowd = tuple(
        GpuProcess(number, hashlib.sha256(str(number).encode()).hexdigest(), number) for number in range(9_000)
    )
    crowded = replace(view, node=replace(view.node, gpus=(replace(gpu, processes=crowd),)))
    lease = told_to_lease(ViewReport("n1", crowded), OWNER)
    heard = told_from_lease(lease)
    assert heard.short
    assert heard.view.node.gpus[0].processes == crowd[:1]
    assert heard.view.node.gpus[0].memory_free == gpu.memory_free
    assert size_of(lease) < 256 * 1024
    monkeypatch.setattr("tranche.kubernetes.telling.told_view.MOST_BYTES", 100)
    with pytest.raises(UsageError, match="larger than a lease can hold"):
        told_to_lease(ViewReport("n1", crowded), OWNER)
    assert MOST_BYTES < 256 * 1024


@pytest.mark.parametrize("packed", ["", "%", "AAAA", "H4sIAAAAAAAA"])
def test_what_cannot_be_read_is_an_error_and_not_an_empty_node(packed: str) -> None:
    lease = replace(
        told_to_lease(ViewReport("n1", claimed(a100s(1), _slice())), OWNER), annotations={"tranche.dev/view": packed}
    )
    with pytest.raises(UsageError):
        told_from_lease(lease)
    assert told_node(lease) == "n1"


@pytest.mark.parametrize(("name", "readable"), [("trainer \U0001f680", True), ("trainer \ud800", False)])
def test_half_a_character_is_not_read_and_a_whole_one_is(name: str, readable: bool) -> None:
    view = claimed(a100s(1), _slice())
    (gpu,) = view.node.gpus
    node = replace(view.node, gpus=(replace(gpu, name=name),))
    lease = told_to_lease(ViewReport("n1", replace(view, node=node)), OWNER)
    if readable:
        assert told_from_lease(lease).view.node.gpus[0].name == name
    else:
        with pytest.raises(UsageError):
            told_from_lease(lease)


def _slice() -> Slice:
    return Slice(a100s(1).node.gpus[0].uuid, parse_profile("1g.5gb"), Placement(0, 1))
