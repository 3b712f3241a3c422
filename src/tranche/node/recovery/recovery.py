"""Clears what dead processes left: undoes interrupted plans, and frees their shares and places in the queue.

Every decision runs this first, under the decision lock. It needs no person, and a second run does nothing.

The cut at boot also frees the shares of pods that ended with the machine. A restart ends every container, before any kubelet can
report it. The register keeps a pod's share until there is proof of the pod's end. After a restart its slices are gone, and while
the share stands, nothing can be cut in its place. Once the kubelet runs, it reports again what its pods have.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase
from tranche.core.errors import TrancheError
from tranche.core.keeper import KeeperStatus, PodKeeper, ProcessKeeper
from tranche.core.usage import usage_of
from tranche.hardware.process_stat import PROC
from tranche.node.execution.executor import Executor
from tranche.node.execution.host_context import HostContext
from tranche.node.locks.locks import is_held, remove_if_free
from tranche.node.processes.keeping import RemainingProcesses, remains_of
from tranche.node.processes.processes import REGISTER, Process
from tranche.node.state.session import boot_clock
from tranche.node.state.state_file import drop_state_file
from tranche.node.store import chronicle, journal, records, register
from tranche.node.store.holders import add_or_refuse
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import anything_left, dead_allocations, dead_waiters, interrupted_plans
from tranche.planning.steps.plan import StepStatus


class Recovery:
    """Finds and clears the leftovers of dead processes."""

    def __init__(
        self,
        machine: HostContext,
        executor: Executor,
        given_back: Callable[[Sequence[Grant], bool], None] = lambda grants, killed: None,
        recovered: Callable[[str], None] = lambda purpose: None,
    ) -> None:
        """`given_back` receives the grants of each freed share, and whether its processes may have been killed.

        `recovered` receives the purpose of each undone plan."""
        self._machine = machine
        self._executor = executor
        self._given_back = given_back
        self._recovered = recovered

    def needed(self) -> bool:
        """Whether anything in the ledger belongs to a dead process. Probes a few file locks, and queries no GPU."""
        with self._machine.ledger.read() as db:
            return anything_left(db, self._machine.places)

    def run(self) -> None:
        """Clear everything that dead processes left. The caller holds the decision lock."""
        with self._machine.ledger.read() as db:
            dead = interrupted_plans(db, self._machine.places)
            plans = journal.running_plans(db)
            interrupted = [each for each in plans if each.id in dead and self._executor.shows(each.gpu_uuids)]
        for plan in interrupted:
            self._settle(plan)
        with self._machine.ledger.read() as db:
            allocations, waiters = dead_allocations(db, self._machine.places), dead_waiters(db, self._machine.places)
        for allocation_id in allocations:
            self.settle_share(allocation_id, why="its process is gone")
        for waiter_id in waiters:
            with self._machine.ledger.write() as db:
                records.remove_waiter(db, waiter_id)
        self._clear_places_of_waiters()
        self._clear_locks_of_shares()
        # Sessions begin under the decision lock, so none is between making its file and locking it.
        for path in self._machine.places.sessions():
            if not is_held(path):
                drop_state_file(path)

    def _clear_places_of_waiters(self) -> None:
        """Remove the files of dead waiters, including those killed before they had a row, or after."""
        for waiter_id in self._machine.places.waiters():
            if remove_if_free(self._machine.places.waiter(waiter_id)):
                drop_state_file(self._machine.places.wakeup_pipe(waiter_id))

    def _clear_locks_of_shares(self) -> None:
        """Remove the locks of shares without a row: a kill came before the row was written, or after it was removed."""
        with self._machine.ledger.read() as db:
            known = {each.id for each in register.allocations(db)}
        for allocation_id in self._machine.places.allocations() - known:
            remove_if_free(self._machine.places.allocation(allocation_id))

    def forget_gone_instances(self, view: NodeView, working: frozenset[str]) -> NodeView:
        """Drop Tranche's instances from the ledger that are no longer on their GPU, after a reset, a reboot or another tool.

        Only a GPU that answers proves that an instance is gone. Leaves out GPUs that a plan was `working` on when the view was
        taken, since their state may be changing.
        """
        present = {gpu.key(instance) for gpu in view.node for instance in gpu.instances}
        answering = {gpu.uuid for gpu in view.node if not gpu.lost} - working
        gone = {key for key in view.owned - present if key.gpu_uuid in answering}
        if not gone:
            return view
        with self._machine.ledger.write() as db:
            records.disown_instances(db, gone)
        return dataclasses.replace(view, owned=view.owned - gone, requested=view.requested - gone)

    def settle_share(
        self, allocation_id: str, *, why: str, orphans: Sequence[Process] = (), killed: bool = True
    ) -> RemainingProcesses:
        """Free the share of an ended command, unless the command left processes; records which ones.

        `orphans` are the caller's children that the command left, oldest first. `killed` means that it may have been killed.
        """
        allocation = self._machine.allocation(allocation_id)
        if allocation is None or not isinstance(allocation.keeper, ProcessKeeper):
            return RemainingProcesses()
        remains = remains_of(self._machine.places, allocation_id, allocation.keeper, orphans)
        gone, keeper = remains.life is KeeperStatus.GONE, remains.keeper(allocation.keeper)
        if gone:
            # Note it first: if this process is killed before it frees the share, the next one may not know of the kill.
            self._given_back(allocation.grants, killed)
        now = self._machine.clock()
        with self._machine.ledger.write() as db:
            if gone and register.remove_allocation(db, allocation_id):
                chronicle.released(db, now, allocation_id, why)
                records.add_usage(db, usage_of(allocation, _ended_by(allocation, now)))
            elif keeper is not None and keeper != allocation.keeper:
                register.set_keeper(db, allocation_id, keeper)
                if keeper.pid != allocation.keeper.pid or keeper.suspected != allocation.keeper.suspected:
                    chronicle.kept(db, now, allocation_id, keeper)
        if gone:
            drop_state_file(self._machine.places.allocation(allocation_id))
            self._machine.drop_spec(self._machine.spec_file(allocation_id))
        return remains

    def name_in_new_ledger(self, allocation: Allocation, orphans: Sequence[Process]) -> None:
        """Name what a command left in the ledger that may have replaced this one, so that it keeps the share."""
        assert isinstance(allocation.keeper, ProcessKeeper)
        keeper = RemainingProcesses(orphans=tuple(orphans)).keeper(allocation.keeper)
        if keeper is None:
            return
        with suppress(TrancheError), closing(Ledger(self._machine.places.ledger)) as ledger, ledger.write() as db:
            known = next((each.keeper for each in register.allocations(db) if each.id == allocation.id), None)
            if isinstance(known, ProcessKeeper):
                register.set_keeper(db, allocation.id, keeper._replace(begun=known.begun))
            elif not any(isinstance(each, FractionalShare) for each in allocation.grants):
                add_or_refuse(db, allocation._replace(phase=Phase.ACTIVE, keeper=keeper._replace(begun=keeper.started)))

    def left_specs(self) -> tuple[Path, ...]:
        """The CDI files of this register's shares that have ended, and unfinished ones, if this process may remove them.

        Shares of running commands must be in the register by now. It is read last, because a share is in it before it has a file.
        """
        folder, name = self._machine.cdi_folder, self._machine.spec_file("*").name
        found = list(folder.glob(name))
        abandoned = [each for each in folder.glob(f".{name}.*.tmp") if _abandoned(each)]
        if not (found or abandoned) or not os.access(folder, os.W_OK):
            return ()
        with self._machine.ledger.read() as db:
            held = {self._machine.spec_file(each.id) for each in register.allocations(db)}
        ours = json.dumps(f"{REGISTER}={self._machine.state_dir.resolve()}")
        return (*abandoned, *(each for each in found if each not in held and _has(each, ours)))

    def _settle(self, plan: journal.PlanRecord) -> None:
        """End an interrupted plan: mark a completed declared change as done, and undo everything else."""
        complete = all(record.status in (StepStatus.DONE, StepStatus.NEEDLESS) for record in plan.steps)
        if complete and plan.status is records.PlanStatus.RUNNING and not plan.allocation_id:
            with self._machine.ledger.write() as db:
                journal.close_plan(db, plan.id, records.PlanStatus.DONE, ended=self._machine.clock(), interrupted=True)
            return
        self._executor.undo(plan.id, allocation_id=plan.allocation_id)
        with self._machine.ledger.write() as db:
            journal.close_plan(db, plan.id, records.PlanStatus.UNDONE, ended=self._machine.clock(), interrupted=True)
            register.remove_allocation(db, plan.allocation_id)
            chronicle.recovered(db, self._machine.clock(), plan.id, plan.purpose, allocation_id=plan.allocation_id)
        if plan.allocation_id:
            drop_state_file(self._machine.places.allocation(plan.allocation_id))
        self._recovered(plan.purpose)


def _abandoned(path: Path) -> bool:
    """Whether the process that wrote an unfinished CDI file, named `.NAME.PID.tmp`, was killed."""
    return not (PROC / path.stem.rpartition(".")[2]).exists()


def _has(path: Path, text: str) -> bool:
    try:
        return text in path.read_text()
    except (OSError, ValueError):
        return False


_MARGIN_SECONDS = 2.0


def _ended_by(allocation: Allocation, now: float) -> float:
    """When the command of an ended share ended at the latest: before the machine's start, if the share is older."""
    booted = now - boot_clock()
    return booted if allocation.created < booted - _MARGIN_SECONDS else now


def boot_time(proc: Path = PROC) -> float | None:
    """The machine's start, in seconds since the epoch by the current clock; None when the kernel does not tell."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None


def ended_with_the_machine(
    allocations: Sequence[Allocation], *, booted: float | None, pods_run: bool
) -> tuple[str, ...]:
    """The ids of pods' shares granted before the machine's start at `booted`, in seconds since the epoch.

    None while any pod runs: if the clock was set since the start, a living pod's share may look older than the machine.
    """
    if booted is None or pods_run:
        return ()
    return tuple(
        each.id
        for each in allocations
        if isinstance(each.keeper, PodKeeper) and each.created < booted - _MARGIN_SECONDS
    )


def shares_of_earlier_boots(ledger: Ledger, booted: float | None) -> int:
    """The number of shares from earlier boots, by time only, whether or not their pods run."""
    with ledger.read() as db:
        return len(ended_with_the_machine(register.allocations(db), booted=booted, pods_run=False))


def free_shares_of_earlier_boots(ledger: Ledger, *, booted: float | None, pods_run: bool, now: float) -> int:
    """Free the shares of earlier boots; returns their number. `now` is in seconds since the epoch."""
    with ledger.write() as db:
        ended = ended_with_the_machine(register.allocations(db), booted=booted, pods_run=pods_run)
        for allocation_id in ended:
            register.remove_allocation(db, allocation_id)
            chronicle.released(db, now, allocation_id, "the machine was restarted, which ended its pod's containers")
    return len(ended)
