"""One machine as a process works on it: its driver, its register, and what Tranche keeps beside the register."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tranche.core.allocation import Allocation
from tranche.core.sharing import Timeslice
from tranche.core.state import GpuState
from tranche.node.execution.timeslices import TimesliceStore
from tranche.node.limits.share_groups import ShareGroupManager
from tranche.node.locks.interrupts import interruptible
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.state.session import StateFolder, boot_clock
from tranche.node.store import records, register
from tranche.node.store.ledger import Ledger, open_to_read

if TYPE_CHECKING:
    from tranche.hardware.nvml import NvmlDriver

CDI_FOLDER = Path("/run/cdi")
"""Where podman, Docker and containerd look for CDI specifications that do not outlast a restart."""


def new_id() -> str:
    """A short random name for an allocation, waiter, plan or session."""
    return os.urandom(4).hex()


@dataclass(eq=False, kw_only=True)
class HostContext:
    """What every part that works on the machine needs. The caller passes in time, randomness, the driver and the folder.

    With `reading`, it needs neither permission nor disk space to write. `environment` locates the driver's programs. `clock` is
    seconds since the epoch, `boot_clock` since the machine's start. `boundary` is called after every write to the journal, for
    crash tests. The CDI files of shares are in `cdi_folder`.
    """

    driver: NvmlDriver = field(kw_only=False)
    state_dir: Path = field(kw_only=False)
    clock: Callable[[], float] = time.time
    boot_clock: Callable[[], float] = boot_clock
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = new_id
    boundary: Callable[[], None] = lambda: None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    reading: bool = False
    cdi_folder: Path = CDI_FOLDER

    def __post_init__(self) -> None:
        self.places = StateFolder(self.state_dir)
        self.ledger = open_to_read(self.places) if self.reading else Ledger(self.places.ledger)
        self.daemons = MpsDaemonManager(self.places, self.environment)
        self.timeslices = TimesliceStore(self.places, self._wanted_timeslices)
        self.share_groups = ShareGroupManager(self.places)
        self.sleep = interruptible()(self.sleep)

    def _wanted_timeslices(self) -> Mapping[str, Timeslice]:
        with self.ledger.read() as db:
            return records.timeslices(db)

    def spec_file(self, allocation_id: str) -> Path:
        """The CDI file of a command's share. A node's agent names the files of claims differently, and removes all others of that
        name.
        """
        return self.cdi_folder / f"tranche.dev-allocation_{allocation_id}.json"

    @staticmethod
    def drop_spec(path: Path) -> None:
        """Remove the CDI file of a share that has ended, if there is one. After a failure the next command does."""
        with suppress(OSError):
            path.unlink()

    def allocation(self, allocation_id: str) -> Allocation | None:
        """The share with that id; None if the register has none."""
        with self.ledger.read() as db:
            return next((each for each in register.allocations(db) if each.id == allocation_id), None)

    def observe_gpu(self, gpu_uuid: str) -> GpuState:
        """One GPU's current state, with its daemons. Raises GpuNotFound when there is no such GPU."""
        return self.timeslices.on_gpu(self.daemons.on_gpu(self.driver.observe_gpu(gpu_uuid)))
