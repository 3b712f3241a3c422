"""The CDI files of pods with a share: one for each unit of the resource, naming the pod that has it."""

from __future__ import annotations

from pathlib import Path

from tranche.core.errors import CdiUnavailable
from tranche.core.json_text import read_json
from tranche.core.keeper import PlacedPodKeeper
from tranche.hardware.cdi import CdiDevice, CdiSpec, spec_file_name, write_spec
from tranche.hardware.nodes import ContainerEdits
from tranche.node.processes.pod_processes import claim_mark

CDI_KIND = "tranche.dev/placed"
"""The kind of the CDI devices. Each device is named after a unit of the resource."""


def cdi_name(unit: str) -> str:
    """The unit's qualified CDI name, for a container runtime."""
    return f"{CDI_KIND}={unit}"


def unit_spec(unit: str, spec: CdiSpec) -> CdiSpec:
    """The specification with all its devices merged into one, for a container that asks for the unit."""
    edits = [each.edits for each in spec.devices]
    whole = ContainerEdits(
        tuple(dict.fromkeys(node for each in edits for node in each.device_nodes)),
        tuple(dict.fromkeys(mount for each in edits for mount in each.mounts)),
        tuple(dict.fromkeys(pair for each in edits for pair in each.environment)),
        tuple(dict.fromkeys(hook for each in edits for hook in each.hooks)),
    )
    return CdiSpec(CDI_KIND, (CdiDevice(unit, whole),), spec.edits, unit)


class PlacedFiles:
    """The files in one CDI folder, by unit. Everything blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, spec: CdiSpec) -> None:
        """Write a unit's specification over that of the previous pod; CdiUnavailable when that fails."""
        try:
            write_spec(spec, self._folder)
        except OSError as error:
            raise CdiUnavailable(
                f"cannot write the CDI specification to {self._folder}: {error.strerror or error}",
                hint="make the folder writable",
            ) from error

    def keepers(self) -> tuple[PlacedPodKeeper, ...]:
        """The pods that have a file."""
        first, last = spec_file_name(CDI_KIND, "|").split("|")
        try:
            paths = [
                each for each in self._folder.iterdir() if each.name.startswith(first) and each.name.endswith(last)
            ]
        except OSError:
            return ()
        return tuple(found for path in paths if (found := _keeper(path)) is not None)

    def remove_of(self, keeper: PlacedPodKeeper) -> None:
        """Remove the files that name that pod; CdiUnavailable when that fails."""
        first, last = spec_file_name(CDI_KIND, "|").split("|")
        mark = f"{claim_mark(keeper.uid)}="
        try:
            paths = [
                each for each in self._folder.iterdir() if each.name.startswith(first) and each.name.endswith(last)
            ]
            for path in paths:
                if _names(path, mark):
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CdiUnavailable(f"cannot clear {self._folder}: {error.strerror or error}") from error


def _names(path: Path, mark: str) -> bool:
    return any(word.startswith(mark) for word in _environment(path))


def _keeper(path: Path) -> PlacedPodKeeper | None:
    """The pod that the file's mark names; None without a mark."""
    first = claim_mark("")
    for word in _environment(path):
        name, _, pod = word.partition("=")
        namespace, _, pod_name = pod.partition("/")
        if name.startswith(first) and pod_name:
            return PlacedPodKeeper(namespace, pod_name, name.removeprefix(first).replace("_", "-"))
    return None


def _environment(path: Path) -> tuple[str, ...]:
    try:
        data = read_json(path.read_text())
        edits = [device["containerEdits"] for device in data["devices"]]
        return tuple(str(word) for each in edits for word in each.get("env", ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
