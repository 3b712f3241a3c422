"""What the agent's chart makes beside its pods: namespace, account, rights and policies. Only what differs is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from release.chart import KubeObject, render

from cluster.cluster import Cluster
from cluster.errors import NotFound
from cluster.waiting import wait_for
from release import chart

NAMESPACE = chart.NAMESPACE
ACCOUNT = "tranche-agent"
# An agent that is no pod is given its ConfigMaps by the tests, not by the chart's values.
_CONFIG_MAPS = ("plugin", "strategies", "competition-strategies")

_Identity = tuple[str, str, str]
_written: dict[Path, dict[_Identity, KubeObject]] = {}
"""What this process has written into which cluster."""


def install_rights(cluster: Cluster) -> None:
    """The rights of an agent with the chart's default values, and to read every ConfigMap that tests use."""
    write_rights(cluster, _with_config_maps(render(_made())))


@contextmanager
def rights_to_drain(cluster: Cluster) -> Iterator[None]:
    """The rights that the policy drain needs, too, for the length of the block."""
    write_rights(cluster, _with_config_maps(render(_made(migManager={"inUse": "drain"}))))
    try:
        yield
    finally:
        install_rights(cluster)


def write_rights(cluster: Cluster, objects: Sequence[KubeObject]) -> None:
    """Have the cluster hold these objects of the chart but for the DaemonSet, and none that it was given before beside them."""
    wanted = {_identity(item): item for item in objects if item["kind"] != "DaemonSet"}
    present = _written.get(cluster.folder, {})
    _written.pop(cluster.folder, None)
    changed = [item for identity, item in wanted.items() if present.get(identity) != item]
    if changed:
        cluster.apply(*changed)
    for kind, namespace, name in present.keys() - wanted.keys():
        where = [f"--namespace={namespace}"] if namespace else []
        cluster.kubectl("delete", kind, name, "--ignore-not-found", *where)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}"
    wait_for("the agent's service account is there", lambda: cluster.api.get(account))
    _written[cluster.folder] = wanted


def remove_device_classes(cluster: Cluster) -> None:
    """Have the cluster hold no DeviceClass; the next agent that serves claims brings its own again."""
    with suppress(NotFound):  # a cluster without claims
        cluster.api.delete_all("/apis/resource.k8s.io/v1/deviceclasses")
    forget_rights(cluster)


def forget_rights(cluster: Cluster) -> None:
    """Whoever has changed such objects in another way says so: the next agent gets all of them anew."""
    _written.pop(cluster.folder, None)


def _made(**values: object) -> Mapping[str, Any]:
    return {"namespace": {"create": True}, **values}


def _with_config_maps(objects: Sequence[KubeObject]) -> list[KubeObject]:
    widened = []
    for item in objects:
        rules = [
            {**rule, "resourceNames": [*rule["resourceNames"], *_CONFIG_MAPS]} if "resourceNames" in rule else rule
            for rule in item.get("rules") or ()
        ]
        widened.append({**item, "rules": rules} if rules else item)
    return widened


def _identity(item: KubeObject) -> _Identity:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
