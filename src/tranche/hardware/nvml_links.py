"""How well the GPUs on this machine are linked, pair by pair: NVLink first, then nearness on the PCIe tree."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pynvml

from tranche.hardware.nvml_errors import explained

_PER_NVLINK = 100
_SWITCH = 2
# The nearer the common ancestor, the better; at most half a link, so that it only breaks ties.
_NEARNESS = {
    pynvml.NVML_TOPOLOGY_SYSTEM: 0,
    pynvml.NVML_TOPOLOGY_NODE: 10,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: 20,
    pynvml.NVML_TOPOLOGY_MULTIPLE: 30,
    pynvml.NVML_TOPOLOGY_SINGLE: 40,
    pynvml.NVML_TOPOLOGY_INTERNAL: 50,
}


def read_links() -> Mapping[frozenset[str], int]:
    """A score for each pair of GPUs, by UUIDs: 100 for each NVLink between them, and up to 50 for nearness.

    GPUs on one NVSwitch fabric have as many links as the one with fewer links. GPUs that do not answer are left out.
    """
    with explained("read how the GPUs are linked"):
        gpus = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpus[pynvml.nvmlDeviceGetUUID(handle)] = (handle, _bus_id(pynvml.nvmlDeviceGetPciInfo(handle)))
            except pynvml.NVMLError:
                continue
        links = {uuid: _nvlinks(handle) for uuid, (handle, _) in gpus.items()}
        scores = {}
        for one, other in combinations(gpus, 2):
            direct = links[one].get(gpus[other][1], 0)
            switched = min(links[one].get("", 0), links[other].get("", 0))
            nearness = _NEARNESS.get(_level(gpus[one][0], gpus[other][0]), 0)
            scores[frozenset((one, other))] = _PER_NVLINK * (direct + switched) + nearness
        return scores


def _nvlinks(handle: Any) -> dict[str, int]:
    """Active NVLinks by the bus id at their other end; "" for those that end at a switch."""
    found: dict[str, int] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH:
                end = ""
            else:
                end = _bus_id(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
        except pynvml.NVMLError:
            # Past the last link, or a board without NVLink.
            break
        found[end] = found.get(end, 0) + 1
    return found


def _level(one: Any, other: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    except pynvml.NVMLError:
        return int(pynvml.NVML_TOPOLOGY_SYSTEM)


def _bus_id(pci: Any) -> str:
    text = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    return text.lower()
