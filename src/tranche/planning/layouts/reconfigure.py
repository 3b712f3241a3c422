"""From a node and a declared layout to the Plan that touches the fewest instances.

Per GPU: first the MIG mode (with a reset if the GPU needs one), then the cut. Anything in use is never touched: if it is in the
way, the GPU's change is blocked, and the decision names the users. GPUs that the layout does not name stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from tranche.core.allocation import NodeView
from tranche.core.errors import HardwareError, LayoutImpossible, MigNotSupported, ProfileUnknown
from tranche.core.grid import PlacedInstance, fits
from tranche.core.layout import Layout, LayoutSpec
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState, NodeState
from tranche.planning.decide.foresee import without
from tranche.planning.layouts.recut import Cut, check_possible, recut, users_in_the_way
from tranche.planning.occupancy.layout_occupancy import LayoutOccupancy, User, busy_error, gpu_users
from tranche.planning.steps import (
    DestroyInstance,
    ResetGpu,
    SetMigMode,
    Step,
    TakesGpu,
    TakesInstance,
    TakesRoom,
    TakesSharing,
)
from tranche.planning.steps.plan import Plan

_MOST_SLICES = 1000  # far more than any GPU has


@dataclass(frozen=True, slots=True)
class GpuChange:
    """The change of one GPU, in two phases; `blockers` are the users that prevent it now.

    `waits_for_reset` means that the mode and the cut stay pending, because resets are to be skipped.
    """

    gpu: GpuState
    mode_steps: tuple[Step, ...] = ()
    cut: Cut = field(default_factory=Cut)
    blockers: tuple[User, ...] = ()
    waits_for_reset: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything in order; empty if the change is blocked."""
        return () if self.blockers else (*self.mode_steps, *self.cut.steps(self.gpu.uuid))


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """What a layout requires: one change per GPU that the layout names, including empty ones.

    `lost` names the GPUs that should change but that the driver cannot reach: the layout stays incomplete.
    """

    purpose: str
    changes: tuple[GpuChange, ...]
    warnings: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The steps of every GPU that is not blocked."""
        touched = [change for change in self.changes if change.steps]
        return Plan(
            self.purpose,
            tuple(step for change in touched for step in change.steps),
            {change.gpu.uuid: change.gpu.fingerprint for change in touched},
        )

    @property
    def blockers(self) -> tuple[User, ...]:
        """Every user in the way, on any GPU."""
        return tuple(user for change in self.changes for user in change.blockers)

    @property
    def changes_mode(self) -> bool:
        """Whether the MIG mode of some GPU changes."""
        return any(change.mode_steps for change in self.changes)

    @property
    def changes_cut(self) -> bool:
        """Whether some GPU is cut differently, beyond its change of mode; counts blocked GPUs."""
        return any(change.blockers or not change.cut.unchanged for change in self.changes)

    @property
    def waiting_for_reset(self) -> tuple[GpuState, ...]:
        """The GPUs whose mode stays pending because resets are to be skipped."""
        return tuple(change.gpu for change in self.changes if change.waits_for_reset)

    def refuse_if_blocked(self) -> None:
        """Raise GpuBusy, with every user named, if anything is in the way."""
        if self.blockers:
            raise busy_error(self.purpose, self.blockers)

    def refuse_if_lost(self, others: str = "all other GPUs match the layout") -> None:
        """Raise HardwareError, naming every lost GPU and the state of the others, if the layout cannot be complete."""
        if self.lost:
            raise lost_error(self.purpose, self.lost, others if self.changes else "")


def plan_layout(
    view: NodeView,
    layout: Layout,
    *,
    mode_only: bool = False,
    skip_reset: bool = False,
    protected: Collection[str] = (),
) -> LayoutDecision:
    """What the layout requires. Prefers blockers without the allocations in `protected`.

    Raises MigNotSupported (a GPU that cannot be cut is named by index), ProfileUnknown (no GPU here offers the profile),
    LayoutImpossible (a GPU cannot have the slices together) and HardwareError (every GPU that it names is lost), before it
    decides anything.
    """
    purpose = f"layout {layout.name}"
    changes = []
    lost = []
    for gpu in view.node:
        spec = layout.spec_for(gpu)
        if spec is not None and gpu.lost:
            lost.append(gpu.full_name)
            continue
        if spec is None or not _applies(spec, gpu, purpose):
            continue
        if not mode_only:
            _check_profiles(view.node, spec, purpose)
            _check_number(gpu, spec, purpose)
            check_possible(gpu, spec.slice_list, purpose)
        changes.append(_change(view, gpu, spec, mode_only=mode_only, skip_reset=skip_reset, protected=protected))
    decision = LayoutDecision(purpose, tuple(changes), layout.warnings(view.node), tuple(lost))
    if not changes:
        decision.refuse_if_lost()
    return decision


def lost_error(purpose: str, lost: Sequence[str], others: str) -> HardwareError:
    """The error for GPUs that the driver cannot reach; `others` describes the other GPUs, empty without any."""
    are, reach = ("is", "it") if len(lost) == 1 else ("are", "them")
    rest = f"; {others}" if others else ""
    return HardwareError(
        f"{purpose}: {', '.join(lost)} {are} lost: the driver cannot reach {reach}{rest}",
        hint="reset the GPU or restart the machine, or leave the GPU out of the layout",
    )


def change_mode(users: LayoutOccupancy, enabled: bool, *, skip_reset: bool) -> GpuChange:
    """The change to that MIG mode, without a cut; MIG off destroys the instances in the way."""
    gpu = users.gpu
    if any(user.changing for user in users.users):
        return GpuChange(gpu, blockers=tuple(user for user in users.users if user.changing))
    clear: list[Step] = [DestroyInstance(gpu.uuid, i.profile, i.placement) for i in users.idle]
    if gpu.mig_enabled == enabled:
        if not gpu.mode_pending:
            return GpuChange(gpu)
        # The pending change would undo the layout at the next reset: revert it, which the driver does on an empty GPU.
        return GpuChange(gpu, (*clear, SetMigMode(gpu.uuid, enabled)), blockers=users.users)
    reset = gpu.mode_change_needs_reset
    steps = clear
    if not (gpu.mode_pending and reset):
        steps.append(SetMigMode(gpu.uuid, enabled))
    if reset and not skip_reset:
        steps.append(ResetGpu(gpu.uuid))
    if not steps:
        return GpuChange(gpu, waits_for_reset=True)
    return GpuChange(gpu, tuple(steps), blockers=users.users, waits_for_reset=reset and skip_reset)


def _change(
    view: NodeView, gpu: GpuState, spec: LayoutSpec, *, mode_only: bool, skip_reset: bool, protected: Collection[str]
) -> GpuChange:
    users = gpu_users(view, gpu)
    change = change_mode(users, spec.mig_enabled, skip_reset=skip_reset)
    if mode_only or not spec.mig_enabled or change.blockers or change.waits_for_reset:
        return change
    wanted = spec.slice_list
    cut = recut(users.emptied if change.mode_steps else users, wanted)
    if cut is None:
        in_the_way = users_in_the_way(users, wanted, protected)
        return GpuChange(gpu, change.mode_steps, blockers=(*users.holders_of_all, *in_the_way))
    # A slice that is held but gone cannot be created for its holder, so the layout would not be complete.
    gone = (user for user in users.users if user.gone)
    blockers = (*gone, *(() if cut.unchanged else users.holders_of_all))
    return GpuChange(gpu, change.mode_steps, cut, tuple(dict.fromkeys(blockers)))


def _applies(spec: LayoutSpec, gpu: GpuState, purpose: str) -> bool:
    if gpu.mig_capable:
        return True
    if spec.skips_gpus_without_mig:
        return False
    raise MigNotSupported(
        f"{purpose}: cannot set MIG mode on non MIG-capable GPU {gpu.index} ({gpu.name})",
        hint="leave it out of 'devices', or set mig-enabled: false for it",
    )


def _check_number(gpu: GpuState, spec: LayoutSpec, purpose: str) -> None:
    """Runs before the slices are listed one by one: an absurdly large count would fill the memory."""
    for name, count in spec.slices:
        if count > _MOST_SLICES:
            raise LayoutImpossible(f"{purpose}: {gpu.label} cannot have {count}x {name}: no GPU has room for that many")


def _check_profiles(node: NodeState, spec: LayoutSpec, purpose: str) -> None:
    offered: dict[ProfileName, None] = {profile.name: None for gpu in node for profile in gpu.profiles}
    for name, _ in spec.slices:
        if offered and name.gpu_instance not in offered:
            raise ProfileUnknown(
                f"{purpose}: no GPU on this machine offers the profile {name.gpu_instance}",
                hint="they offer: " + ", ".join(map(str, offered)),
            )


def plan_after_blockers(view: NodeView, layout: Layout, decision: LayoutDecision) -> Plan:
    """The plan once all blockers of the decision have ended."""
    return plan_layout(view_after_blockers(view, decision), layout).plan


def view_after_blockers(view: NodeView, decision: LayoutDecision) -> NodeView:
    """The view once all blockers of the decision and all running changes have ended."""
    ids = {allocation.id for user in decision.blockers for allocation in user.allocations}
    pids = {process.pid for user in decision.blockers for process in user.processes}
    return replace(without(view, ids, pids), changing=frozenset())


def plan_beside_blockers(view: NodeView, decision: LayoutDecision, later: Plan) -> Plan:
    """What can be done now: every unblocked change, and the part of blocked ones that touches no users.

    `later` is the plan for after the blockers' end. The steps now are a part of it, so nothing is done twice. A change of MIG
    mode has no parts.
    """
    steps: list[Step] = []
    for change in decision.changes:
        steps += _part(view, change.gpu, later) if change.blockers else change.steps
    touched = {step.gpu_uuid for step in steps}
    prints = {change.gpu.uuid: change.gpu.fingerprint for change in decision.changes if change.gpu.uuid in touched}
    return Plan(decision.purpose, tuple(steps), prints)


def _part(view: NodeView, gpu: GpuState, later: Plan) -> list[Step]:
    planned = later.steps_on(gpu.uuid)
    users = gpu_users(view, gpu)
    if any(isinstance(taking, TakesGpu) for step in planned for taking in step.takes) or users.holders_of_all:
        return []
    idle = {instance.place for instance in users.idle}
    taken = frozenset({*gpu.occupants, *view.promised_on(gpu.uuid)})
    steps: list[Step] = []
    for step in planned:
        after = _taken_after(step, gpu, idle, taken)
        if after is not None:
            taken = after
            steps.append(step)
    return steps


def _taken_after(
    step: Step, gpu: GpuState, idle: Collection[PlacedInstance], taken: frozenset[PlacedInstance]
) -> frozenset[PlacedInstance] | None:
    """The places taken after the step; None if it would touch a user, or has no room yet."""
    for taking in step.takes:
        match taking:
            case TakesSharing(spot):
                if spot is not None and spot not in idle:
                    return None
            case TakesInstance(spot):
                if spot not in idle:
                    return None
                taken -= {spot}
            case TakesRoom(spot):
                if spot in idle:
                    continue
                profile = gpu.profile(spot.profile)
                if profile is None or not fits(profile, spot.placement, taken):
                    return None
                taken |= {spot}
            case TakesGpu():
                return None
            case _:
                assert_never(taking)
    return taken
