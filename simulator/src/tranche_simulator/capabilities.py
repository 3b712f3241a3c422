"""The files of MIG capabilities that exist however the GPUs are cut."""

from __future__ import annotations

_GI_IDS, _CI_IDS, _LISTED_GPUS = 15, 8, 32


def machine_capabilities() -> dict[str, str]:
    """Path below the folder of capabilities -> text, for those that exist however the GPUs are cut."""
    return {
        "mig/config": "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
        "mig/monitor": "DeviceFileMinor: 2\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
    }


def mig_minors() -> str:
    """/proc/driver/nvidia-caps/mig-minors: the minor number of every possible capability."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(_LISTED_GPUS):
        for gi in range(_GI_IDS):
            lines.append(f"gpu{gpu}/gi{gi}/access {len(lines) + 1}")
            for ci in range(_CI_IDS):
                lines.append(f"gpu{gpu}/gi{gi}/ci{ci}/access {len(lines) + 1}")
    return "\n".join(lines) + "\n"
