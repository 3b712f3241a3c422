"""What each step of a plan does to the driver, and how its effect is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tranche.core.errors import GpuBusy, ModeChangePending, VerificationFailed
from tranche.core.state import GpuInstance, GpuState, MigMode
from tranche.hardware.driver import Driver
from tranche.planning.plan import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, Step

# A GPU instance can stay in use for a moment after its last compute instance is gone (seen on A100 and H100).
_DESTROY_ATTEMPTS = 20
_DESTROY_PAUSE_SECONDS = 0.1


def in_effect(step: Step, gpu: GpuState) -> bool:
    """Whether the GPU already shows what the step is for, so that it need not be done."""
    match step:
        case SetMigMode(enabled=enabled):
            target = MigMode.ENABLED if enabled else MigMode.DISABLED
            return gpu.pending_mode is target and (gpu.mode is target or gpu.mode_change_needs_reset)
        case ResetGpu():
            return not gpu.mode_pending
        case DestroyInstance():
            return instance_of(step, gpu) is None
        case CreateInstance(slices=slices):
            instance = instance_of(step, gpu)
            return instance is not None and instance.slices == tuple(sorted(slices))


def instance_of(step: DestroyInstance | CreateInstance, gpu: GpuState) -> GpuInstance | None:
    """The instance in the step's slot, when it has the step's profile."""
    instance = gpu.instance_at(step.placement)
    return instance if instance is not None and instance.profile == step.profile else None


class StepRunner:
    """Does one step and looks whether it took effect."""

    def __init__(self, driver: Driver, sleep: Callable[[float], None]) -> None:
        self._driver = driver
        self._sleep = sleep

    def run(self, step: Step, gpu: GpuState) -> GpuState:
        """Do the step on the GPU, last seen as given; the GPU as it is afterwards. VerificationFailed when nothing shows."""
        match step:
            case SetMigMode(enabled=enabled):
                self._driver.set_mig_mode(gpu.uuid, enabled)
            case ResetGpu():
                self._driver.reset_gpu(gpu.uuid)
            case DestroyInstance():
                self._destroy(step, gpu)
            case CreateInstance():
                self._create(step, gpu)
        after = self._driver.observe_gpu(gpu.uuid)
        if in_effect(step, after):
            return after
        if isinstance(step, SetMigMode | ResetGpu):
            raise ModeChangePending(
                f"{gpu.label}: MIG mode is {after.mode}, the change to {after.pending_mode} stays pending",
                hint="something holds the GPU: stop what uses it, or reboot the machine, and run the command again",
            )
        raise VerificationFailed(
            f"{gpu.label}: the driver accepted '{step}', but the GPU does not show it",
            hint="compare with: nvidia-smi mig -lgi",
        )

    def _destroy(self, step: DestroyInstance, gpu: GpuState) -> None:
        instance = instance_of(step, gpu)
        assert instance is not None, "a step in effect is not run"
        for compute in instance.compute_instances:
            self._driver.destroy_compute_instance(gpu.uuid, instance.id, compute.id)
        for attempt in range(1, _DESTROY_ATTEMPTS + 1):
            try:
                self._driver.destroy_gpu_instance(gpu.uuid, instance.id)
                return
            except GpuBusy:
                if attempt == _DESTROY_ATTEMPTS:
                    raise
                self._sleep(_DESTROY_PAUSE_SECONDS)

    def _create(self, step: CreateInstance, gpu: GpuState) -> None:
        instance = instance_of(step, gpu)
        there = Counter(instance.slices) if instance is not None else Counter()
        instance_id = (
            instance.id
            if instance is not None
            else self._driver.create_gpu_instance(gpu.uuid, step.profile, step.placement)
        )
        missing = Counter(step.slices) - there
        for name in sorted(missing.elements(), key=lambda name: -name.compute):
            self._driver.create_compute_instance(gpu.uuid, instance_id, name)
