"""How to recut one GPU while touching the fewest of its instances.

Compute slices (`1c.3g.20gb`) are packed into GPU instances of one profile, with as few new instances as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import LayoutImpossible
from tranche.core.grid import PlacedInstance, Placement, arrange, creation_order, profiles_exclude, remaining_capacity
from tranche.core.layout import describe_slices
from tranche.core.profile import ProfileName
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, taken_mask
from tranche.planning.occupancy.layout_occupancy import LayoutOccupancy, User
from tranche.planning.steps import CreateInstance, DestroyInstance, Step


@dataclass(frozen=True, slots=True)
class Cut:
    """A GPU's instances, sorted by what happens to them.

    `kept` stay as they are. `extended` stay and get further compute instances, up to the given slices. `destroyed` go, and
    `created` are new; a created instance holds the given slices, largest first.
    """

    kept: tuple[GpuInstance, ...] = ()
    extended: tuple[tuple[GpuInstance, Contents], ...] = ()
    destroyed: tuple[GpuInstance, ...] = ()
    created: tuple[tuple[PlacedInstance, Contents], ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.extended or self.destroyed or self.created)

    def steps(self, gpu_uuid: str) -> tuple[Step, ...]:
        """The steps in order: room is made before it is taken."""
        return (
            *(DestroyInstance(gpu_uuid, instance.profile, instance.placement) for instance in self.destroyed),
            *(CreateInstance(gpu_uuid, i.profile, i.placement, contents) for i, contents in self.extended),
            *(CreateInstance(gpu_uuid, spot.profile, spot.placement, contents) for spot, contents in self.created),
        )


def recut(users: LayoutOccupancy, wanted: Sequence[ProfileName]) -> Cut | None:
    """The cut that gives exactly the wanted slices; None if users are in the way.

    Keeps everything in use. Keeps as many idle instances as possible; then creates the fewest instances; then keeps the lowest
    placements.
    """
    fixed = [user.occupant for user in users.slice_users if user.occupant is not None]
    held = Counter(name for user in users.slice_users for name in user.slices)
    rest = Counter(wanted)
    if held - rest or any(not user.slices for user in users.slice_users):
        return None
    rest -= held
    used = tuple(user.instance for user in users.slice_users if user.instance is not None)
    for size in range(len(users.idle), -1, -1):
        cuts = [
            cut
            for kept in combinations(users.idle, size)
            if (cut := _cut_keeping(users.gpu, fixed, kept, rest)) is not None
        ]
        if cuts:
            best = min(cuts, key=lambda cut: len(cut.created) + len(cut.extended))
            stays = {i.placement for i in (*best.kept, *(instance for instance, _ in best.extended))}
            destroyed = tuple(i for i in users.idle if i.placement not in stays)
            kept = tuple(sorted((*used, *best.kept), key=lambda i: i.placement))
            return Cut(kept, best.extended, destroyed, best.created)
    return None


def users_in_the_way(
    users: LayoutOccupancy, wanted: Sequence[ProfileName], protected: Collection[str] = ()
) -> tuple[User, ...]:
    """The fewest users to end to make room for the wanted slices.

    Avoids users with an allocation in `protected` if possible.
    """
    present = users.slice_users
    may_leave = [
        position for position, user in enumerate(present) if not any(each.id in protected for each in user.allocations)
    ]
    leaving = _fewest_leaving(users, wanted, may_leave)
    if leaving is None and len(may_leave) < len(present):
        leaving = _fewest_leaving(users, wanted, range(len(present)))
    return present if leaving is None else tuple(present[position] for position in leaving)


def _fewest_leaving(
    users: LayoutOccupancy, wanted: Sequence[ProfileName], may_leave: Sequence[int]
) -> tuple[int, ...] | None:
    """The positions of those users among the users of slices; None if even all of these leaving makes too little room."""
    present = users.slice_users
    for size in range(len(may_leave) + 1):
        for leaving in combinations(may_leave, size):
            staying = [user for position, user in enumerate(present) if position not in leaving]
            fixed = [user.occupant for user in staying if user.occupant is not None]
            held = Counter(name for user in staying for name in user.slices)
            if held - Counter(wanted) or any(not user.slices for user in staying):
                continue
            if _cut_keeping(users.gpu, fixed, (), Counter(wanted) - held) is not None:
                return leaving
    return None


def check_possible(gpu: GpuState, wanted: Sequence[ProfileName], purpose: str) -> None:
    """Raise LayoutImpossible, with the reason, if even an empty GPU of that kind cannot have the wanted slices together."""
    where = f"{purpose}: {gpu.label} ({gpu.name}) cannot have {describe_slices(Counter(wanted))}"
    if not gpu.profiles and wanted:
        raise LayoutImpossible(
            f"{where}: its profiles are unknown while MIG mode is off",
            hint="enable MIG mode first, with --mode-only",
        )
    for name in sorted(set(wanted)):
        profile = gpu.profile(name)
        if profile is None:
            offered = ", ".join(str(p.name) for p in gpu.profiles)
            raise LayoutImpossible(f"{where}: it has no profile {name.gpu_instance}", hint=f"it offers: {offered}")
        if name not in {ci.name for ci in profile.compute_profiles}:
            inside = ", ".join(str(ci.name) for ci in profile.compute_profiles)
            raise LayoutImpossible(f"{where}: {profile.name} has no compute instance {name}", hint=f"it has: {inside}")
    if _cut_keeping(gpu, [], (), Counter(wanted)) is None:
        raise LayoutImpossible(f"{where}: {_why_impossible(gpu, wanted)}", hint="see: tranche profiles")


def _cut_keeping(
    gpu: GpuState, fixed: Sequence[PlacedInstance], kept: Sequence[GpuInstance], wanted: Counter[ProfileName]
) -> Cut | None:
    """The cut that keeps these idle instances beside the fixed ones; None if it does not give the wanted slices."""
    rest = wanted.copy()
    rest.subtract(name for instance in kept for name in instance.slices)
    if any(count < 0 for count in rest.values()) or rest.total() > _most_slices(gpu):
        return None
    taken = [*fixed, *(instance.place for instance in kept)]
    extended: list[tuple[GpuInstance, Contents]] = []
    new: list[tuple[GpuInstanceProfile, Contents]] = []
    started = [instance for instance in kept if sum(name.compute for name in instance.slices) < instance.profile.slices]
    for name in sorted({*(name.gpu_instance for name in +rest), *(instance.profile for instance in started)}):
        profile = gpu.profile(name)
        continued = [instance for instance in started if instance.profile == name]
        slices = [s for s in (+rest).elements() if s.gpu_instance == name]
        packing = None if profile is None else pack_slices(profile, slices, [i.compute_instances for i in continued])
        if profile is None or packing is None:
            return None
        for instance, contents in zip(continued, packing, strict=False):
            if not contents:
                return None  # an instance that stays empty is not part of any layout
            if Counter(contents) != Counter(instance.slices):
                extended.append((instance, contents))
        new += [(profile, contents) for contents in packing[len(continued) :]]
    spots = arrange([profile for profile, _ in new], taken)
    if spots is None:
        return None
    untouched = {id(instance) for instance, _ in extended}
    return Cut(
        kept=tuple(instance for instance in kept if id(instance) not in untouched),
        extended=tuple(extended),
        created=tuple(_by_placement(new, spots)),
    )


def _by_placement(
    new: Sequence[tuple[GpuInstanceProfile, Contents]], spots: Sequence[Placement]
) -> Iterator[tuple[PlacedInstance, Contents]]:
    for (profile, contents), spot in sorted(zip(new, spots, strict=True), key=lambda pair: pair[1]):
        yield PlacedInstance(profile.name, spot), contents


def _most_slices(gpu: GpuState) -> int:
    return max((profile.slices for profile in gpu.profiles), default=0)


def _why_impossible(gpu: GpuState, wanted: Sequence[ProfileName]) -> str:
    for name, count in sorted(Counter(name.gpu_instance for name in wanted if name.spans_gpu_instance).items()):
        profile = gpu.profile(name)
        most = 0 if profile is None else remaining_capacity(profile, ())
        if count > most:
            return (
                f"it has room for at most {most}x {name}" if most else f"the possible placements of {name} are unknown"
            )
    for one, other in combinations(sorted({name.gpu_instance for name in wanted}), 2):
        if profiles_exclude(one, other):
            return f"{one} and {other} exclude each other"
    needed = sum(profile.size for name in wanted if name.spans_gpu_instance and (profile := gpu.profile(name)))
    if needed > gpu.memory_slices:
        return f"they need {needed} memory slices, but it has only {gpu.memory_slices}"
    return "no set of placements fits them all"


Contents = tuple[ProfileName, ...]


def pack_slices(
    profile: GpuInstanceProfile, wanted: Sequence[ProfileName], started: Sequence[Sequence[ComputeInstance]] = ()
) -> tuple[Contents, ...] | None:
    """The contents of each GPU instance of the profile, largest slice first; None if it has no compute instance of such a size.

    `started` are the contents of instances with room left, which come first, in their order. Among packings with the fewest new
    instances, it picks one that leaves the fewest started instances empty.
    """
    allowed = {ci.name: ci.max_instances for ci in profile.compute_profiles}
    if any(name not in allowed for name in wanted):
        return None
    items = sorted(wanted, key=lambda name: name.compute, reverse=True)
    best: tuple[tuple[int, int], list[list[ProfileName]]] | None = None

    def search(position: int, bins: list[list[ProfileName]]) -> None:
        nonlocal best
        if best is not None and len(bins) - len(started) > best[0][0]:
            return
        if position == len(items):
            cost = (len(bins) - len(started), sum(not contents for contents in bins))
            if best is None or cost < best[0]:
                best = (cost, [list(contents) for contents in bins])
            return
        item = items[position]
        tried: set[tuple[int, Contents]] = set()
        for number, contents in enumerate(bins):
            mask = masks[number] if number < len(masks) else 0
            if (mask, tuple(contents)) in tried or not holds(contents, item, number):
                continue
            tried.add((mask, tuple(contents)))
            contents.append(item)
            search(position + 1, bins)
            contents.pop()
        bins.append([item])
        search(position + 1, bins)
        bins.pop()

    def holds(contents: Sequence[ProfileName], item: ProfileName, number: int) -> bool:
        if sum(name == item for name in contents) >= allowed[item]:
            return False
        begun = started[number] if number < len(started) else ()
        more = [*contents[len(begun) :], item]
        return creation_order(more, profile.slices, taken_mask(begun)) is not None

    masks = [taken_mask(begun) for begun in started]
    search(0, [[each.name for each in begun] for begun in started])
    assert best is not None
    return tuple(tuple(sorted(inside, key=lambda name: -name.compute)) for inside in best[1])
