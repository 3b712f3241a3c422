"""What can happen on a machine: an enumeration of kinds, with typed data for each.

An event says what caused it: the position of an earlier event, where there is one; its allocation and its plan are in the event
and its data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, get_args

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


class EventKind(StrEnum):
    """The kinds. People read a step that was done under the name of the step's own kind; OTHER is of a newer version."""

    CHANGE_BEGUN = "ChangeBegun"
    STEP_DONE = "StepDone"
    GRANTED = "Granted"
    CANCELLED = "Cancelled"
    KEPT = "Kept"
    HELD_TWICE = "HeldTwice"
    RELEASE_BEGUN = "ReleaseBegun"
    RELEASED = "Released"
    UNDONE = "Undone"
    UNDO_INCOMPLETE = "UndoIncomplete"
    RECOVERED = "Recovered"
    LIMITS_LOST = "LimitsLost"
    LIMIT_EXCEEDED = "LimitExceeded"
    SHARING_REFUSED = "SharingRefused"
    DAEMON_FAULT = "DaemonFault"
    DAEMON_RECOVERED = "DaemonRecovered"
    FAULT_SHARED = "FaultShared"
    SERVER_ENDED = "ServerEnded"
    POLICY_CHANGED = "PolicyChanged"
    CORDONED = "Cordoned"
    UNCORDONED = "Uncordoned"
    BOOT_ENDED = "BootEnded"
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class ChangeBegun:
    """A declared change was decided, and its plan begins; `actor` is None where a command or an agent decided it."""

    kind: ClassVar = EventKind.CHANGE_BEGUN
    plan_id: str
    purpose: str
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step of a plan was carried out; `step` is the step as JSON data, and its `action` the name of its kind."""

    kind: ClassVar = EventKind.STEP_DONE
    plan_id: str
    step: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShareGranted:
    """A request got its share. `waiter_id` was its place in the queue, `plan_id` is empty when nothing had to be cut.

    `owner` is None where nobody knows whose it is, and of events of earlier versions.
    """

    kind: ClassVar = EventKind.GRANTED
    plan_id: str
    waiter_id: str
    request: Request
    grants: tuple[Grant, ...]
    owner: ShareOwner | None = None


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """A waiting request was taken out of the queue by somebody else than its own process."""

    kind: ClassVar = EventKind.CANCELLED
    waiter_id: str
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class ShareKept:
    """Processes that came of the command have the share now, the oldest first; or may have come of it, when only suspected."""

    kind: ClassVar = EventKind.KEPT
    pids: tuple[int, ...]
    suspected: bool = False


@dataclass(frozen=True, slots=True)
class HeldTwice:
    """Somebody is said to hold what another holds by the register, and is not believed."""

    kind: ClassVar = EventKind.HELD_TWICE
    keeper: Keeper
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class ReleaseBegun:
    """Somebody takes a share back from what runs in it; `pids` are the processes that get SIGTERM, and SIGKILL in the end."""

    kind: ClassVar = EventKind.RELEASE_BEGUN
    pids: tuple[int, ...]
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class ShareReleased:
    """A share was given back; `actor` is None where it ended by itself, or a command took it back."""

    kind: ClassVar = EventKind.RELEASED
    why: str
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class PlanUndone:
    """A plan failed and was undone; `reason` is the error's word, `failed_gpu` the UUID of the GPU on which it failed."""

    kind: ClassVar = EventKind.UNDONE
    plan_id: str
    reason: str
    failed_gpu: str


@dataclass(frozen=True, slots=True)
class UndoIncomplete:
    """Something that a plan did could not be put back; `reason` is the error's word."""

    kind: ClassVar = EventKind.UNDO_INCOMPLETE
    plan_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanRecovered:
    """An interrupted plan was undone, by its own process or, when that had died, by the next."""

    kind: ClassVar = EventKind.RECOVERED
    plan_id: str
    purpose: str


@dataclass(frozen=True, slots=True)
class LimitsLost:
    """The limits of a share are not kept any more, since the daemon that kept them has died, or somebody has told it others;
    `grants` as they are now.
    """

    kind: ClassVar = EventKind.LIMITS_LOST
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """A share's processes together have more memory than it was given; `grants` as they are now."""

    kind: ClassVar = EventKind.LIMIT_EXCEEDED
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class SharingRefused:
    """A mechanism that this machine should have was refused, for the reason in `why`, and is not used from then on."""

    kind: ClassVar = EventKind.SHARING_REFUSED
    mechanism: Sharing
    why: str


@dataclass(frozen=True, slots=True)
class DaemonFault:
    """The MPS daemon of a device lets nobody in, for the reason in `fault`."""

    kind: ClassVar = EventKind.DAEMON_FAULT
    device_uuid: str
    fault: str


@dataclass(frozen=True, slots=True)
class DaemonRecovered:
    """The MPS daemon of a device lets clients in again."""

    kind: ClassVar = EventKind.DAEMON_RECOVERED
    device_uuid: str


@dataclass(frozen=True, slots=True)
class FaultShared:
    """A fatal fault of one program has ended the CUDA contexts of all that share a device by MPS, and a share is of it."""

    kind: ClassVar = EventKind.FAULT_SHARED
    device_uuid: str


@dataclass(frozen=True, slots=True)
class ServerEnded:
    """The MPS server that a share's programs run in was killed or shut down, and its daemon lives on; `pid` was the server's."""

    kind: ClassVar = EventKind.SERVER_ENDED
    pid: int


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The administrator said how a GPU may be shared, or all that have no word of their own; None took the word back."""

    kind: ClassVar = EventKind.POLICY_CHANGED
    gpu_uuid: str
    sharing: str | None


@dataclass(frozen=True, slots=True)
class GpuCordoned:
    """An administrator wants nothing more of a GPU given away, for his reason, which may be empty."""

    kind: ClassVar = EventKind.CORDONED
    user: str
    reason: str
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class GpuUncordoned:
    """An administrator lets a GPU be given away again."""

    kind: ClassVar = EventKind.UNCORDONED
    user: str
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class BootEnded:
    """The cut at boot has ended. `boot_id` is the kernel's name of that start of the machine.

    `asked` is what the file of settings asks for, "" where it could not be read. `reason` is the error's word, "" when the GPUs
    are as asked.
    """

    kind: ClassVar = EventKind.BOOT_ENDED
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
    | PolicyChanged
    | GpuCordoned
    | GpuUncordoned
    | BootEnded
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; `time` is seconds since the epoch, empty strings where a field does not apply.

    `name` is the word for people. `cause` is the position of the event that led to it. `data` is None in what a version of
    Tranche wrote that recorded none, or that knows kinds which this one does not.
    """

    position: int
    time: float
    name: str
    gpu_uuid: str
    allocation_id: str
    message: str
    cause: int | None = None
    data: EventData | None = None

    @property
    def kind(self) -> EventKind:
        """What happened."""
        if self.data is not None:
            return self.data.kind
        return EventKind(self.name) if self.name in list(EventKind) else EventKind.OTHER


def event_name(data: EventData) -> str:
    """The word for people: the name of the kind, and for a step that of the step's own kind."""
    return str(data.step["action"]) if isinstance(data, StepDone) else str(data.kind)


class _Codec(NamedTuple):
    """How a field of the data is written: under which key, and how its value becomes JSON data and is read again."""

    key: str
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value


# Every field whose key is not its own name, or whose value is not written as it is.
_CODECS: Mapping[str, _Codec] = {
    "plan_id": _Codec("planId"),
    "waiter_id": _Codec("waiterId"),
    "boot_id": _Codec("bootId"),
    "failed_gpu": _Codec("failedGpu"),
    "gpu_uuid": _Codec("gpuUUID"),
    "device_uuid": _Codec("deviceUUID"),
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
_KINDS: Mapping[str, type[EventData]] = {each.kind: each for each in get_args(EventData)}


# The fields of each kind of data by name, each with how it is written.
_WRITTEN: Mapping[type, Sequence[tuple[str, _Codec]]] = {
    kind: [(each.name, _CODECS.get(each.name, _Codec(each.name))) for each in fields(kind)] for kind in _KINDS.values()
}


def event_data_to_dict(data: EventData) -> dict[str, Any]:
    """The data as JSON data."""
    return {codec.key: codec.encode(getattr(data, name)) for name, codec in _WRITTEN[type(data)]}


def event_data_from_dict(name: str, data: Mapping[str, Any]) -> EventData | None:
    """The data that event_data_to_dict wrote for an event of that name; None when it is of an unknown kind.

    An earlier version did not write every field that has a default.
    """
    kind = _KINDS.get(name, StepDone if "step" in data else None)
    if kind is None:
        return None
    if kind is DaemonFault and not data["fault"]:
        return DaemonRecovered(data["deviceUUID"])  # an earlier version wrote a recovery as a fault without a reason
    return kind(**{name: codec.decode(data[codec.key]) for name, codec in _WRITTEN[kind] if codec.key in data})
