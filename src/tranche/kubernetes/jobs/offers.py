"""What a request depends on in its cluster: how it gives shares, the sizes of shared GPUs, and the device class."""

from __future__ import annotations

from collections.abc import Sequence

from tranche.core.errors import ClaimsUnavailable, KubernetesForbidden, ProfileUnknown
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request
from tranche.core.spelling import did_you_mean
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.reader import ClusterReader
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.gpu_models import SharedGpuModel, shared_cards
from tranche.kubernetes.claims.spec import ClaimSpec
from tranche.kubernetes.claims.vocabulary import DRIVER, profile_of_label
from tranche.kubernetes.fleet.backend_reading import CLASSES, backend_in_force, handed_out
from tranche.kubernetes.fleet.devices import decode_pools

RESOURCE_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_PROFILE_CLASS = "tranche-"


async def share_backend(api: ApiConnection) -> AllocationBackend:
    """How the cluster gives shares by demand.

    Raises:
        ClaimsUnavailable: it gives none, or no node of it that the caller may see hands any out.
    """
    backend = await backend_in_force(api)
    if backend is AllocationBackend.GATES:
        nodes = await ClusterReader(api).objects("nodes", "/api/v1/nodes")
        if nodes is None or any(map(handed_out, nodes)):
            return backend
        raise ClaimsUnavailable(
            "no node of this cluster hands out shares by demand",
            hint="whoever runs the cluster installs Tranche's chart with dra.enabled and controller.enabled; "
            "ask for static slices with the resource nvidia.com/mig-<profile>",
        )
    if backend is AllocationBackend.NONE:
        raise ClaimsUnavailable(
            "this cluster gives no shares by demand: it has neither claims nor scheduling gates",
            hint="they need Kubernetes 1.27 or newer; ask for static slices with the resource nvidia.com/mig-<profile>",
        )
    return backend


async def offered_cards(api: ApiConnection, request: Request) -> tuple[SharedGpuModel, ...]:
    """The sizes of the cluster's shared GPUs that the request may have.

    Raises:
        KubernetesForbidden: the caller may not read what nodes offer.
    """
    reader = ClusterReader(api)
    query = {"fieldSelector": f"spec.driver={DRIVER}"}
    slices = await reader.objects("what nodes offer", RESOURCE_SLICES, **query)
    if reader.unread:
        raise KubernetesForbidden(
            f"{request} is another amount of memory on each size of GPU, and your account may not read ResourceSlices",
            hint="ask for an amount with --gpu-memory",
        )
    return shared_cards(slices or (), request.gpu_model)


async def check_class(api: ApiConnection, request: Request, spec: ClaimSpec) -> None:
    """Return when the cluster has the device classes of the claim, or the caller may not look.

    Raises:
        ProfileUnknown: it has none for the profile.
        ClaimsUnavailable: it has none of Tranche's.
    """
    (asked,) = spec.devices["requests"]
    names = {each["deviceClassName"] for each in asked.get("firstAvailable") or (asked["exactly"],)}
    found = await ClusterReader(api).objects("device classes", CLASSES)
    known = {str(each["metadata"]["name"]) for each in found or ()}
    if found is None or names <= known:
        return
    ours = sorted(name for name in known if name.startswith(_PROFILE_CLASS) or name == "tranche")
    if isinstance(request.demand, MigSlice) and ours:
        profile = request.demand.profile
        raise ProfileUnknown(
            f"this cluster has no device class for {profile}", hint=await _profile_hint(api, profile, ours)
        )
    raise ClaimsUnavailable(
        f"this cluster has no device class {' or '.join(sorted(names - known))}",
        hint="whoever runs the cluster installs Tranche's chart with dra.enabled=true",
    )


async def _profile_hint(api: ApiConnection, profile: ProfileName, classes: Sequence[str]) -> str:
    """The profiles that are spelled nearly so, and those that nodes offer."""
    known = {profile_of_label(each.removeprefix(_PROFILE_CLASS)) for each in classes if each.startswith(_PROFILE_CLASS)}
    query = {"fieldSelector": f"spec.driver={DRIVER}"}
    slices = await ClusterReader(api).objects("what nodes offer", RESOURCE_SLICES, **query)
    offered = {device.profile for pool in decode_pools(slices or ()).values() for device in pool.devices} - {""}
    meant = did_you_mean(str(profile), sorted(offered or known - {""}))
    if not offered:
        return f"{meant}list them with: kubectl get deviceclasses"
    return f"{meant}nodes offer {', '.join(sorted(offered))}"
