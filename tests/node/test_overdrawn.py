"""Whose processes have more of a device's memory than their share was given, by the driver's list and what /proc shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hardware.gpus import GPU as CUT
from tranche.core.allocation import Allocation, FractionalShare, Phase, WholeGpu
from tranche.core.keeper import ClaimKeeper, Keeper, PodKeeper, ProcessKeeper
from tranche.core.quantity import GIB, MIB
from tranche.core.request import GpuMemory, Isolation, Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState, MigMode, NodeState
from tranche.node.limits.overdrawn import excess, with_overdrawn
from tranche.node.processes.processes import digest_of

GIVEN = 3 * GIB
KEEPER = ProcessKeeper(pid=7, key_digest=digest_of("secret"))
OWN = "TRANCHE_ALLOCATION=aaaa0001\0TRANCHE_KEY=secret\0"
EMPTY = "0::/\n"
GPU = replace(CUT, uuid="GPU-0", mode=MigMode.DISABLED, pending_mode=MigMode.DISABLED, instances=())
MPS, LIMITS = Sharing.MPS, Sharing.MEMORY_LIMITS


def share(sharing: Sharing = MPS, keeper: Keeper = KEEPER, phase: Phase = Phase.ACTIVE) -> Allocation:
    part = FractionalShare(WholeGpu("GPU-0"), GIVEN, sharing)
    return Allocation("aaaa0001", Request(GpuMemory(GIVEN)), (part,), phase, 0.0, keeper=keeper)


def gpu_with(proc: Path, *processes: tuple[str, str, int | None]) -> GpuState:
    """A GPU with these processes, each with its environment, its control groups and its memory."""
    listed = []
    for pid, (environment, groups, memory) in enumerate(processes, start=100):
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (proc / str(pid) / "environ").write_text(environment)
        (proc / str(pid) / "cgroup").write_text(groups)
        listed.append(GpuProcess(pid, "python", memory))
    return replace(GPU, processes=tuple(listed))


def used(proc: Path, allocation: Allocation, gpu: GpuState) -> int:
    (part,) = allocation.grants
    assert isinstance(part, FractionalShare)
    return excess(allocation, part, gpu, proc)


def test_processes_of_one_share_are_added_up(tmp_path: Path) -> None:
    each = (OWN, EMPTY, 2 * GIB)
    assert used(tmp_path, share(), gpu_with(tmp_path, each)) == 0
    assert used(tmp_path, share(), gpu_with(tmp_path, each, each)) == 4 * GIB


@pytest.mark.parametrize("sharing", [MPS, LIMITS])
def test_one_context_beside_the_share_is_passed_over(tmp_path: Path, sharing: Sharing) -> None:
    most = GIVEN + gpu_with(tmp_path).context_memory
    assert used(tmp_path, share(sharing), gpu_with(tmp_path, (OWN, EMPTY, most))) == 0
    assert used(tmp_path, share(sharing), gpu_with(tmp_path, (OWN, EMPTY, most + MIB))) == most + MIB


@pytest.mark.parametrize(
    ("environment", "groups"),
    [
        ("", EMPTY),
        ("TRANCHE_ALLOCATION=bbbb0002\0TRANCHE_KEY=secret\0", EMPTY),
        # Everybody can read a share's name, and nobody may discredit it.
        ("TRANCHE_ALLOCATION=aaaa0001\0TRANCHE_KEY=guess\0", EMPTY),
        ("TRANCHE_ALLOCATION=aaaa0001\0", EMPTY),
        ("", "0::/tranche-aaaa00011/x\n"),
        ("", "1:cpu:/tranche-aaaa0001\n0::/\n"),
    ],
)
def test_what_is_not_the_shares_own_does_not_count(tmp_path: Path, environment: str, groups: str) -> None:
    assert used(tmp_path, share(), gpu_with(tmp_path, (environment, groups, 9 * GIB))) == 0


@pytest.mark.parametrize("groups", ["0::/tranche-aaaa0001\n", "0::/user/tranche-aaaa0001/below\n"])
def test_the_control_group_tells_whose_a_process_is_that_has_lost_its_name(tmp_path: Path, groups: str) -> None:
    assert used(tmp_path, share(LIMITS), gpu_with(tmp_path, ("", groups, 9 * GIB))) == 9 * GIB


def test_a_process_that_cannot_be_looked_at_and_memory_that_is_not_known_do_not_count(tmp_path: Path) -> None:
    hidden = replace(GPU, processes=(GpuProcess(55, "gone", 9 * GIB),))
    assert used(tmp_path, share(), hidden) == 0
    assert used(tmp_path, share(), gpu_with(tmp_path, (OWN, EMPTY, None), (OWN, EMPTY, GIB))) == 0


@pytest.mark.parametrize(
    ("allocation", "marked"),
    [
        (share(), True),
        (share(LIMITS), True),
        (share(Sharing.TIME_SLICING), False),
        (share(phase=Phase.PREPARING), False),
        (share(keeper=PodKeeper("nvidia.com/gpu", "default", "a")), False),
        (share(keeper=ClaimKeeper("default", "a", "another")), False),
    ],
)
def test_only_a_share_with_limits_that_are_in_force_is_marked(
    tmp_path: Path, allocation: Allocation, marked: bool
) -> None:
    gpu = gpu_with(tmp_path, (OWN, EMPTY, 9 * GIB))
    (found,) = with_overdrawn((allocation,), NodeState((gpu,)), tmp_path)
    (part,) = found.grants
    assert isinstance(part, FractionalShare)
    assert part.unlimited is marked
    assert with_overdrawn((found,), NodeState((gpu,)), tmp_path) == (found,)
    assert with_overdrawn((allocation,), NodeState(()), tmp_path) == (allocation,)


POD = PodKeeper("nvidia.com/gpu", "default", "a", "main", "u-1")


def test_the_containers_of_a_pod_are_added_up_and_so_are_their_shares(tmp_path: Path) -> None:
    mine = [("", f"0::/kubepods.slice/kubepods-pod{uid}.slice/x\n", 3 * GIB) for uid in ("u_1", "u_1", "u_2")]
    gpu = gpu_with(tmp_path, *mine)
    one = share(keeper=POD)
    other = share(keeper=POD._replace(container="side"))._replace(id="bbbb0002")
    stranger = share(keeper=POD._replace(name="b", uid="u-2"))._replace(id="cccc0003")
    found = with_overdrawn((one, stranger), NodeState((gpu,)), tmp_path)
    assert [each.grants[0].walls.isolation for each in found] == [Isolation.NONE, Isolation.SOFT]
    assert with_overdrawn((one, other, stranger), NodeState((gpu,)), tmp_path) == (one, other, stranger)
    unlimited = other._replace(grants=(FractionalShare(WholeGpu("GPU-0"), GIVEN, MPS, limit=9 * GIB),))
    assert with_overdrawn((one, unlimited), NodeState((gpu,)), tmp_path) == (one, unlimited)


def test_the_processes_of_a_claim_are_known_by_its_name_in_their_environment(tmp_path: Path) -> None:
    gpu = gpu_with(tmp_path, ("TRANCHE_CLAIM_u_1=/x\0", EMPTY, 9 * GIB), ("TRANCHE_CLAIM_u_2=/x\0", EMPTY, GIB))
    for uid, sum_of_it in (("u-1", 9 * GIB), ("u-2", 0), ("u-3", 0)):
        assert used(tmp_path, share(keeper=ClaimKeeper("default", "a", uid)), gpu) == sum_of_it


def test_a_process_of_a_claims_pod_is_the_claims_whatever_its_environment_says(tmp_path: Path) -> None:
    pod = "0::/kubepods/pod{}/main\n"
    gpu = gpu_with(
        tmp_path,
        ("", pod.format("p-1"), 4 * GIB),
        ("TRANCHE_CLAIM_u_9=/x\0", pod.format("p-1"), 2 * GIB),
        ("TRANCHE_CLAIM_u_1=/x\0", pod.format("p-2"), 8 * GIB),
        ("TRANCHE_CLAIM_u_2=/x\0", pod.format("p-1"), GIB),
    )
    one, two = (ClaimKeeper("default", f"c{n}", f"u-{n}", ("p-1",)) for n in (1, 2))
    assert used(tmp_path, share(keeper=one), gpu) == 7 * GIB
    both = [share(keeper=one), share(keeper=two)._replace(id="bbbb0002")]
    (part,) = both[0].grants
    assert isinstance(part, FractionalShare)
    assert excess(both[0], part, gpu, tmp_path, both) == 6 * GIB, "a pod's claims are told apart by name"


@given(st.lists(st.integers(0, 4 * GIB), max_size=6))
def test_a_share_is_marked_exactly_when_its_sum_is_above(
    tmp_path_factory: pytest.TempPathFactory, amounts: list[int]
) -> None:
    proc = tmp_path_factory.mktemp("proc")
    gpu = gpu_with(proc, *[(OWN, EMPTY, amount) for amount in amounts])
    above = sum(amounts) > GIVEN + gpu.context_memory
    assert used(proc, share(), gpu) == (sum(amounts) if above else 0)
