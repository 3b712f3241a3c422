"""The guides that are walks on a cluster, carried out as written: the page shows what is printed, and its end leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from cluster.cluster import remove_cluster
from cluster.host import cluster_directories

from tests.cluster.machine_state import MachineState, assert_left_as
from tests.console_blocks import console_sessions, matches, run_sessions

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
_LEFT_OUT = ("KUBECONFIG", "MAKEFLAGS", "MAKELEVEL", "NODES")


@pytest.mark.parametrize("page", ["56-pods-on-one-p4d", "dynamic-mig", "mixed-slices-on-one-p5", "virtual-gpus"])
def test_a_guide_does_what_it_says(suitable_machine: None, own_cluster: None, page: str) -> None:
    if any(folder.name == "dev" for folder in cluster_directories()):
        pytest.skip(
            "the walks make and remove the cluster 'dev', which is there already; remove it with: make cluster-down"
        )
    before = MachineState.now("dev")
    sessions = list(console_sessions((ROOT / "docs" / "guides" / f"{page}.md").read_text()))
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    environment["TRANCHE_CLUSTER_OWNER"] = str(os.getpid())
    try:
        outputs = run_sessions(sessions, folder=ROOT, environment=environment)
        assert not any(folder.name == "dev" for folder in cluster_directories())
        assert_left_as(before, "dev", _comparable())
    finally:
        remove_cluster("dev")  # which the page has done, unless it broke off
    wrong = [
        f"$ {session.command}\nexpected:\n{_text(session.output)}\nprinted:\n{_text(printed)}"
        for session, printed in zip(sessions, outputs, strict=True)
        if not matches(session.output, printed)
    ]
    assert not wrong, "\n\n".join(wrong)


def _comparable() -> Sequence[str]:
    """What can be compared with before: only what names the cluster, where other processes' tests move clusters of their own."""
    beside_others = "PYTEST_XDIST_WORKER" in os.environ and bool(cluster_directories())
    return ("cgroups", "programs") if beside_others else MachineState.__slots__


def _text(lines: tuple[str, ...]) -> str:
    return "\n".join(f"  {line}" for line in lines)
