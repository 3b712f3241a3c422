"""The CDI files of claims, which say what a container gets for one share of its claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tranche.core.allocation import Allocation, Phase, shared_memory
from tranche.core.errors import CdiUnavailable
from tranche.core.keeper import ChosenFor
from tranche.core.state import NodeState
from tranche.hardware.cdi import CdiDevice, CdiSpec, edits_of, spec_environment, spec_file_name, write_spec
from tranche.hardware.nodes import DeviceFiles
from tranche.kubernetes.claims.vocabulary import CDI_KIND
from tranche.kubernetes.node.services import NodeContext
from tranche.node.claims import ClaimRequest
from tranche.node.host import Host
from tranche.node.processes.pod_processes import claim_mark
from tranche.planning.decide.realise import ChosenDevice


def spec_now(services: NodeContext, files: DeviceFiles, keeper: ChosenFor, grants: tuple[ChosenDevice, ...]) -> CdiSpec:
    """The CDI specification of a share on the GPUs as they are now: a device for each grant, in order, named `<uid>-<number>`.

    It blocks.

    Raises VerificationFailed if a device no longer exists.
    """
    host = services.host
    gpus = {uuid: host.observe_gpu(uuid) for uuid in dict.fromkeys(grant.gpu_uuid for grant in grants)}
    mark = (claim_mark(keeper.uid), f"{keeper.namespace}/{keeper.name}")
    pipes = host.daemons.records.pipes
    devices = tuple(
        CdiDevice(name, edits_of(grant, gpus[grant.gpu_uuid], files, pipes, (mark,), name))
        for name, grant in ((cdi_name(keeper.uid, number), grant) for number, grant in enumerate(grants))
    )
    version = services.inventory.latest.value.view.node.driver_version
    return CdiSpec(CDI_KIND, devices, files.by_cdi(version), keeper.uid)


def cdi_name(uid: str, number: int) -> str:
    """The name of a claim's device in its specification."""
    return f"{uid}-{number}"


def cdi_id(uid: str, number: int) -> str:
    """The same name in the form that a runtime reads."""
    return f"{CDI_KIND}={cdi_name(uid, number)}"


def claim_of(cdi_device: str) -> str:
    """The uid of the claim that a device of that name belongs to; "" for a device of another kind."""
    kind, _, name = cdi_device.partition("=")
    return name.rpartition("-")[0] if kind == CDI_KIND else ""


_MARK = claim_mark("")


class FiledKeeper(NamedTuple):
    """The environment variable that names the keeper of a share, and its value; empty where a file has none."""

    variable: str = ""
    value: str = ""

    @property
    def uid(self) -> str:
        """The uid of the claim or pod."""
        return self.variable.removeprefix(_MARK).replace("_", "-")

    @property
    def ref(self) -> tuple[str, str]:
        """Its namespace and name."""
        namespace, _, name = self.value.partition("/")
        return namespace, name


class ShareFiles:
    """The files of CDI devices of that kind in one folder, by name. Every method blocks."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind

    def write(self, spec: CdiSpec, *, outlasts_power: bool = True) -> None:
        """Write a specification over the one of the same name; CdiUnavailable when that fails."""
        write_spec(spec, self._folder, outlasts_power=outlasts_power)

    def remove(self, name: str) -> None:
        """Remove the file of that name, if there is one; CdiUnavailable when that fails."""
        path = self._folder / spec_file_name(self._kind, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CdiUnavailable(f"cannot remove {path}: {error.strerror or error}") from error

    def remove_of(self, variable: str) -> None:
        """Remove the files that name the variable. Each is looked at just before: its name may be another keeper's by now."""
        for name in self.marks(required=True):
            if self.mark(name).variable == variable:
                self.remove(name)

    def marks(self, *, required: bool = False) -> Mapping[str, FiledKeeper]:
        """What each file's environment names.

        Without a folder there are no files. A folder that cannot be read shows none either, or raises CdiUnavailable if
        the answer is `required`.
        """
        first, last = spec_file_name(self._kind, "|").split("|")
        try:
            found = [each.name for each in self._folder.iterdir()]
        except FileNotFoundError:
            return {}
        except OSError as error:
            if required:
                raise CdiUnavailable(f"cannot read {self._folder}: {error.strerror or error}") from error
            return {}
        names = [each[len(first) : -len(last)] for each in found if each.startswith(first) and each.endswith(last)]
        return {name: self.mark(name) for name in names}

    def mark(self, name: str) -> FiledKeeper:
        """What the environment of that file names; nothing if there is no such file."""
        words = spec_environment(self._folder / spec_file_name(self._kind, name))
        found = next((word for word in words if word.startswith(_MARK)), "")
        variable, _, value = found.partition("=")
        return FiledKeeper(variable, value)


def adopt_share(host: Host, order: ClaimRequest, node: NodeState, superseded: Sequence[str] = ()) -> None:
    """Enter a share that its keeper has, but a lost register does not know, instead of those allocations; blocks."""
    allocation = Allocation(host.new_id(), order.request, order.grants, Phase.ACTIVE, host.clock(), keeper=order.keeper)
    host.settle(superseded, {}, [allocation], shared_memory(order.grants, node))
