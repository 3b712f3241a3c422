"""Why a request waits, said once for all GPUs that say the same, with shares by name and user before their ids."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from tests.strategies import gpu_on, node_views, requests, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import board_by_key
from tranche.core.errors import TrancheError
from tranche.core.grid import Placement
from tranche.core.keeper import Keeper, OwnerKind, PodKeeper, ProcessKeeper, ShareOwner
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.documents.holder_names import NO_OWNERS, Owners, names_of
from tranche.documents.reasons import summed_up
from tranche.planning.decide.allocate import Waiting, decide

PROCESS = ProcessKeeper(7, 7)
ONE = Request(WholeGpus(1))


def user(name: str) -> ShareOwner:
    return ShareOwner(OwnerKind.USER, name)


def share(
    number: int, grant: WholeGpu | Slice, command: str = "python train.py", keeper: Keeper = PROCESS
) -> Allocation:
    return Allocation(f"{number:08x}", ONE, (grant,), Phase.ACTIVE, 1.0, command, keeper)


def said(view: NodeView, request: Request = ONE, owners: Owners = NO_OWNERS) -> str:
    outcome = decide(view, request)
    assert isinstance(outcome, Waiting)
    return summed_up(outcome, names_of(view.allocations, (), owners))


def held_by(*users: str) -> tuple[NodeView, Owners]:
    """Uncut GPUs, each held by a share of one of the users."""
    gpus = [uncuttable_gpu(number) for number in range(len(users))]
    shares = [share(number, WholeGpu(gpu.uuid)) for number, gpu in enumerate(gpus)]
    return view_of(*gpus, allocations=shares), {
        each.id: user(name) for each, name in zip(shares, users, strict=True) if name
    }


def test_one_reason_of_all_gpus_is_said_once() -> None:
    view, owners = held_by("ada", "bob", "ada", "ada", "bob", "ada", "ada", "ada")
    assert said(view, owners=owners) == "all 8 GPUs are held: ada has 6 shares, bob 2"


def test_gpus_that_the_driver_has_lost_are_one_clause() -> None:
    gpus = [replace(uncuttable_gpu(number), lost=True) for number in range(2)]
    assert said(view_of(*gpus)) == "all 2 GPUs are lost: the driver cannot reach them"
    assert said(view_of(gpus[0])) == "GPU 0: the driver has lost it"


def test_users_that_nobody_knows_are_left_out() -> None:
    view, owners = held_by("ada", "", "ada", "")
    assert said(view, owners=owners) == "all 4 GPUs are held: ada has 2 shares, others 2"
    assert said(view) == "all 4 GPUs are held: 4 shares"


def test_a_few_shares_are_called_by_name_and_user_before_their_ids() -> None:
    view, owners = held_by("ada", "bob")
    train = "python train.py"
    assert said(view, owners=owners) == f"all 2 GPUs are held: {train} (ada) 00000000, {train} (bob) 00000001"
    assert said(view) == f"all 2 GPUs are held: {train} 00000000, {train} 00000001"
    alone, owners = held_by("ada")
    assert said(alone, owners=owners) == f"GPU 0: held whole by {train} (ada) 00000000"


def test_pods_count_for_their_namespaces() -> None:
    gpus = [uncuttable_gpu(number) for number in range(3)]
    pods = [PodKeeper("nvidia.com/gpu", "team-a", f"train-{number}", "main", "uid", "run") for number in range(3)]
    shares = [share(number, WholeGpu(gpu.uuid), "", pods[number]) for number, gpu in enumerate(gpus)]
    assert said(view_of(*gpus, allocations=shares)) == "all 3 GPUs are held: team-a has 3 shares"


def test_unlike_reasons_are_clauses_of_their_own_and_free_gpus_are_not_all() -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    half = parse_profile("3g.20gb")
    gpus = [gpu_on(board, 0), gpu_on(board, 1), gpu_on(board, 2), uncuttable_gpu(3), uncuttable_gpu(4)]
    spots = [(gpu, start) for gpu in gpus[:2] for start in (0, 4)]
    shares = [share(number, Slice(gpu.uuid, half, Placement(start, 4))) for number, (gpu, start) in enumerate(spots)]
    view = view_of(*gpus, allocations=shares)
    wanted = Request(MigSlice(half), count=2)
    told = said(view, wanted, {each.id: user("ada") for each in shares})
    assert (
        told
        == "GPUs 0-1 have no room for it: ada has 4 shares; GPUs 3-4: cannot be partitioned: it does not support MIG"
    )


@given(node_views(max_gpus=6), requests())
def test_every_gpu_that_is_in_the_way_is_told_of(view: NodeView, request: Request) -> None:
    try:
        outcome = decide(view, request)
    except TrancheError:
        return
    if isinstance(outcome, Waiting):
        told = summed_up(outcome, names_of(view.allocations, (), NO_OWNERS))
        assert told
        assert ("all " in told) or all(each.gpu_index < 6 for each in outcome.obstacles)
        assert told.count(";") <= "; ".join(outcome.reasons).count(";")
