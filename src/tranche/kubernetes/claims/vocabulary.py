"""The names by which Kubernetes knows what Tranche offers: driver, device classes, attributes, capacities, taints and labels.

They are a promise: manifests, device classes and the claims of running pods contain them.
"""

from __future__ import annotations

import re
from enum import StrEnum

from tranche.core.profile import ProfileName

DRIVER = "gpu.tranche.dev"
"""The DRA driver. A node's pool is named after the node."""

CDI_KIND = "tranche.dev/share"
"""The kind of the CDI devices that claims are given, each `<claim uid>-<number>`."""

WHOLE_RESOURCE = "nvidia.com/gpu"
"""The extended resource that class `whole.gpu.tranche.dev` serves."""

VGPU_RESOURCE = "k8s.amazonaws.com/vgpu"
"""The extended resource of AWS's virtual GPU device plugin, and of Tranche's virtual GPUs."""

MEMORY_COUNTER = "memory"
"""The counter of a GPU's memory in bytes. Quotas of other projects count it by this name."""

MODE_LABEL = "tranche.dev/mode"
"""The node label by which an administrator says how the node's GPUs are given away."""

KEEP_ANNOTATION = "tranche.dev/keep"
"""The node annotation by which an administrator has room kept for large requests: `whole=1, 3g.20gb=2`."""

SHARE_RESOURCE = "tranche.dev/share"
"""The extended resource of nodes in clusters without claims: a pod asks for one unit to get its share."""

SHARE_GATE = "tranche.dev/share"
"""The scheduling gate at which a pod waits for the choice of its share, and the annotation that then holds the choice."""

PLACING_LABEL = "tranche.dev/placing"
"""The label of the leases in which agents report GPUs and a controller its choices; the value tells the two apart."""

JOB_LABEL = "tranche.dev/job"
"""The label of everything that belongs to a job of `tranche submit`, the job's name as its value."""

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
"""Kueue's own objects: LocalQueues, and a Workload for each Job and what else waits in a queue."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue holds a Job back until its queue admits it. Source: Kueue's documents, "Run A Kubernetes Job"."""

PODSET_LABEL = "kueue.x-k8s.io/podset"
"""The label of pods that Kueue has counted by the pod template that they come from. Source: Kueue's `PodSetLabel`."""

DYNAMIC_MIG_LABEL = "node-role.kubernetes.io/runai-dynamic-mig"
"""The node label, with the value `true`, by which Run:ai's administrators have a node cut on demand."""

LARGEST_SLICE_LABEL = "tranche.dev/free.largest-slice"
"""The node label that names the largest profile of which a claim can have a slice now; absent where there is none."""

LARGEST_MEMORY_LABEL = "tranche.dev/free.largest-memory"
"""The node label that says the most memory that one claim can have of one device now, in MiB; 0 for none."""

FREE_GPUS_LABEL = "tranche.dev/free.gpus"
"""The node label that says how many whole GPUs claims can have now."""

FREE_LABELS = (LARGEST_SLICE_LABEL, LARGEST_MEMORY_LABEL, FREE_GPUS_LABEL)


_CLASS_SUFFIX = f".{DRIVER}"
_PROFILE_LABEL = re.compile(r"(\d+g)-(\d+gb)(?:-(no-)?([a-z0-9-]+))?", re.ASCII)


class DeviceClassName(StrEnum):
    """The device classes that always exist; each profile has its own besides (`profile_class`).

    Other schedulers know a GPU by a class with "gpu" in its name. KAI's quotas do.
    """

    ANY = DRIVER
    SLICE = f"slice.{DRIVER}"
    WHOLE = f"whole.{DRIVER}"
    SHARED = f"shared.{DRIVER}"


class DeviceType(StrEnum):
    """Attribute `type`. WHOLE: an uncut GPU for one holder alone. SLICE: a GPU instance for one holder alone. SHARED: a device,
    uncut or a slice, that several holders have parts of at once.
    """

    WHOLE = "whole"
    SLICE = "slice"
    SHARED = "shared"


class AttributeName(StrEnum):
    """The attributes of a device.

    UUID is the GPU's, also on a slice; PARENT_UUID is the same, on slices alone. MEMORY_SLICES counts those that the device
    takes. CARD_MEMORY is what programs can have of the whole GPU, in MiB. The walls have the words of `tranche.core.sharing`.
    KEPT, a boolean, is only on places kept for requests that ask for their size by name.
    """

    TYPE = "type"
    MODEL = "model"
    ARCHITECTURE = "architecture"
    PROFILE = "profile"
    UUID = "uuid"
    PARENT_UUID = "parentUUID"
    MINOR = "minor"
    MEMORY_SLICES = "memorySlices"
    CARD_MEMORY = "cardMemoryMiB"
    ISOLATION = "isolation"
    MEMORY_WALL = "memoryWall"
    COMPUTE_WALL = "computeWall"
    FAULT_WALL = "faultWall"
    BANDWIDTH_WALL = "bandwidthWall"
    MECHANISM = "mechanism"
    NUMA_NODE = "numaNode"
    DRIVER_VERSION = "driverVersion"
    CUDA_DRIVER_VERSION = "cudaDriverVersion"
    PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
    KEPT = "kept"


class CapacityName(StrEnum):
    """The capacities of a device.

    MEMORY in bytes, as programs can use it. SHARE in percent of the card, on devices for one holder alone. MULTIPROCESSORS is a
    number. On devices shared by MPS, COMPUTE is a ceiling in percent and CLIENTS a number of programs.
    """

    MEMORY = "memory"
    SHARE = "share"
    MULTIPROCESSORS = "multiprocessors"
    COMPUTE = "compute"
    CLIENTS = "clients"


class TaintKey(StrEnum):
    """Why a device is not available now.

    LOST: the driver has lost the GPU. FAULTY: it reported an error fatal to programs. FOREIGN: an instance that Tranche did not
    make is in the way. HELD: a holder without a claim has it, or something of it. MODE: the node's mode or the administrator's
    word on the GPU does not offer it, or it may still be counted as the device plugin's. RESERVED: it is kept free for larger
    requests.
    """

    LOST = "tranche.dev/lost"
    FAULTY = "tranche.dev/faulty"
    FOREIGN = "tranche.dev/foreign"
    HELD = "tranche.dev/held"
    MODE = "tranche.dev/mode"
    RESERVED = "tranche.dev/reserved"


def is_gpu_resource(name: str) -> bool:
    """Whether that extended resource is GPUs, slices or parts of them; everything in NVIDIA's domain is."""
    return name == VGPU_RESOURCE or name.startswith("nvidia.com/")


def profile_label(profile: ProfileName) -> str:
    """The profile's name as a DNS label: `1g-5gb`, `1g-5gb-me` for `+me`, `1g-24gb-no-me` for `-me`."""
    words = [f"{profile.slices}g-{profile.memory_gb}gb", *profile.added, *(f"no-{each}" for each in profile.removed)]
    return "-".join(words).replace(".", "-").lower()


def profile_of_label(label: str) -> str:
    """The name of the profile that has the label: `1g.5gb+me` for `1g-5gb-me`, `1g.24gb-me` for `1g-24gb-no-me`; "" for none."""
    found = _PROFILE_LABEL.fullmatch(label)
    if found is None:
        return ""
    slices, memory, without, attribute = found.groups()
    sign = "" if not attribute else "-" if without else "+"
    return f"{slices}.{memory}{sign}{(attribute or '').replace('-', '.')}"


def profile_class(profile: ProfileName) -> str:
    """The device class of a profile: `1g-5gb.gpu.tranche.dev`."""
    return f"{profile_label(profile)}{_CLASS_SUFFIX}"


def label_of_class(name: str) -> str:
    """The label of the profile whose device class has that name; "" for a class of no profile."""
    label = name.removesuffix(_CLASS_SUFFIX)
    return label if label != name and profile_of_label(label) else ""
