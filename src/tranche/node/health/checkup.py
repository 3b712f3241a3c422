"""Can this machine share its GPUs? One finding for each check, with what to do about it.

The checks change nothing: they undo what they try in the state folder, and do not create a missing ledger.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tranche.core.allocation import Allocation, NodeView, missing_instances, shared_by_mps
from tranche.core.board import board_of
from tranche.core.board_difference import board_differences
from tranche.core.errors import LedgerUnavailable, PermissionDenied, TrancheError
from tranche.core.keeper import PodKeeper, ProcessKeeper
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import PROHIBITED, ComputeMode, DeviceVisibility, GpuState, NodeState, unavailable
from tranche.node.locks.deciding import slow_decision
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.state.session import StateFolder
from tranche.node.state.state_file import what_it_is
from tranche.node.store import chronicle, records
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import contradictory_tables

FORGOTTEN = "the kubelet has lost its checkpoint, and its next restart will end running pods"
FORGOTTEN_HINT = "let them end, or delete them, before the kubelet restarts"

_TOOLKIT_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
_KUBELET = Path("/var/lib/kubelet")
_TOOLKIT_REFUSES = "accept-nvidia-visible-devices-envvar-when-unprivileged"


class Status(StrEnum):
    """FAIL: something cannot work. WARN: something is limited, or worth a look."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `check` is a stable word; `gpu` is the index of the GPU concerned, None for the machine."""

    check: str
    status: Status
    text: str
    hint: str = ""
    gpu: int | None = None


def failed(check: str, error: TrancheError) -> Finding:
    """The finding for an error that stopped a check."""
    return Finding(check, Status.FAIL, error.message, error.hint)


def check_node(node: NodeState) -> Iterator[Finding]:
    """Check the driver and every GPU that it shows."""
    yield Finding("driver", Status.PASS, f"driver {node.driver_version}, NVML {node.nvml_version}")
    if not node.gpus:
        yield Finding(
            "gpus", Status.FAIL, "the driver shows no GPU", "check the card with lspci and the kernel log with dmesg"
        )
        return
    count = f"{len(node.gpus)} GPU{'s' if len(node.gpus) > 1 else ''}"
    if node.scope is DeviceVisibility.ALL:
        yield Finding("gpus", Status.PASS, count)
    else:
        text = f"this process sees {count}; NVIDIA_VISIBLE_DEVICES may hide other devices"
        yield Finding("gpus", Status.WARN, text, "check the machine outside any share or container")
    yield check_sharing(node.sharing)
    for gpu in node:
        yield from _check_gpu(gpu)


def check_sharing(means: MachineSharing) -> Finding:
    """How this machine can give parts of an uncut GPU or of a slice, and why not in other ways."""
    offered = " and ".join(each.for_people for each in Sharing if each in means.offered) or "nothing"
    refused = "".join(f"; not by {each.for_people}: {why}" for each in Sharing if (why := means.why_not(each)))
    walls = means.offered & {Sharing.MEMORY_LIMITS, Sharing.MPS}
    text = f"Tranche can give parts of a GPU by {offered}{refused}"
    if walls:
        return Finding("sharing", Status.PASS, text)
    return Finding(
        "sharing", Status.WARN, text, "nothing limits the memory of a part; this does not affect slices and whole GPUs"
    )


def check_permission(simulated_state: Path | None) -> Finding:
    """Whether this user may cut GPUs: as root, or as the owner of a simulated machine's state file."""
    if os.geteuid() == 0:
        return Finding("permission", Status.PASS, "running as root: Tranche can partition GPUs")
    if simulated_state is not None and simulated_state.stat().st_uid == os.geteuid():
        return Finding(
            "permission", Status.PASS, "this user owns the simulated machine: Tranche can partition its GPUs"
        )
    return Finding(
        "permission",
        Status.WARN,
        "not running as root: Tranche can list GPUs but not partition them",
        "run commands that need a new slice with sudo, or ask an administrator to start the service: tranche serve",
    )


def check_reset_command(command: str, node: NodeState | None) -> Finding:
    """Whether nvidia-smi, which resets GPUs, is installed."""
    found = shutil.which(command)
    if found is not None:
        return Finding("nvidia-smi", Status.PASS, f"nvidia-smi is {found}")
    needed = node is not None and any(gpu.mig_capable and gpu.mode_change_needs_reset for gpu in node)
    text = "nvidia-smi is not on the PATH" + ("; these GPUs need it to change MIG mode" if needed else "")
    return Finding("nvidia-smi", Status.WARN, text, "install the driver's utilities package")


def check_state_folder(places: StateFolder) -> Finding:
    """Whether files can be made, locked and filled wherever commands do so."""
    try:
        return Finding("state-folder", Status.PASS, try_state_folder(places))
    except TrancheError as error:
        return failed("state-folder", error)


def check_ledger(places: StateFolder) -> Finding:
    """Whether the ledger opens, is whole, and takes a request; undoes what it writes."""
    if os.path.isdir(places.state_dir) and not os.access(places.state_dir, os.X_OK):
        text = f"no permission to read the state folder {places.state_dir}"
        return Finding("ledger", Status.FAIL, text, "run the command with sudo")
    try:
        if not try_file(places.ledger):
            return Finding("ledger", Status.PASS, "there is no ledger yet; the first request creates it")
        ledger = Ledger(places.ledger)
        try:
            ledger.check()
            _rehearse(ledger)
            with ledger.read() as db:
                broken = contradictory_tables(db, places)
        finally:
            ledger.close()
    except TrancheError as error:
        return failed("ledger", error)
    if broken:
        text = f"the ledger {places.ledger} has lost or contradictory rows in: {', '.join(broken)}"
        hint = "to rebuild them from the running shares, run: tranche ps"
        return Finding("ledger", Status.WARN, text, hint)
    return Finding("ledger", Status.PASS, f"the ledger {places.ledger} is intact")


class _TakenBack(Exception):
    """Ends the rehearsal's transaction."""


def _rehearse(ledger: Ledger) -> None:
    with contextlib.suppress(_TakenBack), ledger.write() as db:
        records.add_waiter(db, "doctor", Request(WholeGpus(1)), created=0.0, command="", pid=0, uid=0)
        chronicle.released(db, 0.0, "doctor", "")
        raise _TakenBack


def check_decisions(places: StateFolder) -> Finding:
    """Whether a decision that does not end holds up all requests."""
    if (slow := slow_decision(places)) is not None:
        return Finding("decisions", Status.FAIL, str(slow), slow.hint)
    return Finding("decisions", Status.PASS, "no process blocks decisions")


def check_leftovers(recovery_needed: bool, view: NodeView) -> Iterator[Finding]:
    """Whether dead processes left something, and whether every granted share still exists."""
    if recovery_needed:
        text = "dead processes left plans, shares or queue places behind"
        yield Finding("leftovers", Status.WARN, text, "to clean them up, run: tranche ps")
    else:
        yield Finding("leftovers", Status.PASS, "no dead process left anything behind")
    for allocation in view.allocations:
        keeper = allocation.keeper
        if isinstance(keeper, ProcessKeeper) and keeper.suspected:
            text = (
                f"the command of allocation {allocation.id} has ended; {keeper} may be part of it, and keeps the share"
            )
            hint = "to check, and to release the share if the process is not part of the command, run: sudo tranche ps"
            yield Finding("shares", Status.WARN, text, hint)
        for slot in missing_instances(view, allocation):
            text = f"allocation {allocation.id} holds {slot}, which does not exist"
            yield Finding("shares", Status.WARN, text, f"end it with: tranche release {allocation.id} --terminate")


def forgotten_pods(allocations: Sequence[Allocation]) -> tuple[str, ...]:
    """The running pods with devices that the kubelet forgot with its checkpoint, as `namespace/name`."""
    keepers = [each.keeper for each in allocations if isinstance(each.keeper, PodKeeper) and each.keeper.forgotten]
    return tuple(sorted({f"{each.namespace}/{each.name}" for each in keepers}))


def check_pods(allocations: Sequence[Allocation]) -> Iterator[Finding]:
    """Whether the kubelet knows all pods with devices here."""
    if pods := forgotten_pods(allocations):
        yield Finding("pods", Status.WARN, f"{FORGOTTEN}: {', '.join(pods)}", FORGOTTEN_HINT)


def check_strays(daemons: Iterable[str], groups: Sequence[Path]) -> Iterator[Finding]:
    """What a lost state folder left: MPS daemons, by device UUID, and control groups with memory limits."""
    hint = "run tranche ps: Tranche then takes this over, or ends it if no share needs it"
    for device_uuid in daemons:
        text = f"an MPS daemon of device {device_uuid} is running, but its record was lost"
        yield Finding("mps", Status.WARN, text, hint)
    for group in groups:
        text = f"the control group {group} limits memory, but its record was lost"
        yield Finding("groups", Status.WARN, text, hint)


def check_daemons(node: NodeState, allocations: Iterable[Allocation], known: DaemonRecordStore) -> Iterator[Finding]:
    """Whether Tranche's MPS daemons admit programs; `node` includes its daemons, `known` holds their records."""
    shared = shared_by_mps(allocations)
    for gpu in node:
        for daemon in gpu.daemons:
            where = "" if daemon.slot is None else f"{daemon.slot.profile} at {daemon.slot.placement}: "
            if why := unavailable(gpu, daemon.slot):
                key = gpu.uuid, daemon.slot
                hint = _unavailable_hint(known.find(*key), shared=key in shared)
                yield Finding("mps", Status.WARN, where + why, hint, gpu.index)
        if gpu.prohibited:
            served = gpu.daemon_of(None) is not None  # DEFAULT would let programs bypass it
            hint = f"to let programs use the GPU again, run: {_mode_command(gpu, exclusive=served)}"
            yield Finding("mps", Status.WARN, PROHIBITED, hint, gpu.index)
        elif gpu.mps_passable:
            text = "shared by MPS, but its compute mode is DEFAULT: programs outside MPS have no limit"
            hint = f"the next decision restores it; to do it now: {_mode_command(gpu, exclusive=True)}"
            yield Finding("mps", Status.WARN, text, hint, gpu.index)
        if gpu.compute_mode is ComputeMode.EXCLUSIVE and gpu.daemon_of(None) is None:
            text = "compute mode EXCLUSIVE_PROCESS, but no MPS daemon from Tranche: only one program at a time can use the GPU"
            hint = f"if this is not intended, restore it with: {_mode_command(gpu, exclusive=False)}"
            yield Finding("mps", Status.WARN, text, hint, gpu.index)


def _unavailable_hint(record: DaemonRecord | None, *, shared: bool) -> str:
    """What to do about a daemon that admits no clients: nothing if it is unneeded, otherwise the cheapest remedy."""
    if not shared:
        return "the device has no shares, so there is nothing to end: the next decision replaces the daemon"
    if record is not None and not record.fault and record.halted_pid:
        return f"resume it with: kill -CONT {record.halted_pid}; programs that share the device keep their shares"
    return "end all shares of the device to get a new daemon; list the shares with: tranche ps"


def _mode_command(gpu: GpuState, *, exclusive: bool) -> str:
    return f"nvidia-smi -i {gpu.index} -c {'EXCLUSIVE_PROCESS' if exclusive else 'DEFAULT'}"


def _check_gpu(gpu: GpuState) -> Iterator[Finding]:
    if gpu.lost:
        hint = "drain the machine and power-cycle it; the kernel log (dmesg) shows the XID"
        yield Finding("lost", Status.FAIL, "the driver has lost the GPU", hint, gpu.index)
        return
    yield _mig_finding(gpu)
    blocking = gpu.all_processes if gpu.mode_change_needs_reset and not gpu.mig_enabled else ()
    if gpu.mig_capable and blocking:
        names = ", ".join(map(str, blocking))
        text = f"{names} would block a reset, and therefore a change of MIG mode"
        hint = "leave it alone if tranche ps lists a share of this GPU; otherwise end it before the GPU is partitioned"
        yield Finding("reset", Status.WARN, text, hint, gpu.index)
    if gpu.mig_capable:
        yield from _catalogue_findings(gpu)


def _mig_finding(gpu: GpuState) -> Finding:
    if not gpu.mig_capable:
        return Finding(
            "mig", Status.PASS, f"{gpu.name} does not support MIG: Tranche grants it whole or in parts", "", gpu.index
        )
    if gpu.mode_pending:
        text = f"MIG mode is {gpu.mode} and will be {gpu.pending_mode} after a reset"
        return Finding(
            "mig", Status.WARN, text, f"reset the GPU when it is idle: nvidia-smi --gpu-reset -i {gpu.index}", gpu.index
        )
    reset = "; changing it needs a reset" if gpu.mode_change_needs_reset else ""
    return Finding("mig", Status.PASS, f"{gpu.name}: MIG mode is {gpu.mode}{reset}", "", gpu.index)


def _catalogue_findings(gpu: GpuState) -> Iterator[Finding]:
    board = board_of(gpu.pci_device_id, gpu.name, gpu.memory)
    if board is None:
        text = f"{gpu.name} ({gpu.pci_device_id}) is not in the catalogue"
        hint = "Tranche uses the driver's answers; please report the output of `tranche profiles -o json`"
        yield Finding("catalogue", Status.WARN, text, hint, gpu.index)
        return
    if gpu.profiles_source != "driver":
        text = f"the driver describes {board.key} only with MIG mode on; Tranche uses the catalogue"
        yield Finding("catalogue", Status.PASS, text, "", gpu.index)
        return
    differences = board_differences(gpu, board)
    if not differences:
        text = f"the driver and the catalogue agree on {board.key}"
        yield Finding("catalogue", Status.PASS, text, "", gpu.index)
    for each in differences:
        status = Status.PASS if each.explained else Status.WARN
        hint = "" if each.explained else "Tranche uses the driver's answer; please report the difference"
        yield Finding("catalogue", status, f"{board.key} {each}", hint, gpu.index)


def check_container_toolkit(config: Path = _TOOLKIT_CONFIG, kubelet: Path = _KUBELET) -> Iterator[Finding]:
    """Whether the NVIDIA container runtime gives every GPU to any container that asks for all by a variable.

    Checks only cluster nodes with the toolkit's configuration in its usual place; yields nothing elsewhere.
    """
    import tomllib  # only cluster nodes need it

    try:
        if not kubelet.is_dir():
            return
        accepts = tomllib.loads(config.read_text()).get(_TOOLKIT_REFUSES, True)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        yield Finding(
            "container-toolkit", Status.WARN, f"{config} cannot be read: {error}", "run the command with sudo"
        )
        return
    if accepts is False:
        text = f"the NVIDIA container runtime obeys NVIDIA_VISIBLE_DEVICES only for privileged containers ({config})"
        yield Finding("container-toolkit", Status.PASS, text)
        return
    yield Finding(
        "container-toolkit",
        Status.WARN,
        "a container that the NVIDIA runtime starts sees every GPU if it sets NVIDIA_VISIBLE_DEVICES=all, even if it has no "
        f"device of its own: {config} does not set {_TOOLKIT_REFUSES} = false",
        "if containers get devices through CDI or volume mounts: "
        f"sudo nvidia-ctk config --in-place --set {_TOOLKIT_REFUSES}=false",
    )


_ROOM = 2**20
"""In bytes: a new ledger with its log needs a third of this."""
_FILES = 16
"""Files and folders that a first request makes."""
_CHOOSE = "fix or remove it"


def try_state_folder(places: StateFolder) -> str:
    """Do what commands do with files in the state folder; returns a sentence about the result.

    Raises PermissionDenied or LedgerUnavailable, naming the path in the way.
    """
    folder = places.state_dir
    if not os.path.lexists(folder):
        _try_folder(next(path for path in folder.absolute().parents if os.path.lexists(path)))
        return f"the state folder {folder} can be created"
    _try_folder(folder, f"the state folder {folder}")
    for each in _lock_folders(places):
        if os.path.lexists(each):
            _try_folder(each)
    for file in _files(places):
        try_file(file)
    return f"the state folder {folder} can be written"


def try_file(path: Path) -> bool:
    """Open a file for writing, without waiting for the other end of a pipe; False when there is none yet.

    Raises PermissionDenied or LedgerUnavailable.
    """
    if not os.path.lexists(path):
        return False
    try:
        if not os.path.isfile(path):
            raise LedgerUnavailable(f"{path} {what_it_is(path)}, not a file", hint=_CHOOSE)
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise _refused(str(path), error) from error
    return True


def _lock_folders(places: StateFolder) -> tuple[Path, ...]:
    of_names = (places.session(""), places.allocation(""), places.waiter(""))
    return (places.gpu_locks.parent, places.gpu_locks, *of_names)


def _files(places: StateFolder) -> Iterator[Path]:
    yield places.decision_lock
    for suffix in ("-wal", "-shm", ".creating"):
        yield places.ledger.with_name(places.ledger.name + suffix)
    if places.gpu_locks.is_dir():
        yield from sorted(places.gpu_locks.iterdir())


def _try_folder(folder: Path, name: str = "") -> None:
    """Make, lock, fill and remove files and a pipe in it."""
    name = name or str(folder)
    if not os.path.isdir(folder):
        raise LedgerUnavailable(f"{name} {what_it_is(folder)}, not a folder", hint=_CHOOSE)
    try:
        trial = Path(tempfile.mkdtemp(prefix=".tranche-doctor-", dir=folder))
    except OSError as error:
        raise _refused(name, error) from error
    try:
        for number in range(_FILES - 1):
            (trial / str(number)).touch()
        os.mkfifo(trial / "pipe")
        with (trial / "0").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError as error:
        raise _refused(name, error) from error
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _refused(path: str, error: OSError) -> TrancheError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            f"{path} cannot be written: {error.strerror}",
            hint="run as root, or check whether it is immutable (lsattr)",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LedgerUnavailable(
            f"{path} is almost full: less than {_ROOM // 2**20} MiB or {_FILES} files are left",
            hint="free up space on its file system",
        )
    return LedgerUnavailable(f"{path} cannot be used: {error.strerror}", hint=_CHOOSE)
