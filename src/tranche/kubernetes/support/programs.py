"""Which DaemonSets do a part of the agent's work, and the rights that an agent's account needs with its options."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.objects import DaemonSet, RbacPermission, image_name
from tranche.kubernetes.claims.allocation_backend import AllocationBackend, backend_by_version, backend_by_word

DEVICE_PLUGIN, MIG_MANAGER, FEATURE_LABELS = "device-plugin", "mig-manager", "feature-labels"
CLAIM_DRIVER = "dra"


@dataclass(frozen=True, slots=True)
class _Product:
    """A program known by the last part of its image's name, by a word of its command, or by its DaemonSet's name."""

    name: str
    part: str
    images: tuple[str, ...]
    commands: tuple[str, ...] = ()
    daemon_sets: tuple[str, ...] = ()


# One image of NVIDIA's holds device plugin and feature discovery; newer ones of the operator hold the MIG manager as well.
PRODUCTS = (
    _Product("NVIDIA's MIG manager", MIG_MANAGER, ("k8s-mig-manager",), ("nvidia-mig-manager",), ("nvidia-mig-manager",)),
    _Product(
        "NVIDIA's GPU feature discovery", FEATURE_LABELS, ("gpu-feature-discovery",), ("gpu-feature-discovery",),
        ("gpu-feature-discovery",),
    ),
    _Product(
        "NVIDIA's device plugin", DEVICE_PLUGIN, ("k8s-device-plugin",), ("nvidia-device-plugin",),
        ("nvidia-device-plugin-daemonset",),
    ),
    _Product("HAMi's device plugin", DEVICE_PLUGIN, ("hami",), ("nvidia-device-plugin",), ("hami-device-plugin",)),
    _Product(
        "NVIDIA's DRA driver", DEVICE_PLUGIN, ("k8s-dra-driver-gpu",), ("gpu-kubelet-plugin",),
        ("nvidia-dra-driver-gpu-kubelet-plugin",),
    ),
    _Product("Google's device plugin", DEVICE_PLUGIN, ("nvidia-gpu-device-plugin",), ("/usr/bin/nvidia-gpu-device-plugin",)),
)  # fmt: skip


def known_product(daemon_set: DaemonSet) -> _Product | None:
    """The known program that it runs; its name and command tell programs of one image apart."""
    words = {word.rpartition("/")[2] for word in (*daemon_set.command[:1], *daemon_set.arguments[:1])}
    images = {image_name(image) for image in daemon_set.images}
    for product in PRODUCTS:
        if any(daemon_set.name.endswith(name) for name in product.daemon_sets):
            return product
    for product in PRODUCTS:
        if words & {command.rpartition("/")[2] for command in product.commands}:
            return product
    return next((product for product in PRODUCTS if images & set(product.images)), None)


REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_CLAIMS = "resource.k8s.io"
_SLICE_VERBS = ("list", "watch", "create", "update", "delete")
_LEASE_VERBS = ("get", "list", "watch", "create", "update", "delete")
_LEASE_WRITER_VERBS = ("get", "create", "update")


def needed_rights(agent: DaemonSet, server_version: str) -> tuple[RbacPermission, ...]:
    """What the agent asks of an API server of that version with its options."""
    parts = {DEVICE_PLUGIN, MIG_MANAGER, FEATURE_LABELS, CLAIM_DRIVER} - agent.left_out
    rights = [*(RbacPermission(verb, "nodes") for verb in ("get", "list", "watch"))]
    rights += [RbacPermission("list", "pods"), RbacPermission("watch", "pods")]
    if own := agent.option("--daemon-set", ""):
        rights.append(RbacPermission("get", "daemonsets", namespace=agent.namespace, name=own, group="apps"))
    if {MIG_MANAGER, FEATURE_LABELS} & parts:
        rights.append(RbacPermission("patch", "nodes"))
    if {MIG_MANAGER, DEVICE_PLUGIN} & parts:
        rights += [RbacPermission(verb, "events", namespace="default") for verb in ("create", "get", "patch")]
    if DEVICE_PLUGIN in parts:
        rights.append(RbacPermission("create", "events"))
    if MIG_MANAGER in parts:
        rights.append(RbacPermission("patch", "nodes", subresource="status"))
        rights += _config_map(agent.namespace, agent.option("--layouts", "tranche-layouts"))
        if agent.option("--max-unavailable", ""):
            rights += _leases(agent, *_LEASE_VERBS)
        if agent.option("--in-use", "wait") == "drain":
            rights.append(RbacPermission("create", "pods", subresource="eviction"))
    if "--tell-view" in agent.arguments:
        rights += _leases(agent, *_LEASE_WRITER_VERBS)
    if CLAIM_DRIVER in parts:
        rights += [RbacPermission(verb, "resourceslices", group=_CLAIMS) for verb in _SLICE_VERBS]
        rights.append(RbacPermission("get", "resourceclaims", group=_CLAIMS))
        if _by_gates(agent, server_version):
            rights += _leases(agent, *_LEASE_WRITER_VERBS)
            rights.append(RbacPermission("get", "pods"))
    if DEVICE_PLUGIN in parts and (name := agent.option("--plugin-config-map", "")):
        rights += _config_map(agent.namespace, name)
    return tuple(dict.fromkeys(rights))


def _leases(agent: DaemonSet, *verbs: str) -> list[RbacPermission]:
    return [RbacPermission(verb, "leases", namespace=agent.namespace, group="coordination.k8s.io") for verb in verbs]


def _by_gates(agent: DaemonSet, server_version: str) -> bool:
    word = agent.option("--tier", "auto")
    return (backend_by_word(word) or backend_by_version(server_version, served=True)) is AllocationBackend.GATES


def _config_map(namespace: str, name: str) -> list[RbacPermission]:
    return [RbacPermission(verb, "configmaps", namespace=namespace, name=name) for verb in ("list", "watch")]


def review(agent: DaemonSet, right: RbacPermission) -> Json:
    """The question whether the agent's account has that right."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{agent.namespace}", "system:authenticated"]
    return right.review({"user": f"system:serviceaccount:{agent.namespace}:{agent.service_account}", "groups": groups})
