"""Containers by runc with a CDI file, in a mount namespace whose /sys/fs/cgroup is cgroup v2."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LEFT_OUT = {"proc", "sys", "dev", "run"}
_OPEN = ("/", "/usr", "/usr/local")
"""Folders in which a container gets files of its own: everything in them is mounted from the machine, one by one."""


def on_version_2(groups: Path, command: Sequence[str], more: str = "true") -> list[str]:
    """The command in a mount namespace with that hierarchy as /sys/fs/cgroup, after the shell commands `more`."""
    script = f'umount --lazy --recursive /sys/fs/cgroup && mount --bind "$0" /sys/fs/cgroup && {more} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(groups), *command]


def start_container(
    spec: Path, folder: Path, groups: Path, group: str, command: Sequence[str]
) -> subprocess.Popen[str]:
    """A container with the only device of a CDI file, the machine's programs and libraries, and a control group of that name.

    Containers with the same parent of `folder` share a /run, where hooks keep what they know.
    """
    device = json.loads(spec.read_text())
    edits = [device["containerEdits"], *(each["containerEdits"] for each in device["devices"])]
    mounts = [
        mount for each in edits for mount in each.get("mounts", ()) if mount["containerPath"] != "/usr/bin/nvidia-smi"
    ]
    run = folder.parent / "run"
    for each in (folder / "root", run):
        each.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "root": {"path": "root"},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": [*command],
            "env": [
                f"PATH={os.environ['PATH']}",
                *(word for each in edits for word in each.get("env", ())),
            ],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/run", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/sys", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]},
            *_machine(folder / "root"),
            *(
                {
                    "destination": each["containerPath"],
                    "source": each["hostPath"],
                    "type": "bind",
                    "options": each["options"],
                }
                for each in mounts
            ),
        ],
        "hooks": _hooks(hook for each in edits for hook in each.get("hooks", ())),
        "linux": {
            "cgroupsPath": f"/{group}",
            "namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount", "cgroup")],
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    runc = ["runc", "--root", "/run/runc", "run", "--bundle", str(folder), folder.name]
    return subprocess.Popen(
        on_version_2(groups, runc, f"mount --bind {run} /run"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _hooks(found: Any) -> dict[str, list[dict[str, Any]]]:
    hooks: dict[str, list[dict[str, Any]]] = {}
    for each in found:
        rest = {name: value for name, value in each.items() if name != "hookName"}
        hooks.setdefault(each["hookName"], []).append(rest)
    return hooks


def _machine(root: Path) -> list[dict[str, Any]]:
    """Mounts of what the machine has, and the same links as on it."""
    mounts = []
    for folder in map(Path, _OPEN):
        (root / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
        for each in sorted(folder.iterdir()):
            if each.name in _LEFT_OUT or str(each) in _OPEN:
                continue
            if each.is_symlink():
                link = root / each.relative_to("/")
                link.unlink(missing_ok=True)
                link.symlink_to(os.readlink(each))
            else:
                mounts.append({"destination": str(each), "source": str(each), "type": "bind", "options": ["rbind"]})
    return mounts
