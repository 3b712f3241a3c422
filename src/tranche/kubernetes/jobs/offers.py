"""What a request depends on in its cluster: how the cluster gives shares, the sizes of shared GPUs, and the device class."""

from __future__ import annotations

from collections.abc import Sequence

from tranche.core.errors import ClaimsUnavailable, KubernetesForbidden, KubernetesNotFound, ProfileUnknown
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request
from tranche.core.spelling import did_you_mean
from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.spec import ClaimSpec, SharedGpuModel
from tranche.kubernetes.claims.vocabulary import KUEUE, DeviceClassName, label_of_class, profile_of_label
from tranche.kubernetes.fleet.devices import FleetDevice, shared_cards
from tranche.kubernetes.fleet.reading import CLASSES, backend_in_force, handed_out, read_slices


async def share_backend(api: ApiConnection) -> AllocationBackend:
    """How the cluster gives shares by demand.

    Raises:
        ClaimsUnavailable: it gives none, or none of its nodes that the caller may see offers any.
    """
    backend = await backend_in_force(api)
    if backend is AllocationBackend.GATES:
        nodes = await ClusterReader(api).objects("nodes", "/api/v1/nodes")
        if nodes is None or any(map(handed_out, nodes)):
            return backend
        raise ClaimsUnavailable(
            "no node in this cluster assigns shares on demand",
            hint="ask the cluster's administrator to install Tranche's chart with dra.enabled and controller.enabled, or "
            "request static slices: nvidia.com/mig-<profile>",
        )
    if backend is AllocationBackend.NONE:
        raise ClaimsUnavailable(
            "this cluster assigns no shares on demand: it has neither claims nor scheduling gates",
            hint="use Kubernetes 1.27 or newer, or request static slices: nvidia.com/mig-<profile>",
        )
    return backend


async def offered_cards(api: ApiConnection, request: Request) -> tuple[SharedGpuModel, ...]:
    """The sizes of the cluster's shared GPUs that the request may have.

    Raises:
        KubernetesForbidden: the caller may not read what nodes offer.
    """
    reader = ClusterReader(api)
    devices = await _devices(reader)
    if reader.unread:
        raise KubernetesForbidden(
            f"your account has no permission to read ResourceSlices, and the memory of {request} depends on GPU sizes",
            hint="ask for an amount with --gpu-memory",
        )
    return shared_cards(devices, request.gpu_model)


async def check_class(api: ApiConnection, request: Request, spec: ClaimSpec) -> None:
    """Return when the cluster has the device classes of the claim, or the caller may not look.

    Raises:
        ProfileUnknown: it has none for the profile.
        ClaimsUnavailable: it has none of Tranche's.
    """
    (asked,) = spec.devices["requests"]
    names = {each["deviceClassName"] for each in asked.get("firstAvailable") or (asked["exactly"],)}
    known = await ClusterReader(api).names("device classes", CLASSES)
    if known is None or names <= known:
        return
    ours = sorted(name for name in known if label_of_class(name) or name in set(DeviceClassName))
    if isinstance(request.demand, MigSlice) and ours:
        profile = request.demand.profile
        raise ProfileUnknown(
            f"this cluster has no device class for {profile}", hint=await _profile_hint(api, profile, ours)
        )
    raise ClaimsUnavailable(
        f"this cluster has no device class {' or '.join(sorted(names - known))}",
        hint="ask the cluster's administrator to install Tranche's chart with dra.enabled=true",
    )


async def check_priority(api: ApiConnection, priority: str) -> None:
    """Return when the cluster has that WorkloadPriorityClass of Kueue, or the caller may not look; else KubernetesNotFound."""
    reader = ClusterReader(api)
    names = sorted(await reader.names("Kueue's priority classes", f"{KUEUE}/workloadpriorityclasses") or ())
    if priority not in names and not reader.unread:
        raise KubernetesNotFound(
            f"this cluster has no WorkloadPriorityClass '{priority}'",
            hint=f"{did_you_mean(priority, names)}its classes: {', '.join(names) or 'none'}",
        )


async def check_queue(api: ApiConnection, namespace: str, queue: str) -> None:
    """Return when the namespace has that queue of Kueue, or the caller may not look.

    Raises:
        KubernetesNotFound: it has none, so the Job would wait forever or, without Kueue, start at once.
    """
    reader = ClusterReader(api)
    found = await reader.names("Kueue's queues", f"{KUEUE}/namespaces/{namespace}/localqueues")
    names = sorted(found or ())
    if queue in names or reader.unread:
        return
    raise KubernetesNotFound(
        f"namespace {namespace} has no Kueue queue '{queue}'",
        hint="this cluster has no Kueue 0.19 or newer"
        if found is None
        else f"{did_you_mean(queue, names)}its queues: {', '.join(names) or 'none'}",
    )


async def _profile_hint(api: ApiConnection, profile: ProfileName, classes: Sequence[str]) -> str:
    """Profiles with a similar name, and those that nodes offer."""
    known = {profile_of_label(label_of_class(each)) for each in classes}
    offered = {device.profile for device in await _devices(ClusterReader(api))} - {""}
    meant = did_you_mean(str(profile), sorted(offered or known - {""}))
    if not offered:
        return f"{meant}list the classes with: kubectl get deviceclasses"
    return f"{meant}nodes offer {', '.join(sorted(offered))}"


async def _devices(reader: ClusterReader) -> tuple[FleetDevice, ...]:
    return tuple(device for each in await read_slices(reader) or () for device in each.devices)
