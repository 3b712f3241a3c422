"""CDI specifications: what a container runtime adds to a container that requests a device by name.

The format is the Container Device Interface, version 0.5.0: the oldest with all the fields used here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tranche.core.errors import CdiUnavailable
from tranche.hardware.nodes import ContainerEdits

_VERSION = "0.5.0"


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One device of a specification; `name` is unique in it."""

    name: str
    edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """Devices of one kind (`vendor/class`), and what every container with any of them receives.

    `part` tells the files of one kind apart.
    """

    kind: str
    devices: tuple[CdiDevice, ...]
    edits: ContainerEdits
    part: str = ""

    @property
    def file_name(self) -> str:
        """The specification's file in a CDI folder."""
        return spec_file_name(self.kind, self.part)


def spec_file_name(kind: str, part: str = "") -> str:
    """The file of a kind's specification, or of a part of it, in a CDI folder."""
    return kind.replace("/", "-") + (f"_{part}" if part else "") + ".json"


def spec_to_data(spec: CdiSpec) -> dict[str, Any]:
    """The specification in the CDI format, which requires empty parts to be left out."""
    data: dict[str, Any] = {
        "cdiVersion": _VERSION,
        "kind": spec.kind,
        "devices": [{"name": device.name, "containerEdits": _edits(device.edits)} for device in spec.devices],
    }
    common = _edits(spec.edits)
    if common:
        data["containerEdits"] = common
    return data


def write_spec(
    spec: CdiSpec, folder: Path, *, outlasts_power: bool = True, hint: str = "make the folder writable"
) -> None:
    """Write the specification into the folder in one step, so that a runtime never reads half of it.

    A specification without devices is not valid CDI: its file is removed instead. A correct file stays untouched, because
    runtimes reread the whole folder at every change. With `outlasts_power`, the file is on the disk when this returns; without
    it, a power loss may leave an empty file, to be rewritten before a container needs it. CdiUnavailable when that fails.
    """
    try:
        _write(spec, folder, outlasts_power)
    except OSError as error:
        why = error.strerror or error
        raise CdiUnavailable(f"cannot write the CDI specification to {folder}: {why}", hint=hint) from error


def _write(spec: CdiSpec, folder: Path, outlasts_power: bool) -> None:
    path = folder / spec.file_name
    if not spec.devices:
        path.unlink(missing_ok=True)
        return
    content = json.dumps(spec_to_data(spec), indent=1, sort_keys=True).encode() + b"\n"
    if path.is_file() and path.read_bytes() == content:
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Runtimes read every .json and .yaml file of the folder, so the unfinished file has another suffix.
    unfinished = folder / f".{spec.file_name}.{os.getpid()}.tmp"
    with open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), 0o644)  # runtimes of other users read it too, whatever the umask
        if outlasts_power:
            os.fsync(file.fileno())
    os.replace(unfinished, path)


def _edits(edits: ContainerEdits) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if edits.environment:
        data["env"] = [f"{name}={value}" for name, value in edits.environment]
    if edits.device_nodes:
        data["deviceNodes"] = [
            {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
            for node in edits.device_nodes
        ]
    if edits.mounts:
        data["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind", "rprivate"],
            }
            for mount in edits.mounts
        ]
    if edits.hooks:
        data["hooks"] = [
            {"hookName": hook.name, "path": hook.path, "args": list(hook.arguments)} for hook in edits.hooks
        ]
    return data
