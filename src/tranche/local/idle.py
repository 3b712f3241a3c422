"""Looks whether a share is idle, tells its holder and others, and ends an idle hold where the administrator wants that.

The process that runs the command, or the service's for it, looks. If it is gone, nobody knows whether the share is idle.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tranche.core.allocation import HELD, Allocation, Grant, WholeGpu
from tranche.core.idle import LOOK_SECONDS, WARNING_SECONDS, IdlePeriod, extended, shows_no_work
from tranche.core.quantity import format_duration
from tranche.core.state import GpuState
from tranche.hardware.nvml_gauges import utilization_of
from tranche.hardware.process_stat import process_environment
from tranche.node.host import Host
from tranche.node.processes.processes import MARK
from tranche.node.state.session import children_pids, sees_every_process
from tranche.node.store import records

_CLOSE_LOOK_SECONDS = 10.0
"""A gauge shows a second at most, so a program that holds a whole GPU is looked at more often than once a minute."""


class IdleWatch:
    """Looks at one share. `tell` receives sentences for its holder; `end` ends a hold, and receives why.

    `programs` says which programs end with a hold: ` along with vim (pid 4711)`.
    """

    def __init__(
        self,
        host: Host,
        allocation: Allocation,
        tell: Callable[[str], None],
        end: Callable[[str], None] = lambda why: None,
        programs: Callable[[], str] = str,
        utilization: Callable[[str], float | None] = utilization_of,
    ) -> None:
        self._host, self._allocation, self._tell, self._end, self._programs = host, allocation, tell, end, programs
        self._utilization = utilization
        self._period: IdlePeriod | None = None
        self._written: IdlePeriod | None = None
        self._told = False
        self._warned: float | None = None

    def look(self) -> float:
        """Look once; returns the seconds until the next look."""
        unused, open_gpu = False, False
        with suppress(Exception):  # a failed look cannot tell
            gpus = [(each, self._host.observe_gpu(each.gpu_uuid)) for each in self._allocation.grants]
            unused = all(self._shows_no_work(*each) for each in gpus)
            open_gpu = any(isinstance(grant, WholeGpu) and gpu.processes for grant, gpu in gpus)
        now, before = self._host.boot_clock(), self._period
        self._period = extended(before, now, unused=unused)
        if self._period is None or before is None or self._period[0] != before[0]:
            self._told, self._warned = False, None
        self._act(now)
        return _CLOSE_LOOK_SECONDS if unused and open_gpu else LOOK_SECONDS

    def _act(self, now: float) -> None:
        with self._host.ledger.read() as db:
            policy = records.idle_policy(db)
        period, ends = self._period, policy.ends and self._allocation.command == HELD
        if period is None or period[1] - period[0] < policy.after - (WARNING_SECONDS if ends else 0.0):
            self._write(None)
            return
        self._write(period)
        idle = format_duration(round(period[1] - period[0]) // 60 * 60)
        if ends and self._warned is None:
            self._tell(
                f"this hold has been idle for {idle}: Tranche will end it{self._programs()} in "
                f"{format_duration(round(WARNING_SECONDS))} unless a program uses its GPU"
            )
            self._warned, self._told = now, True
        elif ends and self._warned is not None and now - self._warned >= WARNING_SECONDS:
            self._end(f"it was idle for {idle}")
        elif not self._told:
            how = "" if self._allocation.command == HELD else " --terminate"
            self._tell(
                f"this share has been idle for {idle}: if you no longer need it, release it with: tranche release "
                f"{self._allocation.id}{how}"
            )
            self._told = True

    def _write(self, period: IdlePeriod | None) -> None:
        """Write the period down for others, about once a minute."""
        last = self._written
        if period is None and last is None:
            return
        if period and last and period[0] == last[0] and period[1] - last[1] < LOOK_SECONDS - _CLOSE_LOOK_SECONDS:
            return
        with self._host.ledger.write() as db:
            records.set_idle(db, self._allocation.id, period)
        self._written = period

    def _shows_no_work(self, grant: Grant, gpu: GpuState) -> bool:
        utilization = None
        if isinstance(grant, WholeGpu) and not gpu.lost:
            utilization = self._utilization(gpu.uuid)
        return shows_no_work(grant, gpu, utilization, partial(self._of_another, grant), sees_all=sees_every_process())

    def _of_another(self, grant: Grant, pid: int) -> bool:
        """Whether the process names another share as its own, or serves all shares of the device. OSError if it does not tell."""
        daemon = self._host.daemons.records.find(grant.gpu_uuid, grant.slot)
        if daemon is not None and pid in children_pids(daemon.pid):
            return True
        mark = f"{MARK}=".encode()
        named = [os.fsdecode(each[len(mark) :]) for each in process_environment(pid) if each.startswith(mark)]
        return bool(named) and self._allocation.id not in named
