"""The guides that are walks on a cluster, carried out as written: the page shows what is printed, and its end leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cluster.cluster import remove_cluster
from cluster.host import cluster_directories

from tests.cluster.machine_state import MachineState, assert_left_as
from tests.support.page_commands import PAGES, Command, Walk, commands, executed, problems

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
GUIDES = {
    name: Walk(executed(f"docs/guides/{name}.md")) for name in ("static-mig-walkthrough", "dynamic-mig", "virtual-gpus")
}


def on_cluster(*pages: str, before: str, replacing: Mapping[str, str] | None = None) -> Walk:
    """A walk through what pages run on a cluster, one after the other."""
    found = [command for page in pages for command in executed(page, "cluster")]
    return Walk(tuple(found), replacing or {}, before)


_RUNBOOKS = tuple(page for page in PAGES if page.startswith("docs/runbooks/"))
# `helm install` makes room for itself, and gets the simulated machines and the image of the nodes.
_CLUSTER = r"""made=$(mktemp -d) NODE=p4d REGISTRY=registry
make -s image && eval "$(make -s cluster)" && export PATH="$PWD/.venv/bin:$PATH"
.venv/bin/python -m cluster values > $made/my-values.yaml
fresh() {
  ! command helm status tranche --namespace tranche-system > /dev/null 2>&1 ||
    command helm uninstall tranche --namespace tranche-system --timeout=5m
  kubectl delete namespace tranche-system --ignore-not-found --timeout=2m
}
helm() {
  [ "$1" = install ] || { command helm "$@"; return; }
  ! command helm status tranche --namespace tranche-system > /dev/null 2>&1 ||
    command helm uninstall tranche --namespace tranche-system --timeout=5m
  command helm "$@" --values $made/my-values.yaml --set image.repository=tranche-agent
}
agents() { kubectl rollout status daemonset/tranche-agent --namespace tranche-system --timeout=180s; }"""
_JOB = """agents && kubectl create namespace team-a
until tranche submit --gpu-memory 4G --name train --image localhost/busybox:1 -- sh -c 'trap exit TERM; while :; do sleep 1; done'
do [ $((++tries)) -lt 60 ] || break; sleep 1; done
tranche job wait train --for running --timeout 2m
POD=$(kubectl get pods -l tranche.dev/job=train -o jsonpath='{.items[0].metadata.name}')"""
_NO_JOBS = """for namespace in default team-a; do
  kubectl delete jobs --all --namespace $namespace && kubectl wait --for=delete pod --all --namespace $namespace --timeout=2m
done
fresh
kubectl label node p4d tranche.dev/gpu- tranche.dev/mode-
kubectl annotate node p5 tranche.dev/keep-"""
_STATIC = """fresh; kubectl create namespace tranche-system
helm install tranche deploy/chart/tranche --namespace tranche-system --set migStrategy=mixed --set dra.enabled=true \\
  --set controller.enabled=true
agents && kubectl rollout status deployment/tranche-agent-controller --namespace tranche-system --timeout=180s"""
_A_POD = """kubectl wait node/p4d --for=jsonpath='{.status.allocatable.nvidia\\.com/mig-1g\\.5gb}'=56 --timeout=120s
kubectl apply -f - <<'END'
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: localhost/busybox:1
      imagePullPolicy: Never
      command: [sh, -c, "trap exit TERM; while :; do sleep 1; done"]
      resources: {limits: {nvidia.com/mig-1g.5gb: 1}}
END
kubectl wait pod/train --for=condition=Ready --timeout=2m
until tranche doctor --cluster > /dev/null; do [ $((++looks)) -lt 60 ] || break; sleep 1; done"""
ON_ONE_CLUSTER = (
    Walk((), before=_CLUSTER),
    on_cluster("docs/guides/test-cluster.md", before="true"),
    on_cluster("docs/guides/install.md", before="agents && fresh"),
    on_cluster("README.md", before="fresh", replacing={"node NODE": "node p4d"}),
    on_cluster(
        "docs/guides/annotations.md",
        "docs/guides/jobs.md",
        "docs/reference/agent.md",
        "docs/reference/cli.md",
        "docs/guides/cluster-dashboard.md",
        before=_JOB,
        replacing={
            "node NODE": "node p5",
            "registry.example.com/train": "localhost/busybox:1",
            "registry/train:1": "localhost/busybox:1",
            "pod/train-x7k2p-0 -n team-a": "pod/$POD",
            "train-x7k2p": "train",
            "-o bundle.tar.gz": "-o $made/of-reference.tar.gz",
            "kubectl -n tranche-system port-forward service/tranche-agent-dashboard 8899:80": (
                "kubectl -n tranche-system rollout status deployment/tranche-agent-dashboard --timeout=2m &&"
                " { timeout 5 kubectl -n tranche-system port-forward service/tranche-agent-dashboard 8899:80; [ $? = 124 ]; }"
            ),
        },
    ),
    Walk((), before=_NO_JOBS),
    on_cluster(
        "docs/guides/from-fractions.md",
        before="kubectl create namespace tranche-system",
        replacing={"my-values.yaml": "$made/my-values.yaml"},
    ),
    on_cluster("docs/guides/static-mig.md", before=_STATIC, replacing={"node NODE": "node p4d"}),
    on_cluster(
        *_RUNBOOKS,
        "docs/troubleshooting.md",
        "docs/guides/time-slicing.md",
        before=_A_POD,
        replacing={
            "spec.nodeName=NODE": "spec.nodeName=p4d",
            "node NODE": "node p4d",
            "name=NODE": "name=p4d",
            "LAYOUT": "all-1g.5gb",
            "NODE.tar.gz": "$made/node.tar.gz",
            "-o bundle.tar.gz": "-o $made/bundle.tar.gz",
            "NAMESPACE POD": "default train",
            "pod/POD -n NAMESPACE": "pod/train -n default",
        },
    ),
    on_cluster(
        "docs/guides/eks.md",
        before="kubectl delete pod train && fresh && kubectl create namespace tranche-system",
        replacing={"node NODE": "node p4d"},
    ),
    Walk((), before="make -s cluster-down; rm -r $made"),
)
"""What the other pages run on a cluster, in an order in which each finds what it speaks of."""
EXECUTED = tuple(command for walk in (*GUIDES.values(), *ON_ONE_CLUSTER) for command in walk.commands)


@pytest.mark.parametrize(
    "page",
    [page if page == "virtual-gpus" else pytest.param(page, marks=pytest.mark.long) for page in GUIDES],
)
def test_a_guide_does_what_it_says(suitable_machine: None, own_cluster: None, page: str) -> None:
    _carry_out(GUIDES[page].steps())


@pytest.mark.long
def test_the_commands_of_the_other_pages_succeed(suitable_machine: None, own_cluster: None) -> None:
    _carry_out([step for walk in ON_ONE_CLUSTER for step in walk.steps()])


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
    _carry_out(commands("docs/guides/dynamic-mig.md", page))


def _carry_out(steps: Sequence[Command]) -> None:
    if any(folder.name == "dev" for folder in cluster_directories()):
        pytest.skip(
            "the walks make and remove the cluster 'dev', which is there already; remove it with: make cluster-down"
        )
    before = MachineState.now("dev")
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    environment["TRANCHE_CLUSTER_OWNER"] = str(os.getpid())
    try:
        # The person who runs the tests may have detached runs, which `tranche job` would look through first.
        with TemporaryDirectory() as state:
            wrong = problems(steps, ROOT, {**environment, "XDG_STATE_HOME": state})
        assert not any(folder.name == "dev" for folder in cluster_directories())
        assert_left_as(before, "dev", _comparable())
    finally:
        remove_cluster("dev")  # which the page has done, unless it broke off
    assert not wrong, "\n\n".join(wrong)


def _comparable() -> Sequence[str]:
    """What can be compared with before: only what names the cluster, where other processes' tests move clusters of their own."""
    beside_others = "PYTEST_XDIST_WORKER" in os.environ and bool(cluster_directories())
    return ("cgroups", "programs") if beside_others else MachineState.__slots__
