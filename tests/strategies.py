"""Hypothesis strategies and builders that every test may use: boards, GPUs, views, requests.

Everything built here keeps the invariants of real hardware: instances never overlap or exclude each other, a GPU whose MIG
mode is off has no instances, and grants of a view never overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from tranche.core.allocation import Allocation, ComputeSlice, FractionalShare, Grant, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import Board, GpuInstanceProfile, catalogue
from tranche.core.grid import PlacedInstance, Placement, fits, placements
from tranche.core.keeper import PodKeeper, ProcessKeeper
from tranche.core.quantity import MIB
from tranche.core.request import Demand, GpuMemory, GpuShare, Isolation, MigSlice, Request, WholeGpus
from tranche.core.sharing import GpuPolicy, MachineSharing, Sharing
from tranche.core.state import (
    ComputeInstance,
    DaemonState,
    GpuInstance,
    GpuProcess,
    GpuState,
    InstanceKey,
    MigMode,
    MpsDaemon,
    NodeState,
)
from tranche.core.wire import grant_from_dict, grant_to_dict

PLACEABLE_BOARDS = tuple(board for board in catalogue() if board.memory_slices and board.memory)
FAMILY_BOARDS = tuple(
    board
    for board in PLACEABLE_BOARDS
    if board.key in {"A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB-SXM", "H200-141GB", "B200", "RTX-PRO-6000-96GB"}
)


def gpu_on(
    board: Board,
    index: int = 0,
    *,
    mode: MigMode = MigMode.ENABLED,
    instances: Sequence[GpuInstance] = (),
    processes: Sequence[GpuProcess] = (),
) -> GpuState:
    """An idle GPU of that board, with what is given."""
    assert board.memory is not None
    assert board.memory_slices is not None
    return GpuState(
        index=index,
        uuid=f"GPU-{index:08x}-0000-4000-8000-000000000000",
        name=board.products[0],
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        pci_device_id=board.pci_device_ids[0] if board.pci_device_ids else "0x000010DE",
        pci_subsystem_id="0x000010DE",
        architecture=board.architecture,
        memory=board.memory,
        memory_free=board.memory,
        mode=mode,
        pending_mode=mode,
        mode_change_needs_reset=board.mode_change_needs_reset,
        memory_slices=board.memory_slices,
        profiles=board.profiles,
        profiles_source="catalogue",
        multiprocessors=board.sm,
        instances=tuple(instances),
        processes=tuple(processes),
    )


def uncuttable_gpu(
    index: int = 0, name: str = "Tesla T4", memory: int = 15360 * MIB, reserved: int = 446 * MIB
) -> GpuState:
    """An idle GPU that has no MIG, and of whose memory the driver keeps some for itself."""
    return GpuState(
        index=index,
        uuid=f"GPU-{index:08x}-0000-4000-8000-000000000000",
        name=name,
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        pci_device_id="0x1EB810DE",
        pci_subsystem_id="0x12A210DE",
        architecture="Turing",
        memory=memory,
        memory_free=memory - reserved,
        memory_reserved=reserved,
        mode=MigMode.UNSUPPORTED,
        pending_mode=MigMode.UNSUPPORTED,
        mode_change_needs_reset=False,
        memory_slices=0,
        profiles=(),
        profiles_source="catalogue",
        multiprocessors=40,
    )


def instance_of(
    profile: GpuInstanceProfile,
    placement: Placement,
    *,
    filled: bool = True,
    processes: Sequence[GpuProcess] = (),
    stray: Sequence[GpuProcess] = (),
) -> GpuInstance:
    """A GPU instance there, with one compute instance that spans it when `filled`."""
    device = ComputeInstance(
        id=0,
        name=profile.name,
        profile_id=0,
        start=0,
        slices=profile.slices,
        uuid=f"MIG-{profile.enum:08x}-0000-5000-8000-{placement.start:012x}",
        mig_index=placement.start,
        processes=tuple(processes),
    )
    return GpuInstance(
        id=placement.start + 1,
        profile=profile.name,
        profile_id=profile.id or 0,
        placement=placement,
        memory=profile.memory,
        compute_instances=(device,) if filled else (),
        stray_processes=tuple(stray),
    )


def view_of(
    *gpus: GpuState,
    allocations: Sequence[Allocation] = (),
    owned: Sequence[InstanceKey] = (),
    changing: Collection[str] = (),
    requested: Sequence[InstanceKey] = (),
) -> NodeView:
    """A view of those GPUs."""
    return NodeView(
        NodeState(tuple(gpus)),
        tuple(allocations),
        frozenset(owned),
        frozenset(changing),
        requested=frozenset(requested),
    )


def placed(board: Board) -> tuple[GpuInstanceProfile, ...]:
    """The board's profiles with published placements."""
    return tuple(profile for profile in board.profiles if profile.starts)


def boards() -> st.SearchStrategy[Board]:
    """One board of each family that differs in geometry or in its reset rule."""
    return st.sampled_from(FAMILY_BOARDS)


@st.composite
def occupant_lists(draw: st.DrawFn, board: Board) -> list[tuple[GpuInstanceProfile, Placement]]:
    """A legal, possibly empty, possibly full set of instances on the board."""
    taken: list[PlacedInstance] = []
    chosen: list[tuple[GpuInstanceProfile, Placement]] = []
    slots = [(profile, spot) for profile in placed(board) for spot in placements(profile)]
    for profile, spot in draw(st.lists(st.sampled_from(slots), max_size=10)):
        if fits(profile, spot, taken):
            taken.append(PlacedInstance(profile.name, spot))
            chosen.append((profile, spot))
    return chosen


_STATES = ("active", "preparing", "promised", "shared", "divided", "owned", "empty", "foreign", "used", "cut")


@st.composite
def node_views(draw: st.DrawFn, *, max_gpus: int = 4, mixed: bool = True, uncuttable: int = 1) -> NodeView:
    """A node between commands: held, shared, promised, idle, foreign and used slices; GPUs lost, busy, pending and being re-cut.

    Commands hold, and pods; alone, parts of a device together, and compute slices of one instance side by side. Of ten GPUs so
    many as `uncuttable` have no MIG, where kinds are mixed.
    """
    states: list[GpuState] = []
    allocations: list[Allocation] = []
    owned: list[InstanceKey] = []
    requested: list[InstanceKey] = []
    changing: set[str] = set()
    one_board = draw(boards())
    next_pid = 1000

    def allocate(grant: Grant, demand: Demand, phase: Phase) -> None:
        number = len(allocations) + 1
        pod = PodKeeper("nvidia.com/gpu", "ns", f"pod-{number}", "main", f"uid-{number}", "run-1")
        keeper = pod if phase is Phase.ACTIVE and draw(st.integers(0, 4)) == 0 else ProcessKeeper(number, number)
        allocations.append(Allocation(f"a-{number}", Request(demand), (grant,), phase, float(number), keeper=keeper))

    def share(device: WholeGpu | Slice, memory: int) -> None:
        parts = draw(st.integers(1, 3))
        of = parts + draw(st.integers(0, 3))
        limits = isinstance(device, WholeGpu)  # the driver's limits for control groups are not for slices
        sharing = draw(st.sampled_from(Sharing if limits else [Sharing.MPS, Sharing.TIME_SLICING]))
        for _ in range(parts):
            allocate(
                FractionalShare(device, memory // of, sharing), GpuMemory(memory // of), draw(st.sampled_from(Phase))
            )

    for index in range(draw(st.integers(1, max_gpus))):
        if mixed and draw(st.integers(0, 9)) < uncuttable:
            gpu = uncuttable_gpu(index)
        else:
            board = draw(boards()) if mixed else one_board
            gpu = gpu_on(board, index, mode=draw(st.sampled_from([MigMode.ENABLED] * 3 + [MigMode.DISABLED])))
        trouble = draw(st.integers(0, 19))
        if trouble == 0:
            gpu = replace(gpu, lost=True)
        elif trouble == 1 and gpu.mig_capable:
            pending = MigMode.DISABLED if gpu.mig_enabled else MigMode.ENABLED
            gpu = replace(gpu, pending_mode=pending)
        elif trouble == 2:
            changing.add(gpu.uuid)
        if gpu.mig_enabled:
            instances: list[GpuInstance] = []
            for profile, spot in draw(occupant_lists(board)):
                key = InstanceKey(gpu.uuid, profile.name, spot)
                state = draw(st.sampled_from(_STATES))
                process = GpuProcess(next_pid, "python")
                next_pid += 1
                if state in {"active", "preparing", "promised"}:
                    phase = Phase.ACTIVE if state == "active" else Phase.PREPARING
                    allocate(Slice(gpu.uuid, profile.name, spot), MigSlice(profile.name), phase)
                if state == "shared":
                    share(Slice(gpu.uuid, profile.name, spot), profile.memory or 1 << 30)
                if state in {"active", "shared", "divided", "owned", "empty"} or draw(st.booleans()):
                    owned.append(key)
                    requested += [key] if draw(st.booleans()) else []
                running = (process,) if state == "used" or (state == "active" and draw(st.booleans())) else ()
                if state == "promised":
                    continue
                made = instance_of(profile, spot, filled=state != "empty", processes=running)
                if state in {"cut", "divided"}:
                    made = made._replace(compute_instances=_single_slices(profile, made))
                if state == "divided":
                    inside = Slice(gpu.uuid, profile.name, spot)
                    pieces = [each for each in made.compute_instances if draw(st.booleans())] or made.compute_instances
                    for each in pieces:
                        grant = ComputeSlice(inside, each.name, each.start, each.slices)
                        allocate(grant, MigSlice(profile.name), Phase.ACTIVE)
                instances.append(made)
            gpu = replace(gpu, instances=tuple(instances))
        elif draw(st.integers(0, 3)) == 0:
            gpu = replace(gpu, processes=(GpuProcess(next_pid, "trainer"),))
            next_pid += 1
        elif draw(st.integers(0, 3)) == 0:
            allocate(WholeGpu(gpu.uuid), WholeGpus(1), draw(st.sampled_from(Phase)))
        elif draw(st.integers(0, 5)) == 0:
            share(WholeGpu(gpu.uuid), gpu.memory)
        elif gpu.mig_capable and draw(st.integers(0, 7)) == 0:
            profile, spot = draw(st.sampled_from([(p, s) for p in placed(board) for s in placements(p)]))
            allocate(Slice(gpu.uuid, profile.name, spot), MigSlice(profile.name), Phase.PREPARING)
        states.append(gpu)
    return view_of(*states, allocations=allocations, owned=owned, changing=changing, requested=requested)


def means() -> st.SearchStrategy[MachineSharing]:
    """What a machine shares devices by: nothing, one mechanism, or several."""
    offered = st.frozensets(st.sampled_from(Sharing), max_size=3)
    return st.builds(lambda some, clients: MachineSharing(some, {}, clients), offered, st.sampled_from([0, 3, 48]))


@st.composite
def sharing_views(draw: st.DrawFn, *, max_gpus: int = 4) -> NodeView:
    """A node as above that can share its devices, with daemons of MPS and an administrator who has his own mind."""
    view = draw(node_views(max_gpus=max_gpus, uncuttable=4))
    uses = {gpu.uuid: draw(st.sampled_from([GpuPolicy.AUTO] * 5 + list(GpuPolicy))) for gpu in view.node}
    gpus = [replace(gpu, daemons=tuple(_daemons(draw, view, gpu))) for gpu in view.node]
    return replace(view, node=replace(view.node, gpus=tuple(gpus), sharing=draw(means())), uses=uses)


def _daemons(draw: st.DrawFn, view: NodeView, gpu: GpuState) -> Iterator[MpsDaemon]:
    """A daemon for most devices that are shared by MPS, and now and then for one that nobody has any more."""
    shared = {
        part.slot
        for part in view.grants_on(gpu.uuid)
        if isinstance(part, FractionalShare) and part.sharing is Sharing.MPS
    }
    held = {grant.slot for grant in view.grants_on(gpu.uuid)}
    idle = {gpu.key(instance) for instance in gpu.instances} if gpu.mig_enabled else {None}
    for slot in sorted(shared, key=str):
        state = draw(st.sampled_from([DaemonState.READY] * 6 + [*DaemonState, None]))
        if state is not None:
            yield MpsDaemon(slot, "", state, 1 << 30)
    for slot in sorted(idle - held, key=str):
        if draw(st.integers(0, 9)) == 0:
            yield MpsDaemon(slot, "", draw(st.sampled_from(DaemonState)), 1 << 30)


def moved(grant: Grant, gpu_uuid: str) -> Grant:
    """The same grant on another GPU."""
    return grant_from_dict({**grant_to_dict(grant), "gpuUUID": gpu_uuid})


def repeated(view: NodeView, gpus: int) -> NodeView:
    """So many GPUs: the view's again and again, with all that is on them."""
    states: list[GpuState] = []
    allocations: list[Allocation] = []
    owned, changing = set(), set()
    uses: dict[str, GpuPolicy] = {}
    for index in range(gpus):
        gpu = view.node.gpus[index % len(view.node.gpus)]
        uuid = f"{gpu.uuid}-{index}"
        states.append(replace(gpu, uuid=uuid, index=index))
        allocations += [
            each._replace(id=f"{each.id}-{index}", grants=tuple(moved(grant, uuid) for grant in each.grants))
            for each in view.allocations
            if each.grants[0].gpu_uuid == gpu.uuid
        ]
        owned |= {key._replace(gpu_uuid=uuid) for key in view.owned if key.gpu_uuid == gpu.uuid}
        if gpu.uuid in view.changing:
            changing.add(uuid)
        if gpu.uuid in view.uses:
            uses[uuid] = view.uses[gpu.uuid]
    many = view_of(*states, allocations=allocations, owned=list(owned), changing=changing)
    return replace(many, node=replace(many.node, sharing=view.node.sharing), uses=uses)


def _single_slices(profile: GpuInstanceProfile, instance: GpuInstance) -> tuple[ComputeInstance, ...]:
    """The instance cut inside into compute instances of one slice; the empty tuple where it has only one."""
    if profile.slices == 1:
        return ()
    name = profile.name._replace(compute=1)
    whole = instance.compute_instances[0]
    return tuple(
        whole._replace(id=n, name=name, start=n, slices=1, uuid=f"{whole.uuid}-{n}") for n in range(profile.slices)
    )


def demands() -> st.SearchStrategy[Demand]:
    """Any demand, most of them possible on some board."""
    names = sorted({profile.name for board in FAMILY_BOARDS for profile in placed(board)})
    return st.one_of(
        st.builds(WholeGpus, st.integers(1, 3)),
        st.builds(GpuShare, st.sampled_from([Fraction(n, 20) for n in range(1, 21)])),
        st.builds(GpuMemory, st.integers(1, 190_000).map(lambda mib: mib * MIB)),
        st.builds(MigSlice, st.sampled_from(names)),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any request, now and then for a model, for several shares, or with a ceiling."""
    demand = draw(demands())
    model = draw(st.sampled_from(["", "", "", "a100", "NVIDIA", "A30", "T4"]))
    isolation = draw(st.sampled_from([*Isolation, Isolation.SOFT, Isolation.SOFT]))
    request = Request(demand, isolation, model)
    if isinstance(demand, WholeGpus):
        return request
    request = replace(request, count=draw(st.sampled_from([1, 1, 1, 2, 3])))
    if isinstance(demand, MigSlice) or isolation is Isolation.HARD:
        return request
    ceiling = draw(st.integers(0, 9)) == 0
    return replace(request, compute=draw(st.integers(1, 100))) if ceiling else request


@st.composite
def requests_for(draw: st.DrawFn, view: NodeView) -> Request:
    """A request that some GPU of the view could serve were it empty, or any request."""
    gpus = [gpu for gpu in view.node if gpu.profiles]
    for_its_boards = draw(st.booleans())
    if gpus and for_its_boards:
        gpu = draw(st.sampled_from(gpus))
        return Request(MigSlice(draw(st.sampled_from([p.name for p in gpu.profiles if p.starts]))))
    return draw(requests())


def holders_of(view: NodeView, slot: InstanceKey) -> tuple[Allocation, ...]:
    """The view's allocations that hold that instance slot or something in it."""
    return tuple(each for each in view.allocations if any(grant.slot == slot for grant in each.grants))
