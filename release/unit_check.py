"""Whether systemd would take the unit: by systemd-analyze, beside stand-ins for the units of a GPU machine and in their order."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tranche.boot.unit import UNIT

# The order of EKS' images with Amazon Linux 2023, as far as it matters, and what a unit must find of systemd itself.
_OTHERS = {
    "sysinit.target": "",
    "basic.target": "After=sysinit.target\nRequires=sysinit.target",
    "multi-user.target": "Requires=basic.target\nAfter=basic.target",
    "shutdown.target": "DefaultDependencies=no",
    "network-online.target": "",
    "systemd-modules-load.service": "DefaultDependencies=no\nBefore=sysinit.target",
    "nvidia-kmod-load.service": "After=network-online.target\nBefore=nvidia-fabricmanager.service nvidia-persistenced.service",
    "nvidia-setup.service": "Before=nvidia-persistenced.service nvidia-fabricmanager.service",
    "nvidia-persistenced.service": "",
    "nvidia-fabricmanager.service": "After=network-online.target",
    "cloud-init.service": "Before=network-online.target",
    "cloud-final.service": "After=network-online.target cloud-init.service",
    "nodeadm-config.service": "Before=cloud-init.service",
    "nodeadm-run.service": "After=nodeadm-config.service cloud-final.service\nRequires=nodeadm-config.service",
    "containerd.service": "After=network-online.target",
    "kubelet.service": "After=containerd.service",
    "nvidia-dcgm.service": "",
}
_BEFORE = ("kubelet.service", "nodeadm-run.service", "nvidia-dcgm.service", "docker.service")
_AFTER = (
    "nvidia-kmod-load.service",
    "nvidia-setup.service",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
)


def objections_to_unit(text: str) -> Iterator[str]:
    """What systemd objects to, unknown keys included, which it only warns of; and what of the order is missing."""
    orders = {
        key: {name for line in _values(text, key) for name in line.split()} for key in ("Before", "After", "Requires")
    }
    yield from (f"it is not ordered before {name}" for name in _BEFORE if name not in orders["Before"])
    yield from (f"it is not ordered after {name}" for name in _AFTER if name not in orders["After"])
    if not any(value.isdigit() for value in _values(text, "TimeoutStartSec")):
        yield "its start has no end in time"
    program = shutil.which("systemd-analyze")
    if program is None:
        print("tranche-boot.service: systemd did not look at it: there is no systemd-analyze here", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _write(root, text)
        command = [program, "verify", "--man=no", f"--root={root}", "multi-user.target"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in (done.stdout + done.stderr).splitlines():
            if UNIT in line or "ordering cycle" in line:
                yield line.replace(folder, "")


def _values(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def _write(root: Path, text: str) -> None:
    units = root / "etc/systemd/system"
    wants = units / "multi-user.target.wants"
    wants.mkdir(parents=True)
    program = root / "opt/tranche/bin/tranche"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    for name, order in _OTHERS.items():
        service = "\n[Service]\nType=oneshot\nExecStart=/opt/tranche/bin/tranche\n" if name.endswith(".service") else ""
        (units / name).write_text(f"[Unit]\n{order}\n{service}")
    (units / UNIT).write_text(text)
    for name in (UNIT, *(name for name in _OTHERS if name.endswith(".service"))):
        (wants / name).symlink_to(f"../{name}")
