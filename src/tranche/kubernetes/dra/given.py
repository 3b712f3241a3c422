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

_ANEW = "no scheduler gives that: delete pod and claim, and have them made and placed anew"
_ONE_PART = (
    "delete the pod, and make it again with a claim of its own for each part, or with a claim that asks for one larger part; "
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
        raise AllocationUnknown(f"{wanted} has uid {claim.ref.uid} now, and {wanted.uid} was asked for")
    if claim.allocated is None:
        raise AllocationUnknown(f"{wanted} is not allocated")
    found = []
    for each in claim.of_driver(DRIVER):
        if each.pool != pool:
            raise AllocationUnknown(f"{wanted} is allocated in pool {each.pool}, and this node's pool is {pool}")
        if each.admin_access:
            raise UsageError(f"{wanted} asks for administrative access, which is not given")
        device = devices.get(each.device)
        if device is None:
            raise GpuNotFound(
                f"{wanted} is allocated device {each.device}, which this node does not have",
                hint="delete the pod; its successor is placed by what the node has",
            )
        for name, amount in each.consumed.items():
            shown = device.capacity.get(name)
            why = "it has none" if shown is None else shown.why_not(amount)
            if why:
                raise SharingUnavailable(f"{wanted} was given {amount} of {name} of {each.device}: {why}", hint=_ANEW)
        found.append(GivenDevice(each, device.grant(each.consumed)))
    if not found:
        raise AllocationUnknown(f"{wanted} is allocated no device of {DRIVER}")
    for one, other in combinations(found, 2):
        if parts_of_one_device(one.grant, other.grant):
            name = one.allocated.device
            raise SharingUnavailable(
                f"{wanted} was given several parts of {name}, and a claim has one part of a device", hint=_ONE_PART
            )
        if contradicts(one.grant, other.grant):
            names = f"{one.allocated.device} and {other.allocated.device}"
            raise UsageError(f"{wanted} was given {names}, which cannot both be there", hint=_ANEW)
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
