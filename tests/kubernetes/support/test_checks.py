"""What doctor says of a cluster: every fault is found, on the right node, with what to do; a cluster without one passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tranche.kubernetes.api.node_rules import Taint, Toleration
from tranche.kubernetes.api.objects import ConditionStatus, DaemonSet, KubeNode, NodeCondition
from tranche.kubernetes.claims.allocation_backend import ClaimFeatureGate, DryRunResult
from tranche.kubernetes.rollout.ticket import RolloutTicket, TicketState
from tranche.kubernetes.support.checks.nodes import why_gpu
from tranche.kubernetes.support.checkup import check_cluster
from tranche.kubernetes.support.facts import (
    AgentSetFacts,
    ClusterFacts,
    ClusterFinding,
    ControllerFacts,
    OtherProgramFacts,
    PodFacts,
)
from tranche.kubernetes.support.programs import known_product
from tranche.node.health.checkup import Status

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
READY = NodeCondition("Ready", ConditionStatus.TRUE, "KubeletReady", "", NOW)
OWN_TAINT = Taint("own", "NoSchedule", "x")
STATIC_POLICY = frozenset({"tranche-agent-own-node", "tranche-agent-own-leases"})
POLICY = STATIC_POLICY | {"tranche-agent-own-slices"}


def node(name: str) -> KubeNode:
    return KubeNode(
        name=name,
        labels={
            "tranche.dev/gpu": "true",
            "nvidia.com/mig.config": "all-1g.5gb",
            "nvidia.com/mig.config.state": "success",
            "nvidia.com/mig.strategy": "mixed",
            "nvidia.com/gpu.count": "8",
            "nvidia.com/mig-1g.5gb.count": "56",
        },
        conditions=(READY,),
        capacity={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "56"},
        allocatable={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "56"},
        kubelet_version="v1.36.1",
        container_runtime="containerd://2.1.4",
    )


def pod(name: str, on: str) -> PodFacts:
    return PodFacts("tranche-system", name, on, image="tranche-agent:0.1.0", image_id="sha256:0123456789ab")


def _ticket(node: str, state: TicketState, *, go_on: bool = False) -> RolloutTicket:
    return RolloutTicket(node, state, "", "", go_on=go_on)


AGENT = DaemonSet(
    "tranche-system",
    "tranche-agent",
    images=("tranche-agent:0.1.0",),
    command=("tranche", "agent"),
    service_account="tranche-agent",
    version="0.1.0",
    tolerations=(Toleration("nvidia.com/gpu", effect="NoSchedule", exists=True),),
    desired=2,
)
HEALTHY = ClusterFacts(
    server_version="v1.36.2",
    nodes=(node("a"), node("b"), KubeNode("plain", conditions=(READY,), kubelet_version="v1.36.1")),
    agents=(AgentSetFacts(AGENT, (pod("agent-a", "a"), pod("agent-b", "b"))),),
    policies=POLICY,
    bindings=POLICY,
)
Change = Callable[[ClusterFacts], ClusterFacts]


def found(facts: ClusterFacts) -> tuple[ClusterFinding, ...]:
    return check_cluster(facts, now=NOW, own_version="0.1.0")


def wrong(facts: ClusterFacts) -> list[ClusterFinding]:
    return [each for each in found(facts) if each.status is not Status.PASS]


def on_a(**changes: object) -> Change:
    def change(facts: ClusterFacts) -> ClusterFacts:
        return replace(facts, nodes=(replace(facts.nodes[0], **changes), *facts.nodes[1:]))  # type: ignore[arg-type]

    return change


def with_labels(**labels: str) -> Change:
    changed = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return lambda facts: on_a(labels={**facts.nodes[0].labels, **changed})(facts)


def agents_with(**changes: object) -> Change:
    return lambda facts: replace(facts, agents=(replace(facts.agents[0], **changes),))  # type: ignore[arg-type]


def pod_a(**changes: object) -> Change:
    def change(facts: ClusterFacts) -> ClusterFacts:
        first, *others = facts.agents[0].pods
        return agents_with(pods=(replace(first, **changes), *others))(facts)  # type: ignore[arg-type]

    return change


def daemon_set(**changes: object) -> Change:
    return agents_with(daemon_set=replace(AGENT, **changes))  # type: ignore[arg-type]


def beside(product: str, part: str, *nodes: str) -> Change:
    other = OtherProgramFacts(DaemonSet("gpu-operator", "other", desired=1), product, part, nodes)
    return lambda facts: replace(facts, others=(other,))


def with_node(node: KubeNode) -> Change:
    return lambda facts: replace(facts, nodes=(*facts.nodes, node))


def pending_since(minutes: float) -> Change:
    condition = NodeCondition(
        "MigLayoutApplied", ConditionStatus.UNKNOWN, "GpuBusy", "waits for x", NOW - timedelta(minutes=minutes)
    )

    def change(facts: ClusterFacts) -> ClusterFacts:
        state = {"nvidia.com/mig.config.state": "pending", "tranche.dev/mig.config.reason": "GpuBusy"}
        return on_a(labels={**facts.nodes[0].labels, **state}, conditions=(READY, condition))(facts)

    return change


def test_two_daemon_sets_of_a_namespace_have_the_same_turns() -> None:
    facts = agents_with(turns=(_ticket("a", TicketState.FAILED), _ticket("b", TicketState.WAITING)))(HEALTHY)
    second = replace(facts.agents[0], daemon_set=replace(AGENT, name="second"))
    turns = [each for each in wrong(replace(facts, agents=(*facts.agents, second))) if each.check == "turns"]
    assert [each.nodes for each in turns] == [("a",)]


def test_of_a_node_without_an_agent_no_agent_says_that_its_devices_are_unhealthy() -> None:
    gone = on_a(capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "0"})(HEALTHY)
    assert any("reports them as unhealthy" in each.text for each in wrong(gone))
    left = agents_with(pods=HEALTHY.agents[0].pods[1:])(gone)
    (found,) = (each for each in wrong(left) if each.check == "resources" and each.status is Status.FAIL)
    assert "the node has no agent" in found.text


def test_a_cluster_without_a_fault_passes_and_what_is_right_is_said_once() -> None:
    assert wrong(HEALTHY) == []
    (ready,) = (each for each in found(HEALTHY) if each.check == "agent-pod")
    assert (ready.nodes, ready.pods) == (("a", "b"), ("tranche-system/agent-a", "tranche-system/agent-b"))
    assert {each.check for each in found(HEALTHY)} == {
        "api-server", "agent-pod", "agent-version", "node", "layout", "resources", "neighbours", "rights", "policies",
    }  # fmt: skip


FAULTS: dict[str, tuple[Change, str, Status, str, str]] = {
    "no agent": (lambda facts: replace(facts, agents=()), "agents", Status.FAIL, "no DaemonSet", "helm install"),
    "two agents": (
        lambda facts: replace(facts, agents=(*facts.agents, AgentSetFacts(replace(AGENT, name="second"), facts.agents[0].pods))),
        "agents", Status.WARN, "tranche-system/second", "uninstall",
    ),
    "no pods": (agents_with(pods=()), "agent-pod", Status.FAIL, "has no pods", "tranche.dev/gpu"),
    "image": (
        pod_a(ready=False, waiting="ImagePullBackOff"), "agent-pod", Status.FAIL, "ImagePullBackOff): tranche-agent:0.1.0",
        "image.repository",
    ),
    "crash": (
        pod_a(ready=False, waiting="CrashLoopBackOff", restarts=4), "agent-pod", Status.FAIL, "4 restarts",
        "logs agent-a --previous",
    ),
    "start": (pod_a(ready=False, waiting="CreateContainerError"), "agent-pod", Status.FAIL, "cannot start", "describe"),
    "no room": (pod_a(ready=False, unschedulable="too many pods"), "agent-pod", Status.FAIL, "too many pods", "room"),
    "leaving": (pod_a(ready=False, terminating=True), "agent-pod", Status.FAIL, "still terminating", "conditions"),
    "kubelet": (
        pod_a(ready=False, ready_page={"inventory": "the kubelet does not report", "node-watch": "ready"}), "agent-pod",
        Status.FAIL, "inventory: the kubelet does not report", "kubeletPath",
    ),
    "ready by now": (
        pod_a(ready=False, ready_page={"inventory": "ready"}), "agent-pod", Status.WARN, "the problem no longer exists", "logs",
    ),
    "silent": (pod_a(ready=False), "agent-pod", Status.FAIL, "not ready", "could not reach"),
    "images": (pod_a(image_id="sha256:other"), "agent-version", Status.WARN, "2 different images", "rollout status"),
    "older agents": (daemon_set(version="0.0.9"), "agent-version", Status.WARN, "0.0.9", "agents' version"),
    "unlabelled": (
        with_node(KubeNode("c", labels={"node.kubernetes.io/instance-type": "p5.48xlarge"}, conditions=(READY,))),
        "agent-missing", Status.FAIL, "instance type p5.48xlarge", "kubectl label node c",
    ),
    "taint": (
        with_node(KubeNode("c", labels={"tranche.dev/gpu": "true"}, taints=(OWN_TAINT,), conditions=(READY,))),
        "agent-missing", Status.FAIL, "has GPUs", "own=x:NoSchedule",
    ),
    "left out": (
        with_node(KubeNode("c", labels={"tranche.dev/gpu": "true"}, conditions=(READY,))),
        "agent-missing", Status.FAIL, "has GPUs", "nodeSelector",
    ),
    "not ready": (
        on_a(conditions=(replace(READY, status=ConditionStatus.UNKNOWN, reason="NodeStatusUnknown"),)), "node", Status.FAIL,
        "NodeStatusUnknown", "kubelet",
    ),
    "pressure": (
        on_a(conditions=(READY, NodeCondition("DiskPressure", ConditionStatus.TRUE, "r", "disk is full", NOW))),
        "node", Status.FAIL, "disk is full", "free",
    ),
    "cordon": (on_a(unschedulable=True), "node", Status.WARN, "cordoned", "uncordon a"),
    "own cordon": (
        on_a(unschedulable=True, annotations={"tranche.dev/mig.config.cordoned": "x"}), "node", Status.WARN, "by its agent",
        "when the layout is active",
    ),
    "old server": (lambda facts: replace(facts, server_version="v1.26.3"), "versions", Status.FAIL, "1.27", "upgrade"),
    "skew": (on_a(kubelet_version="v1.32.0"), "versions", Status.FAIL, "v1.32.0", "3 minor"),
    "newer kubelet": (on_a(kubelet_version="v1.37.0"), "versions", Status.FAIL, "v1.37.0", "none newer"),
    "failed layout": (
        with_labels(nvidia_com__mig_config_state="failed", tranche_dev__mig_config_reason="LayoutUnknown"), "layout",
        Status.FAIL, "failed (LayoutUnknown)", "ConfigMap",
    ),
    "unanswered": (with_labels(nvidia_com__mig_config_state=""), "layout", Status.FAIL, "no agent has responded", "migManager"),
    "pending": (pending_since(3), "layout", Status.WARN, "pending for 3 min (GpuBusy): waits for x", "drain"),
    "pending for long": (pending_since(30), "layout", Status.FAIL, "pending for 30 min", "drain"),
    "layouts": (
        agents_with(layouts="version: v1\nmig-configs: {x: [{devices: all}]}"), "layouts", Status.FAIL, "tranche-layouts",
        "config.yaml",
    ),
    "unhealthy": (
        on_a(allocatable={"nvidia.com/mig-1g.5gb": "49", "nvidia.com/gpu": "0"}), "resources", Status.FAIL, "7 of 56",
        "involvedObject.name=a",
    ),
    "too few": (
        on_a(capacity={"nvidia.com/mig-1g.5gb": "55"}, allocatable={"nvidia.com/mig-1g.5gb": "55"}), "resources", Status.WARN,
        "count 56 nvidia.com/mig-1g.5gb, but the kubelet counts 55", "registration",
    ),
    "nothing": (
        on_a(capacity={}, allocatable={}, labels={"tranche.dev/gpu": "true"}), "resources", Status.WARN, "offers no GPU",
        "strategy",
    ),
    "manager": (
        beside("NVIDIA's MIG manager", "mig-manager", "a"), "neighbours", Status.FAIL, "undo the other's changes",
        "migManager.enabled=false",
    ),
    "plugin": (beside("HAMi", "device-plugin", "a"), "neighbours", Status.FAIL, "HAMi", "devicePlugin.enabled=false"),
    "labels": (beside("gfd", "feature-labels", "a"), "neighbours", Status.WARN, "overwrites", "featureLabels"),
    "bottlerocket": (on_a(os_image="Bottlerocket OS 1.50"), "neighbours", Status.WARN, "at boot", "nodeSelector"),
    "rights": (
        agents_with(lacking=("patch nodes", "create events in default")), "rights", Status.FAIL, "rights: patch nodes",
        "rbac.create",
    ),
    "events": (agents_with(lacking=("create events in default",)), "rights", Status.WARN, "record events", "Role"),
    "no policy": (
        lambda facts: replace(facts, policies=frozenset()), "policies", Status.WARN, "tranche-agent-own-node",
        "admissionPolicy",
    ),
    "no policy for slices": (
        lambda facts: replace(facts, policies=STATIC_POLICY), "policies", Status.WARN, ": tranche-agent-own-slices",
        "admissionPolicy",
    ),
    "no policy for leases": (
        lambda facts: replace(facts, policies=POLICY - {"tranche-agent-own-leases"}), "policies", Status.WARN,
        ": tranche-agent-own-leases", "admissionPolicy",
    ),
    "no binding": (
        lambda facts: replace(facts, bindings=frozenset()), "policies", Status.WARN, "no bound", "admissionPolicy",
    ),
    "no policies": (lambda facts: replace(facts, policies=None), "policies", Status.WARN, "has no Validating", "1.30"),
    "no claims": (
        lambda facts: replace(facts, claims=DryRunResult(served=False)), "claims", Status.WARN, "at scheduling gates",
            "Kubernetes 1.36",
    ),
    "turns": (
        agents_with(turns=(_ticket("a", TicketState.FAILED), _ticket("b", TicketState.WAITING))), "turns", Status.FAIL,
        "its layout change failed; 1 other nodes wait", "annotate lease tranche-layout.a",
    ),
    "unread": (lambda facts: replace(facts, unread={"DaemonSets": "x"}), "not-read", Status.WARN, "DaemonSets", "may not"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_with_what_to_do(fault: str) -> None:
    change, check, status, text, hint = FAULTS[fault]
    about = [each for each in wrong(change(HEALTHY)) if each.check == check and text in each.text]
    assert about, [each.text for each in wrong(change(HEALTHY))]
    assert [(each.status, hint in each.hint) for each in about] == [(status, True)] * len(about)


def test_a_fault_of_one_node_names_that_node_and_its_pod() -> None:
    (crash,) = wrong(pod_a(ready=False, waiting="CrashLoopBackOff")(HEALTHY))
    assert (crash.nodes, crash.pods) == (("a",), ("tranche-system/agent-a",))
    (cordon,) = wrong(on_a(unschedulable=True)(HEALTHY))
    assert cordon.nodes == ("a",)


@pytest.mark.parametrize(
    ("argument", "runtime", "why"),
    [
        ("", "containerd://1.7.27", "containerd 1.7.27"),
        ("--device-list-strategy=envvar", "containerd://2.1.4", "--device-list-strategy is envvar"),
        ("--device-list-strategy=volume-mounts", "containerd://1.7.27", ""),
        ("--device-list-strategy=envvar,cdi-cri", "containerd://2.1.4", ""),
        ("--without=device-plugin", "containerd://1.7.27", ""),
    ],
)
def test_a_node_whose_pods_can_see_every_gpu_is_named(argument: str, runtime: str, why: str) -> None:
    nodes = (replace(node("a"), container_runtime=runtime), node("b"))
    agents = AgentSetFacts(replace(AGENT, arguments=(argument,)), HEALTHY.agents[0].pods)
    said = [each for each in found(replace(HEALTHY, nodes=nodes, agents=(agents,))) if each.check == "devices"]
    assert all(each.status is Status.WARN and why in each.text for each in said)
    exposed = {name for each in said for name in each.nodes}
    assert exposed == ({"a", "b"} if "is envvar" in why else {"a"} if why else set())


def test_a_node_that_failed_holds_up_nobody_once_somebody_said_go_on() -> None:
    turns = (_ticket("a", TicketState.FAILED, go_on=True), _ticket("b", TicketState.WAITING))
    assert wrong(agents_with(turns=turns)(HEALTHY)) == []


def test_agents_without_claims_need_no_policy_for_slices() -> None:
    static = daemon_set(arguments=("--without=dra",))(HEALTHY)
    assert wrong(replace(static, policies=STATIC_POLICY)) == []


def test_what_the_agents_are_told_counts_more_than_what_the_cluster_could() -> None:
    def claims(facts: ClusterFacts) -> ClusterFinding:
        (found,) = (each for each in check_cluster(facts, now=NOW, own_version="0.1.0") if each.check == "claims")
        return found

    able = replace(HEALTHY, claims=DryRunResult(kept=frozenset(ClaimFeatureGate)), server_version="v1.36.3")
    assert "the scheduler assigns shares on demand through claims" in claims(able).text
    told = claims(daemon_set(arguments=("--tier=gates",))(able))
    assert (told.status, "at scheduling gates" in told.text, "dra.tier=gates" in told.text) == (Status.PASS, True, True)
    unable = daemon_set(arguments=("--tier=claims",))(replace(able, claims=DryRunResult(kept=frozenset())))
    assert (claims(unable).status, "despite dra.tier=claims" in claims(unable).text) == (
        Status.WARN,
        True,
    )


def test_a_neighbour_is_no_conflict_where_the_agent_leaves_the_part_to_it_or_is_not_there() -> None:
    plugin = beside("NVIDIA's device plugin", "device-plugin", "a")
    assert wrong(plugin(daemon_set(arguments=("--without=device-plugin",))(HEALTHY))) == []
    assert wrong(beside("NVIDIA's device plugin", "device-plugin", "plain")(HEALTHY)) == []


def test_under_single_the_label_counts_what_the_kubelet_calls_gpus() -> None:
    labels = {"tranche.dev/gpu": "true", "nvidia.com/mig.strategy": "single", "nvidia.com/gpu.count": "56"}
    right = on_a(labels=labels, capacity={"nvidia.com/gpu": "56"}, allocatable={"nvidia.com/gpu": "56"})
    assert wrong(right(HEALTHY)) == []
    (few,) = wrong(on_a(labels=labels, capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "8"})(HEALTHY))
    assert "count 56 nvidia.com/gpu, but the kubelet counts 8" in few.text


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        ("p4d.24xlarge", True), ("p6-b200.48xlarge", True), ("g5.12xlarge", True), ("g4dn.xlarge", True),
        ("g4ad.xlarge", False), ("m7i.large", False), ("p4d", False), ("gr6.4xlarge", False),
    ],
)  # fmt: skip
def test_gpus_by_instance_type(kind: str, has: bool) -> None:
    assert bool(why_gpu(KubeNode("n", labels={"node.kubernetes.io/instance-type": kind}))) is has


def test_a_label_that_says_no_is_no_gpu() -> None:
    assert why_gpu(KubeNode("n", labels={"nvidia.com/gpu.present": "false"})) == ""
    assert why_gpu(KubeNode("n", capacity={"nvidia.com/gpu": "0"})) == ""
    assert why_gpu(KubeNode("n", capacity={"nvidia.com/gpu": "2"})) == "capacity nvidia.com/gpu"


def test_programs_are_known_by_what_they_run() -> None:
    assert AGENT.runs_agents
    assert DaemonSet("x", "y", images=("registry:5000/team/tranche-agent@sha256:1",)).runs_agents
    assert not DaemonSet("x", "y", images=("tranche-agent:1",), command=("tranche", "metrics")).runs_agents
    for name, image, command, part in (
        ("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", (), "device-plugin"),
        (
            "gpu-feature-discovery",
            "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
            ("gpu-feature-discovery",),
            "feature-labels",
        ),
        ("nvidia-mig-manager", "nvcr.io/nvidia/gpu-operator:v26", (), "mig-manager"),
        ("a", "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12", (), "mig-manager"),
        ("b", "mirror/x:1", ("nvidia-device-plugin",), "device-plugin"),
    ):
        product = known_product(DaemonSet("ns", name, images=(image,), command=command))
        assert product is not None, name
        assert product.part == part, name
    assert known_product(DaemonSet("ns", "fluentd", images=("fluentd:1",))) is None


@pytest.mark.parametrize(
    ("wanted", "ready", "status", "text"),
    [
        (0, 0, Status.FAIL, "is scaled to 0: Kubernetes refuses pods with annotations"),
        (2, 0, Status.FAIL, "no replica of the controller tranche-system/tranche-controller is ready"),
        (2, 1, Status.WARN, "1 of 2 replicas"),
        (2, 2, Status.PASS, "is ready, 2 of 2 replicas"),
    ],
)
def test_a_controller_that_does_not_serve_is_found(wanted: int, ready: int, status: Status, text: str) -> None:
    facts = replace(HEALTHY, controllers=(ControllerFacts("tranche-system", "tranche-controller", wanted, ready),))
    (said,) = [each for each in found(facts) if each.check == "controller"]
    assert (said.status, text in said.text, bool(said.hint)) == (status, True, status is not Status.PASS)


@pytest.mark.parametrize("mode", ["dynamic", "shared", "mixed", "off"])
def test_a_node_whose_gpus_are_not_the_device_plugins_need_not_offer_any(mode: str) -> None:
    facts = on_a(capacity={}, allocatable={})(with_labels(tranche_dev__mode=mode)(HEALTHY))
    assert facts.nodes[0].labels["tranche.dev/mode"] == mode
    assert [each for each in wrong(facts) if each.check == "resources"] == []


def test_a_mode_that_is_none_is_named() -> None:
    facts = on_a(capacity={}, allocatable={})(with_labels(tranche_dev__mode="Dynamic")(HEALTHY))
    (said,) = [each for each in wrong(facts) if each.check == "resources"]
    assert "'Dynamic', which is not a mode" in said.text
    assert said.hint.startswith("did you mean 'dynamic'?")
