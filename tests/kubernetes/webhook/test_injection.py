"""How a pod gets its claim, and when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.webhook.json_patch import patched
from tranche.core.errors import UsageError
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.webhook.injection import (
    POD_CLAIM,
    TEMPLATE_LABEL,
    claim_template,
    demand_of,
    injection,
    names_used,
    template_name,
)

TEMPLATE = "tranche-0123456789abcdef"
OTHER = "tranche-fedcba9876543210"
ASKING = {"tranche.dev/gpu-memory": "4Gi"}
MINE = {"name": POD_CLAIM, "resourceClaimTemplateName": TEMPLATE}


def pod(**spec: object) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(ASKING)}, "spec": {"containers": [{"name": "main"}], **spec}}


def injected(before: dict[str, Any], *take_over: str) -> dict[str, Any]:
    demand = demand_of(before)
    assert demand is not None
    after: dict[str, Any] = patched(before, injection(before, demand, TEMPLATE, take_over))
    return after


def refusal(before: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        injected(before)
    return f"{caught.value.message}; {caught.value.hint}"


def names() -> st.SearchStrategy[str]:
    return st.sampled_from(["main", "side", "warm"])


def claims(name: str) -> st.SearchStrategy[list[dict[str, str]]]:
    return st.lists(st.just({"name": name}), max_size=1)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    def container(name: str) -> dict[str, Any]:
        resources: dict[str, Any] | None = draw(
            st.sampled_from([None, {}, {"limits": {"cpu": "1"}}, {"claims": []}, {"claims": [{"name": "net"}]}])
        )
        return {"name": name} | ({} if resources is None else {"resources": dict(resources)})

    found = pod(containers=[container(name) for name in draw(st.lists(names(), min_size=1, unique=True))])
    if draw(st.booleans()):
        found["spec"]["resourceClaims"] = draw(
            st.lists(st.sampled_from([{"name": "net", "resourceClaimName": "n"}, dict(MINE)]), unique_by=str)
        )
    if draw(st.booleans()):
        found["metadata"]["labels"] = draw(st.dictionaries(st.sampled_from(["app", TEMPLATE_LABEL]), st.just("x")))
    if draw(st.booleans()):
        found["spec"]["schedulerName"] = draw(st.sampled_from(["default-scheduler", "kai-scheduler", "own"]))
    if draw(st.booleans()):
        found["metadata"]["annotations"]["tranche.dev/container"] = found["spec"]["containers"][-1]["name"]
    return found


@given(pods())
def test_a_pod_gets_its_claim_once_and_nothing_else_of_it_changes(before: dict[str, Any]) -> None:
    after = injected(before, "kai-scheduler")
    assert injected(after, "kai-scheduler") == after
    assert after["spec"]["resourceClaims"].count(MINE) == 1
    assert after["metadata"]["labels"][TEMPLATE_LABEL] == TEMPLATE
    given_to = [
        each["name"]
        for each in after["spec"]["containers"]
        if {"name": POD_CLAIM} in (each.get("resources") or {}).get("claims", ())
    ]
    wanted = before["metadata"]["annotations"].get("tranche.dev/container") or before["spec"]["containers"][0]["name"]
    assert given_to == [wanted]
    assert after["spec"].get("schedulerName") != "kai-scheduler"
    # Taken back, it is the pod that came.
    after["spec"]["resourceClaims"].remove(MINE)
    kept = [each for each in before["spec"].get("resourceClaims", ()) if each != MINE]
    assert after["spec"]["resourceClaims"] == kept
    for new, old in zip(after["spec"]["containers"], before["spec"]["containers"], strict=True):
        rest = [each for each in (new.get("resources") or {}).get("claims", ()) if each != {"name": POD_CLAIM}]
        assert rest == (old.get("resources") or {}).get("claims", [])
        assert {k: v for k, v in (new.get("resources") or {}).items() if k != "claims"} == {
            k: v for k, v in (old.get("resources") or {}).items() if k != "claims"
        }


def test_the_container_is_the_one_that_is_named_or_that_kubectl_takes_or_the_first() -> None:
    def holder(**annotations: str) -> str:
        before = pod(initContainers=[{"name": "warm"}], containers=[{"name": "proxy"}, {"name": "main"}])
        before["metadata"]["annotations"] |= annotations
        spec = injected(before)["spec"]
        (found,) = [each["name"] for each in (*spec["initContainers"], *spec["containers"]) if "resources" in each]
        return str(found)

    assert holder() == "proxy"
    assert holder(**{"kubectl.kubernetes.io/default-container": "main"}) == "main"
    assert holder(**{"kubectl.kubernetes.io/default-container": "gone"}) == "proxy"
    assert holder(**{"kubectl.kubernetes.io/default-container": "proxy", "tranche.dev/container": "main"}) == "main"
    assert holder(**{"gpu-fraction-container-name": "warm"}) == "warm"


def test_a_pod_that_asks_in_two_ways_is_refused() -> None:
    for place in ("limits", "requests"):
        for resource in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "k8s.amazonaws.com/vgpu"):
            asking = {"name": "side", "resources": {place: {resource: "1", "cpu": "1"}}}
            assert f"container 'side' requests {resource}" in refusal(pod(containers=[{"name": "main"}, asking]))
    own = {"name": POD_CLAIM, "resourceClaimName": "mine"}
    assert "its own claim named 'tranche'" in refusal(pod(resourceClaims=[own]))
    assert "names container 'train', which the pod does not have" in refusal(
        {"metadata": {"annotations": {**ASKING, "tranche.dev/container": "train"}}, "spec": pod()["spec"]}
    )
    assert "sets nodeName (n1)" in refusal(pod(nodeName="n1"))


def test_annotations_that_another_webhook_changed_since_change_the_claim() -> None:
    before = pod(resourceClaims=[{"name": POD_CLAIM, "resourceClaimTemplateName": OTHER}])
    assert injected(before)["spec"]["resourceClaims"] == [MINE]


def test_a_pod_of_the_kubelets_own_is_left_as_it_is() -> None:
    mirror = pod()
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    assert demand_of(mirror) is None
    assert demand_of({"spec": {}}) is None


def test_the_same_request_has_the_same_template_everywhere() -> None:
    demand = demand_of(pod())
    assert demand is not None
    devices = dict(claim_spec(demand.request).devices)
    name = template_name(devices)
    assert name == template_name(dict(reversed(devices.items())))
    assert name != template_name({**devices, "config": []})
    made = claim_template("team", devices, "--gpu-memory 4Gi", "now")
    assert (made["metadata"]["namespace"], made["metadata"]["name"]) == ("team", name)
    assert made["spec"]["spec"]["devices"] == devices


def test_a_pod_that_has_ended_needs_its_template_no_more() -> None:
    def named(name: str, phase: str) -> dict[str, Any]:
        return {"metadata": {"namespace": "a", "labels": {TEMPLATE_LABEL: name}}, "status": {"phase": phase}}

    found = [
        named("t1", "Pending"),
        named("t2", "Succeeded"),
        named("t3", "Failed"),
        named("t4", "Running"),
        {"metadata": {}},
    ]
    assert names_used(found) == {("a", "t1"), ("a", "t4")}
