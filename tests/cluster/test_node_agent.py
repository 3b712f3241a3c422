"""The agent's pod on a real node: rights, readiness, restarts of everything around it, its end, its memory."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.agents import ACCOUNT, NAMESPACE, agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for

from tests.support.length import rounds
from tranche.cli.agent import PART_OPTIONS
from tranche.core.errors import KubernetesForbidden
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.api.objects import ConditionStatus, NodeCondition

pytestmark = pytest.mark.cluster

STARTS = rounds(3, 1, "TRANCHE_AGENT_STARTS")
# What the agent is made of without its parts, which have tests of their own; it looks often, so that tests wait less.
BARE = (*(f"--without={name}" for name in PART_OPTIONS), "--refresh-seconds=0.3")


@contextmanager
def machine_renewed(node: Node) -> Iterator[None]:
    """A simulated machine of the test's own: nothing of it is left for the next."""
    try:
        yield
    finally:
        node.renew_machine()


@pytest.mark.long
def test_it_is_ready_with_the_rights_of_its_manifest_and_its_log_is_json(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE) as agent:
        status, body = agent.health()
        assert status == 200
        components = body["components"]
        assert isinstance(components, dict)
        assert {"node-watch", "inventory", "gpu-events"} <= set(components)
        assert agent.health("/healthz") == (200, {"ok": True})
        assert "Forbidden" not in agent.log


def test_an_agent_may_change_its_own_node_only(cluster: Cluster, p4d: Node, g4dn: Node) -> None:
    install_rights(cluster)
    server = find_api_server(str(cluster.account_kubeconfig(NAMESPACE, ACCOUNT, p4d.name)), {})

    async def changes(node: str) -> list[str]:
        """What the API server says to each kind of change that an agent makes; nothing of it changes anything."""
        connection = ApiConnection(server)
        api = KubeClient(connection)
        answers = []
        for change in (
            api.patch_node_metadata(node, labels={"tranche.dev/probe": None}),
            api.set_unschedulable(node, False),
            api.set_node_condition(node, NodeCondition("MigLayoutApplied", ConditionStatus.UNKNOWN, "Probe", "")),
        ):
            try:
                await change
                answers.append("done")
            except KubernetesForbidden as error:
                answers.append(error.message)
        await connection.aclose()
        return answers

    own = asyncio.run(changes(p4d.name))
    # The API server has read a new policy a moment later.
    wait_for("a policy is in force", lambda: "done" not in asyncio.run(changes(g4dn.name)))
    others = asyncio.run(changes(g4dn.name))

    assert own == ["done", "done", "done"]
    assert all("an agent may change only its own node; this agent runs on node p4d" in answer for answer in others)


@pytest.mark.long
def test_every_part_together_is_ready_too(cluster: Cluster, p4d: Node) -> None:
    with machine_renewed(p4d), agent_on(cluster, p4d) as agent:
        assert agent.health()[0] == 200


def test_it_says_which_node_the_cluster_has_not_got(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE, "--node-name=nobody", wait=False) as agent:
        agent.wait_until_not_ready("node-watch", "the cluster has no node nobody")


def test_a_driver_that_fails_makes_it_unready_until_it_answers_again(cluster: Cluster, p4d: Node) -> None:
    with machine_renewed(p4d), agent_on(cluster, p4d, *BARE) as agent:
        p4d.machine.inject_error("nvmlDeviceGetCount_v2", 999, calls=1_000_000)
        agent.wait_until_not_ready("inventory", "NVML error 999")
        p4d.machine.clear_injections()
        agent.wait_until_ready()


def test_it_lives_through_a_killed_kubelet_and_says_so(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE) as agent:
        pid = agent.pid
        p4d.kill9("kubelet")
        agent.wait_until_not_ready("inventory", "the kubelet does not report")
        p4d.start_component("kubelet")
        agent.wait_until_ready()
        assert agent.pid == pid
    p4d.wait_until_ready(cluster.api)


@pytest.mark.long
def test_it_lives_through_a_killed_api_server_and_follows_it_again(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE) as agent:
        pid = agent.pid
        cluster.kill9("kube-apiserver")
        wait_for("the agent notices", lambda: "cannot watch" in agent.log, explain=lambda: agent.log)
        assert agent.health("/healthz")[0] == 200
        cluster.start_component("kube-apiserver")
        wait_for("the agent follows again", lambda: "watching again" in agent.log, explain=lambda: agent.log)
        assert agent.health()[0] == 200
        assert agent.pid == pid
    p4d.wait_until_ready(cluster.api)


@pytest.mark.long
def test_it_starts_without_an_api_server_and_becomes_ready_when_there_is_one(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE) as first:
        cluster.kill9("kube-apiserver")
        # The kubelet knows the pod: only the agent starts in the dark.
        first.end()
        agent = first.restarted()
        agent.wait_until_not_ready("node-watch", "not been read from the API server yet")
        cluster.start_component("kube-apiserver")
        agent.wait_until_ready()
    p4d.wait_until_ready(cluster.api)


@pytest.mark.long
def test_killed_and_started_again_it_is_ready_again(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE) as agent:
        for _ in range(STARTS):
            agent.end()
            agent = agent.restarted()
            agent.wait_until_ready()


def test_sigterm_ends_it_at_once_even_while_the_driver_hangs(cluster: Cluster, p4d: Node) -> None:
    """Bounds are 1 s for components and 0.5 s for threads; the driver would keep a polite process for minutes."""
    with machine_renewed(p4d), agent_on(cluster, p4d, *BARE) as agent:
        p4d.machine.inject_latency("nvmlDeviceGetCount_v2", 300.0)
        agent.wait_until_not_ready("inventory", "the GPUs were last read")
        agent.end(signal.SIGTERM)
        assert "exiting during a driver call" in agent.log


def test_sigterm_ends_it_in_peace(cluster: Cluster, p4d: Node) -> None:
    with agent_on(cluster, p4d, *BARE) as agent:
        agent.end(signal.SIGTERM)
        assert "exiting during a driver call" not in agent.log
        assert "Traceback" not in agent.log


@pytest.mark.long
def test_it_needs_no_more_than_100_mb_with_56_slices(cluster: Cluster, p4d: Node) -> None:
    with machine_renewed(p4d):
        p4d.run(str(Path(sys.executable).with_name("tranche")), "layout", "apply", "-c", "all-1g.5gb")
        assert p4d.run("nvidia-smi", "-L").count("MIG-") == 56
        with agent_on(cluster, p4d) as agent:
            for _ in range(20):
                agent.health()
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{agent.pid}/status").read_text())
            assert peak is not None
            assert int(peak[1]) * 1024 <= 100_000_000
