"""How long 56 claims at once take to be prepared, by Tranche and by NVIDIA's driver, each on the same node in turn.

GPU operations take no time, so what is measured is what the drivers add to NVML's own. MIG mode is on from the start, since
NVIDIA's driver changes no A100's. A cluster of its own is made and removed: root on Linux only.

NVIDIA's driver for claims is built once from its published module, as `go/go.mod` pins it. It runs as it is released, on the
simulated machine's NVML and the files around it. Its containers get device files that lead nowhere, and its hooks do nothing.

How long a claim took stands in the kubelet's log, whichever driver answers. With a log level of 4 or more a kubelet tells each
call of a driver, and each answer, in microseconds.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from cluster.agents import agent_on
from cluster.binaries import build
from cluster.claims import DRIVER, claim_template, claims_in, devices_published, give_by_claims, with_claim
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.units import Unit
from cluster.waiting import wait_for
from cluster.workloads import phases, pod, pods_in
from release.go_build import GoModule
from release.progress import Say, say_beside

from bench.own_cluster import P4D, own_cluster
from bench.report import Report
from tranche_simulator.build import cache_directory, ensure_built

CLAIMS, SINGLE_CLAIMS = 56, 10
ROUNDS = 3
P50_GOAL, P99_GOAL = 30.0, 150.0
SINGLE_P50_GOAL, SINGLE_P99_GOAL = 5.0, 15.0
OURS = "Tranche"
_NAMESPACE = "claims"
_PROFILE = "1g.5gb"
# Its limit of requests to the API server out of the way; see `--kube-api-qps` of NVIDIA's driver, 5 a second unless told.
_UNLIMITED = ("--kube-api-qps=1000", "--kube-api-burst=1000")
_TIMEOUT = 600.0
NVIDIA_DRIVER = "gpu.nvidia.com"
NVIDIA_CLASS = "mig.nvidia.com"
GO_MODULE = GoModule(Path(__file__).parent / "go")
_PATH = "sigs.k8s.io/dra-driver-nvidia-gpu"
_SHARED_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_NULL = os.makedev(1, 3)
LOG_LEVEL = 4
_LINE = re.compile(
    r'^I(\d{4} \d\d:\d\d:\d\d\.\d{6}) .*?"(Calling|Done calling) NodePrepareResources rpc" .*?driverName="([^"]+)"(.*)$',
    re.MULTILINE,
)
_ASKED = re.compile(r'\buid:\\?"([^"\\]+)')
_ANSWERED = re.compile(r'\bkey:\\?"([^"\\]+)\\?" +value:\{(devices|error)')


@dataclass(frozen=True, slots=True)
class Contender:
    """A driver that prepares claims. `serving` runs it on a node for as long as its block lasts."""

    name: str
    driver: str
    template: dict[str, Any]
    serving: Callable[[Cluster, Node], AbstractContextManager[object]]


def run(report: Report) -> None:
    """Measure both; ClusterError where no cluster can run, or NVIDIA's driver cannot be built."""
    measured = _measured(_contenders(ensure_nvidia_driver(say_beside)))
    report.section(
        f"{CLAIMS} claims at once, beside NVIDIA's driver",
        f"{CLAIMS} pods, each with a claim for {_PROFILE}, arrive together on a node with eight A100-40GB GPUs and no instances.",
        f"Then the same pods arrive again and use existing instances. Finally, {SINGLE_CLAIMS} pods arrive one by one.",
        "A claim's time is measured from the kubelet's first NodePrepareResources call until the response."
        " GPU operations take no time.",
        f"NVIDIA's driver is {pinned_version()} with the DynamicMIG feature gate.",
        f"Times are medians of {ROUNDS} rounds: milliseconds for claims, seconds for pods.",
    )
    rows = []
    for name, batches in measured.items():
        cells = []
        for several in zip(*batches, strict=True):
            p50, p99, running = (median(values) for values in zip(*map(_figures, several), strict=True))
            cells += [f"{p50:,.1f}, {p99:,.1f}", f"{running:.1f}"]
        rows.append([name, *cells[:5]])
    report.table(["", "at once: p50, p99", "all run", "again: p50, p99", "all run", "one by one: p50, p99"], rows)
    for which, text, (p50_goal, p99_goal) in (
        (0, f"{CLAIMS} claims at once", (P50_GOAL, P99_GOAL)),
        (2, "claims one by one", (SINGLE_P50_GOAL, SINGLE_P99_GOAL)),
    ):
        p50, p99 = (
            median(values) for values in zip(*(_figures(each[which])[:2] for each in measured[OURS]), strict=True)
        )
        report.verdict(
            f"Tranche prepares {text} within {p50_goal:g} ms at p50 and {p99_goal:g} ms at p99.",
            p50 <= p50_goal and p99 <= p99_goal,
        )


def _contenders(program: Path) -> tuple[Contender, ...]:
    ours = claim_template("ours", _NAMESPACE, device_class=f"{_PROFILE.replace('.', '-')}.gpu.tranche.dev")
    theirs = claim_template("theirs", _NAMESPACE, device_class=NVIDIA_CLASS)
    (request,) = theirs["spec"]["spec"]["devices"]["requests"]
    chosen = f"device.attributes['{NVIDIA_DRIVER}'].profile == '{_PROFILE}'"
    request["exactly"]["selectors"] = [{"cel": {"expression": chosen}}]

    def serving(*options: str) -> Callable[[Cluster, Node], AbstractContextManager[object]]:
        return lambda cluster, node: nvidia_driver_on(cluster, node, program, CLAIMS, *options)

    return (
        Contender(OURS, DRIVER, ours, _agent),
        Contender("NVIDIA's driver", NVIDIA_DRIVER, theirs, serving()),
        Contender("the same without its API rate limit", NVIDIA_DRIVER, theirs, serving(*_UNLIMITED)),
    )


def _measured(contenders: Sequence[Contender]) -> dict[str, list[tuple[ClaimBatch, ...]]]:
    """By contender and round: the batch on a machine without instances, the one after it, and the claims one after another."""
    found: dict[str, list[tuple[ClaimBatch, ...]]] = {each.name: [] for each in contenders}
    with own_cluster(P4D, time_scale=0.0) as cluster:
        (node,) = cluster.nodes
        _prepare(cluster, node, contenders)
        for number in range(ROUNDS):
            for each in contenders:
                _renew(node)
                with each.serving(cluster, node):
                    batches = tuple(_batch(cluster, node, each, pods) for pods in (CLAIMS, CLAIMS, 1))
                # The kubelet takes half a minute to remove them, and the scheduler would believe them.
                cluster.api.delete_all("/apis/resource.k8s.io/v1/resourceslices")
                found[each.name].append(batches)
                p50, p99, _ = _figures(batches[0])
                say_beside(f"round {number + 1}, {each.name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
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
    return ClaimBatch(tuple(1000 * each.seconds for each in done), seconds)


@dataclass(frozen=True, slots=True)
class Preparation:
    """One claim from the first call for it until it was prepared, in seconds, the kubelet's pauses between calls included."""

    uid: str
    seconds: float


def preparations(log: str, driver: str) -> tuple[Preparation, ...]:
    """The claims that a driver of that name has prepared, in the order in which they were; an open call counts as none."""
    asked: dict[str, float] = {}
    found = []
    for moment, word, name, rest in _LINE.findall(log):
        if name != driver:
            continue
        seconds = _seconds(moment)
        if word == "Calling":
            for uid in _ASKED.findall(rest):
                asked.setdefault(uid, seconds)
            continue
        for uid, outcome in _ANSWERED.findall(rest):
            if outcome == "devices" and uid in asked:
                found.append(Preparation(uid, seconds - asked.pop(uid)))
    return tuple(found)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that such a share of all lies at or below, to the nearest of them."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def _seconds(moment: str) -> float:
    # The log names no year; any leap year will do.
    return datetime.strptime(f"2000{moment} +0000", "%Y%m%d %H:%M:%S.%f %z").timestamp()


class ClaimBatch(NamedTuple):
    """How long each claim took in milliseconds; and until all pods ran, in seconds."""

    claims: tuple[float, ...]
    running: float


def _figures(batch: ClaimBatch) -> tuple[float, float, float]:
    return percentile(batch.claims, 0.5), percentile(batch.claims, 0.99), batch.running


def pinned_version() -> str:
    """The release that is built, such as v0.4.1."""
    return GO_MODULE.versions[_PATH]


def ensure_nvidia_driver(say: Say) -> Path:
    """The driver's program, which is built if it is not there: about two minutes of processor time.

    Raises:
        UnsuitableMachine: there is no Go.
        ReleaseError: a module cannot be fetched or compiled.
    """
    target = cache_directory() / "cluster" / f"nvidia-driver-{GO_MODULE.pins}"
    if not target.is_file():
        programs = {target.name: f"{_PATH}/cmd/gpu-kubelet-plugin"}
        build(GO_MODULE, programs, target.parent, f"NVIDIA's driver {pinned_version()}", say, cgo=True)
    return target


@contextmanager
def nvidia_driver_on(cluster: Cluster, node: Node, program: Path, devices: int, *options: str) -> Iterator[Unit]:
    """Run it on a node whose GPUs are in MIG mode, once it shows so many devices or more; it is ended with the block."""
    root = _driver_root(cluster, node)
    cuttable = f"device.driver == '{NVIDIA_DRIVER}' && device.attributes['{NVIDIA_DRIVER}'].type == 'mig'"
    cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": NVIDIA_CLASS},
            "spec": {"selectors": [{"cel": {"expression": cuttable}}]},
        }
    )
    own = (
        f"--kubeconfig={cluster.kubeconfig}",
        f"--node-name={node.name}",
        "--cdi-root=/run/cdi",
        f"--nvidia-driver-root={root}",
        f"--container-driver-root={root}",
        "--nvidia-cdi-hook-path=/bin/true",
        "--image-name=none",
        "--feature-gates=DynamicMIG=true",
        "-v=4",
    )
    command = ["tranche", "sim", "exec", node.name, "--", str(program), *own, *options]
    environment = {**node.environment(), "TRANCHE_SIM_ROOT": str(cluster.folder / "machines")}
    unit = node.start_program("nvidia-driver", command, environment)
    try:
        wait_for(
            "NVIDIA's driver shows its devices",
            lambda: len(devices_published(cluster, node)) >= devices,
            explain=unit.log_end,
        )
        yield unit
    finally:
        unit.stop()


def _driver_root(cluster: Cluster, node: Node) -> Path:
    """A folder with libraries, nvidia-smi and device files where the driver looks for those of an installation."""
    built = ensure_built()
    root = cluster.folder / "nvidia-driver"
    libraries, programs, devices = root / "usr" / "lib64", root / "usr" / "bin", root / "dev"
    for folder in (libraries, programs, devices):
        folder.mkdir(parents=True, exist_ok=True)
    for library in built.library.parent.iterdir():
        shutil.copy(library, libraries)
        shutil.copy(library, libraries / f"{library.name.removesuffix('.1')}.{node.machine.driver}")
    shutil.copy(built.nvidia_smi, programs)
    for name in (*(f"nvidia{gpu.index}" for gpu in node.machine.gpus()), *_SHARED_FILES):
        if not (devices / name).exists():
            os.mknod(devices / name, stat.S_IFCHR | 0o666, _NULL)
    return root
