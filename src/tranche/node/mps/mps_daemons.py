"""Tranche's MPS daemons on this machine: started and ended for acts, asked for their health, and shown in views.

Callers of changing functions hold the GPU's lock. Only its clients notice a wedged or stopped server: they wait in cuInit
forever. So Tranche sends a test client before it admits a program, after the decision and without a lock.

Clients are drained before they are killed: one that dies in the middle of a kernel can take its neighbours with it. The server
ends their contexts, and their next CUDA call fails. If it does not, they are killed anyway when the user insists. The server then
admits no more clients, and the killing process reports that.

The kernel, the daemon itself and a test client tell whether a daemon admits clients. One that does not is unavailable: its record
says why, and it gets no clients until the reason is gone. Some reasons go away by themselves, such as a stopped server that
continues. A wedged server ends with its daemon, when no share uses the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tranche.core.allocation import (
    Allocation,
    DeviceKey,
    FractionalShare,
    NodeView,
    parts_by,
    shared_by_mps,
    with_lost_limits,
)
from tranche.core.errors import GpuBusy, MpsFailed, StateMoved, TrancheError, VerificationFailed, WaitTimeout
from tranche.core.sharing import Sharing
from tranche.core.state import PROHIBITED, ComputeMode, DaemonState, GpuState, InstanceKey, NodeState
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore, node_with_daemons, record_of, with_daemons_of
from tranche.node.state.session import StateFolder, boot_id, process_lives
from tranche.node.store import register
from tranche.node.store.ledger import Ledger
from tranche.planning.steps.plan import Plan

if TYPE_CHECKING:
    from tranche.hardware.mps_process import MpsProcess
    from tranche.hardware.nvml import NvmlDriver

LOOK_SECONDS = 5.0
"""How long a decision waits for daemons to report on their servers, which takes them milliseconds."""
JOIN_SECONDS = 10.0
"""How long a client waits for a running server, which also takes milliseconds; then the server counts as wedged."""
_DRAIN_SECONDS = 30.0
FATAL = "a fault in one program ended all programs that share it"
_CHANGED = "its limits were changed"
UNTIL = "; a new one starts when all shares of the device have ended"
_LISTEN_SECONDS = 2.0
"""How long a look waits for daemons to answer. A daemon that is silent for longer counts as admitting no clients."""
_SERVER_SECONDS = 30.0
_PAUSE_SECONDS = 0.05


class MpsDaemonManager:
    """The daemons with sockets in the state folder. In `environment`, NVIDIA's programs find the driver."""

    def __init__(self, places: StateFolder, environment: Mapping[str, str] = os.environ) -> None:
        self.records = DaemonRecordStore(places.mps)
        self._environment = environment

    def process(self, device_uuid: str) -> MpsProcess:
        """The daemon's process, living or not."""
        from tranche.hardware.mps_process import MpsProcess  # slow to import, and most commands need no daemon

        return MpsProcess(self.records.pipes(device_uuid), self._environment)

    # What is seen

    def on_node(self, node: NodeState) -> NodeState:
        """The node with its daemons."""
        return node_with_daemons(node, self.records)

    def on_gpu(self, gpu: GpuState) -> GpuState:
        """The GPU with its daemons."""
        return with_daemons_of(gpu, self.records.look())

    def node_as_said(self, node: NodeState, shared: Collection[DeviceKey]) -> NodeState:
        """The node, with the daemons of the `shared` devices as they report themselves, for callers that record nothing.

        A process that may not judge daemons sees their records.
        """
        if not shared or not self.records.writable:
            return node
        records = [each for each in self.records.all() if each.key in shared]
        news = {each.key: each.seen for each in self.news(records, _LISTEN_SECONDS)}
        if not news:
            return node
        return replace(
            node,
            gpus=tuple(
                replace(gpu, daemons=tuple(news.get((gpu.uuid, each.slot), each) for each in gpu.daemons))
                for gpu in node
            ),
        )

    def view_as_said(self, view: NodeView) -> NodeView:
        """The view, with shared daemons as they report themselves, and parts with unenforced limits marked unlimited."""
        node = self.node_as_said(view.node, shared_by_mps(view.allocations))
        if node is view.node:
            return view
        return replace(view, node=node, allocations=with_lost_limits(view.allocations, node))

    # What is done

    def start(
        self,
        gpu: GpuState,
        slot: InstanceKey | None,
        device_uuid: str,
        limit: int,
        driver: NvmlDriver,
        sleep: Callable[[float], None],
    ) -> None:
        """Ensure that a daemon serves the device with a verified limit of `limit` bytes and a server that admits clients.

        First clears what an earlier daemon left behind. Raises MpsFailed on failure; GpuBusy when the serving daemon already
        admits no clients, or the compute mode prohibits all programs; and StateMoved, without ending anything, when the daemon is
        no longer as the GPU showed it.
        """
        process = self.process(device_uuid)
        process.check_path()
        if slot is None and gpu.prohibited:
            raise GpuBusy(f"{gpu.label}: {PROHIBITED}")
        record = self._record(gpu, slot)
        seen = gpu.daemon_of(slot)
        if record is not None and seen is not None and record.state is not seen.state:
            raise StateMoved(
                f"{gpu.label}: the MPS daemon of {device_uuid} was {seen.state}, but is {record.state} now"
            )
        if record is not None and record.device_uuid != device_uuid:
            self.stop(gpu, slot, driver, sleep)
            record = None
        serving = record is not None and record.state is DaemonState.READY
        if record is not None and slot is None:
            record = _as_set(record, gpu)
        if record is None and slot is None and gpu.compute_mode is None:
            raise MpsFailed(
                f"{gpu.label}: the driver does not report the compute mode, so Tranche could not restore it later"
            )
        if record is None:
            record = record_of(gpu.uuid, slot, device_uuid, gpu.compute_mode if slot is None else None)
            record = record._replace(boot=boot_id())
        if not serving:
            record = record._replace(ready=False, fault="", told="", suspect=False, wedged=False, damaged=False)
            record = record._replace(limit=0, limits="", changed=False, raising=0)
            self.records.write(record)
            process.stop(sleep=sleep)
        if slot is None and gpu.compute_mode is not ComputeMode.EXCLUSIVE:
            driver.set_compute_mode(gpu.uuid, ComputeMode.EXCLUSIVE)
        if serving:
            # A new limit overwrites limits that others have set.
            if why := self.refuse_changed(record):
                raise GpuBusy(f"{gpu.label} accepts no new shares: its MPS daemon admits no clients: {why}")
            record = record._replace(raising=max(limit, record.limit))
            self.records.write(record)
        daemon = process.find() if serving else process.start(device_uuid, sleep=sleep)
        if daemon is None:
            raise StateMoved(f"{gpu.label}: the MPS daemon of {device_uuid} has just ended")
        limit = max(limit, record.limit)
        process.control.limit_memory(limit)
        if not serving:
            _refuse_silent(process, device_uuid, slot, daemon.uid, sleep)
        # A client that cannot reach its daemon runs without it, unless the compute mode refuses it; in a slice, nothing does.
        process.admit(everybody=slot is not None)
        record = record._replace(pid=daemon.pid, started=daemon.started, uid=daemon.uid, boot=boot_id())
        limits = process.control.said_limits(device_uuid, process.control.servers())
        if why := limits.difference("", limit):
            raise VerificationFailed(f"{gpu.label}: the MPS daemon of {device_uuid} reports a wrong limit: {why}")
        record = record._replace(every_user=daemon.every_user, ready=True, limit=limit, limits=limits.encoded())
        record = record._replace(raising=0)
        self.records.write(record)
        if serving and (why := self.refusal(record)):
            raise GpuBusy(f"{gpu.label} accepts no new shares: its MPS daemon admits no clients: {why}")

    def open_to(self, allocation: Allocation, uid: int) -> None:
        """Let programs of that user reach the daemons of the allocation's parts, if the daemons are another user's."""
        for part in parts_by(Sharing.MPS, allocation.grants):
            record = self.records.find(part.gpu_uuid, part.slot)
            if record is not None and record.uid != uid:
                self.process(record.device_uuid).admit(everybody=True)

    def stop(self, gpu: GpuState, slot: InstanceKey | None, driver: NvmlDriver, sleep: Callable[[float], None]) -> None:
        """End the daemon of the device with its servers, and restore the compute mode.

        Raises MpsFailed when it lives on; then its record stays.
        """
        record = self._record(gpu, slot)
        if record is None:
            return
        self.process(record.device_uuid).stop(sleep=sleep)
        _refuse_living(record)
        if (before := record.mode_before) is not None and record.boot in ("", boot_id()):
            _put_back(gpu, before, driver)
        self.records.remove(record)

    def end_without_gpu(self, record: DaemonRecord) -> bool:
        """End the daemon of a device with a GPU that is no longer in the machine. Raises MpsFailed when it lives on.

        Until the machine restarts, the GPU may come back with the compute mode that Tranche set. Until then, the record stays and
        this returns False.
        """
        self.process(record.device_uuid).stop()
        _refuse_living(record)
        if record.mode and record.boot == boot_id():
            self.records.write(record._replace(ready=False))
            return False
        self.records.remove(record)
        return True

    def end_unclaimed(self, name: str) -> None:
        """End the daemon of a missing device when only the name of its record is known."""
        from tranche.hardware.mps_process import MpsProcess

        MpsProcess(self.records.folder / name, self._environment).stop()
        self.records.remove_damaged(name)

    # What they report about themselves

    def look(self, records: Sequence[DaemonRecord], seconds: float = LOOK_SECONDS) -> None:
        """Query these daemons in parallel for their servers' health and limits, and record what has changed.

        No process may set limits meanwhile.
        """
        asked = [each for each in records if _worth_asking(each) and not self._lost(each)]
        for record, fault in zip(asked, self._faults(asked, seconds), strict=True):
            if fault.startswith(_CHANGED):
                self.refuse_clients(record, fault, limits_changed=True)
            elif fault != record.fault:
                self.records.write(record._replace(fault=fault))

    def news(self, records: Sequence[DaemonRecord], seconds: float) -> tuple[DaemonRecord, ...]:
        """The daemons that differ from their records, as `look` would record them. Writes nothing.

        Other processes may set limits meanwhile, so this leaves out daemons with records that changed since.
        """
        worth = [each for each in records if _worth_asking(each)]
        asked = [each for each in worth if self.records.reachable(each)]
        found = [each._replace(boot="") for each in worth if each not in asked]
        for record, fault in zip(asked, self._faults(asked, seconds), strict=True):
            if fault.startswith(_CHANGED):
                found.append(record._replace(fault=fault + UNTIL, wedged=True, changed=True))
            elif fault != record.fault:
                found.append(record._replace(fault=fault))
        now = {each.key: each for each in self.records.all()} if found else {}
        before = {each.key: each for each in worth}
        return tuple(each for each in found if now.get(each.key) == before[each.key])

    def _faults(self, asked: Sequence[DaemonRecord], seconds: float) -> list[str]:
        if len(asked) <= 1:
            return [self._fault(each, seconds) for each in asked]
        from concurrent.futures import ThreadPoolExecutor  # most machines share no device, or one

        with ThreadPoolExecutor(len(asked), thread_name_prefix="mps") as pool:
            return list(pool.map(lambda record: self._fault(record, seconds), asked))

    def _lost(self, record: DaemonRecord) -> bool:
        """Whether clients can no longer reach the daemon, which then counts as dead: new programs run without a limit."""
        if self.records.reachable(record):
            return False
        self.records.write(record._replace(boot=""))
        return True

    def _fault(self, record: DaemonRecord, seconds: float) -> str:
        from tranche.hardware.mps_control import ServerStatus

        control = self.process(record.device_uuid).control
        deadline = time.monotonic() + seconds

        def left() -> float:
            return max(0.1, deadline - time.monotonic())

        try:
            servers = control.servers(seconds=seconds)
            if any(control.server_status(server, seconds=left()) is ServerStatus.FAULT for server in servers):
                return f"{FATAL}, and its server is in state FAULT until they are gone"
            if record.raising:
                return ""  # it may report the old limit or the new one
            said = control.said_limits(record.device_uuid, servers, seconds=left())
            if not said.difference(record.limits, record.limit):
                return ""
            living = said.of(control.servers(seconds=left()))
            if changed := living.difference(record.limits, record.limit):
                return f"{_CHANGED}: {changed}"
        except MpsFailed as error:
            if isinstance(error.__cause__, OSError):
                # This process cannot ask, because it lacks the program, for example. That tells nothing about the daemon.
                return record.fault
            return "" if record.halted else "it does not report the state of its server"
        return ""

    def refusal(self, record: DaemonRecord, seconds: float | None = None) -> str:
        """Why the daemon admits no clients now, in words; "" when it does. The test client runs as this user.

        A server that is silent or out of reach is unavailable until its daemon ends. Raises WaitTimeout when `seconds` are too
        few to tell.
        """
        if record.why or not (record.every_user or record.uid == os.geteuid()):
            return record.why
        if self._lost(record):
            return "its sockets are gone"
        patience = JOIN_SECONDS if seconds is None else min(seconds, JOIN_SECONDS)
        attempt = self.process(record.device_uuid).join(record.device_uuid, seconds=patience)
        if attempt.silent:
            if halted := record.halted:
                return halted
            if patience < JOIN_SECONDS:
                raise WaitTimeout(f"the MPS server of {record.device_uuid} did not respond within {patience:g} s")
            return self.refuse_clients(record, f"its server did not respond within {patience:g} s")
        if not attempt.refused:
            return ""
        why = f"its server refused a client with {attempt.refused}"
        return self.refuse_clients(record, why) if attempt.out_of_reach else why

    def refuse_changed(self, record: DaemonRecord) -> str:
        """How the daemon's limits differ from those that were set, in words; closes the daemon then. "" when they do not."""
        fault = self._fault(record, LOOK_SECONDS)
        return self.refuse_clients(record, fault, limits_changed=True) if fault.startswith(_CHANGED) else ""

    def has_news(self, record: DaemonRecord) -> bool:
        """Whether the daemon's report differs from its record. A process that joins may be about to set its limits."""
        return _worth_asking(record) and self._fault(record, LOOK_SECONDS) != record.fault

    def refuse_clients(self, record: DaemonRecord, why: str, *, limits_changed: bool = False) -> str:
        """Admit no more clients while the daemon lives; returns the recorded reason.

        Ignores a dead or unknown daemon, which admits none anyway, or if another serves the device by now. A process that may not
        write records closes nothing: the daemon may have refused only this process.
        """
        if not self.records.writable:
            return why
        why += UNTIL
        now = self.records.find(record.gpu_uuid, record.slot)
        same = now is not None and (now.pid, now.started) == (record.pid, record.started)
        if now is not None and same and now.state not in (DaemonState.LOST, DaemonState.DAMAGED):
            self.records.write(now._replace(fault=why, wedged=True, changed=now.changed or limits_changed))
        return why

    def clients(self, device_uuid: str) -> tuple[tuple[int, int], ...] | None:
        """The clients of a device's daemon as (server pid, client pid) pairs; None when the daemon does not answer."""
        control = self.process(device_uuid).control
        try:
            return tuple((server, client) for server in control.servers() for client in control.clients(server))
        except MpsFailed:
            return None

    def terminate(self, record: DaemonRecord, server: int, client: int) -> str:
        """End the contexts of a client, so that its process can be killed; returns "" on success, else the reason.

        A server that does not do so in time is wedged and unavailable.
        """
        done = self.process(record.device_uuid).control.terminate_client(server, client, seconds=_DRAIN_SECONDS)
        if done:
            return ""
        clients = self.clients(record.device_uuid)
        if clients is not None and client not in (pid for _, pid in clients):
            return ""
        return record.halted or self.refuse_clients(record, f"its server did not release client {client}")

    def _record(self, gpu: GpuState, slot: InstanceKey | None) -> DaemonRecord | None:
        return next((record for record in self.records.look().on(gpu) if record.slot == slot), None)


def _as_set(record: DaemonRecord, gpu: GpuState) -> DaemonRecord:
    """The record with the compute mode to restore, as the GPU shows it before Tranche sets one.

    Any mode other than EXCLUSIVE is not Tranche's: the driver has restarted since, or another program set it. After a reboot,
    EXCLUSIVE is not Tranche's either.
    """
    ours = record.boot in ("", boot_id()) and gpu.compute_mode is ComputeMode.EXCLUSIVE
    if ours or gpu.compute_mode is None:
        return record
    return record._replace(mode=str(gpu.compute_mode), boot=boot_id())


def _put_back(gpu: GpuState, before: ComputeMode, driver: NvmlDriver) -> None:
    """Restore the compute mode, unless it was changed since. Raises VerificationFailed when the GPU does not show it."""
    ours = (ComputeMode.EXCLUSIVE, None)
    if gpu.compute_mode not in ours or gpu.compute_mode is before:
        return
    if driver.observe_gpu(gpu.uuid).compute_mode not in ours:
        return  # set while the daemon ended, which may take seconds
    driver.set_compute_mode(gpu.uuid, before)
    now = driver.observe_gpu(gpu.uuid).compute_mode
    if now is not before:
        raise VerificationFailed(f"{gpu.label}: the compute mode was set to {before}, but is {now or 'unknown'}")


def _refuse_living(record: DaemonRecord) -> None:
    if record.boot == boot_id() and process_lives(record.pid, record.started):
        raise MpsFailed(f"the MPS daemon of {record.device_uuid} did not exit: pid {record.pid} is still running")


def _refuse_silent(
    process: MpsProcess, device_uuid: str, slot: InstanceKey | None, uid: int, sleep: Callable[[float], None]
) -> None:
    """Start a server and let a test client join it. Raises MpsFailed if the server does not admit it; then nothing else may join.

    Until a server has the GPU, the compute mode admits one program that bypasses the daemon.
    """
    attempt = process.join(device_uuid, seconds=_SERVER_SECONDS)
    why = f"did not respond within {_SERVER_SECONDS:g} s" if attempt.silent else ""
    if attempt.refused:
        why = f"refuses clients with {attempt.refused}"
    if why:
        raise MpsFailed(f"the MPS server of {device_uuid} {why}", hint=f"see its log in {process.logs}")
    if slot is None and attempt.error is None:
        process.control.start_server(uid)
        _await_server(process, device_uuid, sleep)


def _await_server(process: MpsProcess, device_uuid: str, sleep: Callable[[float], None]) -> None:
    deadline = time.monotonic() + _SERVER_SECONDS
    while not process.control.servers():
        if time.monotonic() >= deadline:
            raise MpsFailed(
                f"the MPS daemon of {device_uuid} does not start a server", hint=f"see its log in {process.logs}"
            )
        sleep(_PAUSE_SECONDS)


def refuse_unavailable_parts(
    daemons: MpsDaemonManager,
    ledger: Ledger,
    allocation: Allocation,
    plan: Plan | None = None,
    seconds: float | None = None,
) -> None:
    """Raises GpuBusy when the server of a part admits no clients; removes the allocation, and the next decision knows why.

    Daemons that the allocation's own `plan` started have admitted a client. Raises WaitTimeout when `seconds` were too few.
    """
    started = {step.lets_in for step in (plan.steps if plan else ())}
    try:
        for part in parts_by(Sharing.MPS, allocation.grants):
            if part.device not in started:
                _refuse_unavailable(daemons, part, seconds)
    except TrancheError:
        with ledger.write() as db:
            register.remove_allocation(db, allocation.id)
        raise


def _refuse_unavailable(daemons: MpsDaemonManager, part: FractionalShare, seconds: float | None) -> None:
    record = daemons.records.find(part.gpu_uuid, part.slot)
    if record is None:
        return  # it has died and was cleared; the check of the part's limits sees that
    if why := daemons.refusal(record, seconds):
        error = GpuBusy(f"device {record.device_uuid} accepts no new shares: its MPS daemon admits no clients: {why}")
        error.gpu_uuid = part.gpu_uuid
        raise error


class UndrainedDevice(NamedTuple):
    """A device, by UUID, with a server that did not release its clients, and why."""

    device_uuid: str
    why: str


def drain(daemons: MpsDaemonManager, allocation: Allocation, pids: Set[int]) -> tuple[UndrainedDevice, ...]:
    """End the contexts of these processes of the allocation; returns the devices where that failed.

    A server that fails to do so in time, or a daemon that does not answer, admits no more clients.
    """
    if not pids:
        return ()
    parts = parts_by(Sharing.MPS, allocation.grants)
    records = [daemons.records.find(part.gpu_uuid, part.slot) for part in parts]
    found = [UndrainedDevice(each.device_uuid, _let_go(daemons, each, pids)) for each in records if each is not None]
    return tuple(each for each in found if each.why)


def _let_go(daemons: MpsDaemonManager, record: DaemonRecord, pids: Set[int]) -> str:
    if halted := record.halted:
        return halted  # it answers no one until it is continued: do not wait for it
    clients = daemons.clients(record.device_uuid)
    if clients is None:
        return daemons.refuse_clients(record, "it did not list its clients when Tranche had to end some")
    for server, client in clients:
        # A server that did not release one client releases none.
        if client in pids and (why := daemons.terminate(record, server, client)):
            return why
    return ""


def what_changed(record: DaemonRecord) -> str:
    """The limit that was changed, in words, in brackets after a blank; "" if unknown."""
    if not record.fault.startswith(f"{_CHANGED}: "):
        return ""
    return f" ({record.fault.removeprefix(f'{_CHANGED}: ').removesuffix(UNTIL)})"


def _worth_asking(record: DaemonRecord) -> bool:
    """Whether the daemon may answer, and its answer may change something."""
    return record.ready and not record.wedged and record.state is not DaemonState.LOST and not record.halted
