"""Can this cluster give shares by demand, and do the agents and the controller work, with the rights that they need?

Is an agent on every node with GPUs, does each do its work, and do all have one version? Does the controller answer for
annotations, and choose shares where the cluster has no claims? Do the agents have their rights, and do the admission policies
limit them to what they need?
"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.api.node_rules import untolerated
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.allocation_backend import (
    AllocationBackend,
    backend_by_word,
    claim_support,
    support_as_told,
)
from tranche.kubernetes.support.checks.nodes import AGENT_LABELS, why_gpu
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts, ClusterFinding, ControllerFacts, PodFacts
from tranche.kubernetes.support.programs import CLAIM_DRIVER
from tranche.node.health.checkup import Status

_MEANING = {
    AllocationBackend.CLAIMS: "the scheduler assigns shares on demand through claims",
    AllocationBackend.GUARDED: "the scheduler assigns shares on demand through claims, and the agent checks each one",
    AllocationBackend.GATES: "the controller assigns shares on demand at scheduling gates",
    AllocationBackend.NONE: "no shares on demand; layouts and the device plugin serve static slices",
}


def check_claims(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """The backend of the cluster, and why."""
    if facts.claims is None:
        return
    words = {backend_by_word(each.daemon_set.option("--tier", "auto")) for each in facts.agents}
    said = words.pop() if len(words) == 1 else None
    support = support_as_told(claim_support(facts.server_version, facts.claims), said)
    status = (
        Status.PASS if support.backend is AllocationBackend.CLAIMS or (said and not support.remedy) else Status.WARN
    )
    yield ClusterFinding("claims", status, f"{_MEANING[support.backend]} ({support.why})", support.remedy)


_IMAGE_TROUBLE = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_START_TROUBLE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_KUBELET_PARTS = ("inventory", "device-plugin")
# A DaemonSet adds these tolerations to its pods by itself.
_TOLERATED_BY_DAEMON_SETS = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/network-unavailable",
)


def check_agents(facts: ClusterFacts, own_version: str) -> Iterator[ClusterFinding]:
    """`own_version` is the version of the calling program."""
    if not facts.agents:
        if "DaemonSets" not in facts.unread:
            yield ClusterFinding(
                "agents",
                Status.FAIL,
                "no DaemonSet runs `tranche agent`",
                "install it: helm install tranche deploy/chart/tranche --namespace tranche-system",
            )
        return
    if len(facts.agents) > 1:
        names = ", ".join(str(each.daemon_set) for each in facts.agents)
        yield ClusterFinding(
            "agents",
            Status.WARN,
            f"several DaemonSets run the agent: {names}",
            "only one agent per node can serve; uninstall the others, or give each DaemonSet its own nodes",
        )
    for agents in facts.agents:
        yield from _pods(agents)
        yield from _versions(agents, own_version)
    yield from _without_agent(facts)


def _pods(agents: AgentSetFacts) -> Iterator[ClusterFinding]:
    for pod in agents.pods:
        if not pod.ready:
            text, hint = _trouble(agents, pod)
            # The kubelet probes a pod only from time to time; what the pod itself says is newer.
            over = pod.ready_page is not None and set(pod.ready_page.values()) == {"ready"}
            yield ClusterFinding("agent-pod", Status.WARN if over else Status.FAIL, text, hint, *_where(pod))
    ready = [pod for pod in agents.pods if pod.ready]
    if ready:
        yield ClusterFinding(
            "agent-pod",
            Status.PASS,
            "the agent is ready: it can read the GPUs, and the kubelet's sockets respond",
            nodes=tuple(pod.node for pod in ready),
            pods=tuple(map(str, ready)),
        )
    if not agents.pods:
        yield ClusterFinding(
            "agent-pod",
            Status.FAIL,
            f"DaemonSet {agents.daemon_set} has no pods",
            f"label nodes with GPUs with one of {', '.join(AGENT_LABELS)}, or change nodeSelector and affinity",
        )


def _trouble(agents: AgentSetFacts, pod: PodFacts) -> tuple[str, str]:
    """What is wrong with a pod that is not ready, and what to do."""
    logs = f"kubectl --namespace={pod.namespace} logs {pod.name}"
    if pod.terminating:
        return (
            "the agent's pod is still terminating",
            "the node may be down: check its conditions",
        )
    if pod.unschedulable:
        return (
            f"the agent's pod cannot be scheduled: {pod.unschedulable}",
            "make room on the node, or add a toleration",
        )
    if pod.waiting in _IMAGE_TROUBLE:
        text = f"cannot pull the agent's image ({pod.waiting}): {pod.image}"
        return text, "check image.repository, image.tag and, for a private registry, imagePullSecrets"
    if pod.waiting == "CrashLoopBackOff":
        return f"the agent keeps crashing: {pod.restarts} restarts so far", f"{logs} --previous"
    if pod.waiting in _START_TROUBLE:
        return (
            f"cannot start the agent's container ({pod.waiting})",
            f"kubectl --namespace={pod.namespace} describe pod {pod.name}",
        )
    if pod.ready_page is not None:
        wrong = {name: why for name, why in pod.ready_page.items() if why != "ready"}
        said = "; ".join(f"{name}: {why}" for name, why in wrong.items()) or "the problem no longer exists"
        about_kubelet = any(name in _KUBELET_PARTS and "kubelet" in why for name, why in wrong.items())
        hint = f"check the node's kubelet, and that kubeletPath is its folder; {logs}" if about_kubelet else logs
        return f"the agent is not ready and reports: {said}", hint
    return (
        f"the agent is not ready (phase {pod.phase or 'unknown'}{f', {pod.waiting}' if pod.waiting else ''})",
        f"{logs}; doctor could not reach its /readyz through the API server",
    )


def _versions(agents: AgentSetFacts, own_version: str) -> Iterator[ClusterFinding]:
    images: dict[str, list[PodFacts]] = {}
    for pod in agents.pods:
        if pod.image_id:
            images.setdefault(pod.image_id, []).append(pod)
    daemon_set = agents.daemon_set
    if len(images) > 1:
        status = f"kubectl --namespace={daemon_set.namespace} rollout status daemonset/{daemon_set.name}"
        for image_id, pods in images.items():
            yield ClusterFinding(
                "agent-version",
                Status.WARN,
                f"the agents run {len(images)} different images; these run {pods[0].image} ({image_id[-12:]})",
                f"an upgrade is in progress or stuck: {status}",
                *_where(*pods),
            )
    elif images:
        yield ClusterFinding("agent-version", Status.PASS, f"all agents run the same image: {agents.pods[0].image}")
    if daemon_set.version and daemon_set.version != own_version:
        yield ClusterFinding(
            "agent-version",
            Status.WARN,
            f"the agents have version {daemon_set.version}, but this tranche has {own_version}",
            "use the agents' version: doctor's checks may have changed",
        )


def _without_agent(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    served = {pod.node for each in facts.agents for pod in each.pods}
    for node in facts.nodes:
        why = why_gpu(node)
        if why and node.name not in served:
            yield ClusterFinding(
                "agent-missing", Status.FAIL, f"has GPUs ({why}) but no agent", _why_none(facts, node), (node.name,)
            )


def _why_none(facts: ClusterFacts, node: KubeNode) -> str:
    tolerations = [each for agents in facts.agents for each in agents.daemon_set.tolerations]
    in_the_way = [each for each in untolerated(node.taints, tolerations) if each.key not in _TOLERATED_BY_DAEMON_SETS]
    if in_the_way:
        shown = ", ".join(f"{each.key}={each.value}:{each.effect}" for each in in_the_way)
        return f"the agent does not tolerate the node's taint {shown}: add it to tolerations"
    if not any(node.labels.get(label) == "true" for label in AGENT_LABELS):
        wanted = ", ".join(AGENT_LABELS)
        return f"the chart's affinity requires one of {wanted}: kubectl label node {node.name} tranche.dev/gpu=true"
    return "the DaemonSet's nodeSelector or affinity excludes the node: compare them with its labels"


def _where(*pods: PodFacts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(pod.node for pod in pods if pod.node), tuple(map(str, pods))


_WITHOUT = "Kubernetes refuses pods with annotations, and a cluster without claims assigns no shares"


def check_controllers(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Each installed controller; a cluster may do without one."""
    return map(_controller, facts.controllers)


def _controller(each: ControllerFacts) -> ClusterFinding:
    of = f"{each.ready} of {each.wanted}"
    kubectl = f"kubectl --namespace={each.namespace}"
    hint = f"run: {kubectl} describe deployment {each.name}; {kubectl} logs deployment/{each.name}"
    status, text = Status.FAIL, f"no replica of the controller {each} is ready: {_WITHOUT}"
    if not each.wanted:
        text = f"the controller {each} is scaled to 0: {_WITHOUT}"
        hint = f"run: {kubectl} scale deployment {each.name} --replicas=2"
    elif 0 < each.ready < each.wanted:
        status, text = Status.WARN, f"{of} replicas of the controller {each} are ready"
    elif each.ready:
        status, text, hint = Status.PASS, f"the controller {each} is ready, {of} replicas", ""
    return ClusterFinding("controller", status, text, hint)


_EVENTS = " events in default"


def check_access(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Rights of each agent's account, and policies of the cluster."""
    for agents in facts.agents:
        yield from _rights(agents)
    if facts.agents:
        yield from _policies(facts)


def _rights(agents: AgentSetFacts) -> Iterator[ClusterFinding]:
    account = f"the agent's account {agents.daemon_set.namespace}/{agents.daemon_set.service_account}"
    if agents.lacking is None:
        return  # another finding reports what the caller may not ask
    needed = [each for each in agents.lacking if not each.endswith(_EVENTS)]
    if needed:
        text = f"{account} lacks these rights: {'; '.join(needed)}"
        hint = "upgrade the chart with rbac.create=true, or grant them; the DaemonSet's options need them"
        yield ClusterFinding("rights", Status.FAIL, text, hint)
    if len(needed) < len(agents.lacking):
        hint = "everything else works; to grant this permission, install the chart's Role in the namespace default"
        yield ClusterFinding("rights", Status.WARN, f"{account} cannot record events for nodes", hint)
    if not agents.lacking:
        yield ClusterFinding("rights", Status.PASS, f"{account} has all rights that its options need")


def _policies(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    if any("admission policies" in each for each in facts.unread):
        return
    if facts.policies is None or facts.bindings is None:
        yield ClusterFinding(
            "policies",
            Status.WARN,
            f"this API server ({facts.server_version}) has no ValidatingAdmissionPolicy, so an agent can change any "
            "node",
            "upgrade to Kubernetes 1.30 or newer",
        )
        return
    names = {f"{agents.daemon_set.name}-own-{what}" for agents in facts.agents for what in ("node", "leases")}
    by_claims = (agents.daemon_set for agents in facts.agents if CLAIM_DRIVER not in agents.daemon_set.left_out)
    names |= {f"{each.name}-own-slices" for each in by_claims}
    missing = sorted((names - facts.policies) | (names - facts.bindings))
    if missing:
        yield ClusterFinding(
            "policies",
            Status.WARN,
            f"no bound admission policy restricts agents to their own nodes: {', '.join(missing)}",
            "upgrade the chart with admissionPolicy.enabled=true",
        )
    else:
        yield ClusterFinding("policies", Status.PASS, "admission policies restrict each agent to its own node")
