"""A node is restarted while pods hold its slices: what they had is free again, and nothing else is; else it is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.machines import Node, node_of
from tests.node.processes import in_child
from tests.strategies import node_views
from tranche.boot.cut import BootCut
from tranche.core.allocation import NodeView, Slice, nearest_request
from tranche.core.errors import TrancheError
from tranche.core.keeper import PodKeeper
from tranche.core.layout import LayoutFile
from tranche.core.partition import parse_partition
from tranche.node.processes.pod_processes import any_pod_runs
from tranche.node.recovery.recovery import boot_time, ended_with_the_machine

BEFORE, START, AFTER = 1_000.0, 5_000.0, 9_000.0
BOARDS = ("A100-40GB", "H100-80GB-SXM")


def cut(node: Node, *, pods_run: bool | None = False) -> tuple[str, list[int], int]:
    """How a cut at boot ends, as an error's word; the slices of each GPU then, and how many shares there are."""

    def work() -> tuple[str, list[int], int]:
        job = BootCut(
            parse_partition("7*19"),
            LayoutFile(),
            node.host,
            lambda: True,
            0.0,
            booted=lambda: START,
            pods_run=lambda: pods_run,
        )
        reason = ""
        try:
            job.carry_out()
        except TrancheError as error:
            reason = error.reason
        with node.host() as host:
            view = host.view()
            slices = [sum(len(each.compute_instances) for each in gpu.instances) for gpu in view.node]
            return reason, slices, len(view.allocations)

    return in_child(work)


def hold(node: Node, created: float) -> int:
    """Have a pod hold each slice since then; how many."""

    def work() -> int:
        with node.host(clock=lambda: created) as host:
            held = [Slice(gpu.uuid, i.profile, i.placement) for gpu in host.view().node for i in gpu.instances]
            for number, each in enumerate(held):
                keeper = PodKeeper("nvidia.com/gpu", "default", f"pod-{number}", "c", f"uid-{number}", "run")
                host.add_holder(keeper, nearest_request((each,)), (each,))
            return len(held)

    return in_child(work)


@pytest.mark.parametrize("board", BOARDS)
def test_slices_of_pods_come_back_after_a_restart(tmp_path: Path, board: str) -> None:
    node = node_of(tmp_path, board, board)
    assert cut(node) == ("", [7, 7], 0)
    assert hold(node, BEFORE) == 14
    node.machine.reboot()
    assert cut(node) == ("", [7, 7], 0)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize(("created", "pods_run"), [(BEFORE, True), (BEFORE, None), (AFTER, False)])
def test_what_may_be_held_stays_and_missing_slices_are_an_error(
    tmp_path: Path, board: str, created: float, pods_run: bool | None
) -> None:
    node = node_of(tmp_path, board)
    cut(node)
    hold(node, created)
    assert cut(node, pods_run=pods_run) == ("", [7], 7)
    node.machine.reboot()
    assert cut(node, pods_run=pods_run) == ("GpuBusy", [0], 7)


@given(node_views(), st.floats(0, 2 * AFTER), st.booleans())
def test_only_pods_of_before_the_start_have_ended(view: NodeView, booted: float, pods_run: bool) -> None:
    ended = set(ended_with_the_machine(view.allocations, booted=booted, pods_run=pods_run))
    for each in view.allocations:
        older = isinstance(each.keeper, PodKeeper) and each.created < booted
        assert each.id not in ended or (older and not pods_run)
    assert ended_with_the_machine(view.allocations, booted=None, pods_run=False) == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(["cpu 1 2", "btime 1700000000", "processes 4"], 1.7e9), (["cpu 1"], None), (["btime x"], None)],
)
def test_the_kernel_says_when_it_was_started(tmp_path: Path, lines: Sequence[str], expected: float | None) -> None:
    (tmp_path / "stat").write_text("\n".join(lines))
    assert boot_time(tmp_path) == expected
    assert boot_time(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("pods_run", "said"),
    [(None, "kept 7 shares held by pods:"), (True, ""), (False, "released the shares that 7 pods held")],
)
def test_it_is_said_what_becomes_of_the_shares_of_pods(tmp_path: Path, pods_run: bool | None, said: str) -> None:
    node = node_of(tmp_path, "A100-40GB")
    cut(node)
    hold(node, BEFORE)

    def work() -> list[str]:
        told: list[str] = []
        partition = parse_partition("7*19")
        BootCut(
            partition,
            LayoutFile(),
            node.host,
            lambda: True,
            0.0,
            tell=told.append,
            booted=lambda: START,
            pods_run=lambda: pods_run,
        ).carry_out()
        return told

    told = [line for line in in_child(work) if not line.startswith("partitioning")]
    assert [line[: len(said)] for line in told] == ([said] if said else [])


def test_whether_pods_run_is_not_known_where_the_machines_processes_are_not_seen(tmp_path: Path) -> None:
    assert any_pod_runs(tmp_path, lambda: True) is False
    assert any_pod_runs(tmp_path, lambda: False) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("0::/kubepods/pod12-34/5\n")
    (tmp_path / "7" / "stat").write_text("7 (train) S 1" + " 0" * 48)
    assert any_pod_runs(tmp_path, lambda: False) is True
