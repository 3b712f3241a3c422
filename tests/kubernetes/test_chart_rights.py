"""The chart agrees with the program that it starts."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release.chart import NAMESPACE, KubeObject, Values, cases, render

from tests.cli.test_agent import kubeconfig_in
from tests.kubernetes.fake_api_server import FakeApiServer, Seen, api_server
from tests.kubernetes.gated.reports import gpus_to_lease
from tests.kubernetes.waiting import patiently, until
from tests.strategies import node_views
from tranche.cli import agent
from tranche.cli.main import root as command_line
from tranche.core.allocation import NodeView
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import NodeState
from tranche.hardware.host_facts import HostFacts
from tranche.kubernetes.agent.boot_unit import OPTION
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import Lease, LeaseClient, NodeSlice, SliceClient
from tranche.kubernetes.api.objects import (
    ConditionStatus,
    DaemonSet,
    KubeEventType,
    KubeNode,
    KubePod,
    NodeCondition,
    PodRef,
)
from tranche.kubernetes.claims.claim import ClaimRef
from tranche.kubernetes.claims.vocabulary import DRIVER, FREE_LABELS
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.dra.driver import ClaimReader
from tranche.kubernetes.feature_labels.labels import feature_labels
from tranche.kubernetes.gated.leases import NodeGpus
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.mig_manager.exclusion import CLAIM_PREFIX
from tranche.kubernetes.mig_manager.operands import SINCE_ANNOTATION, pause
from tranche.kubernetes.mig_manager.state import ATTEMPT_ANNOTATION, MigState, Report
from tranche.kubernetes.node.replicas import ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.rollout.leadership import LEADER_LEASE
from tranche.kubernetes.rollout.ticket import ticket_name
from tranche.kubernetes.telling.told_view import REPORT, ViewReport, lease_name, told_to_lease

OPERANDS = ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm", "client")
CONDITION = NodeCondition("Mig", ConditionStatus.TRUE, "Done", "")
DRAINING = {"migManager": {"inUse": "drain"}}
pytestmark = pytest.mark.helm


def objects(kind: str, **values: object) -> list[KubeObject]:
    return [item for item in render({"namespace": {"create": True}, **values}) if item["kind"] == kind]


def agents_pod(**values: object) -> tuple[KubeObject, KubeObject]:
    """The agent's pod and its container."""
    (daemon_set,) = objects("DaemonSet", **values)
    pod: KubeObject = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def mounted(**values: object) -> dict[str, str]:
    """Path in the container to path on the host."""
    pod, container = agents_pod(**values)
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    return {mount["mountPath"]: hosts[mount["name"]] for mount in container["volumeMounts"] if mount["name"] != "tmp"}


def default(name: str) -> Any:
    (found,) = (parameter.default for parameter in agent.command.params if parameter.name == name)
    return found


def test_the_probes_ask_the_port_that_the_agent_serves() -> None:
    _, container = agents_pod()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"health": default("health_port"), "metrics": default("metrics_port")}
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "health"}
    _, container = agents_pod(healthPort=9000, metrics={"port": 9001})
    assert [port["containerPort"] for port in container["ports"]] == [9000, 9001]
    assert {"--health-port=9000", "--metrics-port=9001"} <= set(container["args"])


def test_each_variable_that_an_option_is_read_from_is_known_to_the_agent() -> None:
    _, container = agents_pod()
    known = {name for parameter in agent.command.params for name in _variables(parameter.envvar)}
    given = {entry["name"] for entry in container["env"] if not entry["name"].startswith("NVIDIA_")}
    assert given == {"NODE_NAME", "POD_NAMESPACE", "POD_IP"}
    assert given <= known


@pytest.mark.parametrize("values", [{}, {"deviceListStrategy": "cdi-cri", "kubeletPath": "/var/snap/kubelet"}])
def test_every_folder_that_the_agent_works_in_is_the_hosts_at_the_same_path(values: Values) -> None:
    folders = mounted(**values)
    folders.pop("/driver-root", None)
    assert "/" not in folders.values()
    assert all(host == container for container, host in folders.items())
    kubelet = values.get("kubeletPath", "/var/lib/kubelet")
    assert {f"{kubelet}/pod-resources", f"{kubelet}/device-plugins"} <= set(folders)


def test_the_kubelets_sockets_are_where_the_agent_looks_for_them() -> None:
    assert str(Path(default("pod_resources_socket")).parent) in mounted()
    _, container = agents_pod(kubeletPath="/var/snap/kubelet")
    assert "--pod-resources-socket=/var/snap/kubelet/pod-resources/kubelet.sock" in container["args"]
    assert "--kubelet-socket=/var/snap/kubelet/device-plugins/kubelet.sock" in container["args"]


@pytest.mark.parametrize(
    ("values", "mounts"),
    [
        ({}, True),
        ({"deviceListStrategy": "auto"}, True),
        ({"cdi": {"mount": False}}, False),
        ({"deviceListStrategy": "envvar"}, False),
        ({"deviceListStrategy": "volume-mounts,cdi-cri"}, True),
        ({"devicePlugin": {"enabled": False}}, False),
        ({"cdi": {"mount": False}, "dra": {"enabled": True}}, True),
    ],
)
def test_what_cdi_needs_is_mounted_where_it_may_be_chosen(values: Values, mounts: bool) -> None:
    assert ({"/var/run/cdi", "/driver-root"} <= mounted(**values).keys()) is mounts


def test_the_hosts_root_is_where_the_agent_looks_for_it_and_cannot_be_written() -> None:
    restarting = {"migManager": {"withReboot": True}}
    pod, container = agents_pod(**restarting)
    assert mounted(**restarting)[str(default("host_root"))] == "/"
    # A reboot that takes itself for one in a chroot does nothing: it compares its root with that of the host's init.
    assert pod["hostPID"]
    assert container["securityContext"]["privileged"]
    for root in ("/", "/run/nvidia/driver"):
        by_cdi = {"deviceListStrategy": "cdi-annotations", "nvidiaDriverRoot": root}
        folders = mounted(**by_cdi)
        assert folders[PluginConfig().driver_root_in_container] == root
        assert list(folders.values()).count("/") == (root == "/")
        assert str(default("cdi_folder")) in folders
        pod, container = agents_pod(**by_cdi, **restarting)
        roots = [mount for mount in container["volumeMounts"] if mount["name"] in ("driver-root", "host-root")]
        assert len(roots) == 2
        assert all(mount["readOnly"] for mount in roots)


def test_the_unit_at_boot_needs_three_folders_of_the_host_and_no_right() -> None:
    """Without it none of them is mounted; the agent finds them under the root that it looks for."""
    booting = {"boot": {"enabled": True, "partition": "all-1g.5gb"}}
    root = str(default("host_root"))
    added = mounted(**booting).items() - mounted().items()
    assert added == {
        (f"{root}{folder}", folder) for folder in ("/etc/systemd/system", "/etc/default", "/usr/lib/systemd/system")
    }
    _, container = agents_pod(**booting)
    unwritable = {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
    assert unwritable == {f"{root}/usr/lib/systemd/system", PluginConfig().driver_root_in_container}
    assert granted(*objects("ClusterRole", **booting), *objects("Role", **booting)) == granted(
        *objects("ClusterRole"), *objects("Role")
    )
    daemon_set = DaemonSet("", "", arguments=tuple(container["args"]))
    assert daemon_set.has_option(OPTION)
    context = agent.command.make_context("agent", list(container["args"]), resilient_parsing=True)
    assert (context.params["boot_program"], context.params["boot_partition"]) == (
        "/opt/tranche/bin/tranche",
        "all-1g.5gb",
    )
    _, container = agents_pod()
    assert not DaemonSet("", "", arguments=tuple(container["args"])).has_option(OPTION)


def test_every_right_is_bound_to_the_account_that_the_agent_runs_as() -> None:
    (daemon_set,) = objects("DaemonSet")
    account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    namespace = daemon_set["metadata"]["namespace"]
    bound = set()
    for binding in objects("ClusterRoleBinding", **DRAINING) + objects("RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
    every_role = objects("ClusterRole", **DRAINING) + objects("Role")
    roles = {(role["kind"], role["metadata"]["name"]) for role in every_role}
    assert bound == roles


def granted(*roles: KubeObject) -> set[tuple[str, str, str]]:
    """Namespace ("" for the cluster), resource and verb."""
    return {
        (role["metadata"].get("namespace", ""), resource, verb)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_the_client_uses_and_no_more() -> None:
    always = granted(*objects("ClusterRole"), *objects("Role"))
    draining = granted(*objects("ClusterRole", **DRAINING), *objects("Role", **DRAINING))
    assert draining - always == {("", "pods/eviction", "create")}
    assert draining == asyncio.run(_used_by_the_client())
    unlimited = {each for each in always if each[1] == "leases"}
    without_manager = {"migManager": {"enabled": False}}
    offering = granted(*objects("ClusterRole", **without_manager), *objects("Role", **without_manager))
    assert always - offering == {
        ("", "nodes/status", "patch"),
        (NAMESPACE, "configmaps", "list"),
        (NAMESPACE, "configmaps", "watch"),
        *unlimited,
    }
    assert unlimited == granted(*objects("Role")) - granted(*objects("Role", rollout={"maxUnavailable": None}))
    seeing = granted(*objects("ClusterRole", **without_manager, featureLabels={"enabled": False}))
    assert {right for right in seeing if right[2] not in ("get", "list", "watch")} == {("", "events", "create")}


def test_claims_need_rights_of_their_own_and_three_folders_more() -> None:
    dynamic = {"dra": {"enabled": True}}
    always = granted(*objects("ClusterRole"), *objects("Role"))
    roles = objects("ClusterRole", **dynamic)
    (of_people,) = [role for role in roles if role["metadata"]["name"].endswith("-researcher")]
    added = granted(*(role for role in roles if role != of_people), *objects("Role", **dynamic)) - always
    # What people read, and nothing that they could change; nobody has it before it is bound.
    assert {verb for _, _, verb in granted(of_people)} == {"get", "list"}
    assert {resource for _, resource, _ in granted(of_people)} == {
        "nodes",
        "resourceslices",
        "resourceclaims",
        "deviceclasses",
        "workloadpriorityclasses",
    }
    assert of_people["metadata"]["name"] not in {
        each["roleRef"]["name"] for each in objects("ClusterRoleBinding", **dynamic)
    }
    assert added == {("", resource, verb) for _, resource, verb in asyncio.run(_used_for_claims())}
    (policy,) = [
        item for item in objects("ValidatingAdmissionPolicy", **dynamic) if "slices" in item["metadata"]["name"]
    ]
    assert policy["spec"]["failurePolicy"] == "Fail"
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE", "DELETE"], ["resourceslices"])
    folders = mounted(**dynamic, kubeletPath="/var/snap/kubelet")
    assert folders.keys() - mounted(kubeletPath="/var/snap/kubelet").keys() == {
        "/var/snap/kubelet/plugins",
        "/var/snap/kubelet/plugins_registry",
    }
    folders.pop("/driver-root")
    assert all(host == container for container, host in folders.items())


def policy_variable(name: str) -> str:
    (policy,) = [each for each in objects("ValidatingAdmissionPolicy") if each["metadata"]["name"].endswith("own-node")]
    (found,) = [each["expression"] for each in policy["spec"]["variables"] if each["name"] == name]
    return str(found)


WITH_MPS = MachineSharing(frozenset(Sharing), mps_clients=48)


def written_by_the_agent(expression: str) -> re.Pattern[str]:
    (pattern,) = re.findall(r"k[.]matches\('(.+)'\)", expression)
    return re.compile(pattern)


@given(st.sampled_from(MigStrategy), node_views(), st.sampled_from(list(MigState)))
def test_every_label_that_the_agent_writes_is_one_that_the_policy_lets_it_write(
    strategy: MigStrategy, view: NodeView, state: MigState
) -> None:
    allowed = written_by_the_agent(policy_variable("foreignLabels"))
    operands = dict.fromkeys((f"nvidia.com/gpu.deploy.{name}" for name in OPERANDS), "true")
    written = {
        *feature_labels(
            replace(view.node, sharing=WITH_MPS), strategy, HostFacts(product="p"), ReplicaPolicy(virtual=10)
        ),
        *Report(state, "Reason", "").labels,
        *pause(KubeNode("n", labels=operands)),
        *FREE_LABELS,
    }
    assert {key for key in written if not allowed.fullmatch(key)} == set()


@pytest.mark.parametrize(
    "key",
    [
        *(
            "nvidia.com/mig.config",
            "nvidia.com/device-plugin.config",
            "nvidia.com/gpu.present",
            "nvidia.com/gpu.deploy.x",
        ),
        *("node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/tenant", "kubernetes.io/hostname"),
        *(
            "tranche.dev/mode",
            "tranche.dev/gpu",
            "x-nvidia.com/mig.config.state",
            "nvidia.com/mig.config.state/x",
            "nvidia.com/mig-1g",
        ),
    ],
)
def test_a_label_that_decides_over_the_agent_or_over_others_is_not_the_agents_to_write(key: str) -> None:
    assert not written_by_the_agent(policy_variable("foreignLabels")).fullmatch(key)


def test_every_annotation_that_the_agent_writes_is_one_that_the_policy_lets_it_write() -> None:
    allowed = written_by_the_agent(policy_variable("foreignAnnotations"))
    written = {ATTEMPT_ANNOTATION, CORDON_ANNOTATION, SINCE_ANNOTATION, CLAIM_PREFIX + str(uuid.uuid4())}
    assert {key for key in written if not allowed.fullmatch(key)} == set()
    assert not allowed.fullmatch("example.com/owner")


def test_the_policy_knows_the_leases_that_agents_write_by_their_names_and_labels() -> None:
    (policy,) = [
        each for each in objects("ValidatingAdmissionPolicy") if each["metadata"]["name"].endswith("own-leases")
    ]
    assert policy["spec"]["failurePolicy"] == "Fail"
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE", "DELETE"], ["leases"])
    (own,) = [each["expression"] for each in policy["spec"]["variables"] if each["name"] == "own"]
    assert f"'{lease_name(REPORT, '')}' + variables.node" in own
    (pattern,) = re.findall(r"name[.]matches\('(.+)'\)", own)
    for length in (200, 201):
        assert bool(re.search(pattern, lease_name(REPORT, "n" * length))) == (length > 200)
    who, labels, about = (each["expression"] for each in policy["spec"]["validations"])
    assert f"== '{LEADER_LEASE}'" in who
    assert ticket_name("n").removesuffix("n") in who
    view = NodeView(NodeState(()))
    for lease in (gpus_to_lease(NodeGpus("n", view), ("n", "u")), told_to_lease(ViewReport("n", view), ("n", "u"))):
        ((key, value),) = lease.labels.items()
        assert f"labels[?'{key}'].orValue('') in (variables.own ? ['', '{value}'] : [''])" in labels
        (annotation,) = [key for key, value in lease.annotations.items() if value == "n"]
        assert f"'{annotation}'" in about


def test_the_agents_pod_has_no_more_than_it_needs() -> None:
    (namespace,) = objects("Namespace")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    pod, container = agents_pod()
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert "hostNetwork" not in pod
    (isolation,) = objects("NetworkPolicy")
    (daemon_set,) = objects("DaemonSet")
    assert isolation["spec"]["podSelector"] == daemon_set["spec"]["selector"]
    assert isolation["spec"]["policyTypes"] == ["Ingress"]
    assert isolation["spec"]["ingress"] == [{"ports": [{"port": default("metrics_port"), "protocol": "TCP"}]}]
    prometheus = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    (narrower,) = objects("NetworkPolicy", metrics={"from": [prometheus]})
    assert [rule["from"] for rule in narrower["spec"]["ingress"]] == [[prometheus]]
    (closed,) = objects("NetworkPolicy", metrics={"enabled": False})
    assert "ingress" not in closed["spec"]


def test_without_the_manager_the_agent_cuts_nothing_and_is_not_privileged() -> None:
    without_manager = {"migManager": {"enabled": False}}
    _, container = agents_pod(**without_manager)
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "/dev" not in mounted(**without_manager)
    assert "NVIDIA_MIG_CONFIG_DEVICES" not in {entry["name"] for entry in container["env"]}
    assert "--without=mig-manager" in container["args"]


def test_claims_need_a_container_that_can_cut_also_without_the_manager() -> None:
    alone = {"migManager": {"enabled": False, "withReboot": True}, "dra": {"enabled": True}}
    pod, container = agents_pod(**alone)
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert "NVIDIA_MIG_CONFIG_DEVICES" in {entry["name"] for entry in container["env"]}
    assert mounted(**alone)["/dev"] == "/dev"
    assert "host-root" not in {volume["name"] for volume in pod["volumes"]}


def test_only_the_config_maps_that_are_named_may_be_read() -> None:
    def readable(**values: object) -> list[str]:
        return [
            name
            for role in objects("Role", **values)
            for rule in role["rules"]
            for name in rule.get("resourceNames", ())
            if rule["resources"] == ["configmaps"]
        ]

    assert readable() == [default("layouts")]
    chosen = {"migManager": {"config": {"name": "sizes"}}, "config": {"name": "plugin"}}
    assert readable(**chosen) == ["sizes", "plugin"]
    _, container = agents_pod(**chosen)
    assert {"--layouts=sizes", "--plugin-config-map=plugin"} <= set(container["args"])


async def _used_by_the_client() -> set[tuple[str, str, str]]:
    """Namespace of the right ("" for the cluster), resource and verb of every request that the client can make."""
    async with api_server() as server:
        connection = ApiConnection(ApiServer(server.url))
        client = KubeClient(connection)
        server.put("/api/v1/nodes/n", {})
        server.put("/api/v1/namespaces/tranche-system/configmaps/c", {})
        server.put("/apis/apps/v1/namespaces/tranche-system/daemonsets/tranche-agent", {})
        server.put("/api/v1/namespaces/any/pods/p", {"metadata": {"uid": "u1"}, "spec": {"nodeName": "n"}})
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get_node": lambda: client.get_node("n"),
            "patch_node_metadata": lambda: client.patch_node_metadata("n", labels={"a": "b"}),
            "set_unschedulable": lambda: client.set_unschedulable("n", True),
            "set_node_condition": lambda: client.set_node_condition("n", CONDITION),
            "daemon_set": lambda: client.daemon_set("tranche-system", "tranche-agent"),
            "create_node_event": lambda: client.create_node_event(KubeNode("n"), KubeEventType.NORMAL, "A", "b"),
            "warn_of_node": lambda: client.warn_of_node(KubeNode("n"), "A", "b"),
            "create_pod_event": lambda: client.create_pod_event(
                KubePod(PodRef("any", "p"), "u1"), "n", KubeEventType.NORMAL, "A", "b"
            ),
            "list_pods_on_node": lambda: client.list_pods_on_node("n"),
            "watch_pods_on_node": lambda: _followed(server, client.watch_pods_on_node("n")),
            "evict_pod": lambda: client.evict_pod(PodRef("any", "p"), "u1"),
            "watch_node": lambda: _followed(server, client.watch_node("n")),
            "watch_config_map": lambda: _followed(server, client.watch_config_map("tranche-system", "c")),
        }
        assert set(calls) == {name for name in vars(KubeClient) if not name.startswith("_")}
        leases = LeaseClient(connection, "tranche-system")
        lease = Lease("l")
        of_leases: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: leases.create(lease),
            "get": lambda: leases.get("l"),
            "replace": lambda: leases.replace(lease),
            "watch": lambda: _followed(server, leases.watch("l")),
            "watch_all": lambda: _followed(server, leases.watch_all("a", "b")),
            "delete": lambda: leases.delete(lease),
        }
        others = {"source", "delete_all"}  # the second is for the job that ends the agents
        assert set(of_leases) == {name for name in dir(LeaseClient) if not name.startswith("_")} - others
        calls |= of_leases
        for call in [*calls.values(), calls["create_node_event"]]:
            await patiently(call())
        await connection.aclose()
        return {_right(seen) for seen in server.requests}


def test_the_job_that_ends_the_agents_has_the_rights_that_it_uses_and_no_more(tmp_path: Path) -> None:
    made = [
        item for item in render({"dra": {"enabled": True}}) if "helm.sh/hook" in item["metadata"].get("annotations", {})
    ]
    assert {item["metadata"]["annotations"]["helm.sh/hook"] for item in made} == {"pre-delete"}
    assert not any(
        "hook" in str(item["metadata"].get("annotations")) for item in render({"cleanup": {"enabled": False}})
    )
    allowed = granted(*(item for item in made if item["kind"].endswith("Role")))
    (job,) = [item for item in made if item["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumes" not in pod

    async def used(*, beside_others: bool) -> set[tuple[str, str, str]]:
        async with api_server() as server:
            conditions = [{"type": "MigLayoutApplied", "status": "True"}]
            cordoned = {"annotations": {CORDON_ANNOTATION: "true"}}
            server.put("/api/v1/nodes/n", {"metadata": cordoned, "spec": {"unschedulable": True}})
            server.objects["/api/v1/nodes/n"]["status"] = {"conditions": conditions}
            server.put(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/tranche-agent", {})
            if beside_others:
                agent = {"template": {"spec": {"containers": [{"command": ["tranche", "agent"]}]}}}
                server.put(
                    "/apis/apps/v1/namespaces/other/daemonsets/second",
                    {"metadata": {"namespace": "other"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, **agent}},
                )
                server.put(f"/api/v1/namespaces/{NAMESPACE}/pods/one", {"spec": {"nodeName": "n"}})
                theirs = {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeName": "m"}}
                server.put("/api/v1/namespaces/other/pods/two", theirs)
            config = f"--kubeconfig={kubeconfig_in(tmp_path, server.url)}"
            arguments = ["leave", *container["args"], config, "--patience=0"]
            await patiently(asyncio.to_thread(command_line, arguments, standalone_mode=False))
            return {_right(seen) for seen in server.requests}

    # Of the namespace, the list of pods is the only right that is not about one object; _right gives it for the cluster.
    rights = {("" if resource == "pods" else space, resource, verb) for space, resource, verb in allowed}
    assert rights == asyncio.run(used(beside_others=False)) | asyncio.run(used(beside_others=True))


async def _used_for_claims() -> set[tuple[str, str, str]]:
    """The same of what the driver of claims asks."""
    async with api_server() as server:
        connection = ApiConnection(ApiServer(server.url))
        slices = SliceClient(connection, "n", DRIVER)
        made = NodeSlice("n-1", DRIVER, "n", "n", generation=1, count=1)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: slices.create(made),
            "replace": lambda: slices.replace(made),
            "watch": lambda: _followed(server, slices.watch()),
            "delete": lambda: slices.delete(made),
        }
        assert set(calls) == {name for name in dir(SliceClient) if not name.startswith("_")} - {"get", "source"}
        for call in calls.values():
            await patiently(call())
        assert await patiently(ClaimReader(connection).read(ClaimRef("any", "c", "u"))) is None
        await connection.aclose()
        return {_right(seen) for seen in server.requests}


async def _followed(server: FakeApiServer, watch: AsyncIterator[object]) -> None:
    """A list, and a watch after it."""
    watches = len(server.watches())
    await anext(watch)
    following = asyncio.ensure_future(anext(watch))
    await until(lambda: len(server.watches()) > watches)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def _right(seen: Seen) -> tuple[str, str, str]:
    words = seen.path.split("/")[3 if seen.path.startswith("/api/") else 4 :]
    namespace = ""
    if words[0] == "namespaces":
        namespace, words = words[1], words[2:]
    resource = "/".join(words[::2])
    verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(
        seen.method, "get" if len(words) == 2 else "list"
    )
    if verb == "delete" and len(words) == 1:
        verb = "deletecollection"
    # A pod may be in any namespace, and is what the events of a namespace other than that of nodes are about.
    of_pods = resource.startswith("pods") or (resource == "events" and namespace == "any")
    return "" if of_pods else namespace, resource, "watch" if "watch" in seen.query else verb


def test_nothing_but_a_lease_may_be_deleted_and_no_secret_read() -> None:
    for role in objects("ClusterRole") + objects("Role"):
        for rule in role["rules"]:
            if rule["resources"] != ["leases"]:
                assert not {"delete", "deletecollection", "update", "*"} & set(rule["verbs"])
            assert not {"secrets", "*"} & set(rule["resources"])


def _variables(envvar: object) -> list[str]:
    return [envvar] if isinstance(envvar, str) else list(envvar) if isinstance(envvar, list | tuple) else []


@pytest.mark.parametrize("case", cases())
def test_every_option_that_the_chart_gives_is_one_of_the_agents(case: str) -> None:
    (daemon_set,) = [item for item in render(files=(cases()[case],)) if item["kind"] == "DaemonSet"]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["tranche", "agent"]
    context = agent.command.make_context("agent", list(container.get("args", ())))
    assert context.args == []
