"""Events on a machine, with typed data for each kind.

An event may name its cause by the position of an earlier event. The event and its data name its allocation and its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from tranche.core.allocation import Grant
from tranche.core.keeper import (
    Actor,
    Keeper,
    ShareOwner,
    actor_from_dict,
    actor_to_dict,
    owner_from_dict,
    owner_to_dict,
)
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.wire import (
    grant_from_dict,
    grant_to_dict,
    keeper_from_dict,
    keeper_to_dict,
    request_from_dict,
    request_to_dict,
)


class ChangeBegun(NamedTuple):
    """A declared change was decided, and its plan begins; `actor` is None if a command or an agent decided."""

    plan_id: str
    purpose: str
    actor: Actor | None = None


class StepDone(NamedTuple):
    """A plan's step finished; `step` is its JSON data, and `action` the name of its kind."""

    plan_id: str
    step: Mapping[str, Any]


class ShareGranted(NamedTuple):
    """A request got its share. `waiter_id` was its place in the queue; `plan_id` is empty if nothing had to be cut.

    `owner` is None if unknown.
    """

    plan_id: str
    waiter_id: str
    request: Request
    grants: tuple[Grant, ...]
    owner: ShareOwner | None = None


class RequestCancelled(NamedTuple):
    """A process other than its own removed a waiting request from the queue."""

    waiter_id: str
    actor: Actor | None = None


class ShareKept(NamedTuple):
    """Processes left by the command now keep the share, oldest first; `suspected` means that they may be the command's."""

    pids: tuple[int, ...]
    suspected: bool = False


class HeldTwice(NamedTuple):
    """A keeper was reported for devices that the register gives to another; Tranche rejects the report."""

    keeper: Keeper
    grants: tuple[Grant, ...]


class ReleaseBegun(NamedTuple):
    """A running share is being taken back; `pids` get SIGTERM, and finally SIGKILL."""

    pids: tuple[int, ...]
    actor: Actor | None = None


class ShareReleased(NamedTuple):
    """A share was released; `actor` is None if it ended by itself or a command released it."""

    why: str
    actor: Actor | None = None


class PlanUndone(NamedTuple):
    """A plan failed and was undone; `reason` is the error's reason word, `failed_gpu` the UUID of the GPU that failed."""

    plan_id: str
    reason: str
    failed_gpu: str


class UndoIncomplete(NamedTuple):
    """A plan could not be undone completely; `reason` is the error's reason word."""

    plan_id: str
    reason: str


class PlanRecovered(NamedTuple):
    """An interrupted plan was undone, by its own process or, after its death, by the next."""

    plan_id: str
    purpose: str


class LimitsLost(NamedTuple):
    """A share lost its limits: the daemon died, or its limits were changed.

    `grants` are the present ones.
    """

    grants: tuple[Grant, ...]


class LimitExceeded(NamedTuple):
    """A share's processes together use more memory than granted; `grants` are the present ones."""

    grants: tuple[Grant, ...]


class SharingRefused(NamedTuple):
    """The machine refused a mechanism that it should have, for the reason in `why`; Tranche no longer uses it."""

    mechanism: Sharing
    why: str


class DaemonFault(NamedTuple):
    """The MPS daemon of a device admits no clients, for the reason in `fault`."""

    device_uuid: str
    fault: str


class DaemonRecovered(NamedTuple):
    """The MPS daemon of a device admits clients again."""

    device_uuid: str


class FaultShared(NamedTuple):
    """A program's fatal fault ended all CUDA contexts on a device shared by MPS, including this share's."""

    device_uuid: str


class ServerEnded(NamedTuple):
    """The MPS server of a share's programs was killed or shut down, but its daemon lives; `pid` was the server's."""

    pid: int


@dataclass(frozen=True, slots=True)
class GpuLost:
    """The driver has lost the event's GPU."""


@dataclass(frozen=True, slots=True)
class GpuRecovered:
    """The driver has the event's GPU again."""


class PolicyChanged(NamedTuple):
    """The administrator set how a GPU may be shared, or all GPUs without a policy of their own; None removes the policy."""

    gpu_uuid: str
    sharing: str | None


class FenceChanged(NamedTuple):
    """The administrator put up the fence, which exempts these users by uid, or took it down (None)."""

    exempt_uids: tuple[int, ...] | None


class QuotaChanged(NamedTuple):
    """The administrator set the quota of a user, of a group (`@` and its name), or of everyone (""); all None removes it.

    `gpu_percent` is in hundredths of a GPU, `memory` in bytes, `time_limit` in seconds.
    """

    user: str
    gpu_percent: int | None
    memory: int | None
    shares: int | None
    time_limit: int | None = None
    gpu_hours: int | None = None
    weight: int | None = None


class TimeExtended(NamedTuple):
    """The time limit of a running command was extended; `time_limit` is the new one, in seconds."""

    time_limit: int


class SharePreempted(NamedTuple):
    """A preemptible command is told to end, because the request that waited under `waiter_id` needs its share."""

    waiter_id: str


class GpuCordoned(NamedTuple):
    """An administrator cordoned a GPU; the reason may be empty."""

    user: str
    reason: str
    actor: Actor | None = None


class GpuUncordoned(NamedTuple):
    """An administrator lifted the cordon of a GPU."""

    user: str
    actor: Actor | None = None


class ReservationMade(NamedTuple):
    """An administrator reserved GPUs. `begins` and `ends` are seconds since the epoch; `names` names the users, if any."""

    reservation_id: str
    gpu_uuids: tuple[str, ...]
    begins: float
    ends: float
    names: str
    user: str


class ReservationEnded(NamedTuple):
    """A reservation is over, was given up, or was removed by a user; `why` says which."""

    reservation_id: str
    why: str


class BootEnded(NamedTuple):
    """The cut at boot has ended. `boot_id` is the kernel's id of that boot.

    `asked` is the request in the settings file, "" if unreadable. `reason` is the error's reason word, "" on success.
    """

    boot_id: str
    asked: str
    reason: str


EventData = (
    ChangeBegun
    | StepDone
    | ShareGranted
    | RequestCancelled
    | ShareKept
    | HeldTwice
    | ReleaseBegun
    | ShareReleased
    | PlanUndone
    | UndoIncomplete
    | PlanRecovered
    | LimitsLost
    | LimitExceeded
    | SharingRefused
    | DaemonFault
    | DaemonRecovered
    | FaultShared
    | ServerEnded
    | GpuLost
    | GpuRecovered
    | PolicyChanged
    | QuotaChanged
    | FenceChanged
    | TimeExtended
    | SharePreempted
    | GpuCordoned
    | GpuUncordoned
    | ReservationMade
    | ReservationEnded
    | BootEnded
)


class Event(NamedTuple):
    """One event; `time` is seconds since the epoch, and fields that do not apply are empty strings.

    `name` is the name for people. `cause` is the position of the event that led to it. `data` is None if
    this version does not know the kind.
    """

    position: int
    time: float
    name: str
    gpu_uuid: str
    allocation_id: str
    message: str
    cause: int | None = None
    data: EventData | None = None


def event_name(data: EventData) -> str:
    """The name for people: the kind's, or for a step its own kind's."""
    return str(data.step["action"]) if isinstance(data, StepDone) else _NAMES[type(data)]


class _Codec(NamedTuple):
    """How a field of the data is written: its key, and the conversions of its value to JSON data and back."""

    key: str
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value


# Every field with another key than its name, or with a converted value.
_CODECS: Mapping[str, _Codec] = {
    "plan_id": _Codec("planId"),
    "waiter_id": _Codec("waiterId"),
    "boot_id": _Codec("bootId"),
    "failed_gpu": _Codec("failedGpu"),
    "gpu_percent": _Codec("gpuPercent"),
    "memory": _Codec("memoryBytes"),
    "time_limit": _Codec("timeLimitSeconds"),
    "gpu_hours": _Codec("gpuHours"),
    "gpu_uuid": _Codec("gpuUUID"),
    "device_uuid": _Codec("deviceUUID"),
    "exempt_uids": _Codec("exemptUids", lambda uids: uids and list(uids), lambda data: data and tuple(data)),
    "reservation_id": _Codec("reservationId"),
    "gpu_uuids": _Codec("gpuUUIDs", list, tuple),
    "step": _Codec("step", dict),
    "pids": _Codec("pids", list, tuple),
    "mechanism": _Codec("mechanism", str, Sharing),
    "actor": _Codec("actor", actor_to_dict, actor_from_dict),
    "owner": _Codec("owner", owner_to_dict, owner_from_dict),
    "keeper": _Codec("keeper", keeper_to_dict, keeper_from_dict),
    "request": _Codec("request", request_to_dict, request_from_dict),
    "grants": _Codec(
        "grants", lambda given: [*map(grant_to_dict, given)], lambda data: tuple(map(grant_from_dict, data))
    ),
}
_SHORT_NAMES: Mapping[type, str] = {
    ShareGranted: "Granted",
    RequestCancelled: "Cancelled",
    ShareKept: "Kept",
    ShareReleased: "Released",
    SharePreempted: "Preempted",
    PlanUndone: "Undone",
    PlanRecovered: "Recovered",
    GpuCordoned: "Cordoned",
    GpuUncordoned: "Uncordoned",
    ReservationMade: "Reserved",
}
_NAMES: Mapping[type, str] = {each: _SHORT_NAMES.get(each, each.__name__) for each in get_args(EventData)}
_KINDS: Mapping[str, type[EventData]] = {name: kind for kind, name in _NAMES.items()}


# The fields of each kind of data by name, with their codecs.
_WRITTEN: Mapping[type, Sequence[tuple[str, _Codec]]] = {
    kind: [(field, _CODECS.get(field, _Codec(field))) for field in getattr(kind, "_fields", ())] for kind in _NAMES
}


def event_data_to_dict(data: EventData) -> dict[str, Any]:
    """The data as JSON data."""
    return {codec.key: codec.encode(getattr(data, name)) for name, codec in _WRITTEN[type(data)]}


def event_data_from_dict(name: str, data: Mapping[str, Any]) -> EventData | None:
    """The data that event_data_to_dict wrote for an event of that name; None for an unknown kind."""
    kind = _KINDS.get(name, StepDone if "step" in data else None)
    return None if kind is None else kind(**{name: codec.decode(data[codec.key]) for name, codec in _WRITTEN[kind]})
