"""How long 56 claims at once take to be prepared, by Tranche and by NVIDIA's driver, each on the same node in turn.

GPU operations take no time, so what is measured is what the drivers add to NVML's own. MIG mode is on from the start, since
NVIDIA's driver changes no A100's. A cluster of its own is made and removed: root on Linux only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from cluster.agents import agent_on
from cluster.claims import DRIVER, claim_template, claims_in, devices_published, give_by_claims, with_claim
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import phases, pod, pods_in

from bench import nvidia_driver
from bench.kubelet_calls import LOG_LEVEL, ClaimBatch, compare, preparations
from bench.own_cluster import P4D, own_cluster, say
from bench.report import Report

CLAIMS, SINGLE_CLAIMS = 56, 10
ROUNDS, LONG_ROUNDS = 1, 3
P50_GOAL, P99_GOAL = 5.0, 20.0
_NAMESPACE = "claims"
_PROFILE = "1g.5gb"
# Its limit of requests to the API server out of the way; see `--kube-api-qps` of NVIDIA's driver, 5 a second unless told.
_UNLIMITED = ("--kube-api-qps=1000", "--kube-api-burst=1000")
_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A driver that prepares claims. `serving` runs it on a node for as long as its block lasts."""

    name: str
    driver: str
    template: dict[str, Any]
    serving: Callable[[Cluster, Node], AbstractContextManager[object]]


def run(report: Report) -> None:
    """Measure both; ClusterError where no cluster can run, or NVIDIA's driver cannot be built."""
    rounds = LONG_ROUNDS if report.long else ROUNDS
    contenders = _contenders(nvidia_driver.ensure_driver(say))
    report.section(
        f"{CLAIMS} claims of {_PROFILE} at once on a node with eight A100 40 GB",
        f"NVIDIA's driver is {nvidia_driver.pinned_version()} with its gate DynamicMIG, as a process of the node; unlimited:",
        f"with {' '.join(_UNLIMITED)}. Tranche is the agent in its pod.",
        "GPU operations take no time. A claim takes from the kubelet's first call of NodePrepareResources to its answer, by",
        "the kubelet's log. In a round each driver has its turn on a machine without instances; then the same pods come",
        f"once more, for which Tranche has kept the slices, and then {SINGLE_CLAIMS} pods one after another. Cells:",
        f"median over the rounds, of which there are {rounds}.",
    )
    measured = _measured(contenders, rounds)
    for number, what in enumerate(("from no slice", "once more", "one after another")):
        compare(report, what, {name: [each[number] for each in batches] for name, batches in measured.items()})
    ours = [each[0] for each in measured[contenders[0].name]]
    p50, p99 = median(each.p50 for each in ours), median(each.p99 for each in ours)
    report.verdict(f"p50 of at most {P50_GOAL:g} ms and p99 of {P99_GOAL:g}", p50 <= P50_GOAL and p99 <= P99_GOAL)


def _contenders(program: Path) -> tuple[Contender, ...]:
    ours = claim_template("ours", _NAMESPACE, device_class=f"tranche-{_PROFILE.replace('.', '-')}")
    theirs = claim_template("theirs", _NAMESPACE, device_class=nvidia_driver.DEVICE_CLASS)
    (request,) = theirs["spec"]["spec"]["devices"]["requests"]
    chosen = f"device.attributes['{nvidia_driver.DRIVER}'].profile == '{_PROFILE}'"
    request["exactly"]["selectors"] = [{"cel": {"expression": chosen}}]

    def serving(*options: str) -> Callable[[Cluster, Node], AbstractContextManager[object]]:
        return lambda cluster, node: nvidia_driver.nvidia_driver_on(cluster, node, program, CLAIMS, *options)

    return (
        Contender("Tranche", DRIVER, ours, _agent),
        Contender("NVIDIA's driver", nvidia_driver.DRIVER, theirs, serving()),
        Contender("NVIDIA's, unlimited", nvidia_driver.DRIVER, theirs, serving(*_UNLIMITED)),
    )


def _measured(contenders: Sequence[Contender], rounds: int) -> dict[str, list[tuple[ClaimBatch, ...]]]:
    """By contender and round: the batch on a machine without instances, the one after it, and the claims one after another."""
    found: dict[str, list[tuple[ClaimBatch, ...]]] = {each.name: [] for each in contenders}
    with own_cluster(P4D, time_scale=0.0) as cluster:
        (node,) = cluster.nodes
        _prepare(cluster, node, contenders)
        for number in range(rounds):
            for each in contenders:
                _renew(node)
                with each.serving(cluster, node):
                    batches = tuple(_batch(cluster, node, each, pods) for pods in (CLAIMS, CLAIMS, 1))
                # The kubelet takes half a minute to remove them, and the scheduler would believe them.
                cluster.api.delete_all("/apis/resource.k8s.io/v1/resourceslices")
                found[each.name].append(batches)
                say(f"round {number + 1}, {each.name}: p50 {batches[0].p50:.1f} ms, p99 {batches[0].p99:.1f} ms")
    return found


def _prepare(cluster: Cluster, node: Node, contenders: Sequence[Contender]) -> None:
    """A namespace with the templates, and a kubelet that tells of its calls."""
    cluster.make_namespace(_NAMESPACE)
    cluster.apply(*{each.template["metadata"]["name"]: each.template for each in contenders}.values())
    verbosity = f"/api/v1/nodes/{node.name}/proxy/debug/flags/v"
    cluster.kubectl("replace", "--raw", verbosity, "--filename=-", stdin=str(LOG_LEVEL))


def _renew(node: Node) -> None:
    """A machine without instances whose GPUs are all in MIG mode."""
    node.renew_machine()
    node.run("nvidia-smi", "-mig", "1")
    for gpu in node.machine.gpus():
        node.machine.reset_gpu(gpu.index)


@contextmanager
def _agent(cluster: Cluster, node: Node) -> Iterator[object]:
    give_by_claims(cluster, node, "dynamic")
    try:
        with agent_on(cluster, node, "--with-dra", "--without=feature-labels") as agent:
            wait_for("the node's devices are shown", lambda: len(devices_published(cluster, node)) >= CLAIMS)
            yield agent
    finally:
        give_by_claims(cluster, node, None)


def _batch(cluster: Cluster, node: Node, contender: Contender, at_once: int) -> ClaimBatch:
    """Make 56 pods at once or a few one after another, each time until all run, and remove them."""
    log = node.unit("kubelet").log
    start = log.stat().st_size
    template = contender.template["metadata"]["name"]
    total = CLAIMS if at_once == CLAIMS else SINGLE_CLAIMS
    pods = [with_claim(pod(f"p{number}", _NAMESPACE, node=node.name), template) for number in range(total)]

    def explain() -> str:
        said = cluster.kubectl("get", "events", "--namespace", _NAMESPACE, "--field-selector=type=Warning")
        return said[-4000:]

    def all_run(number: int) -> bool:
        return phases(cluster, _NAMESPACE) == {"Running": number}

    begun = monotonic()
    for number in range(0, total, at_once):
        cluster.apply(*pods[number : number + at_once])
        wait_for("all run", partial(all_run, number + at_once), timeout=_TIMEOUT, explain=explain)
    seconds = monotonic() - begun
    done = preparations(log.read_bytes()[start:].decode(errors="replace"), contender.driver)
    if len(done) != total:
        raise ClusterError(f"the kubelet's log shows {len(done)} of {total} claims as prepared")
    cluster.api.delete_all(f"/api/v1/namespaces/{_NAMESPACE}/pods")
    wait_for("the pods are gone", lambda: not pods_in(cluster, _NAMESPACE), timeout=_TIMEOUT)
    wait_for("the claims are gone", lambda: not claims_in(cluster, _NAMESPACE), timeout=_TIMEOUT)
    return ClaimBatch.of(done, seconds)
