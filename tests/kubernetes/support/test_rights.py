"""The rights that doctor asks for are those that the chart grants, no less and no more."""

from __future__ import annotations

from typing import Any

import pytest
from release.chart import KubeObject, render

from tranche.kubernetes.api.decoding import decode_daemon_set
from tranche.kubernetes.api.objects import RbacPermission
from tranche.kubernetes.support.programs import needed_rights

pytestmark = pytest.mark.helm

PLUGIN_CONFIG = {"config": {"name": "strategies"}}


def granted(objects: list[KubeObject], account: str) -> set[RbacPermission]:
    """The rights of the roles that are bound to the account: what uninstalls the chart has others, for a moment."""
    bound = {
        (item["roleRef"]["kind"], item["roleRef"]["name"])
        for item in objects
        if any(subject["name"] == account for subject in item.get("subjects", ()))
    }
    rights = set()
    for item in (each for each in objects if (each["kind"], each["metadata"]["name"]) in bound):
        namespace = item["metadata"].get("namespace", "") if item["kind"] == "Role" else ""
        for rule in item.get("rules", ()):
            for resource in rule["resources"]:
                kind, _, subresource = resource.partition("/")
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or ("",):
                        rights.add(RbacPermission(verb, kind, namespace, name, subresource, rule["apiGroups"][0]))
    return rights


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"migManager": {"inUse": "drain", "config": {"name": "mine"}}},
        {"migManager": {"enabled": False}},
        {"migManager": {"enabled": False}, "featureLabels": {"enabled": False}},
        PLUGIN_CONFIG,
        {"rollout": {"maxUnavailable": None}},
        {"dra": {"enabled": True}},
        {"dra": {"enabled": True, "tier": "gates"}, "controller": {"enabled": True}},
        {"dashboard": {"enabled": True}, "rollout": {"maxUnavailable": None}},
    ],
    ids=["default", "drain", "no manager", "plugin only", "configuration", "no budget", "claims", "gates", "dashboard"],
)
def test_what_an_agent_needs_is_what_the_chart_grants(values: dict[str, Any]) -> None:
    objects = render(values)
    (daemon_set,) = (decode_daemon_set(item) for item in objects if item["kind"] == "DaemonSet")
    assert set(needed_rights(daemon_set, "v1.36.3")) == granted(objects, daemon_set.service_account)
