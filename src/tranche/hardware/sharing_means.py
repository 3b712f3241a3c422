"""The means by which this machine can share a device, checked where it is, with each refusal in words."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tranche.core.sharing import MachineSharing, Sharing
from tranche.hardware.control_groups import own_group

_FIRST_WITH_MEMORY_LIMITS: Final = 615
_FIRST_WITH_MPS_LIMITS: Final = 495
"""The first release whose MPS daemon supports memory limits (CUDA 11.5)."""
_MPS_PROGRAMS: Final = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
_CLIENTS: Final = 48
_CLIENTS_FROM_CUDA_13_1: Final = 60
"""Clients of MPS on one GPU from Volta on, by NVIDIA's MPS documentation of releases 580 and 615."""


class MachineFacts(NamedTuple):
    """The facts that decide how the machine can share devices.

    `driver` is its version, `cuda` the newest CUDA it supports. `missing` are the MPS programs that were not found. `groups` says
    why memory cannot be limited for control groups here, "" if it can. `privileged` says whether this process may set limits and
    compute modes. `capabilities` are those for which this container was given the driver, "" if unstated.
    """

    driver: str
    cuda: tuple[int, int] | None
    missing: tuple[str, ...]
    groups: str
    privileged: bool
    capabilities: str = ""


def sharing_means(facts: MachineFacts) -> MachineSharing:
    """The means of a machine with these facts. Unknown facts count as refusals."""
    refused = {
        sharing: why
        for sharing, why in (
            (Sharing.MEMORY_LIMITS, _no_memory_limits(facts)),
            (Sharing.MPS, _no_mps(facts)),
        )
        if why
    }
    clients = _CLIENTS_FROM_CUDA_13_1 if facts.cuda is not None and facts.cuda >= (13, 1) else _CLIENTS
    return MachineSharing(frozenset(Sharing).difference(refused), refused, 0 if Sharing.MPS in refused else clients)


def read_machine_facts(
    driver: str, cuda: tuple[int, int] | None, folders: str, *, served: bool = False
) -> MachineFacts:
    """The facts of this machine; `folders` is a search path for programs, like PATH.

    A service with root's rights acts for a process that is `served`.
    """
    given = os.environ.get(_CAPABILITIES, "")
    groups, privileged = _no_groups(may_write=served), served or _privileged(os.environ)
    return MachineFacts(driver, cuda, _missing(folders), groups, privileged, given)


def _no_memory_limits(facts: MachineFacts) -> str:
    if why := _older(facts.driver, _FIRST_WITH_MEMORY_LIMITS):
        return why
    return facts.groups or ("" if facts.privileged else "only root can set them")


def _no_mps(facts: MachineFacts) -> str:
    if why := _older(facts.driver, _FIRST_WITH_MPS_LIMITS):
        return why
    if facts.capabilities and not {"compute", "all"}.intersection(facts.capabilities.split(",")):
        return (
            f"{_CAPABILITIES}={facts.capabilities} does not give this container CUDA; set the chart's shareByMps=true"
        )
    if facts.missing:
        return f"{facts.missing[0]} is not installed"
    return "" if facts.privileged else "only root can set a GPU's compute mode"


def _older(driver: str, release: int) -> str:
    found = re.match(r"(\d+)\.", driver)
    if found is None:
        return "the driver does not report its version"
    return f"driver {driver} is older than {release}" if int(found[1]) < release else ""


def _no_groups(*, may_write: bool) -> str:
    group = own_group()
    if group is None:
        return "cgroup v2 is not mounted"
    return "" if may_write or os.access(group, os.W_OK) else f"{group} cannot be written"


def _missing(folders: str) -> tuple[str, ...]:
    places = [Path(folder) for folder in folders.split(os.pathsep) if folder]
    return tuple(name for name in _MPS_PROGRAMS if not any(os.access(place / name, os.X_OK) for place in places))


def _privileged(environment: Mapping[str, str]) -> bool:
    """Whether this process is root, or owns the simulated machine."""
    if os.geteuid() == 0:
        return True
    try:
        return os.stat(environment["TRANCHE_SIM_STATE"]).st_uid == os.geteuid()
    except (KeyError, OSError):
        return False
