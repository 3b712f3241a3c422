"""What a claim was given on this node: devices by name in, grants out; or why it cannot have that, or not now. Pure.

Faults and the administrator's word decide what may be given now. Taints say the same to the scheduler, but the writer of a claim
can have it tolerate them. So this is checked again where the share is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tranche.core.allocation import NodeView, nearest_request, overlap
from tranche.core.errors import AllocationUnknown, GpuNotFound, NotOffered, SharingUnavailable, UsageError
from tranche.core.keeper import ClaimKeeper
from tranche.core.sharing import GpuPolicy
from tranche.kubernetes.claims.claim import AllocatedDevice, ClaimRef, KubeClaim
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import DRIVER, AttributeName, TaintKey
from tranche.kubernetes.devices.devices import NodeDevice
from tranche.kubernetes.devices.taints import is_offered
from tranche.kubernetes.node.health import FaultyDevices, faulty
from tranche.node.claims import ClaimRequest
from tranche.planning.decide.realise import ChosenDevice, contradicts, parts_of_one_device

_ANEW = "no scheduler should allocate this: delete the pod and the claim, then create them again"
_ONE_PART = (
    "create the pod again with one claim for each part, or with one claim for a larger part; "
    f"for parts of different GPUs, add the constraint distinctAttribute: {DRIVER}/{AttributeName.UUID} to the claim"
)


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """One device of a claim, and the grant that it stands for."""

    allocated: AllocatedDevice
    grant: ChosenDevice


def given_devices(
    claim: KubeClaim, wanted: ClaimRef, pool: str, devices: Mapping[str, NodeDevice]
) -> tuple[GivenDevice, ...]:
    """The claim's devices of this node's pool, in the order of its allocation.

    `wanted` is the claim that the kubelet asks for; `devices` are the node's by name.

    Raises:
        AllocationUnknown: the claim is another one, is not allocated, or is allocated on another node.
        GpuNotFound: the node has no device of that name.
        SharingUnavailable: no claim may have so much of a device, or it has several parts of one.
        UsageError: it asks for access without having anything, or two of its devices cannot both be there.
    """
    if claim.ref.uid != wanted.uid:
        raise AllocationUnknown(f"{wanted} now has uid {claim.ref.uid}, but the kubelet asked for uid {wanted.uid}")
    if claim.allocated is None:
        raise AllocationUnknown(f"{wanted} is not allocated")
    found = []
    for each in (each for each in claim.allocated if each.driver == DRIVER):
        if each.pool != pool:
            raise AllocationUnknown(f"{wanted} was allocated in pool {each.pool}, but this node's pool is {pool}")
        if each.admin_access:
            raise UsageError(f"{wanted} asks for admin access, which Tranche does not support")
        device = devices.get(each.device)
        if device is None:
            raise GpuNotFound(
                f"{wanted} was allocated device {each.device}, which this node does not have",
                hint="delete the pod, so that its replacement is scheduled onto existing devices",
            )
        for name, amount in each.consumed.items():
            shown = device.capacity.get(name)
            why = "the device has none" if shown is None else shown.why_not(amount)
            if why:
                raise SharingUnavailable(
                    f"{wanted} was allocated {amount} of {name} on {each.device}: {why}", hint=_ANEW
                )
        found.append(GivenDevice(each, device.grant(each.consumed)))
    if not found:
        raise AllocationUnknown(f"{wanted} has no allocated device from {DRIVER}")
    for one, other in combinations(found, 2):
        if parts_of_one_device(one.grant, other.grant):
            name = one.allocated.device
            raise SharingUnavailable(
                f"{wanted} was allocated several parts of {name}, but a claim can have only one part of a device",
                hint=_ONE_PART,
            )
        if contradicts(one.grant, other.grant):
            names = f"{one.allocated.device} and {other.allocated.device}"
            raise UsageError(f"{wanted} was allocated {names}, which cannot exist together", hint=_ANEW)
    return tuple(found)


def order_of(claim: KubeClaim, given: tuple[GivenDevice, ...]) -> ClaimRequest:
    """The order of a claim that was given these."""
    grants = tuple(each.grant for each in given)
    ref = claim.ref
    keeper = ClaimKeeper(ref.namespace, ref.name, ref.uid, claim.pods, claim.others)
    return ClaimRequest(keeper, nearest_request(grants), grants)


@dataclass(frozen=True, slots=True)
class Permission:
    """What of the node may be given, beyond what its view says. `reserved` names the devices on places that are kept.

    Such places move with what is given away. So a claim that was there before the taint is served, and one that tolerates the
    taint is not.
    """

    mode: NodeMode
    faults: FaultyDevices
    reserved: Collection[str] = frozenset()

    def refuse(self, given: Sequence[GivenDevice], devices: Mapping[str, NodeDevice], view: NodeView) -> None:
        """Raise NotOffered when one of these may not be given to any claim now. `devices` are the node's by name."""
        for each in given:
            why = self._why_not(each, devices[each.allocated.device], view)
            if why:
                raise NotOffered(
                    f"{each.allocated.device} is unavailable: {why}",
                    hint=(
                        "wait until it is available, or delete the pod, so that its replacement is scheduled onto "
                        "available devices"
                    ),
                )

    def _why_not(self, given: GivenDevice, device: NodeDevice, view: NodeView) -> str:
        if not self.mode.by_claims:
            return f"the node is in mode {self.mode}, which offers nothing to claims"
        if not is_offered(device, self.mode, GpuPolicy.AUTO):
            what = "slices" if device.sharing is None else "parts of devices"
            return f"the node is in mode {self.mode}, which offers no {what} to claims"
        use = view.use_of(device.gpu_uuid)
        if not is_offered(device, self.mode, use):
            return f"the GPU's policy is sharing={use}"
        for each in view.withheld:
            if not each.for_large and overlap(device.offered, each.place):
                return each.why
        for place, why in faulty(self.faults, view.node).items():
            if overlap(device.offered, place):
                return f"it reported an error ({why})"
        if device.name in self.reserved and given.allocated.tolerates(TaintKey.RESERVED):
            return f"it is reserved for larger requests, even from claims that tolerate {TaintKey.RESERVED}"
        return ""
