"""Which DaemonSets are the agent, and which do a part of its work."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.kubernetes.support.facts import DaemonSetFacts

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


def is_agent(daemon_set: DaemonSetFacts) -> bool:
    """Whether its first container runs `tranche agent`."""
    if daemon_set.command:
        words = (*daemon_set.command, *daemon_set.arguments)
        return words[0].rpartition("/")[2] == "tranche" and "agent" in words[1:2]
    return _image_name(daemon_set.images[0] if daemon_set.images else "") == "tranche-agent"


def known_product(daemon_set: DaemonSetFacts) -> _Product | None:
    """The known program that it runs; its name and command tell programs of one image apart."""
    words = {word.rpartition("/")[2] for word in (*daemon_set.command[:1], *daemon_set.arguments[:1])}
    images = {_image_name(image) for image in daemon_set.images}
    for product in PRODUCTS:
        if any(daemon_set.name.endswith(name) for name in product.daemon_sets):
            return product
    for product in PRODUCTS:
        if words & {command.rpartition("/")[2] for command in product.commands}:
            return product
    return next((product for product in PRODUCTS if images & set(product.images)), None)


def _image_name(image: str) -> str:
    """The last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]
