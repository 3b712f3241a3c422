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
OLDER = bool(os.environ.get("TRANCHE_OLDER_KUBERNETES"))
WITHOUT_CLAIMS = {
    "make -s cluster NODES='p4d=p4d.24xlarge p5=p5.48xlarge t4=g4dn.xlarge'": (
        f".venv/bin/python -m cluster up {'--older ' if OLDER else ''}p4d=p4d.24xlarge p5=p5.48xlarge t4=g4dn.xlarge"
    ),
    # A cluster of 1.33 is known for one without claims by itself.
    "--set dra.enabled=true": f"--set dra.enabled=true --set controller.enabled=true{'' if OLDER else ' --set dra.tier=gates'}",
    # A kubelet tells of a new resource within ten seconds.
    """ = 17 ]; do sleep 1; done
""": """ = 17 ]; do sleep 1; done
$ until [ "$(kubectl get nodes -o jsonpath='{..allocatable.tranche\\.dev/share}' | wc -w)" = 3 ]; do sleep 1; done
""",
    # The agent hears that a pod is gone, and then tells of its GPUs; a kubelet that gives a claim back waits for neither.
    """--selector=tranche.dev/job=small --timeout=60s
…
""": """--selector=tranche.dev/job=small --timeout=60s
…
$ until ! tranche gpus --cluster | grep -q default/small; do sleep 1; done
""",
    "others hold everything suitable on its 8 GPUs (56 places)": "0 of 8 memory slices free, but 1g.5gb needs 1",
    "  1. wait for pod default/big-… on node p4d to end; this frees enough room\n": (
        "  1. on node p4d: wait for pod default/big-… to end\n"
    ),
}
"""What is otherwise in a cluster without claims: the chart's values, and why a pod waits, which is said of GPUs."""

_LEFT_OUT = ("KUBECONFIG", "MAKEFLAGS", "MAKELEVEL", "NODES")


@pytest.mark.parametrize(
    "page",
    [
        "static-mig-walkthrough",
        *(pytest.param(page, marks=pytest.mark.long) for page in ("dynamic-mig", "virtual-gpus")),
    ],
)
def test_a_guide_does_what_it_says(suitable_machine: None, own_cluster: None, page: str) -> None:
    _carry_out((ROOT / "docs" / "guides" / f"{page}.md").read_text())


@pytest.mark.parametrize("claims", WITHOUT_CLAIMS)
def test_the_guide_says_what_is_otherwise_without_claims(claims: str) -> None:
    assert claims in (ROOT / "docs" / "guides" / "dynamic-mig.md").read_text()


@pytest.mark.long
def test_slices_on_the_fly_are_the_same_walk_in_a_cluster_without_claims(
    suitable_machine: None, own_cluster: None
) -> None:
    """By default where claims are to be had and the chart is told to do without; on 1.33 with TRANCHE_OLDER_KUBERNETES=1."""
    page = (ROOT / "docs" / "guides" / "dynamic-mig.md").read_text()
    for claims, gates in WITHOUT_CLAIMS.items():
        page = page.replace(claims, gates)
    _carry_out(page)


def _carry_out(text: str) -> None:
    if any(folder.name == "dev" for folder in cluster_directories()):
        pytest.skip(
            "the walks make and remove the cluster 'dev', which is there already; remove it with: make cluster-down"
        )
    before = MachineState.now("dev")
    sessions = list(console_sessions(text))
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
