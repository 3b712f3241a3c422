"""What agents leave behind when they are taken off a cluster for good."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release.chart import CHART

from tests.cli.test_agent import kubeconfig_in
from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.kubelet_stand_in import Kubelet, no_pods
from tests.kubernetes.waiting import patiently, until
from tests.machines import TRANCHE, machine_in, short_folder
from tests.node.machines import Node, change
from tests.node.processes import isolated
from tests.node.test_mps_daemons import nothing_left, only, share, short, start, t4
from tests.strategies import node_views
from tranche.core.allocation import NodeView, WholeGpu
from tranche.core.request import Isolation
from tranche.core.state import DaemonState
from tranche.hardware.cdi import CdiDevice, CdiSpec, write_spec
from tranche.hardware.host_facts import HostFacts
from tranche.hardware.nodes import ContainerEdits
from tranche.kubernetes.agent.leaving import (
    FEATURE_LABELS,
    MIG_MANAGER,
    CleanupPlan,
    cleaning,
    give_gpus_back,
    is_marked,
    last_look_at,
    leave,
    say_claims_left,
    take_files_along,
)
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.vocabulary import FREE_LABELS, KEEP_ANNOTATION, PLACING_LABEL
from tranche.kubernetes.device_plugin.allocate import CDI_KIND
from tranche.kubernetes.dra.registration import PluginSocketFiles, socket_folder
from tranche.kubernetes.feature_labels.labels import feature_labels
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.mig_manager.exclusion import CLAIM_PREFIX
from tranche.kubernetes.mig_manager.operands import PAUSED, SINCE_ANNOTATION
from tranche.kubernetes.mig_manager.state import ATTEMPT_ANNOTATION, CONDITION_TYPE, LAYOUT_LABEL, MigState, Report
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.rollout.ticket import TICKET_LABEL
from tranche.kubernetes.telling.told_view import TOLD_LABEL
from tranche.node.state.session import StateFolder

__all__ = ["short", "t4"]  # fixtures
BOTH = {MIG_MANAGER, FEATURE_LABELS}
PEOPLES = {LAYOUT_LABEL: "all-1g.5gb", "tranche.dev/gpu": "true", "nvidia.com/gpu.present": "true", "zone": "a"}
MY_ANNOTATIONS = {"example.com/mine": "1", KEEP_ANNOTATION: "whole=1"}
SET_NAMESPACE = "/apis/apps/v1/namespaces/tranche-system/daemonsets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/tranche-system/leases"
PODS = "/api/v1/namespaces/tranche-system/pods"


@given(st.sampled_from(MigStrategy), node_views(), st.sampled_from(list(MigState)), st.booleans())
def test_all_that_an_agent_writes_is_taken_back_and_nothing_else(
    strategy: MigStrategy, view: NodeView, state: MigState, cordoned: bool
) -> None:
    report = Report(state, "Reason", "")
    features = feature_labels(view.node, strategy, HostFacts(product="p"))
    states = {key: value for key, value in report.labels.items() if value is not None}
    annotations = {ATTEMPT_ANNOTATION: "x", CLAIM_PREFIX + "0": "y", SINCE_ANNOTATION: "z", **MY_ANNOTATIONS}
    if cordoned:
        annotations[CORDON_ANNOTATION] = "true"
    paused = {"nvidia.com/gpu.deploy.dcgm": PAUSED}
    node = KubeNode(
        "n",
        labels={**PEOPLES, **features, **states, **paused, **dict.fromkeys(FREE_LABELS, "1")},
        annotations=annotations,
        unschedulable=True,
        conditions=(report.condition,),
    )
    assert is_marked(node)
    found = cleaning(node, BOTH)
    assert {key: value for key, value in node.labels.items() if key not in found.labels} == PEOPLES
    assert {key for key, value in found.labels.items() if value is not None} == set(paused)
    assert node.annotations.keys() - found.annotations.keys() == MY_ANNOTATIONS.keys()
    assert found.condition == CONDITION_TYPE
    assert found.uncordon is cordoned
    only_features = cleaning(node, {FEATURE_LABELS})
    assert set(only_features.labels) == {*(key for key in features if key not in PEOPLES), *FREE_LABELS}
    assert only_features == CleanupPlan(labels=only_features.labels)


POLICY = (CHART / "templates" / "policy-own-node.yaml").read_text()
MAY_WRITE = re.compile("|".join(re.findall(r"k[.]matches\('\^(.+)\$'\)", POLICY)))
"""The labels and annotations that the chart's policy lets an agent write on its node."""


@given(st.from_regex(MAY_WRITE, fullmatch=True).filter(lambda key: "tranche.dev/" in key))
def test_whatever_of_tranches_an_agent_may_write_on_a_node_is_taken_back(key: str) -> None:
    found = cleaning(KubeNode("n", labels={key: "1"}, annotations={key: "1"}), BOTH)
    assert key in (found.annotations if re.fullmatch(ANNOTATIONS, key) else found.labels)


ANNOTATIONS = re.findall(r"k[.]matches\('\^(.+)\$'\)", POLICY)[1]
WRITERS = {
    "dra/publisher.py": "FREE_LABELS",
    "feature_labels/labeler.py": "feature_labels",
    "mig_manager/manager.py": "Report, and its annotations",
    "agent/leaving.py": "takes all of it back",
}
"""Who writes on a node object. What each writes is in the node above, which loses it."""


def test_nobody_else_writes_on_a_node() -> None:
    sources = Path(cleaning.__code__.co_filename).parents[1]
    found = {
        str(path.relative_to(sources)) for path in sources.rglob("*.py") if ".patch_node_metadata(" in path.read_text()
    }
    assert found == set(WRITERS)


def test_a_node_without_an_agent_bears_nothing() -> None:
    node = KubeNode("n", labels={**PEOPLES, "nvidia.com/mig.config.state": "success"}, unschedulable=True)
    assert not is_marked(node)
    assert not cleaning(KubeNode("n", labels=PEOPLES, unschedulable=True), BOTH)


def node(name: str, **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}, {"type": CONDITION_TYPE, "status": "True"}]
    return {"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}}


def cluster_of_two(server: FakeApiServer) -> None:
    """An agent on `one`; `two` has had one; `foreign` has NVIDIA's labels."""
    state = {"nvidia.com/mig.config.state": "success", "nvidia.com/gpu.count": "8", "zone": "a"}
    for name in ("one", "two"):
        server.put(f"/api/v1/nodes/{name}", node(name, **state))
    server.put("/api/v1/nodes/foreign", {"metadata": {"name": "foreign", "labels": state}})
    server.put(f"{SET_NAMESPACE}/tranche-agent", {"spec": {"selector": {"matchLabels": {"app": "agent"}}}})
    server.put(f"{LEASES}/tranche-layout.one", {"metadata": {"labels": {TICKET_LABEL: "ticket"}}})
    server.put(f"{LEASES}/others", {})
    server.put(f"{PODS}/agent-1", {"metadata": {"labels": {"app": "agent"}}, "spec": {"nodeName": "one"}})


async def leaving(server: FakeApiServer, folder: Path, patience: float = 60.0) -> list[str]:
    said: list[str] = []
    config = str(kubeconfig_in(folder, server.url))
    ended = asyncio.to_thread(leave, config, {}, "tranche-system", "tranche-agent", BOTH, patience, said.append)
    await patiently(ended)
    return said


def test_pods_that_will_not_end_without_an_agent_are_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with api_server() as server:
            result = {"driver": "gpu.tranche.dev", "pool": "one", "device": "gpu-0", "request": "r"}
            for name, driver in (("train", "gpu.tranche.dev"), ("net", "example.com")):
                allocation = {"devices": {"results": [{**result, "driver": driver}]}}
                reserved = [{"resource": "pods", "name": name, "uid": name}]
                status = {"allocation": allocation, "reservedFor": reserved}
                path = f"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}"
                server.put(path, {"metadata": {"namespace": "team", "name": name}, "status": status})
            said: list[str] = []
            config = str(kubeconfig_in(tmp_path, server.url))
            await patiently(asyncio.to_thread(say_claims_left, config, {}, said.append))
            assert len(said) == 1
            assert said[0].startswith("1 pods have GPUs through claims")
            assert said[0].endswith(": team/train")
            server.refusals["GET", "/resourceclaims"] = (403, {"message": "no"})
            await patiently(asyncio.to_thread(say_claims_left, config, {}, said.append))
            assert "no permission to read claims" in said[1]

    asyncio.run(run())


def test_the_agents_end_before_the_nodes_are_cleaned(tmp_path: Path) -> None:
    async def run() -> None:
        async with api_server() as server:
            cluster_of_two(server)
            running = asyncio.create_task(leaving(server, tmp_path))
            await until(lambda: any(seen.method == "DELETE" for seen in server.requests))
            assert not any(seen.method == "PATCH" for seen in server.requests)
            server.delete(f"{PODS}/agent-1")
            said = await patiently(running)
            deletion, *of_leases = [seen for seen in server.requests if seen.method == "DELETE"]
            assert deletion.body["propagationPolicy"] == "Foreground"
            assert [(each.path, each.query["labelSelector"]) for each in of_leases] == [
                (LEASES, label) for label in (TICKET_LABEL, PLACING_LABEL, TOLD_LABEL)
            ]
            assert [path for path in server.objects if path.startswith(LEASES)] == [f"{LEASES}/others"]
            for name in ("one", "two"):
                left = server.objects[f"/api/v1/nodes/{name}"]
                assert left["metadata"]["labels"] == {"zone": "a"}
                assert [condition["type"] for condition in left["status"]["conditions"]] == ["Ready"]
                assert any(f"node {name}: 2 labels" in line for line in said)
            assert "nvidia.com/gpu.count" in server.objects["/api/v1/nodes/foreign"]["metadata"]["labels"]
            writes = len([seen for seen in server.requests if seen.method == "PATCH"])
            await leaving(server, tmp_path)
            assert len([seen for seen in server.requests if seen.method == "PATCH"]) == writes

    asyncio.run(run())


def test_nodes_and_turns_of_another_releases_agents_stay_as_they_are(tmp_path: Path) -> None:
    async def run() -> None:
        async with api_server() as server:
            cluster_of_two(server)
            server.delete(f"{PODS}/agent-1")
            container = {"command": ["/opt/tranche/bin/tranche", "agent"], "args": ["--verbose"]}
            spec = {"selector": {"matchLabels": {"app": "second"}}, "template": {"spec": {"containers": [container]}}}
            server.put(
                "/apis/apps/v1/namespaces/other/daemonsets/second", {"metadata": {"namespace": "other"}, "spec": spec}
            )
            pod = {"metadata": {"labels": {"app": "second"}}, "spec": {"nodeName": "two"}}
            server.put("/api/v1/namespaces/other/pods/second-1", pod)
            server.put(f"{LEASES}/tranche-layout.two", {"metadata": {"labels": {TICKET_LABEL: "ticket"}}})
            before = json.dumps(server.objects["/api/v1/nodes/two"])
            said = await leaving(server, tmp_path)
            assert json.dumps(server.objects["/api/v1/nodes/two"]) == before
            assert server.objects["/api/v1/nodes/one"]["metadata"]["labels"] == {"zone": "a"}
            left = sorted(path for path in server.objects if path.startswith(LEASES))
            assert left == [f"{LEASES}/others", f"{LEASES}/tranche-layout.two"]
            assert "DaemonSet other/second also runs agents, so these nodes are left unchanged: two" in said

    asyncio.run(run())


def test_an_agent_that_does_not_end_is_named_and_its_node_cleaned(tmp_path: Path) -> None:
    async def run() -> None:
        async with api_server() as server:
            cluster_of_two(server)
            said = await leaving(server, tmp_path, patience=0.1)
            assert "agents are still running on these nodes after 0 s and could leave files there: one" in said
            assert server.objects["/api/v1/nodes/one"]["metadata"]["labels"] == {"zone": "a"}

    asyncio.run(run())


def test_an_agent_knows_an_uninstallation_by_its_daemon_set() -> None:
    async def run() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))

            async def deleted() -> bool:
                found = await patiently(last_look_at(connection, "tranche-system", "tranche-agent"))
                return found is not None and found.deleting

            cluster_of_two(server)
            assert not await deleted()
            server.put(f"{SET_NAMESPACE}/tranche-agent", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
            assert await deleted()
            server.delete(f"{SET_NAMESPACE}/tranche-agent")
            assert not await deleted()
            server.put(f"{SET_NAMESPACE}/tranche-agent", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
            for status in (403, 500):
                server.failures.append((status, {"message": "no"}))
                assert not await deleted()
            await server.stop()
            assert not await deleted()
            await connection.aclose()
            await server.start()

    asyncio.run(run())


def test_the_cdi_specification_goes_with_the_agent_and_no_other_file(tmp_path: Path) -> None:
    edits = ContainerEdits(environment=(("A", "b"),))
    write_spec(CdiSpec(CDI_KIND, (CdiDevice("d", edits),), edits), tmp_path)
    write_spec(CdiSpec("vendor.example/gpu", (CdiDevice("d", edits),), edits), tmp_path)
    take_files_along(tmp_path, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["vendor.example-gpu.json"]
    take_files_along(tmp_path / "none", tmp_path / "none")


def test_files_that_cannot_be_removed_do_not_stop_the_agent_from_cleaning_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    no_folder = tmp_path / "cdi"
    no_folder.write_text("")
    kubelets = tmp_path / "kubelet"
    socket_folder(kubelets).mkdir(parents=True)
    take_files_along(no_folder, kubelets)
    assert not socket_folder(kubelets).exists()
    assert [record.message for record in caplog.records] == ["containers' CDI files remain"]


def test_the_folder_of_the_drivers_sockets_goes_with_the_last_agent(tmp_path: Path) -> None:
    with short_folder() as folder:
        own, other = PluginSocketFiles(folder, "a"), PluginSocketFiles(folder, "b")
        own.make_room()
        other.plugin.touch()
        take_files_along(tmp_path, folder)
        assert other.plugin.exists()
        other.remove()
        take_files_along(tmp_path, folder)
        assert not own.plugin.parent.exists()
        assert own.plugin.parent.parent.exists(), "the kubelet's"


@isolated
@pytest.mark.parametrize("used", [False, True])
def test_daemons_that_nobody_needs_end_with_the_agent_and_those_in_use_are_named(t4: Node, used: bool) -> None:
    said: list[str] = []

    async def say(message: str) -> None:
        said.append(message)

    with t4.host() as host:
        change(host, start(only(host)))
        if used:
            share(host, WholeGpu(only(host).uuid))
        asyncio.run(give_gpus_back(host, PodRegister(host, Kubelet(), no_pods, clock=lambda: 0.0), say))
        if not used:
            nothing_left(t4, host)
            assert said == []
            return
        assert only(host).daemons[0].state is DaemonState.READY
        assert [only(host).uuid in each for each in said] == [True]
        assert [each.grants[0].walls.isolation for each in host.view().allocations] == [Isolation.SOFT]
        # Another agent, or any command, ends it with the last share.
        host.release("held", why="it ended")
        asyncio.run(give_gpus_back(host, PodRegister(host, Kubelet(), no_pods, clock=lambda: 0.0), say))
        nothing_left(t4, host)


@pytest.mark.parametrize("deleting", [False, True])
def test_an_agent_that_ends_for_good_leaves_no_idle_daemon(short: Path, deleting: bool) -> None:
    with machine_in(short, machine_type="g4dn.xlarge") as machine:
        machine.tranche("run", "--gpu-memory", "3G", "--", "true")
        assert machine.smi("--query-gpu=compute_mode", "--format=csv,noheader").strip() == "Exclusive_Process"

        async def run() -> None:
            async with api_server() as server:
                server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
                stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
                server.put(f"{SET_NAMESPACE}/tranche-agent", {"metadata": stamp})
                parts = [f"--without={part}" for part in ("device-plugin", "mig-manager", "feature-labels")]
                agent = await asyncio.create_subprocess_exec(
                    *TRANCHE,
                    "agent",
                    f"--kubeconfig={kubeconfig_in(short, server.url)}",
                    "--node-name=n1",
                    "--namespace=tranche-system",
                    "--health-port=0",
                    "--metrics-port=0",
                    *parts,
                    f"--cdi-folder={short / 'cdi'}",
                    f"--kubelet-folder={short / 'kubelet'}",
                    f"--pod-resources-socket={short / 'none.sock'}",
                    env=machine.environment,
                    stderr=asyncio.subprocess.PIPE,
                )
                assert agent.stderr is not None
                await patiently(agent.stderr.readline())
                agent.send_signal(signal.SIGTERM)
                said = (await patiently(agent.stderr.read())).decode()
                assert await patiently(agent.wait()) == 0, said

        asyncio.run(run())
        mode = machine.smi("--query-gpu=compute_mode", "--format=csv,noheader").strip()
        assert mode == ("Default" if deleting else "Exclusive_Process")
        assert bool(list(StateFolder(machine.state_dir).mps.glob("*.json"))) is not deleting
