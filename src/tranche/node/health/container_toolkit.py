"""Whether this machine's NVIDIA container runtime gives every GPU to whatever container asks for all by a variable."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tranche.node.health.checkup import Finding, Status

CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
KUBELET = Path("/var/lib/kubelet")
_REFUSES = "accept-nvidia-visible-devices-envvar-when-unprivileged"


def check_container_toolkit(config: Path = CONFIG, kubelet: Path = KUBELET) -> Iterator[Finding]:
    """Of a node of a cluster with the toolkit's configuration at its usual place; of another machine nothing is said."""
    try:
        if not kubelet.is_dir():
            return
        accepts = tomllib.loads(config.read_text()).get(_REFUSES, True)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        yield Finding(
            "container-toolkit", Status.WARN, f"{config} cannot be read: {error}", "run the command with sudo"
        )
        return
    if accepts is False:
        text = f"the NVIDIA container runtime heeds NVIDIA_VISIBLE_DEVICES of privileged containers alone ({config})"
        yield Finding("container-toolkit", Status.PASS, text)
        return
    yield Finding(
        "container-toolkit",
        Status.WARN,
        "a container that the NVIDIA runtime starts sees every GPU if it sets NVIDIA_VISIBLE_DEVICES=all, also without a device "
        f"of its own: {config} has not {_REFUSES} = false",
        f"where devices are given by CDI or volume mounts: sudo nvidia-ctk config --in-place --set {_REFUSES}=false",
    )
