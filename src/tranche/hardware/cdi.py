"""CDI specifications: what a container runtime adds to a container that requests a device by name.

The format is the Container Device Interface, version 0.5.0: the oldest with all the fields used here.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tranche.core.allocation import FractionalShare, Grant, device_uuid
from tranche.core.errors import CdiUnavailable, VerificationFailed
from tranche.core.json_text import read_json
from tranche.core.sharing import MEMORY_LIMIT, Sharing
from tranche.core.state import GpuState
from tranche.hardware.mps_control import client_environment
from tranche.hardware.nodes import ContainerEdits, DeviceFiles, DeviceNode, Mount

_VERSION = "0.5.0"


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One device of a specification; `name` is unique in it."""

    name: str
    edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """Devices of one kind (`vendor/class`), and what every container with any of them receives.

    `part` tells the files of one kind apart, and `file` is a name for the file that is not made of the kind. Root owns the
    file. Only root and the user `reader` can read it; if `reader` is None, every user can.
    """

    kind: str
    devices: tuple[CdiDevice, ...]
    edits: ContainerEdits
    part: str = ""
    file: str = ""
    reader: int | None = None

    @property
    def file_name(self) -> str:
        """The specification's file in a CDI folder."""
        return self.file or spec_file_name(self.kind, self.part)


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
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # as the file
    # Runtimes read every .json and .yaml file of the folder, so the unfinished file has another suffix.
    unfinished = folder / f".{spec.file_name}.{os.getpid()}.tmp"
    try:
        with open(unfinished, "wb", opener=partial(os.open, mode=0o600)) as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644 if spec.reader is None else 0o400)  # whatever the umask
            if spec.reader not in (None, os.geteuid()):
                _let_read(file.fileno(), spec.reader)
            if outlasts_power:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _let_read(file: int, uid: int) -> None:
    """Let that user read root's file, and not change it: root's container runtimes run the hooks that files in this folder name.

    The access control list is in the kernel's form. Source: acl(5), and linux/posix_acl_xattr.h.
    """
    nobody, version = 2**32 - 1, 2
    user_obj, user, group_obj, mask, other = 0x01, 0x02, 0x04, 0x10, 0x20
    entries = ((user_obj, 4, nobody), (user, 4, uid), (group_obj, 0, nobody), (mask, 4, nobody), (other, 0, nobody))
    acl = struct.pack("<I", version) + b"".join(struct.pack("<HHI", *each) for each in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", acl)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        raise OSError(error.errno, "its file system has no access control lists") from error


_PIPES_INSIDE = "/mps/share/pipe"
_SHARED_MEMORY = "/dev/shm"


def edits_of(
    grant: Grant,
    gpu: GpuState,
    files: DeviceFiles,
    pipes: Callable[[str], Path],
    marks: tuple[tuple[str, str], ...],
    share: str,
) -> ContainerEdits:
    """What a container gets for one grant; `marks` are variables that tell whose it is, and `share` is its name.

    VerificationFailed if the device no longer exists.
    """
    uuid = device_uuid(grant, gpu)
    if not uuid:
        raise VerificationFailed(f"{gpu.label}: {grant.slot or 'the GPU'} no longer exists")
    more = files.device_by_cdi(uuid)
    mounts, environment, hooks = more.mounts, (*more.environment, *marks), more.hooks
    if isinstance(grant, FractionalShare):
        mounts, environment = (*mounts, *_part_mounts(grant, uuid, pipes)), (*environment, *_part_environment(grant))
        if grant.sharing is Sharing.MEMORY_LIMITS:
            hooks = (*hooks, files.limit_hook(share, uuid, grant.memory))
    return ContainerEdits((*_nodes(grant, gpu, files, uuid), *more.device_nodes), mounts, environment, hooks)


def _nodes(grant: Grant, gpu: GpuState, files: DeviceFiles, uuid: str) -> tuple[DeviceNode, ...]:
    if grant.slot is None:
        return files.gpu_nodes(gpu)
    instance = gpu.instance_in(grant.slot.place)
    pieces = () if instance is None else [each for each in instance.compute_instances if each.uuid == uuid]
    if instance is None or not pieces:
        raise VerificationFailed(f"{gpu.label}: {grant.slot} no longer exists")
    return files.slice_nodes(gpu, instance, pieces[0])


def _part_mounts(part: FractionalShare, uuid: str, pipes: Callable[[str], Path]) -> tuple[Mount, ...]:
    if part.sharing is not Sharing.MPS:
        return ()
    shared = Mount(_SHARED_MEMORY, _SHARED_MEMORY, read_only=False)
    return (Mount(str(pipes(uuid)), _PIPES_INSIDE, read_only=False), shared)


def _part_environment(part: FractionalShare) -> tuple[tuple[str, str], ...]:
    told = (MEMORY_LIMIT, str(part.memory))
    if part.sharing is Sharing.MPS:
        return (*client_environment(_PIPES_INSIDE, part.memory, part.compute).items(), told)
    return (told,)


def spec_environment(path: Path) -> tuple[str, ...]:
    """The variables of the devices in that file, each as NAME=VALUE; none if it cannot be read."""
    try:
        data = read_json(path.read_text())
        return tuple(str(word) for each in data["devices"] for word in each["containerEdits"].get("env", ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


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
            {"hookName": hook.name, "path": hook.path, "args": list(hook.arguments)}
            | ({"env": list(hook.environment)} if hook.environment else {})
            for hook in edits.hooks
        ]
    return data
