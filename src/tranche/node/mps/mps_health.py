"""Whether an MPS daemon lets anybody in: by the kernel's word, by its own, and by how a client fares that is sent ahead.

A daemon that does not is unavailable: its record says why, and nobody is let in before that has gone. Some reasons go by
themselves,
such as a server that was stopped and goes on; a server that is wedged goes with its daemon, when nobody shares the device.
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
"""For so long a decision waits for what daemons say of their servers, which takes them milliseconds."""
JOIN_SECONDS = 10.0
"""A client waits so long for a server that runs, which takes milliseconds as well; then the server counts as wedged."""
_DRAIN_SECONDS = 30.0
FATAL = "a fault of one program ended all that share it"
_CHANGED = "its limits were changed by somebody"
UNTIL = "; a new one starts when all who share the device have ended"


class MpsHealth:
    """Asks the daemons of the records; `process` is the daemon of a device, by the device's UUID."""

    def __init__(self, records: DaemonRecordStore, process: Callable[[str], MpsProcess]) -> None:
        self._records = records
        self._process = process

    def look(self, records: Sequence[DaemonRecord], seconds: float = LOOK_SECONDS) -> None:
        """Ask all of these daemons at once how their servers are and what limits they keep, and write down what has changed.

        Nobody may be setting limits meanwhile.
        """
        asked = [each for each in records if _worth_asking(each) and not self._lost(each)]
        for record, fault in zip(asked, self._faults(asked, seconds), strict=True):
            if fault.startswith(_CHANGED):
                self.fence(record, fault, limits_changed=True)
            elif fault != record.fault:
                self._records.write(record._replace(fault=fault))

    def news(self, records: Sequence[DaemonRecord], seconds: float) -> tuple[DaemonRecord, ...]:
        """Those of these daemons that say otherwise than is written down, as a look would write it; nothing is written.

        Somebody may be setting limits meanwhile: a daemon whose record has changed since is left out.
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
        """Whether nobody comes to the daemon any more, which then counts as one that has died: who starts has no limit."""
        if self._records.reachable(record):
            return False
        self._records.write(record._replace(boot=""))
        return True

    def _fault(self, record: DaemonRecord, seconds: float) -> str:
        from tranche.hardware.mps_answers import ServerStatus

        control = self._process(record.device_uuid).control
        deadline = time.monotonic() + seconds

        def left() -> float:
            return max(0.1, deadline - time.monotonic())

        try:
            servers = control.servers(seconds=seconds)
            if any(control.server_status(server, seconds=left()) is ServerStatus.FAULT for server in servers):
                return f"{FATAL}, and its server is in state FAULT until they are gone"
            if record.raising:
                return ""  # it says what it was told before, or what it is being told
            said = control.said_limits(record.device_uuid, servers, seconds=left())
            if not said.difference(record.limits, record.limit):
                return ""
            living = said.of(control.servers(seconds=left()))
            if changed := living.difference(record.limits, record.limit):
                return f"{_CHANGED}: {changed}"
        except MpsFailed:
            return "" if record.halted else "it does not say how its server is"
        return ""

    def refusal(self, record: DaemonRecord, seconds: float | None = None) -> str:
        """Why the daemon lets nobody in now, in words; "" when it does. The client that finds out is of this user.

        A server that is silent or out of reach is unavailable until its daemon ends. WaitTimeout when `seconds` are too few to
        tell.
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
                raise WaitTimeout(f"the MPS server of {record.device_uuid} answered no client in {patience:g} s")
            return self.fence(record, f"its server answered no client in {patience:g} s")
        if not attempt.refused:
            return ""
        why = f"its server refused a client with {attempt.refused}"
        return self.fence(record, why) if attempt.out_of_reach else why

    def refuse_changed(self, record: DaemonRecord) -> str:
        """That the daemon keeps other limits than those that were set, in words; it is unavailable then. "" when it does not."""
        fault = self._fault(record, LOOK_SECONDS)
        return self.fence(record, fault, limits_changed=True) if fault.startswith(_CHANGED) else ""

    def has_news(self, record: DaemonRecord) -> bool:
        """Whether the daemon says otherwise than is written down of it. Its limits may be about to be set, by who joins."""
        return _worth_asking(record) and self._fault(record, LOOK_SECONDS) != record.fault

    def fence(self, record: DaemonRecord, why: str, *, limits_changed: bool = False) -> str:
        """Let nobody more in for as long as the daemon lives; the reason as it is written down.

        Of a daemon that has died, or is not known, that is true already; and another may serve the device by now. Who may not
        write records may have been refused where the daemon answers others, and fences nothing.
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
        """The clients of a device's daemon, each with its server, by their pids; None when the daemon does not answer."""
        control: MpsControlClient = self._process(device_uuid).control
        try:
            return tuple((server, client) for server in control.servers() for client in control.clients(server))
        except MpsFailed:
            return None

    def terminate(self, record: DaemonRecord, server: int, client: int) -> str:
        """End the contexts of a client, so that its process can be killed; "" when that is done, else why it is not.

        A server that does not within its time is wedged, and unavailable.
        """
        done = self._process(record.device_uuid).control.terminate_client(server, client, seconds=_DRAIN_SECONDS)
        if done:
            return ""
        clients = self.clients(record.device_uuid)
        if clients is not None and client not in (pid for _, pid in clients):
            return ""
        return record.halted or self.fence(record, f"its server did not let go of client {client}")


def what_changed(record: DaemonRecord) -> str:
    """Which limit somebody has changed, in words and in brackets after a blank; "" where that is not known."""
    if not record.fault.startswith(f"{_CHANGED}: "):
        return ""
    return f" ({record.fault.removeprefix(f'{_CHANGED}: ').removesuffix(UNTIL)})"


def _worth_asking(record: DaemonRecord) -> bool:
    """Whether the daemon may answer, and its answer may change something."""
    return record.ready and not record.wedged and record.state is not DaemonState.LOST and not record.halted
