"""The chart agrees with the controller that it starts."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from release.chart import NAMESPACE, KubeObject, render
from release.errors import ReleaseError

from tests.kubernetes.fake_api_server import Seen, api_server
from tests.kubernetes.waiting import patiently, until
from tranche.cli.controller import command
from tranche.core.request import parse_request
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.informer import named
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.claims.annotations import DOMAIN, FOREIGN_ANNOTATIONS
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.controller.process import ControllerOptions
from tranche.kubernetes.gated.left_at_gate import StrandedPodWatch
from tranche.kubernetes.gated.scheduler.placing import PlacingClient
from tranche.kubernetes.webhook.identity import webhook_configurations
from tranche.kubernetes.webhook.template_store import KEPT, TemplateStore
from tranche.kubernetes.webhook.webhook import PATH, gpu_model_watch

NAME = "tranche-agent-controller"
pytestmark = pytest.mark.helm


def made(**controller: object) -> dict[str, KubeObject]:
    values = {"dra": {"enabled": True}, "controller": {"enabled": True, **controller}}
    return {item["kind"]: item for item in render(values) if item["metadata"]["name"] == NAME}


def container(**controller: object) -> dict[str, Any]:
    (found,) = made(**controller)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_nothing_of_it_is_there_unless_it_is_enabled_and_then_all_of_it() -> None:
    assert not any("controller" in item["metadata"]["name"] for item in render({"dra": {"enabled": True}}))
    assert set(made()) == {
        *(
            "ServiceAccount",
            "Deployment",
            "Service",
            "MutatingWebhookConfiguration",
            "PodDisruptionBudget",
            "NetworkPolicy",
        ),
        *("ClusterRole", "ClusterRoleBinding"),
    }
    assert "PodDisruptionBudget" not in made(replicas=1)  # it would keep the one replica's node from being drained
    with pytest.raises(ReleaseError, match=r"dra\.enabled=true"):
        render({"controller": {"enabled": True}})


def test_every_option_and_port_is_the_controllers() -> None:
    for chosen in ({}, {"webhookPort": 8443, "certificateLifetime": "1d", "takeOverSchedulers": ["a", "b"]}):
        found = container(**chosen)
        context = command.make_context("controller", list(found["args"]))
        ports = {each["name"]: each["containerPort"] for each in found["ports"]}
        assert ports == {"webhook": context.params["webhook_port"], "health": context.params["health_port"]}
        assert (context.params["service"], context.params["configuration"]) == (NAME, NAME)
        schedulers = chosen.get("takeOverSchedulers", ["kai-scheduler", "runai-scheduler"])
        assert list(context.params["take_over"]) == schedulers
        assert found["command"] == ["tranche", "controller"]
        set_up = {each.name for each in fields(ControllerOptions)} - {"leave_seconds"}  # which no option changes
        assert context.params.keys() ^ set_up == {
            *("lifetime", "certificate_lifetime", "backend", "tier"),  # which the command reads
            *("log_format", "verbose"),
        }
    known = {parameter.envvar for parameter in command.params}
    assert {each["name"] for each in container()["env"]} <= known


def test_it_runs_with_nothing_that_it_does_not_need() -> None:
    pod = made()["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    # Its key is read from memory.
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}]
    (ingress,) = made()["NetworkPolicy"]["spec"]["ingress"]
    assert ingress == {"ports": [{"port": 9443, "protocol": "TCP"}]}
    selector = made()["Deployment"]["spec"]["selector"]["matchLabels"]
    assert made()["Service"]["spec"]["selector"] == selector
    assert made()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == selector
    agents = next(item for item in render() if item["kind"] == "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert selector != agents


@pytest.mark.parametrize(("number", "of"), [(0, "object.metadata."), (1, "object.spec.template.?metadata.")])
def test_only_annotated_pods_and_jobs_of_namespaces_that_opt_in_are_asked_about(number: int, of: str) -> None:
    webhook = made()["MutatingWebhookConfiguration"]["webhooks"][number]
    assert webhook["clientConfig"] == {"service": {"name": NAME, "namespace": NAMESPACE, "path": PATH, "port": 443}}
    assert webhook["namespaceSelector"]["matchLabels"] == {"tranche.dev/inject": "enabled"}
    (own,) = webhook["namespaceSelector"]["matchExpressions"]
    assert own == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
    (condition,) = webhook["matchConditions"]
    assert condition["expression"].startswith(f"{of}?annotations.orValue({{}}).exists(k, k.startsWith('{DOMAIN}')")
    assert all(f"'{name}'" in condition["expression"] for name in FOREIGN_ANNOTATIONS)
    assert webhook["failurePolicy"] == ("Ignore" if number else "Fail")
    lax = made(failurePolicy="Ignore")["MutatingWebhookConfiguration"]["webhooks"][number]
    assert lax["failurePolicy"] == "Ignore"


def test_pod_templates_that_a_queue_may_count_are_asked_about() -> None:
    _, *queued = made()["MutatingWebhookConfiguration"]["webhooks"]
    resources = [each for webhook in queued for rule in webhook["rules"] for each in rule["resources"]]
    assert resources == ["jobs", "jobsets", "pytorchjobs", "rayjobs"]
    for webhook in queued:
        (rule,) = webhook["rules"]
        assert (rule["operations"], webhook["failurePolicy"]) == (["CREATE", "UPDATE"], "Ignore")
        assert "objectSelector" not in webhook  # the label of a queue may come later


def test_the_rights_are_those_that_it_uses_and_no_more() -> None:
    role = made()["ClusterRole"]
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == asyncio.run(patiently(_used()))
    (own,) = [rule for rule in role["rules"] if "mutatingwebhookconfigurations" in rule["resources"]]
    assert own["resourceNames"] == [NAME]
    (subject,) = made()["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    assert made()["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == NAME


async def _used() -> set[tuple[str, str]]:
    """Resource and verb of every request that its clients can make."""
    async with api_server() as server:
        moments = [datetime(2026, 11, 22, tzinfo=UTC)]
        connection = ApiConnection(ApiServer(server.url), now=lambda: moments[-1])
        request = parse_request(gpus="1")
        devices = claim_spec(request).devices
        for _ in range(2):
            await TemplateStore(connection, clock=lambda: 0.0).ensure("team", devices, str(request))
        moments.append(moments[0] + KEPT)
        assert await TemplateStore(connection, clock=lambda: 0.0).sweep() == 1
        server.put(f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{NAME}", {"webhooks": []})
        configurations = webhook_configurations(connection)
        found = await configurations.get(NAME)
        assert found is not None
        assert await configurations.replace(found.with_bundle("")) is not None
        cards = asyncio.create_task(gpu_model_watch(connection).run())
        watch = configurations.source("it", named(NAME)).versions()
        await anext(watch)
        following = asyncio.ensure_future(anext(watch))
        await until(lambda: len(server.watches()) == 2)
        for task in (cards, following):
            task.cancel()
        await asyncio.gather(cards, following, return_exceptions=True)
        left = {"metadata": {"uid": "u"}, "spec": {"schedulingGates": [{"name": "tranche.dev/share"}]}}
        server.put("/api/v1/namespaces/team/pods/left", {**left, "status": {"phase": "Pending"}})
        leases = LeaseClient(connection, NAMESPACE)
        client = PlacingClient(connection, leases)
        replicas = [StrandedPodWatch(connection, client.say) for _ in range(2)]
        telling = [asyncio.create_task(each.run()) for each in replicas]
        await until(lambda: any(seen.method == "PATCH" and "/events/" in seen.path for seen in server.requests))
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
        await connection.aclose()
        return {_right(seen) for seen in server.requests}


def _right(seen: Seen) -> tuple[str, str]:
    words = seen.path.split("/")[3 if seen.path.startswith("/api/") else 4 :]
    if words[0] == "namespaces":
        words = words[2:]
    verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(
        seen.method, "get" if len(words) == 2 else "list"
    )
    return words[0], "watch" if "watch" in seen.query else verb


def test_its_lifetimes_are_what_the_option_takes() -> None:
    context = command.make_context("controller", ["--certificate-lifetime=12h"])
    assert timedelta(seconds=context.params["certificate_lifetime"]) == timedelta(hours=12)
    with pytest.raises(ReleaseError, match="certificateLifetime"):
        made(certificateLifetime="soon")
    with pytest.raises(ReleaseError, match="webhookPort"):
        made(webhookPort=9440)
