"""Virtual GPUs on a real kubelet: manifests of AWS's plugin run unchanged, each pod with its daemon and its own limit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from operator import sub
from pathlib import Path
from typing import Any

import pytest
from cluster.agents import agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import labels
from cluster.tenants import given, rates, tenants
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, deployment, log, phase, phases, pod, pods_in

from tests.cluster import test_device_plugin as plugin

pytestmark = pytest.mark.cluster

VGPU, GPU = "k8s.amazonaws.com/vgpu", "nvidia.com/gpu"
LOOK = f"nvidia-smi -L; echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; ls $CUDA_MPS_PIPE_DIRECTORY; {FOREVER}"


def allocatable(cluster: Cluster, node: Node) -> dict[str, int]:
    counted = cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"]
    return {name: int(count) for name, count in counted.items() if name in (VGPU, GPU)}


def wait_for_counts(cluster: Cluster, node: Node, **expected: int) -> None:
    wanted = {VGPU: expected["vgpu"], GPU: expected["gpu"]}

    def reached() -> bool:
        return allocatable(cluster, node) == wanted

    wait_for(f"{node.name} has {wanted}", reached, explain=lambda: str(allocatable(cluster, node)))


def as_aws_writes_it(name: str, namespace: str, replicas: int) -> dict[str, Any]:
    """A Deployment with the selector, the host's IPC and the mount of AWS's documentation."""
    made = deployment(name, namespace, replicas, script=LOOK, limits={VGPU: 1})
    spec = made["spec"]["template"]["spec"]
    spec["hostIPC"] = True
    spec["nodeSelector"] = {"k8s.amazonaws.com/accelerator": "vgpu"}
    spec["volumes"] = [{"name": "nvidia-mps", "hostPath": {"path": "/tmp/nvidia-mps", "type": "DirectoryOrCreate"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "nvidia-mps", "mountPath": "/tmp/nvidia-mps"}]
    return made


def what_it_sees(cluster: Cluster, namespace: str, name: str) -> list[str]:
    seen = wait_for(f"{name} has looked", lambda: "control" in (found := log(cluster, namespace, name)) and found)
    return str(seen).splitlines()


MIXED = """
version: v1
flags: {migStrategy: mixed}
sharing:
  mps:
    resources:
    - {name: nvidia.com/gpu, replicas: 10}
    - {name: nvidia.com/mig-3g.20gb, replicas: 3}
"""


@pytest.mark.long
def test_slices_are_shared_by_mps_each_with_a_daemon_of_its_own(cluster: Cluster, p4d: Node, namespace: str) -> None:
    install_rights(cluster)
    name = {"name": "sharing", "namespace": "tranche-system"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"default": MIXED}})
    resource = "nvidia.com/mig-3g.20gb"
    try:
        with agent_on(cluster, p4d, "--refresh-seconds=0.3", "--plugin-config-map=sharing", "--share-by-mps"):
            plugin.wait_for_counts(cluster, p4d, gpu=80)
            plugin.cut(p4d, "all-3g.20gb")
            plugin.wait_for_counts(cluster, p4d, mig_3g_20gb=48)
            wanted = {"sharing-strategy": "mps", "replicas": "3", "product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED"}
            expected = {"nvidia.com/mps.capable": "true", **{f"{resource}.{key}": each for key, each in wanted.items()}}
            wait_for("the labels", lambda: expected.items() <= labels(cluster, p4d).items())
            cluster.apply(deployment("many", namespace, 4, node=p4d.name, script=LOOK, limits={resource: 1}))
            wait_for("4 pods run", lambda: phases(cluster, namespace) == {"Running": 4}, timeout=120)
            for each in pods_in(cluster, namespace):
                _, device, limit, *sockets = what_it_sees(cluster, namespace, each["metadata"]["name"])
                assert "MIG 3g.20gb" in device
                assert 0 < int(limit.removeprefix("0=").removesuffix("M")) <= 20 * 1024 // 3
                assert "control" in sockets
            cluster.kubectl("delete", "deployment", "many", f"--namespace={namespace}")
            wait_for("the pods are gone", lambda: not pods_in(cluster, namespace), timeout=120)
    finally:
        p4d.renew_machine()


AS_NVIDIA_WRITES_IT = """
version: v1
sharing:
  mps:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""


@pytest.mark.long
def test_without_cuda_in_the_agents_container_nothing_is_shared_by_mps(cluster: Cluster, g4dn: Node) -> None:
    """The chart gives it without shareByMps none of CUDA; the programs are there, as in a mounted root of the driver."""
    install_rights(cluster)
    name = {"name": "sharing", "namespace": "tranche-system"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"default": AS_NVIDIA_WRITES_IT}})
    try:
        with agent_on(cluster, g4dn, "--refresh-seconds=0.3", "--plugin-config-map=sharing"):
            events = ("get", "events", "--all-namespaces", "--field-selector=reason=DevicesNotShared")
            wait_for("an event says why", lambda: "the chart's shareByMps=true" in cluster.kubectl(*events))
            plugin.wait_for_counts(cluster, g4dn)
    finally:
        g4dn.renew_machine()


@pytest.mark.long
def test_a_gpu_is_shared_by_mps_as_nvidias_documentation_has_it(cluster: Cluster, g4dn: Node, namespace: str) -> None:
    install_rights(cluster)
    name = {"name": "sharing", "namespace": "tranche-system"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"default": AS_NVIDIA_WRITES_IT}})
    try:
        with agent_on(cluster, g4dn, "--refresh-seconds=0.3", "--plugin-config-map=sharing", "--share-by-mps"):
            plugin.wait_for_counts(cluster, g4dn, gpu=10)
            wanted = {"sharing-strategy": "mps", "replicas": "10", "product": "Tesla-T4-SHARED"}
            expected = {"nvidia.com/mps.capable": "true", **{f"{GPU}.{key}": each for key, each in wanted.items()}}
            wait_for("the labels", lambda: expected.items() <= labels(cluster, g4dn).items())
            cluster.apply(deployment("many", namespace, 2, node=g4dn.name, script=LOOK, limits={GPU: 1}))
            wait_for("2 pods run", lambda: phases(cluster, namespace) == {"Running": 2}, timeout=120)
            for each in pods_in(cluster, namespace):
                device, limit, *sockets = what_it_sees(cluster, namespace, each["metadata"]["name"])
                assert "Tesla T4" in device
                assert limit == "0=1491M"
                assert "control" in sockets
            cluster.apply(pod("greedy", namespace, node=g4dn.name, limits={GPU: 2}))
            wait_for("a request for two fails", lambda: phase(cluster, namespace, "greedy") == "Failed")
            said = cluster.kubectl("describe", "pod", "greedy", f"--namespace={namespace}")
            assert "maximum request size for shared resources is 1; found 2" in said
            cluster.kubectl("delete", "deployment", "many", f"--namespace={namespace}")
            wait_for("the pods are gone", lambda: len(pods_in(cluster, namespace)) == 1, timeout=120)
    finally:
        g4dn.renew_machine()


def test_the_virtual_gpus_of_awss_plugin(cluster: Cluster, g4dn: Node, namespace: str) -> None:
    key = "k8s.amazonaws.com/accelerator"
    try:
        with agent_on(cluster, g4dn, "--refresh-seconds=0.3", "--vgpu=10") as agent:
            wait_for_counts(cluster, g4dn, vgpu=10, gpu=1)
            wait_for("the label of AWS's plugin", lambda: labels(cluster, g4dn).get(key) == "vgpu")
            cluster.apply(as_aws_writes_it("serving", namespace, 3))
            wait_for("3 pods run", lambda: phases(cluster, namespace) == {"Running": 3}, timeout=120)
            for each in pods_in(cluster, namespace):
                first, limit, *sockets = what_it_sees(cluster, namespace, each["metadata"]["name"])
                assert "Tesla T4" in first
                assert limit == "0=1491M", "a tenth of the 14,914 MiB that programs can use of a T4's 15,360"
                assert "control" in sockets
            wait_for_counts(cluster, g4dn, vgpu=10, gpu=0)
            cluster.kubectl("scale", "deployment", "serving", "--replicas=12", f"--namespace={namespace}")
            wait_for("10 run", lambda: phases(cluster, namespace) == {"Running": 10, "Pending": 2}, timeout=120)

            cluster.kubectl("delete", "deployment", "serving", f"--namespace={namespace}")
            wait_for("the pods are gone", lambda: not pods_in(cluster, namespace), timeout=120)
            wait_for_counts(cluster, g4dn, vgpu=10, gpu=1)
            agent.with_options("--refresh-seconds=0.3", "--vgpu=20").wait_until_ready()
            wait_for_counts(cluster, g4dn, vgpu=20, gpu=1)
    finally:
        cluster.kubectl("label", "node", g4dn.name, f"{key}-")
        g4dn.renew_machine()


def programs(cluster: Cluster, namespace: str) -> dict[str, tuple[str, int]]:
    """Each pod's container, and how often it was started again: a program that failed is another one now."""
    found = {}
    for each in pods_in(cluster, namespace):
        (status,) = each["status"]["containerStatuses"]
        found[each["metadata"]["name"]] = (status["containerID"], status["restartCount"])
    return found


def shares(cluster: Cluster, namespace: str) -> set[tuple[int, int]]:
    """The MiB and the multiprocessors that tenants were let have."""
    found = {given(cluster, namespace, name) for name in programs(cluster, namespace)}
    return {each for each in found if each is not None}


def daemons(node: Node) -> dict[int, str]:
    """The MPS daemons and servers that serve the node's GPUs, by pid, each with its control groups."""
    found = {}
    for pid in node.cgroup.running():
        with suppress(OSError):
            if b"nvidia-cuda-mps" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found[pid] = Path(f"/proc/{pid}/cgroup").read_text()
    return found


def wait_until_all_compute(cluster: Cluster, namespace: str) -> None:
    """Until each pod has computed for a second more than it has now."""

    def lines() -> dict[str, int]:
        return {name: len(rates(cluster, namespace, name)) for name in programs(cluster, namespace)}

    before = lines()
    wait_for("all pods compute", lambda: all(now > before[name] + 1 for name, now in lines().items()))


@pytest.mark.long
def test_pods_compute_on_within_their_limits_while_the_agents_pod_is_replaced(
    cluster: Cluster, g4dn: Node, namespace: str
) -> None:
    try:
        with agent_on(cluster, g4dn, "--refresh-seconds=0.3", "--vgpu=10") as agent:
            wait_for_counts(cluster, g4dn, vgpu=10, gpu=1)
            cluster.apply(tenants("busy", namespace, 3, VGPU))
            wait_for("3 pods run", lambda: phases(cluster, namespace) == {"Running": 3}, timeout=120)
            wait_until_all_compute(cluster, namespace)
            (share,) = shares(cluster, namespace)
            assert 1100 < share[0] <= 1491
            before, serving = programs(cluster, namespace), daemons(g4dn)
            assert len(serving) == 2, "the daemon and its server"
            assert all("tranche-mps" in groups and "kubepods" not in groups for groups in serving.values())

            for kill in (False, True):
                successor = agent.with_options(*agent.options)
                if kill:
                    successor.end()
                    successor = successor.restarted()
                successor.wait_until_ready()
                wait_for_counts(cluster, g4dn, vgpu=10, gpu=0)
                wait_until_all_compute(cluster, namespace)
                assert programs(cluster, namespace) == before, "no program has failed"
                assert daemons(g4dn) == serving

            cluster.kubectl("scale", "deployment", "busy", "--replicas=4", f"--namespace={namespace}")
            wait_for("4 pods run", lambda: phases(cluster, namespace) == {"Running": 4}, timeout=120)
            wait_until_all_compute(cluster, namespace)
            assert shares(cluster, namespace) == {share}, "the limits are in force for newcomers, too"

            other = tenants("other-user", namespace, 1, VGPU)
            other["spec"]["template"]["spec"]["securityContext"] = {"runAsUser": 1000}
            cluster.apply(other)
            wait_for("5 pods run", lambda: phases(cluster, namespace) == {"Running": 5}, timeout=120)
            wait_until_all_compute(cluster, namespace)
            assert shares(cluster, namespace) == {share}
            cluster.kubectl("delete", "deployment", "busy", "other-user", f"--namespace={namespace}")
            wait_for("the pods are gone", lambda: not pods_in(cluster, namespace), timeout=120)
            wait_for_counts(cluster, g4dn, vgpu=10, gpu=1)
            wait_for("the daemon has ended", lambda: not daemons(g4dn))
            mode = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
            wait_for("the compute mode is as before", lambda: g4dn.run(*mode) == "Default\n")
    finally:
        g4dn.renew_machine()


def computed(node: Node) -> list[float]:
    """Seconds of the whole GPU that each client of MPS has had, in the order in which the driver lists them."""
    return [each.compute_seconds for each in node.machine.clients() if each.mps_server is not None]


@pytest.mark.long
def test_ten_tenants_compute_evenly_and_newcomers_have_what_was_set_meanwhile(
    cluster: Cluster, g4dn: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    usual = ("--refresh-seconds=0.3", "--vgpu=10")

    def scale(replicas: int) -> None:
        cluster.kubectl("scale", "deployment", "busy", f"--replicas={replicas}", f"--namespace={namespace}")
        wait_for("they run", lambda: phases(cluster, namespace) == {"Running": replicas}, timeout=120)
        wait_until_all_compute(cluster, namespace)

    try:
        with agent_on(cluster, g4dn, *usual) as agent:
            wait_for_counts(cluster, g4dn, vgpu=10, gpu=1)
            cluster.apply(tenants("busy", namespace, 10, VGPU))
            wait_for("10 pods run", lambda: phases(cluster, namespace) == {"Running": 10}, timeout=180)
            wait_until_all_compute(cluster, namespace)
            ((memory, multiprocessors),) = shares(cluster, namespace)
            assert multiprocessors == 40
            before = computed(g4dn)
            assert len(before) == 10
            # Seconds of the GPU, not of the clock. A tenant that was kept from its processor for longer than its kernels last
            # has less of it, through no fault of the limits.
            wait_for("each has computed", lambda: min(map(sub, computed(g4dn), before)) > 1)
            had = list(map(sub, computed(g4dn), before))
            record_property("figure", f"ten tenants computed evenly to {min(had) / max(had):.3f}")
            assert min(had) > 0.8 * max(had), had

            scale(3)
            before_change = programs(cluster, namespace)
            agent = agent.with_options(*usual, "--vgpu-thread-percentage=20")
            agent.wait_until_ready()
            scale(4)
            assert {number for _, number in shares(cluster, namespace)} == {40, 8}, "a fifth of 40"
            agent = agent.with_options(*usual, "--vgpu-memory-limit=false")
            agent.wait_until_ready()
            scale(5)
            most, number = max(shares(cluster, namespace))
            assert most > 5 * memory
            assert number == 40
            assert before_change.items() <= programs(cluster, namespace).items(), "who ran runs on"
            told = g4dn.run("tranche", "ps", "-o", "json")
            walls = Counter(
                grant["walls"]["memory"] for each in json.loads(told)["allocations"] for grant in each["grants"]
            )
            assert walls == {"process": 4, "none": 1}
    finally:
        g4dn.renew_machine()


@pytest.mark.long
def test_several_virtual_gpus_of_a_pod_are_of_one_card_with_their_memory_together(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    four = f"nvidia-smi -L | wc -l; nvidia-smi -L; echo $TRANCHE_GPU_MEMORY_LIMIT; {FOREVER}"

    def held() -> dict[str, set[int]]:
        """The memory of the pods' parts, by GPU."""
        found: dict[str, set[int]] = {}
        for each in json.loads(p4d.run("tranche", "ps", "-o", "json"))["allocations"]:
            (grant,) = each["grants"]
            found.setdefault(grant["gpuUUID"], set()).add(grant["memoryBytes"])
        return found

    try:
        with agent_on(cluster, p4d, "--refresh-seconds=0.3", "--vgpu=10") as agent:
            wait_for_counts(cluster, p4d, vgpu=80, gpu=8)
            cluster.apply(deployment("four", namespace, 15, node=p4d.name, script=four, limits={VGPU: 4}))
            wait_for("15 pods run", lambda: phases(cluster, namespace) == {"Running": 15}, timeout=180)
            told = [what_it_says(cluster, namespace, each["metadata"]["name"]) for each in pods_in(cluster, namespace)]
            assert {number for number, *_ in told} == {"1"}, "one card each"
            assert set(Counter(card for _, card, _ in told).values()) == {1, 2}
            (limit,) = {int(limit) for *_, limit in told}
            before = held()
            assert set().union(*before.values()) == {limit}
            assert limit == 4 * (limit // 4)

            agent.end()
            agent.restarted().wait_until_ready()
            wait_for_counts(cluster, p4d, vgpu=80, gpu=0)
            assert held() == before
            cluster.kubectl("scale", "deployment", "four", "--replicas=16", f"--namespace={namespace}")
            wait_for("16 pods run", lambda: phases(cluster, namespace) == {"Running": 16}, timeout=120)
            greedy = pod("greedy", namespace, node=p4d.name, limits={VGPU: 3})
            cluster.apply(greedy)
            wait_for("no card has room for three", lambda: phase(cluster, namespace, "greedy") == "Failed")
            assert set().union(*held().values()) == {limit}
    finally:
        p4d.renew_machine()


def what_it_says(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """The three lines of a pod that looks at its GPUs."""

    def lines() -> list[str] | None:
        found = log(cluster, namespace, name).splitlines()
        return found if len(found) == 3 else None

    found: list[str] = wait_for(f"{name} has looked", lines)
    return found
