"""Carries out a Plan: journals each step before and after, verifies its effect, and undoes its own work on failure.

It works on several GPUs in parallel, and on each GPU in order. While a plan runs, the process holds a lock on each of its GPUs
that dies with it. Every destructive step checks, right before it acts, that nothing holds or uses what it is about to take.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Final

from tranche.core.errors import GpuBusy, GpuNotFound, TrancheError, VerificationFailed
from tranche.core.state import DeviceVisibility, GpuState, InstanceKey
from tranche.node.execution import guards
from tranche.node.execution.host_context import HostContext
from tranche.node.locks.deciding import taking_gpu
from tranche.node.locks.interrupts import WaitInterrupted, interruptible, uninterruptible
from tranche.node.store import chronicle, journal
from tranche.node.store.records import disown_instances, own_instance, owned_instances
from tranche.planning.steps import (
    CreateInstance,
    DestroyInstance,
    ResetGpu,
    SetMigMode,
    SetTimeslice,
    StartMps,
    Step,
    StopMps,
)
from tranche.planning.steps.plan import StepRecord, undo_steps


def _create_instance(step: CreateInstance, gpu: GpuState, machine: HostContext) -> None:
    """Create the instance if it is missing, then its missing compute instances."""
    instance = step.instance(gpu)
    instance_id = (
        instance.id
        if instance is not None
        else machine.driver.create_gpu_instance(gpu.uuid, step.profile, step.placement)
    )
    for name in step.missing(instance):
        machine.driver.create_compute_instance(gpu.uuid, instance_id, name)


# A GPU instance can stay in use for a moment after its last compute instance is gone (seen on A100 and H100).
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.1


def _destroy_instance(step: DestroyInstance, gpu: GpuState, machine: HostContext) -> None:
    """Destroy the compute instances, then the GPU instance; retries for two seconds while it stays in use."""
    instance = step.instance(gpu)
    assert instance is not None, "a step that is already in effect is skipped"
    for compute in instance.compute_instances:
        machine.driver.destroy_compute_instance(gpu.uuid, instance.id, compute.id)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            machine.driver.destroy_gpu_instance(gpu.uuid, instance.id)
            return
        except GpuBusy:
            if attempt == _ATTEMPTS:
                raise
            machine.sleep(_PAUSE_SECONDS)


def _set_timeslice(step: SetTimeslice, gpu: GpuState, machine: HostContext) -> None:
    """Set the length, or restore the previous one, and verify it."""
    if step.length is None:
        machine.timeslices.put_back(gpu, machine.driver)
    else:
        machine.timeslices.set(gpu, step.length, machine.driver)


def _start_mps(step: StartMps, gpu: GpuState, machine: HostContext) -> None:
    """Start the daemon, or raise the serving daemon's limit, and verify the limit."""
    device = step.device_uuid(gpu)
    if not device:
        raise VerificationFailed(f"{gpu.label}: {step.place} does not exist, so it cannot be shared")
    machine.daemons.start(gpu, step.slot, device, step.limit, machine.driver, machine.sleep)


_Act = Callable[[Any, GpuState, HostContext], object]
"""Receives a step and its GPU as last seen; called only while the step is not in effect."""
ACTS: Final[Mapping[type[Step], _Act]] = {
    SetMigMode: lambda step, gpu, machine: machine.driver.set_mig_mode(gpu.uuid, step.enabled),
    ResetGpu: lambda step, gpu, machine: machine.driver.reset_gpu(gpu.uuid),
    DestroyInstance: _destroy_instance,
    CreateInstance: _create_instance,
    StartMps: _start_mps,
    StopMps: lambda step, gpu, machine: machine.daemons.stop(gpu, step.slot, machine.driver, machine.sleep),
    SetTimeslice: _set_timeslice,
}


def _act_on(step: Step, gpu: GpuState, machine: HostContext) -> GpuState:
    """Do the step on the GPU, last seen as `gpu`; returns the GPU afterwards. Raises the step's own error without an effect."""
    ACTS[type(step)](step, gpu, machine)
    after = machine.observe_gpu(gpu.uuid)
    if not step.in_effect(after):
        raise step.not_shown(after)
    return after


Progress = Callable[[GpuState, Step], None]
"""Called with each step as it begins."""


def no_progress(gpu: GpuState, step: Step) -> None:
    """Report nothing."""


class Executor:
    """Carries out journaled plans on one machine."""

    def __init__(self, machine: HostContext) -> None:
        self._machine = machine

    def execute(
        self,
        plan_id: str,
        records: Sequence[StepRecord],
        *,
        allocation_id: str = "",
        progress: Progress = no_progress,
        seconds: float | None = None,
    ) -> None:
        """Carry out the steps; on failure, undo them and raise the first error. The plan stays open in the journal.

        The error also says what could not be undone. Raises WaitTimeout, having done nothing, when others work on one of its GPUs
        for `seconds` more.
        """
        with self._holding(records, seconds):
            failed = threading.Event()
            try:
                errors = self._on_each_gpu(
                    records,
                    lambda gpu_uuid: self._run_gpu(plan_id, records, gpu_uuid, allocation_id, progress, failed),
                    stop=failed.set,
                )
            except WaitInterrupted as stop:
                stop.left = _in_words(self.undo(plan_id, allocation_id=allocation_id, held=True))
                raise
            except BaseException:
                self.undo(plan_id, allocation_id=allocation_id, held=True)
                raise
            if errors:
                left = self.undo(plan_id, allocation_id=allocation_id, held=True)
                raise _partly_undone(errors[0], left) if left else errors[0]

    def shows(self, gpu_uuids: Iterable[str]) -> bool:
        """Whether this process can see those GPUs, as far as they are still in the machine."""
        if self._machine.driver.scope is DeviceVisibility.ALL:
            return True
        try:
            for gpu_uuid in gpu_uuids:
                self._machine.driver.observe_gpu(gpu_uuid)
        except GpuNotFound:
            return False
        return True

    def undo(self, plan_id: str, *, allocation_id: str = "", held: bool = False) -> Sequence[TrancheError]:
        """Undo what the plan changed, unless something uses it since; events report what stays, as the returned errors do."""
        with self._machine.ledger.write() as db:
            journal.begin_undo(db, plan_id)
            records = journal.step_records(db, plan_id)
        self._machine.boundary()
        with ExitStack() as stack:
            if not held:
                stack.enter_context(self._holding(records, None))
            with uninterruptible():
                errors = self._on_each_gpu(records, lambda gpu_uuid: self._undo_gpu(records, gpu_uuid, allocation_id))
        if errors:
            with self._machine.ledger.write() as db:
                for error in errors:
                    chronicle.undo_incomplete(db, self._machine.clock(), plan_id, error, allocation_id=allocation_id)
        return errors

    def _holding(self, records: Sequence[StepRecord], seconds: float | None) -> ExitStack:
        """The locks of all the plan's GPUs, always taken in the same order, so two plans never wait for each other.

        The tool that resets a GPU inherits them: if this process is killed meanwhile, no other touches the GPU before that tool
        ends.
        """
        with ExitStack() as stack:
            for gpu_uuid in sorted({record.step.gpu_uuid for record in records}):
                lock = stack.enter_context(
                    taking_gpu(self._machine.places.gpu_locks / f"{gpu_uuid}.lock", gpu_uuid, seconds)
                )
                os.set_inheritable(lock.descriptor, True)
            return stack.pop_all()

    def _on_each_gpu(
        self,
        records: Sequence[StepRecord],
        work: Callable[[str], TrancheError | None],
        stop: Callable[[], None] = lambda: None,
    ) -> list[TrancheError]:
        """Work on all GPUs of the records in parallel; returns the errors. Calls `stop` when an interrupt ends the wait."""
        gpu_uuids = list(dict.fromkeys(record.step.gpu_uuid for record in records))
        if len(gpu_uuids) <= 1:
            return [error for gpu_uuid in gpu_uuids if (error := work(gpu_uuid)) is not None]
        # Most plans touch one GPU, and most commands carry out none: they start faster without this import.
        from concurrent.futures import ThreadPoolExecutor

        ended: SimpleQueue[object] = SimpleQueue()
        with ThreadPoolExecutor(max_workers=len(gpu_uuids), thread_name_prefix="gpu") as pool:
            try:
                futures = [pool.submit(work, gpu_uuid) for gpu_uuid in gpu_uuids]
                for future in futures:
                    future.add_done_callback(ended.put)
                # Nothing is lost when a signal ends this wait. The wait for a future could leave its lock held.
                with interruptible():
                    for _ in futures:
                        ended.get()
            except BaseException:
                stop()
                raise
            return [error for future in futures if (error := future.result()) is not None]

    def _run_gpu(
        self,
        plan_id: str,
        records: Sequence[StepRecord],
        gpu_uuid: str,
        allocation_id: str,
        progress: Progress,
        failed: threading.Event,
    ) -> TrancheError | None:
        try:
            gpu = self._machine.observe_gpu(gpu_uuid)
            for ordinal, record in enumerate(records):
                if record.step.gpu_uuid != gpu_uuid:
                    continue
                if failed.is_set():
                    return None
                gpu = self._run_step(plan_id, ordinal, record.step, gpu, allocation_id, progress)
        except TrancheError as error:
            failed.set()
            error.gpu_uuid = gpu_uuid
            return error
        except BaseException:
            failed.set()
            raise
        return None

    def _run_step(
        self, plan_id: str, ordinal: int, step: Step, gpu: GpuState, allocation_id: str, progress: Progress
    ) -> GpuState:
        if step.in_effect(gpu):
            with self._machine.ledger.write() as db:
                journal.write_needless(db, plan_id, ordinal)
            self._machine.boundary()
            return gpu
        guards.check(self._machine.ledger, step, gpu, allocation_id)
        with self._machine.ledger.write() as db:
            before = step.observe(gpu, owned_instances(db))
            journal.write_intent(db, plan_id, ordinal, before)
        self._machine.boundary()
        with interruptible():
            progress(gpu, step)
        gpu = _act_on(step, gpu, self._machine)
        with self._machine.ledger.write() as db:
            journal.write_done(db, plan_id, ordinal)
            _record_ownership(db, step.ownership(before), requested=bool(allocation_id))
            chronicle.step_done(db, self._machine.clock(), plan_id, step, gpu, allocation_id=allocation_id)
        self._machine.boundary()
        return gpu

    def _undo_gpu(self, records: Sequence[StepRecord], gpu_uuid: str, allocation_id: str) -> TrancheError | None:
        first: TrancheError | None = None
        try:
            gpu = self._machine.observe_gpu(gpu_uuid)
            for step, ownership in undo_steps(records, gpu):
                try:
                    if not step.in_effect(gpu):
                        guards.check(self._machine.ledger, step, gpu, allocation_id)
                        gpu = _act_on(step, gpu, self._machine)
                    with self._machine.ledger.write() as db:
                        _record_ownership(db, ownership, requested=False)
                except TrancheError as error:
                    first = first or error
                    gpu = self._machine.observe_gpu(gpu_uuid)
                self._machine.boundary()
        except TrancheError as error:
            first = first or error
        return first


def _partly_undone(error: TrancheError, left: Sequence[TrancheError]) -> TrancheError:
    """The error of a plan that could not be undone everywhere."""
    found = type(error)(
        f"{error.message}; undoing the change failed too, so parts of it remain: {_in_words(left)}",
        hint="list the instances with: tranche gpus; then apply a layout again",
    )
    found.gpu_uuid = error.gpu_uuid
    return found


def _in_words(errors: Sequence[TrancheError]) -> str:
    return "; ".join(dict.fromkeys(each.message for each in errors))


def _record_ownership(db: sqlite3.Connection, ownership: Mapping[InstanceKey, bool], *, requested: bool) -> None:
    for key, ours in ownership.items():
        if ours:
            own_instance(db, key, requested=requested)
        else:
            disown_instances(db, [key])


def carry_out_apart(plan_ids: Sequence[str], carry_out: Callable[[str], None]) -> None:
    """Carry out each of the plans; raises one error for all GPUs that failed."""
    if len(plan_ids) == 1:
        carry_out(plan_ids[0])
        return

    def attempt(plan_id: str) -> TrancheError | None:
        try:
            carry_out(plan_id)
        except TrancheError as error:
            return error
        return None

    from concurrent.futures import ThreadPoolExecutor  # slow to import, and only the agent needs it

    with ThreadPoolExecutor(max_workers=len(plan_ids), thread_name_prefix="change") as pool:
        errors = [error for error in pool.map(attempt, plan_ids) if error is not None]
    if errors:
        raise _of_several(errors, done=len(plan_ids) - len(errors))


def _of_several(errors: Sequence[TrancheError], *, done: int) -> TrancheError:
    """One error for all GPUs that failed; it also counts the GPUs with a completed change."""
    first = errors[0]
    messages = "; ".join(error.message for error in errors)
    rest = f"; the change succeeded on the other {f'{done} GPUs' if done > 1 else 'GPU'}" if done else ""
    error = type(first)(f"{messages}{rest}", hint=first.hint)
    error.gpu_uuid = first.gpu_uuid
    return error
