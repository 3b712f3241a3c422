"""The chart agrees with the page that it starts: its options, ports and rights, and the agents that tell it."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from release.chart import NAMESPACE, KubeObject, Values, render
from release.errors import ReleaseError

from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import served_cluster_page
from tests.kubernetes.fake_api_server import Seen
from tests.kubernetes.support.test_rights import granted
from tranche.cli.cluster_dashboard import command
from tranche.dashboard.cluster.cluster_app import serve_cluster_page
from tranche.kubernetes.api.objects import RbacPermission

NAME = "tranche-agent-dashboard"
ENABLED: dict[str, Any] = {"dashboard": {"enabled": True}}
FROM_PROXY: dict[str, Any] = {"from": [{"podSelector": {"matchLabels": {"app": "proxy"}}}]}
PROXY_ACTS: dict[str, Any] = {"proxy": {"secretName": "s", "act": True}}
pytestmark = pytest.mark.helm


def made(**dashboard: object) -> dict[str, KubeObject]:
    values = {"dashboard": {"enabled": True, **dashboard}}
    return {item["kind"]: item for item in render(values) if item["metadata"]["name"] == NAME}


def container(**dashboard: object) -> dict[str, Any]:
    (found,) = made(**dashboard)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_nothing_of_it_is_there_unless_it_is_enabled_and_then_all_of_it() -> None:
    usual = render({})
    assert not any(item["metadata"]["name"] == NAME for item in usual)
    assert "--tell-view" not in str(usual)
    assert set(made()) == {
        *("ServiceAccount", "Deployment", "Service", "NetworkPolicy"),
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    }
    (agents,) = (item for item in render(ENABLED) if item["kind"] == "DaemonSet")
    assert "--tell-view" in agents["spec"]["template"]["spec"]["containers"][0]["args"]


def test_every_option_and_port_is_the_pages() -> None:
    chosen: dict[str, Any] = {
        "name": "the lab's",
        "hosts": ["gpus.example.org"],
        "act": True,
        "port": 9000,
        "from": [{"podSelector": {}}],
        "proxy": {"secretName": "s", "userHeader": "X-User", "groupHeader": "X-Group", "act": True},
    }
    for values in ({}, chosen):
        found = container(**values)
        params = command.make_context("cluster-dashboard", list(found["args"])).params
        ports = {each["name"]: each["containerPort"] for each in found["ports"]}
        assert ports == {"page": params["port"], "health": params["health_port"]}
        assert params["name"] == values.get("name", "cluster")
        assert params["act"] is params["proxy_act"] is values.get("act", False)
        assert {*values.get("hosts", ()), f"{NAME}.{NAMESPACE}"} <= set(params["hosts"])
        assert found["command"] == ["tranche", "cluster-dashboard"]
        assert params.keys() ^ signature(serve_cluster_page).parameters.keys() == {"log_format", "verbose"}
        mounts = [each["mountPath"] for each in found.get("volumeMounts", ())]
        if params["proxy_secret"] is None:
            assert mounts == []
        else:
            assert str(params["proxy_secret"].parent) in mounts
            assert (params["proxy_user_header"], params["proxy_group_header"]) == ("X-User", "X-Group")
    known = {parameter.envvar for parameter in command.params}
    assert {each["name"] for each in container()["env"]} <= known
    assert made(port=9000)["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == [{"port": 9000, "protocol": "TCP"}]


def test_it_may_nothing_that_a_page_does_not_need() -> None:
    spec = made()["Deployment"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    (found,) = spec["containers"]
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "hostPath" not in str(spec)


EVERYBODYS = ("/version", "/apis/resource.k8s.io/v1")
"""What every account may ask for: what the API server is and serves."""


def asked_right(seen: Seen) -> RbacPermission:
    """The right that a request needs."""
    head, *rest = seen.path.strip("/").split("/")
    group = "" if head == "api" else rest[0]
    rest = rest[1:] if head == "api" else rest[2:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    one = len(rest) > 1
    verb = "watch" if "watch" in seen.query else {"GET": "get" if one else "list", "POST": "create"}[seen.method]
    return RbacPermission(verb, rest[0], namespace=namespace, group=group)


def test_what_it_asks_for_is_what_the_chart_grants() -> None:
    people = People({"t": "olga"})
    people.let("olga", "list nodes")
    with served_cluster_page(people) as served:
        while served.ask("/queue", "t").status != 200:
            assert served.process.poll() is None
        requests: list[Seen] = []
        while not {"pods", "nodes", "events", "leases"} <= {
            asked_right(each).resource for each in requests if "watch" in each.query
        }:
            served.api.change(lambda server: requests.extend(server.requests))
    asked = {asked_right(each) for each in requests if each.path not in EVERYBODYS}
    rights = granted(render({**ENABLED, "namespaceOverride": "tranche-system"}), NAME)
    # A cluster without claims has said so before anybody asks for them.
    assert asked | {RbacPermission("list", "resourceclaims", group="resource.k8s.io")} == rights
    # Who acts does so with his own token; beside that it writes down who did what.
    acting: dict[str, Any] = {"namespaceOverride": "tranche-system", "dashboard": {"enabled": True, "act": True}}
    about_nodes = {RbacPermission(verb, "events", namespace="default") for verb in ("create", "get", "patch")}
    for_others = {*rights, RbacPermission("create", "events"), *about_nodes}
    assert granted(render(acting), NAME) == for_others
    # A proxy that names viewers gives none; only acting for those does, and what that asks of the API server is tested beside it.
    acting["dashboard"] |= {"proxy": {"secretName": "s"}, **FROM_PROXY}
    assert granted(render(acting), NAME) == for_others
    acting["dashboard"]["proxy"]["act"] = True
    own = {RbacPermission("patch", "nodes"), RbacPermission("get", "pods"), RbacPermission("delete", "pods")}
    assert granted(render(acting), NAME) == {*for_others, *own}


def policies(**values: object) -> dict[str, KubeObject]:
    made = render({"dashboard": {"enabled": True, "act": True, **FROM_PROXY, **PROXY_ACTS}, **values})
    return {item["metadata"]["name"]: item for item in made if item["kind"].startswith("ValidatingAdmission")}


def test_policies_hold_the_page_to_what_its_pages_offer() -> None:
    """An API server's word about them is `test_what_the_pages_account_may_do_for_others_is_what_its_pages_offer`."""
    usual = set(policies())
    assert {f"{NAME}-nodes", f"{NAME}-pods"} <= usual
    assert {each for each in usual if NAME in each} == {f"{NAME}-nodes", f"{NAME}-pods"}
    (account,) = (
        item for item in render(ENABLED) if item["kind"] == "ServiceAccount" and item["metadata"]["name"] == NAME
    )
    user = f"system:serviceaccount:{account['metadata']['namespace']}:{NAME}"
    for item in render({"dashboard": {"enabled": True, "act": True, **FROM_PROXY, **PROXY_ACTS}}):
        if item["metadata"]["name"] in (f"{NAME}-nodes", f"{NAME}-pods"):
            if item["kind"] == "ValidatingAdmissionPolicyBinding":
                assert item["spec"] == {"policyName": item["metadata"]["name"], "validationActions": ["Deny"]}
            else:
                assert item["spec"]["failurePolicy"] == "Fail"
                (condition,) = item["spec"]["matchConditions"]
                assert condition["expression"] == f"request.userInfo.username == '{user}'"
    assert not any(NAME in each for each in policies(admissionPolicy={"enabled": False}))
    assert NAME not in str([each["metadata"]["name"] for each in render(ENABLED) if "Validating" in each["kind"]])


@pytest.mark.parametrize(
    ("dashboard", "said"),
    [
        ({"act": False, **PROXY_ACTS}, "dashboard.act=true"),
        ({"enabled": False, **PROXY_ACTS}, "dashboard.enabled=true"),
        ({"proxy": {"act": True}}, "dashboard.proxy.secretName"),
        ({**PROXY_ACTS, "from": []}, "needs dashboard.from"),
    ],
)
def test_acting_through_a_proxy_needs_a_proxy_that_alone_reaches_the_page(dashboard: Values, said: str) -> None:
    values = {"enabled": True, "act": True, **FROM_PROXY, **dashboard}
    with pytest.raises(ReleaseError, match=said):
        render({"dashboard": values})


def test_where_no_policy_of_the_chart_closes_the_port_nobody_has_to_say_who_reaches_it() -> None:
    made = render({"networkPolicy": {"enabled": False}, "dashboard": {"enabled": True, "act": True, **PROXY_ACTS}})
    assert "--proxy-act" in str(made)
