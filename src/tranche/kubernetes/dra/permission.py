"""Whether a claim may be given now what the scheduler chose for it: the administrator's word, and faults.

Taints say the same to the scheduler, but whoever writes a claim can have it tolerate them. So it is asked again where the share
is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tranche.core.allocation import NodeView, overlap
from tranche.core.errors import NotOffered
from tranche.core.sharing import GpuPolicy
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.devices.devices import NodeDevice
from tranche.kubernetes.devices.taints import is_offered
from tranche.kubernetes.dra.given import GivenDevice
from tranche.kubernetes.node.device_health_watch import faulty
from tranche.kubernetes.node.health import FaultyDevices


@dataclass(frozen=True, slots=True)
class Permission:
    """What of the node may be given, beside what its view says. `reserved` names the devices on places that are kept.

    Such places move with what is given away. So a claim that was there before the taint is served, and one that tolerates the
    taint is not.
    """

    mode: NodeMode
    faults: FaultyDevices
    reserved: Collection[str] = frozenset()

    def refuse(self, given: Sequence[GivenDevice], devices: Mapping[str, NodeDevice], view: NodeView) -> None:
        """NotOffered when one of these may not be given to anybody now. `devices` are the node's by name."""
        for each in given:
            why = self._why_not(each, devices[each.allocated.device], view)
            if why:
                raise NotOffered(
                    f"{each.allocated.device} is not given: {why}",
                    hint="delete the pod, and its successor is placed by what is offered; left alone it starts once this is",
                )

    def _why_not(self, given: GivenDevice, device: NodeDevice, view: NodeView) -> str:
        if not self.mode.by_claims:
            return f"the node's mode is {self.mode}, in which claims get nothing"
        if not is_offered(device, self.mode, GpuPolicy.AUTO):
            what = "slices" if device.sharing is None else "parts of devices"
            return f"the node's mode is {self.mode}, in which claims get no {what}"
        use = view.use_of(device.gpu_uuid)
        if not is_offered(device, self.mode, use):
            return f"the administrator's word on the GPU is sharing={use}"
        for each in view.withheld:
            if not each.for_large and overlap(device.offered, each.place):
                return each.why
        for place, why in faulty(self.faults, view.node).items():
            if overlap(device.offered, place):
                return f"it has reported an error ({why})"
        if device.name in self.reserved and given.allocated.tolerates(TaintKey.RESERVED):
            return f"its room is kept for larger requests, and the claim tolerates {TaintKey.RESERVED}"
        return ""
