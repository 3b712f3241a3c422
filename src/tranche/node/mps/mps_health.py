"""Whether an MPS daemon admits clients: according to the kernel, the daemon itself, and a test client.

A daemon that does not is unavailable: its record says why, and it gets no clients until the reason is gone. Some reasons go away
by themselves, such as a stopped server that continues. A wedged server ends with its daemon, when no share uses the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tranche.core.errors import MpsFailed, WaitTimeout
from tranche.core.state import DaemonState
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore

if TYPE_CHECKING:
    from tranche.hardware.mps_control import MpsControlClient
    from tranche.hardware.mps_process import MpsProcess

LOOK_SECONDS = 5.0
"""How long a decision waits for daemons to report on their servers, which takes them milliseconds."""
JOIN_SECONDS = 10.0
"""How long a client waits for a running server, which also takes milliseconds; then the server counts as wedged."""
_DRAIN_SECONDS = 30.0
FATAL = "a fault in one program ended all programs that share it"
_CHANGED = "its limits were changed"
UNTIL = "; a new one starts when all shares of the device have ended"


class MpsHealth:
    """Queries the daemons of the records; `process` returns the daemon of a device UUID."""

    def __init__(self, records: DaemonRecordStore, process: Callable[[str], MpsProcess]) -> None:
        self._records = records
        self._process = process

    def look(self, records: Sequence[DaemonRecord], seconds: float = LOOK_SECONDS) -> None:
        """Query these daemons in parallel for their servers' health and limits, and record what has changed.

        No process may set limits meanwhile.
        """
        asked = [each for each in records if _worth_asking(each) and not self._lost(each)]
        for record, fault in zip(asked, self._faults(asked, seconds), strict=True):
            if fault.startswith(_CHANGED):
                self.fence(record, fault, limits_changed=True)
            elif fault != record.fault:
                self._records.write(record._replace(fault=fault))

    def news(self, records: Sequence[DaemonRecord], seconds: float) -> tuple[DaemonRecord, ...]:
        """The daemons that differ from their records, as `look` would record them. Writes nothing.

        Other processes may set limits meanwhile, so this leaves out daemons with records that changed since.
        """
        worth = [each for each in records if _worth_asking(each)]
        asked = [each for each in worth if self._records.reachable(each)]
        found = [each._replace(boot="") for each in worth if each not in asked]
        for record, fault in zip(asked, self._faults(asked, seconds), strict=True):
            if fault.startswith(_CHANGED):
                found.append(record._replace(fault=fault + UNTIL, wedged=True, changed=True))
            elif fault != record.fault:
                found.append(record._replace(fault=fault))
        now = {each.key: each for each in self._records.all()} if found else {}
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
        if self._records.reachable(record):
            return False
        self._records.write(record._replace(boot=""))
        return True

    def _fault(self, record: DaemonRecord, seconds: float) -> str:
        from tranche.hardware.mps_control import ServerStatus

        control = self._process(record.device_uuid).control
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
        except MpsFailed:
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
        attempt = self._process(record.device_uuid).join(record.device_uuid, seconds=patience)
        if attempt.silent:
            if halted := record.halted:
                return halted
            if patience < JOIN_SECONDS:
                raise WaitTimeout(f"the MPS server of {record.device_uuid} answered no client within {patience:g} s")
            return self.fence(record, f"its server answered no client within {patience:g} s")
        if not attempt.refused:
            return ""
        why = f"its server refused a client with {attempt.refused}"
        return self.fence(record, why) if attempt.out_of_reach else why

    def refuse_changed(self, record: DaemonRecord) -> str:
        """How the daemon's limits differ from those that were set, in words; fences the daemon then. "" when they do not."""
        fault = self._fault(record, LOOK_SECONDS)
        return self.fence(record, fault, limits_changed=True) if fault.startswith(_CHANGED) else ""

    def has_news(self, record: DaemonRecord) -> bool:
        """Whether the daemon's report differs from its record. A process that joins may be about to set its limits."""
        return _worth_asking(record) and self._fault(record, LOOK_SECONDS) != record.fault

    def fence(self, record: DaemonRecord, why: str, *, limits_changed: bool = False) -> str:
        """Admit no more clients while the daemon lives; returns the recorded reason.

        Ignores a dead or unknown daemon, which admits none anyway, or if another serves the device by now. A process that may not
        write records fences nothing: the daemon may have refused only this process.
        """
        if not self._records.writable:
            return why
        why += UNTIL
        now = self._records.find(record.gpu_uuid, record.slot)
        same = now is not None and (now.pid, now.started) == (record.pid, record.started)
        if now is not None and same and now.state not in (DaemonState.LOST, DaemonState.DAMAGED):
            self._records.write(now._replace(fault=why, wedged=True, changed=now.changed or limits_changed))
        return why

    def clients(self, device_uuid: str) -> tuple[tuple[int, int], ...] | None:
        """The clients of a device's daemon as (server pid, client pid) pairs; None when the daemon does not answer."""
        control: MpsControlClient = self._process(device_uuid).control
        try:
            return tuple((server, client) for server in control.servers() for client in control.clients(server))
        except MpsFailed:
            return None

    def terminate(self, record: DaemonRecord, server: int, client: int) -> str:
        """End the contexts of a client, so that its process can be killed; returns "" on success, else the reason.

        A server that does not do so in time is wedged and unavailable.
        """
        done = self._process(record.device_uuid).control.terminate_client(server, client, seconds=_DRAIN_SECONDS)
        if done:
            return ""
        clients = self.clients(record.device_uuid)
        if clients is not None and client not in (pid for _, pid in clients):
            return ""
        return record.halted or self.fence(record, f"its server did not release client {client}")


def what_changed(record: DaemonRecord) -> str:
    """The limit that was changed, in words, in brackets after a blank; "" if unknown."""
    if not record.fault.startswith(f"{_CHANGED}: "):
        return ""
    return f" ({record.fault.removeprefix(f'{_CHANGED}: ').removesuffix(UNTIL)})"


def _worth_asking(record: DaemonRecord) -> bool:
    """Whether the daemon may answer, and its answer may change something."""
    return record.ready and not record.wedged and record.state is not DaemonState.LOST and not record.halted
