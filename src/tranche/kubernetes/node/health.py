"""Which devices are faulty: by XIDs as NVIDIA's plugin reads them, for every slice that is hit, until recovery. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tranche.core.allocation import Slice, WholeGpu
from tranche.core.errors import PluginConfigInvalid
from tranche.core.state import GpuState, NodeState
from tranche.hardware.gpu_events import GpuEvent, GpuEventKind
from tranche.kubernetes.node.resources import PluginDevice

IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of an application, not of the GPU, according to NVIDIA's device plugin."""

QUIET_SECONDS = 60.0
_ALL = ("all", "xids")


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """Which XIDs mean a faulty GPU: with `every`, all but the ignored ones; the forced ones always."""

    every: bool = True
    ignored: frozenset[int] = IGNORED_XIDS
    forced: frozenset[int] = frozenset()

    def critical(self, xid: int) -> bool:
        """Whether that XID means a faulty GPU."""
        return xid in self.forced or (self.every and xid not in self.ignored)


def xid_policy(disabled: str, enabled: str) -> XidPolicy:
    """Parses DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS: XIDs separated by commas, or `all` or `xids` for all.

    Enabled wins over disabled. PluginConfigInvalid for any other word.
    """
    off, all_off = _xids(disabled, "DP_DISABLE_HEALTHCHECKS")
    on, all_on = _xids(enabled, "DP_ENABLE_HEALTHCHECKS")
    if all_on:
        return XidPolicy(ignored=frozenset())
    return XidPolicy(every=not all_off, ignored=IGNORED_XIDS | off, forced=on)


@dataclass(frozen=True, slots=True)
class _DeviceFault:
    """Why a GPU, or one GPU instance of it, must not be given away. `since` and `last` are in seconds of a monotonic clock."""

    gpu_uuid: str
    gpu_instance_id: int | None
    why: str
    since: float
    last: float


@dataclass(frozen=True, slots=True)
class FaultyDevices:
    """The faulty devices. Each method returns a new object."""

    sick: tuple[_DeviceFault, ...] = ()

    def admit(self, event: GpuEvent, policy: XidPolicy, node: NodeState, now: float) -> FaultyDevices:
        """The faults after an XID: on the instance that the driver names, else on the whole GPU; on all GPUs if it names none."""
        if event.kind is not GpuEventKind.XID or not policy.critical(event.xid):
            return self
        gpus = [event.gpu_uuid] if event.gpu_uuid else [gpu.uuid for gpu in node]
        faults = self
        for gpu_uuid in gpus:
            faults = faults._with(gpu_uuid, event.gpu_instance_id, f"XID {event.xid}", now)
        return faults

    def _with(self, gpu_uuid: str, instance_id: int | None, why: str, now: float) -> FaultyDevices:
        place = (gpu_uuid, instance_id)
        before = next((each for each in self.sick if (each.gpu_uuid, each.gpu_instance_id) == place), None)
        new = _DeviceFault(*place, why, before.since if before is not None else now, now)
        return FaultyDevices((*(each for each in self.sick if each is not before), new))

    def quiet(self, now: float) -> frozenset[str]:
        """The faulty GPUs without an error for a minute: it is time to ask whether they have recovered."""
        return frozenset(each.gpu_uuid for each in self.sick if now - each.last >= QUIET_SECONDS)

    def discharge(self, well: Collection[str], now: float) -> FaultyDevices:
        """The faults without those that had no error for a minute and whose GPU is `well`: it answers, and wants no reset."""
        stay = (each for each in self.sick if now - each.last < QUIET_SECONDS or each.gpu_uuid not in well)
        return replace(self, sick=tuple(stay))

    def why_sick(self, device: PluginDevice) -> str:
        """Why that device must not be given away; "" when it is well. A GPU is faulty as a whole when one of its instances is."""
        for each in self.sick:
            if each.gpu_uuid != device.gpu.uuid:
                continue
            if each.gpu_instance_id is None or device.instance is None or device.instance.id == each.gpu_instance_id:
                return each.why
        return ""


def faulty(faults: FaultyDevices, node: NodeState) -> Mapping[WholeGpu | Slice, str]:
    """The faulty devices, and why: GPUs, and existing instances that the driver named."""
    gpus = {gpu.uuid: gpu for gpu in node}
    found: dict[WholeGpu | Slice, str] = {}
    for sick in faults.sick:
        gpu = gpus.get(sick.gpu_uuid)
        instances = () if gpu is None else gpu.instances
        instance = next((each for each in instances if each.id == sick.gpu_instance_id), None)
        whole = WholeGpu(sick.gpu_uuid)
        found[whole if instance is None else Slice(sick.gpu_uuid, instance.profile, instance.placement)] = sick.why
    return found


def recall_lost(node: NodeState, remembered: Mapping[str, GpuState]) -> tuple[NodeState, frozenset[str]]:
    """The node with lost GPUs as they were last seen, and the UUIDs of those GPUs.

    So their devices stay listed, as faulty, until they come back. A GPU that was never seen stays lost. The node's register names
    those that the driver cannot name any more.
    """
    found = []
    lost = set()
    for gpu in node:
        known = remembered.get(gpu.uuid)
        if gpu.lost and known is not None:
            lost.add(known.uuid)
            gpu = known
        found.append(gpu)
    return replace(node, gpus=tuple(found)), frozenset(lost)


def _xids(text: str, name: str) -> tuple[frozenset[int], bool]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    numbers = set()
    for word in words:
        if word in _ALL:
            continue
        if not word.isdecimal():
            raise PluginConfigInvalid(f"{name}: '{word}' is not an XID", hint="specify XID numbers, or all")
        numbers.add(int(word))
    return frozenset(numbers), any(word in _ALL for word in words)
