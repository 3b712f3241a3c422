"""What a maintainer must know of the machine around the GPUs: kernel, distribution, driver modules, logged XIDs."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_ROOT = Path("/")
_RELEASE_KEYS = ("ID", "VERSION_ID", "VARIANT_ID")
# Read only these from the kernel's command line: others may be private.
_PARAMETERS = ("iommu", "intel_iommu", "amd_iommu", "pci", "nouveau", "nvidia", "systemd.unified_cgroup_hierarchy")
_MODULES = ("nvidia", "nouveau", "gdrdrv")
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d+)")
_DRIVER = re.compile(r"^NVRM version: (?P<flavour>.*?Kernel Module)\b.*?\s(?P<version>\d+\.\d[\d.]*)\s")
_LOG_SECONDS = 10.0


def machine_facts(*, root: Path = _ROOT) -> dict[str, Any]:
    """The facts as JSON data; unreadable facts are null or an empty list."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "distribution": _release(_text(root / "etc/os-release")),
        "processors": os.cpu_count(),
        "memoryBytes": _memory(_text(root / "proc/meminfo")),
        "cgroup": 2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "kernelParameters": sorted(_parameters(_text(root / "proc/cmdline"))),
        "driverModules": sorted(_modules(_text(root / "proc/modules"))),
        "kernelModuleVersion": _driver(_text(root / "proc/driver/nvidia/version")),
        "capabilityFiles": (root / "proc/driver/nvidia/capabilities").is_dir(),
        "fabricManager": _runs("nv-fabricmanager", root),
        "persistenced": _runs("nvidia-persistenced", root),
    }


def kernel_xids() -> list[dict[str, Any]]:
    """The XIDs in the kernel's log, oldest first; empty when the log is unreadable."""
    try:
        done = subprocess.run(
            ["dmesg", "--time-format", "iso"], capture_output=True, text=True, timeout=_LOG_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(xids_in(done.stdout.splitlines()))


def xids_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Time, bus address and number of each XID. Leaves out the rest of the line, which names processes."""
    for line in lines:
        found = _XID.search(line)
        if found is not None:
            time = line.split(" ", 1)[0]
            yield {"time": time if time[:1].isdigit() else None, "pciBusId": found["bus"], "xid": int(found["xid"])}


def _release(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip('"') for key, _, value in pairs if key in _RELEASE_KEYS}


def _memory(text: str) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _parameters(text: str) -> Iterator[str]:
    for word in text.split():
        name = word.partition("=")[0]
        if name in _PARAMETERS or name.partition(".")[0] in ("nvidia", "nouveau"):
            yield word


def _modules(text: str) -> Iterator[str]:
    for line in text.splitlines():
        name = line.partition(" ")[0]
        if name.startswith(_MODULES):
            yield name


def _driver(text: str) -> str | None:
    found = _DRIVER.search(text)
    return f"{found['flavour']} {found['version']}" if found else None


def _runs(program: str, root: Path) -> bool:
    """Whether a process of that name runs; the kernel keeps 15 characters of a name."""
    try:
        names = (_text(each / "comm").strip() for each in (root / "proc").iterdir() if each.name.isdigit())
        return any(name == program[:15] for name in names)
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
