"""The chart's page of a cluster, by a real API server: who is let in by a token of it, and who is shown whose names."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode

import pytest
from cluster.chart_values import simulated_machines
from cluster.cluster import Cluster
from cluster.helm_release import HelmRelease
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import phase, pod
from release.browser import browser_running
from release.image import MadeImage

from tests.cluster.test_claims_on_nodes import TRANCHE, shares
from tests.dashboard.browsing import Viewer, entered

pytestmark = [pytest.mark.cluster, pytest.mark.browser]

SECRET = "0123456789-0123456789"
NAMED = {"X-Tranche-Proxy-Secret": SECRET, "X-Remote-User": "ana"}


def test_each_viewer_sees_the_names_of_namespaces_whose_pods_he_may_list(
    cluster: Cluster, p4d: Node, namespace: str, agent_image: MadeImage
) -> None:
    agents, others, everything = f"{namespace}-agents", f"{namespace}-zebra", f"{namespace}-sees-all"
    for each in (agents, others):
        cluster.kubectl("create", "namespace", each)
    required = {"nodeSelectorTerms": [{"matchExpressions": [_is(p4d.name)]}]}
    values = {
        **simulated_machines(cluster.folder),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "migManager": {"enabled": False},
        "dashboard": {
            "enabled": True,
            "act": True,
            "from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}],
            "proxy": {"secretName": "proxy", "act": True},
            "nodeSelector": {"kubernetes.io/hostname": p4d.name},
        },
    }
    cluster.kubectl("create", "secret", "generic", "proxy", f"--from-literal=secret={SECRET}", "--namespace", agents)
    release = HelmRelease(cluster, "shown", agents, agent_image, values)
    for each in ("overseer", "nobody"):
        cluster.kubectl("create", "serviceaccount", each, "--namespace", namespace)
    view, edit = "--clusterrole=view", "--clusterrole=edit"
    own, overseer = f"--serviceaccount={namespace}:default", f"--serviceaccount={namespace}:overseer"
    cluster.kubectl("create", "rolebinding", "edits", edit, own, "--namespace", namespace)
    cluster.kubectl("create", "clusterrolebinding", everything, view, overseer)
    cluster.kubectl("create", "rolebinding", "views", view, "--user=ana", "--namespace", others)
    try:
        release.install()
        page = f"{release.objects}-dashboard"
        cluster.kubectl("rollout", "status", f"deployment/{page}", "--namespace", agents, "--timeout=120s")
        cluster.apply(
            *(pod("holds", each, script="sleep 600", limits={"nvidia.com/gpu": 1}) for each in (namespace, others))
        )
        cluster.apply(pod("waits", others, script="true", limits={"nvidia.com/gpu": 9}))
        wait_for(
            "both pods run", lambda: {phase(cluster, each, "holds") for each in (namespace, others)} == {"Running"}
        )
        address = _address(cluster, agents, page)
        viewer, sees_all, nobody = (_token(cluster, namespace, each) for each in ("default", "overseer", "nobody"))
        for token in ("", f"{viewer}x"):
            assert _ask(address, "/api/nodes", token) == (401, None)

        def shown() -> list[dict[str, Any]] | None:
            _, nodes = _ask(address, "/api/nodes", viewer)
            keepers = [each["keeper"] for node in nodes or () for each in node["overview"]["allocations"]]
            return nodes if [each.get("name") for each in keepers].count("holds") == 1 and len(keepers) == 2 else None

        (node,) = wait_for("he sees his own pod", shown)
        assert (node["name"], node["trouble"]) == (p4d.name, None)
        assert sorted(each["keeper"]["kind"] for each in node["overview"]["allocations"]) == ["hidden", "pod"]
        for path in ("/", "/queue", "/events", f"/nodes/{p4d.name}", "/api/nodes", "/api/events", "/you"):
            status, text = _get(address, path, viewer)
            assert (status, others in text) == (200, False), path
        # Pods that have started just now leave the queue a moment later.
        hidden = "1 more pod waits in other namespaces"
        wait_for("he is told that one more waits", lambda: hidden in _get(address, "/queue", viewer)[1])
        assert f"{others}/waits" in _get(address, "/queue", sees_all)[1]
        assert f"{others}/holds" in _get(address, f"/nodes/{p4d.name}", sees_all)[1]
        assert _ask(address, "/api/nodes", nobody) == (200, [])
        with _forwarded(cluster, agents, page) as there, browser_running() as browser:
            _look_around(entered(browser, there, viewer), p4d, hidden=others)
        # Who may not patch nodes gets no form; who may delete the pod of his share does it himself, by the API server's word.
        assert "You have no permission to patch nodes" in _get(address, f"/act?kind=cordon&node={p4d.name}", viewer)[1]
        (mine,) = (each["id"] for each in node["overview"]["allocations"] if each["keeper"]["kind"] == "pod")
        release_it = f"/act?kind=release&node={p4d.name}&share={mine}"
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', _get(address, release_it, viewer)[1]))
        refused = _send(address, fields, sees_all)
        assert (refused, phase(cluster, namespace, "holds")) == (409, "Running")
        assert _send(address, fields, viewer) == 303
        path = f"/api/v1/namespaces/{namespace}"
        assert cluster.api.get(f"{path}/pods/holds")["metadata"]["deletionTimestamp"]
        told = [
            each["message"]
            for each in cluster.api.get(f"{path}/events")["items"]
            if each["reason"] == "DoneFromDashboard"
        ]
        assert told == [
            f"Release share {mine} on node {p4d.name}: done by system:serviceaccount:{namespace}:default from the dashboard"
        ]
        _act_through_proxy(cluster, p4d, address, others)
        # The agent tells it when its lease is due, a minute after the last word at the latest.
        # Who may not list nodes is not told.
        busy = re.compile(r"\d+% busy")
        wait_for(
            "its page says how busy the GPUs are", lambda: busy.search(_get(address, f"/nodes/{p4d.name}", sees_all)[1])
        )
        # What a pod has is its own until it is gone, also when agents of other tests come.
        for each in (namespace, others):
            _delete_pods(cluster, each)
        wait_for("nobody has anything of the node", lambda: not shares(p4d), explain=lambda: str(shares(p4d)))
        release.uninstall()
    finally:
        cluster.kubectl("delete", "clusterrolebinding", everything, "--ignore-not-found")
        for each in (namespace, others):
            _delete_pods(cluster, each)
        for each in (agents, others):
            cluster.kubectl("delete", "namespace", each, "--wait=false")
        p4d.renew_machine()


def _act_through_proxy(cluster: Cluster, node: Node, address: str, namespace: str) -> None:
    """Whom the proxy names takes a share back by his own rights in that namespace, and by no others."""
    (share,) = (
        each["id"]
        for each in json.loads(_get(address, f"/api/nodes/{node.name}", NAMED)[1])["overview"]["allocations"]
        if each["keeper"].get("namespace") == namespace
    )
    release_it = f"/act?kind=release&node={node.name}&share={share}"
    assert "You have no permission to delete pods holds" in _get(address, release_it, NAMED)[1]
    cluster.kubectl("create", "rolebinding", "edits", "--clusterrole=edit", "--user=ana", "--namespace", namespace)

    def offered() -> dict[str, str]:
        return dict(re.findall(r'name="(\w+)" value="([^"]*)"', _get(address, release_it, NAMED)[1]))

    fields = wait_for("he is offered to take it back", offered)
    assert _get(address, release_it, {**NAMED, "X-Tranche-Proxy-Secret": f"{SECRET}x"})[0] == 401
    assert _send(address, fields, NAMED) == 303
    path = f"/api/v1/namespaces/{namespace}"
    assert cluster.api.get(f"{path}/pods/holds")["metadata"]["deletionTimestamp"]
    told = [
        each["message"] for each in cluster.api.get(f"{path}/events")["items"] if each["reason"] == "DoneFromDashboard"
    ]
    assert told == [f"Release share {share} on node {node.name}: done by ana (named by a proxy) from the dashboard"]


def _look_around(viewer: Viewer, node: Node, *, hidden: str) -> None:
    """Every view opens, and what a command on the node cuts appears on a page that is open."""
    views = ("/queue", "/ask?kind=gpu_memory&amount=4Gi", "/events", "/waste", "/you", f"/nodes/{node.name}", "/")
    for path in views:
        viewer.open(path)
        assert viewer.violations() == [], path
        assert not viewer.overflows, path
        assert hidden not in viewer.page.content(), path
    idle = viewer.page.locator(f"#node-{node.name} td[data-label=Idle]")
    assert idle.inner_text() == "0"
    node.run(TRANCHE, "run", "--mig-profile", "1g.5gb", "--", "true")
    viewer.page.locator(f"#node-{node.name} td[data-label=Idle]", has_text="1").wait_for()
    assert viewer.complaints == []


@contextmanager
def _forwarded(cluster: Cluster, namespace: str, service: str) -> Iterator[str]:
    """The page's address on this machine, by kubectl port-forward."""
    words = ["port-forward", f"service/{service}", ":80", "--namespace", namespace, "--address=127.0.0.1"]
    command = [cluster.binaries["kubectl"], f"--kubeconfig={cluster.kubeconfig}", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert port is not None
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            process.terminate()


def _delete_pods(cluster: Cluster, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.api.delete_all(pods, grace_seconds=1)
    wait_for(f"the pods of {namespace} are gone", lambda: not cluster.api.get(pods)["items"])


def _is(name: str) -> dict[str, Any]:
    return {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}


def _token(cluster: Cluster, namespace: str, account: str) -> str:
    """Of an account of the namespace."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(cluster.api.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])


def _address(cluster: Cluster, namespace: str, name: str) -> str:
    """Of the page's pod."""
    pods = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name={name}")["items"]
    (address,) = (each["status"]["podIP"] for each in pods)
    return str(address)


def _get(address: str, path: str, who: str | dict[str, str]) -> tuple[int, str]:
    """Status and text, for whoever has that token, or whom a proxy names in these headers."""
    connection = HTTPConnection(address, 8899, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": "localhost", **_headers(who)})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _headers(who: str | dict[str, str]) -> dict[str, str]:
    if isinstance(who, dict):
        return who
    return {"Authorization": f"Bearer {who}"} if who else {}


def _send(address: str, fields: dict[str, str], who: str | dict[str, str]) -> int:
    """The status that a form is answered with."""
    connection = HTTPConnection(address, 8899, timeout=30)
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost"}
    try:
        connection.request("POST", "/act", urlencode(fields), {"Host": "localhost", **_headers(who), **kind})
        return connection.getresponse().status
    finally:
        connection.close()


def _ask(address: str, path: str, token: str) -> tuple[int, list[dict[str, Any]] | None]:
    status, text = _get(address, path, token)
    return status, json.loads(text)["nodes"] if status == 200 else None
