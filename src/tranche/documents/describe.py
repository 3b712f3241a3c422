"""The only place for texts about a grant, an instance, a GPU's state, an age or a list of obstacles."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from tranche.core.allocation import (
    Allocation,
    ComputeSlice,
    FractionalShare,
    Grant,
    NodeView,
    Slice,
    WholeGpu,
    missing_instances,
)
from tranche.core.errors import GpuNotFound
from tranche.core.keeper import PodKeeper, ProcessKeeper
from tranche.core.quantity import format_memory
from tranche.core.state import DeviceVisibility, GpuProcess, GpuState, InstanceKey, NodeState
from tranche.documents.holder_names import NO_OWNERS, Owners, holder_names
from tranche.documents.slices import (
    PROHIBITED,
    FreePlace,
    FreePlaceStatus,
    SharedDevice,
    SliceRow,
    room_on,
    shared_gpu,
    vacancies,
    why_unavailable,
    why_withheld,
)
from tranche.planning.decide.reservations import reserved_on

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(seconds: float) -> str:
    """A span of time in its two largest units: `45s`, `3m12s`, `2h5m`, `4d1h`; `0s` for less than a second."""
    rest = max(0, int(seconds))
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def said_in_utc(seconds: float) -> str:
    """Seconds since the epoch as date and time for people in any zone: `2026-11-20 10:35:27 UTC`."""
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def local_time(seconds: float) -> str:
    """Seconds since the epoch as date and time in this machine's zone, for people."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def grant(given: Grant, node: NodeState) -> str:
    """One grant: `GPU 3 whole`, `GPU 0: 1g.5gb at 2:1`. The ceiling of a part refers to the named device."""
    where = _label(given.gpu_uuid, node)
    match given:
        case WholeGpu():
            return f"{where} whole"
        case Slice():
            return f"{where}: {given.profile} at {given.placement}"
        case ComputeSlice():
            return f"{where}: {given.name} in {given.slot.profile} at {given.slot.placement}"
        case FractionalShare():
            amount = format_memory(given.memory)
            inside = "" if given.slot is None else f" of {given.slot.profile} at {given.slot.placement}"
            ceiling = "" if given.compute is None else f", at most {given.compute}% of its compute"
            return f"{where}: {amount}{inside}{ceiling}"


def grants(allocation: Allocation, node: NodeState) -> str:
    """All grants of an allocation: `GPUs 0-3 whole`, `GPU 0: 1g.5gb at 2:1; GPU 1: 1g.5gb at 0:1`."""
    indexes = {gpu.uuid: gpu.index for gpu in node}
    if len(allocation.grants) > 1 and all(
        isinstance(each, WholeGpu) and each.gpu_uuid in indexes for each in allocation.grants
    ):
        return f"GPUs {ranges(indexes[each.gpu_uuid] for each in allocation.grants)} whole"
    return "; ".join(grant(each, node) for each in allocation.grants)


def command(allocation: Allocation) -> str:
    """The program of an allocation: a command, or a pod's container."""
    keeper = allocation.keeper
    if isinstance(keeper, PodKeeper) and keeper.container:
        return f"{keeper}, container {keeper.container}"
    return allocation.command or ("" if isinstance(keeper, ProcessKeeper) else str(keeper))


def pids(allocation: Allocation) -> str:
    """The processes that keep an allocation: `4711`, `4711 +2` for three, `4711?` if only suspected; "" for none."""
    keeper = allocation.keeper
    if not isinstance(keeper, ProcessKeeper) or not keeper.pid:
        return ""
    more = f" +{len(keeper.others)}" if keeper.others else ""
    return f"{keeper.pid}{more}{'?' if keeper.suspected else ''}"


def instance(key: InstanceKey, node: NodeState) -> str:
    """A slot: `1g.5gb at 2:1 of GPU 0`."""
    return f"{key.profile} at {key.placement} of {_label(key.gpu_uuid, node)}"


def phase(allocation: Allocation, view: NodeView) -> str:
    """An allocation's phase, with what is wrong with its GPUs, and for how long it has been idle."""
    text = str(allocation.phase)
    if missing_instances(view, allocation):
        text += ", instance missing"
    lost = {gpu.uuid: gpu.lost for gpu in view.node}
    if any(lost.get(each.gpu_uuid, view.node.scope is DeviceVisibility.ALL) for each in allocation.grants):
        text += ", GPU lost"
    if allocation.id in view.idle:
        text += f", {idle(view.idle[allocation.id])}"
    return f"{text}, unavailable" if why_unavailable(allocation, view) else text


def idle(seconds: int) -> str:
    """How long a share has been idle, in whole minutes: `idle 42m`."""
    return f"idle {age(seconds // 60 * 60)}"


def mig_mode(gpu: GpuState) -> str:
    """MIG mode for a column: `enabled`, `disabled (enabled after a reset)`, `-` without MIG."""
    if not gpu.mig_capable:
        return "-"
    return f"{gpu.mode} ({gpu.pending_mode} after a reset)" if gpu.mode_pending else str(gpu.mode)


def gpu_state(
    view: NodeView,
    gpu: GpuState,
    slices: tuple[SliceRow, ...],
    whole: tuple[Allocation, ...],
    owners: Owners = NO_OWNERS,
) -> str:
    """A GPU's use in one phrase, faults first.

    `3 slices: 2 held, 1 idle; room for 1x3g.20gb`, `held whole by 1f2e3d4c`, `cordoned by root: its fan; 1 slice: 1 held`.
    """
    use, why = _use_text(view, gpu, slices, whole, owners), why_withheld(view, gpu)
    reserved = reserved_on(view, gpu.uuid)
    return "; ".join(each for each in (why, str(reserved or ""), use) if each)


def lost_gpu(gpu: GpuState) -> str:
    """Names a lost GPU by what is known of it, beside its model: `lost: GPU-1b2c..., 00000000:13:00.0`."""
    uuid = gpu.uuid if gpu.uuid.startswith("GPU-") else ""
    return ": ".join(filter(None, ("lost", ", ".join(filter(None, (uuid, gpu.pci_bus_id))))))


def _use_text(
    view: NodeView, gpu: GpuState, slices: tuple[SliceRow, ...], whole: tuple[Allocation, ...], owners: Owners
) -> str:
    if gpu.lost:
        return lost_gpu(gpu)
    if whole:
        alone = all(
            isinstance(grant, WholeGpu) for each in whole for grant in each.grants if grant.gpu_uuid == gpu.uuid
        )
        shared = None if alone else shared_gpu(view, gpu)
        how = f"held whole by {holder_names(whole, owners)}" if alone else f"shared by {holder_names(whole, owners)}"
        return (how if shared is None else _shared(shared, whole, owners)) + _mode_text(gpu)
    # A slice is promised before its GPU's mode has changed.
    cut = gpu.mig_enabled or any(each.state == "preparing" for each in slices)
    vacant = vacancies(view, gpu)
    text = _slices_text(gpu, slices, vacant) if cut else _uncut_text(gpu, vacant)
    return "; ".join(each for each in (text, "being changed" if gpu.uuid in view.changing else "") if each)


def _mode_text(gpu: GpuState) -> str:
    if gpu.prohibited:
        return f"; {PROHIBITED}"
    return "; compute mode DEFAULT: programs outside MPS have no limit" if gpu.mps_passable else ""


def _uncut_text(gpu: GpuState, vacant: Sequence[FreePlace]) -> str:
    if gpu.prohibited:
        return PROHIBITED
    if gpu.all_processes:
        return "in use"
    return "free" if any(each.availability is FreePlaceStatus.FREE for each in vacant) else _no_room(vacant)


def _no_room(vacant: Sequence[FreePlace]) -> str:
    """Why nothing of the GPU is free, apart from reasons given for the whole GPU anyway."""
    told = (FreePlaceStatus.UNUSABLE, FreePlaceStatus.KEPT)
    return "; ".join(dict.fromkeys(each.why for each in vacant if each.availability in told))


def slice_state(each: SliceRow, owners: Owners = NO_OWNERS) -> str:
    """A slice's use: `held by python train.py (ada) 1f2e3d4c`, `idle`, `in use`."""
    if not each.allocations:
        return each.state
    if each.state == "held" and each.shared is not None:
        return _shared(each.shared, each.allocations, owners)
    who = holder_names(each.allocations, owners)
    return {"held": f"held by {who}", "preparing": f"preparing for {who}"}.get(
        each.state, f"missing, promised to {who}"
    )


def _shared(shared: SharedDevice, allocations: Iterable[Allocation], owners: Owners) -> str:
    """How a device is shared, and by which holders: `shared by MPS: 1f2e3d4c, 5a6b7c8d; 8.7 GiB left`."""
    more = f"no new shares: {shared.unavailable}" if shared.unavailable else f"{format_memory(shared.left)} left"
    return f"shared by {shared.sharing.for_people}: {holder_names(allocations, owners)}; {more}"


def processes(listed: Iterable[GpuProcess]) -> str:
    """Processes by name and pid; empty if there are none."""
    return ", ".join(map(str, listed))


def ranges(indexes: Iterable[int]) -> str:
    """Numbers with runs joined: `0-3, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _slices_text(gpu: GpuState, slices: tuple[SliceRow, ...], vacant: Sequence[FreePlace]) -> str:
    states = [each.state for each in slices]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    fitting = [(profile, count) for profile, count in room_on(gpu, slices) if count]
    room = f"room for {fitting[-1][1]}x{fitting[-1][0].name}" if fitting else "full"
    if fitting and not any(each.availability is FreePlaceStatus.FREE for each in vacant):
        withheld = any(each.availability in (FreePlaceStatus.CORDONED, FreePlaceStatus.FAULTY) for each in vacant)
        room = "" if withheld else _no_room(vacant)
    if not slices:
        return f"no slices, {room}" if room else "no slices"
    return f"{len(slices)} slice{'s' if len(slices) > 1 else ''}: {counts}{f'; {room}' if room else ''}"


def _label(gpu_uuid: str, node: NodeState) -> str:
    try:
        return node.gpu(gpu_uuid).label
    except GpuNotFound:
        return gpu_uuid
