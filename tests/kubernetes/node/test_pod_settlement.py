"""What becomes of pods in the register, by what kubelet and API server say: unknown is held, only gone frees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase, Slice, WholeGpu, overlap
from tranche.core.grid import Placement
from tranche.core.keeper import ADMISSION_SECONDS, SETTLED_SECONDS, PodKeeper, ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.quantity import GIB
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices, KubeletResponse
from tranche.kubernetes.node.pod_settlement import Living, PodObservation, RegisterUpdate, forgotten, settle_pods

ONE, GPU = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu"
SLICES = {f"MIG-{start}": Slice("GPU-0", parse_profile("1g.5gb"), Placement(start, 1)) for start in range(7)}
DEVICES: dict[str, Grant] = {"GPU-0": WholeGpu("GPU-0"), **SLICES, "GPU-1": WholeGpu("GPU-1")}
LONG = 1000.0
MEMORY = 40 * GIB


def row(name: str, keeper: PodKeeper | ProcessKeeper, *uuids: str) -> Allocation:
    return Allocation(name, Request(WholeGpus(1)), tuple(DEVICES[u] for u in uuids), Phase.ACTIVE, 0.0, keeper=keeper)


def of_pod(name: str, *, run: str = "run-1", uid: str = "uid", resource: str = ONE) -> PodKeeper:
    return PodKeeper(resource, "ns", name, "main", f"{uid}-{name}" if uid else "", run)


def listed(pod: str, *uuids: str, resource: str = ONE, container: str = "main") -> ContainerDevices:
    return ContainerDevices("ns", pod, container, resource, uuids)


def pod(name: str, *, phase: str = "Running", uid: str = "uid", resource: str = ONE) -> KubePod:
    return KubePod(PodRef("ns", name), f"{uid}-{name}", phase, resources=frozenset({resource, "cpu"}))


def settle(
    rows: Iterable[Allocation],
    *entries: ContainerDevices,
    pods: Iterable[KubePod] | None = (),
    run: str = "run-1",
    age: float = LONG,
    waited: float = LONG,
    living: Collection[str] | Living = (),
    complete: bool = False,
) -> RegisterUpdate:
    rows = tuple(rows)
    known = None if pods is None else {each.ref: each for each in pods}
    named = living if isinstance(living, Mapping) else dict.fromkeys(living)
    words = PodObservation(
        KubeletResponse(run, entries), age, known, {each.id: waited for each in rows}, complete, named
    )
    numbers = count()
    return settle_pods(rows, DEVICES, words, now=5.0, new_id=lambda: f"new-{next(numbers)}", memory=lambda _: MEMORY)


def holders(found: RegisterUpdate, rows: Iterable[Allocation]) -> dict[Grant, str]:
    """Who holds what after it, by pod."""
    kept = [each for each in rows if each.id not in found.removed]
    return {grant: str(each.keeper) for each in (*kept, *found.added) for grant in each.grants}


def test_what_the_kubelet_lists_comes_into_the_register_with_the_pods_uid() -> None:
    entries = listed("a", "MIG-0", "MIG-1"), listed("b", "GPU-1", resource=GPU)
    found = settle([], *entries, pods=[pod("a"), pod("b", resource=GPU)])
    first, second = found.added
    assert first.grants == (SLICES["MIG-0"], SLICES["MIG-1"])
    assert first.keeper == PodKeeper(ONE, "ns", "a", "main", "uid-a", "run-1")
    assert second.keeper == PodKeeper(GPU, "ns", "b", "main", "uid-b", "run-1")
    assert not found.undecided
    assert settle([first, second], *entries).empty


def test_without_the_api_server_it_is_written_and_asked_for_later() -> None:
    found = settle([], listed("a", "MIG-0"), pods=None)
    assert [each.keeper for each in found.added] == [PodKeeper(ONE, "ns", "a", "main", "", "run-1")]
    assert found.undecided


def test_a_device_that_two_containers_of_a_pod_share_is_held_once() -> None:
    found = settle([], listed("a", "MIG-0", container="init"), listed("a", "MIG-0", "MIG-1"), pods=[pod("a")])
    assert [each.grants for each in found.added] == [(SLICES["MIG-0"],), (SLICES["MIG-1"],)]


def test_devices_that_the_node_has_no_more_hold_nothing() -> None:
    assert settle([], listed("a", "MIG-gone"), pods=[pod("a")]).added == ()


def test_the_run_of_the_kubelet_that_listed_a_pod_is_believed_when_it_lists_it_no_more() -> None:
    rows = [row("x", of_pod("a"), "MIG-0")]
    for pods in (None, (), [pod("a")]):
        assert settle(rows, pods=pods).removed == ("x",)


def test_a_pod_that_was_deleted_by_force_holds_its_devices_until_its_last_process_has_ended() -> None:
    rows = [row("x", of_pod("a"), "MIG-0"), row("y", of_pod("b"), "MIG-1")]
    assert forgotten(rows, DEVICES, KubeletResponse("run-1", (listed("b", "MIG-1"),))) == {"uid-a"}
    found = settle(rows, listed("b", "MIG-1"), pods=[pod("b")], living={"uid-a"})
    assert not found.removed
    assert found.keepers == {"x": of_pod("a")._replace(lingers=True)}
    lingering = [row("x", of_pod("a")._replace(lingers=True), "MIG-0")]
    assert settle(lingering, living={"uid-a"}).empty
    assert settle(lingering, run="run-2", pods=(), living={"uid-a"}).empty
    assert settle(lingering).removed == ("x",)


def test_what_a_pod_had_that_ended_while_the_kubelet_was_away_is_not_to_be_given_before_it_is_freed() -> None:
    rows = [row("x", of_pod("a"), "MIG-0")]
    lingering = {"x": of_pod("a")._replace(lingers=True)}
    for pods in ([], [pod("a", phase="Succeeded")], [pod("a", uid="other")]):
        assert settle(rows, run="run-2", age=0.0, pods=pods).keepers == lingering
    for known in (None, [pod("a")]):
        assert settle(rows, run="run-2", age=0.0, pods=known).empty, "the kubelet counts it as given away, or will"
    back = settle([row("x", lingering["x"], "MIG-0")], listed("a", "MIG-0"), run="run-2", pods=[pod("a")])
    assert back.keepers == {"x": of_pod("a", run="run-2")}


def test_a_pod_that_was_found_by_its_processes_gets_its_name_from_the_kubelet_or_ends_with_them() -> None:
    rows = [row("x", PodKeeper("", uid="uid-a"), "MIG-0")]
    told = settle(rows, listed("a", "MIG-0"), pods=[pod("a")], living={"uid-a"})
    assert told.keepers == {"x": of_pod("a")}
    assert not told.added
    forced = settle(rows, pods=[], living={"uid-a"}, complete=True)
    assert forced.removed == (), "deleted by force: neither kubelet nor API server know it"
    assert settle(rows, living={"uid-a"}, pods=None).undecided
    assert settle(rows, pods=[pod("a")], living={"uid-a"}).removed == (), "the kubelet may list it later"
    denied = settle(rows, pods=[pod("a")], living={"uid-a"}, complete=True)
    assert denied.removed == ("x",), "it names a device that it was not given"
    assert settle(rows).removed == ("x",)


def test_a_kubelet_that_has_just_started_is_not_believed_about_what_it_lacks() -> None:
    rows = [row("x", of_pod("a"), "MIG-0")]
    for age in (0.0, LONG):
        running = settle(rows, run="run-2", age=age, pods=[pod("a")])
        assert running.removed == ()
        unknown = settle(rows, run="run-2", age=age, pods=None)
        assert unknown.removed == ()
        assert unknown.undecided
    assert settle(rows, run="run-2", age=0.0).removed == (), "deleted while the kubelet was away: it may still run"
    assert settle(rows, run="run-2", age=SETTLED_SECONDS).removed == ("x",)
    assert settle(rows, run="run-2", age=SETTLED_SECONDS, pods=[pod("a", phase="Succeeded")]).removed == ("x",)
    assert settle(rows, run="run-2", age=SETTLED_SECONDS, pods=[pod("a", uid="other")]).removed == ("x",)


def test_a_kubelet_that_lists_it_again_is_noted_as_the_one_to_believe() -> None:
    rows = [row("x", of_pod("a"), "MIG-0")]
    found = settle(rows, listed("a", "MIG-0"), run="run-2", pods=[pod("a")])
    assert found.keepers == {"x": of_pod("a", run="run-2")}
    assert not found.removed
    assert not found.added


def test_a_container_that_was_given_devices_anew_gives_up_the_others_once_its_processes_name_the_new_ones_alone() -> (
    None
):
    rows = [row("x", of_pod("a"), "MIG-0"), row("y", of_pod("a", run="run-2"), "MIG-1")]
    again = listed("a", "MIG-1")

    def left(
        *entries: ContainerDevices, named: Collection[str] | None, pods: Iterable[KubePod] | None = (pod("a"),)
    ) -> set[str]:
        found = settle(rows, *entries, run="run-2", pods=pods, living={"uid-a": named})
        return {"x", "y"} - set(found.removed)

    assert left(again, named={"MIG-1"}) == {"y"}
    assert left(again, named={"MIG-1"}, pods=None) == {"y"}
    for unproven in (None, (), {"MIG-0"}, {"MIG-0", "MIG-1"}):
        assert left(again, named=unproven) == {"x", "y"}, "the container may run with the first"
    assert "x" in left(listed("a", "MIG-1", container="other"), named={"MIG-1"}), "another container has its own"
    assert "x" in left(listed("b", "MIG-1"), named={"MIG-1"})
    assert "x" in left(named={"MIG-1"})
    two = settle(rows, listed("a", "MIG-1", "MIG-2"), run="run-2", pods=[pod("a")], living={"uid-a": {"MIG-1"}})
    assert two.removed == (), "not all of the others are the container's yet"


def test_a_hand_over_becomes_its_pods_or_is_forgotten_after_a_while() -> None:
    rows = [row("x", PodKeeper(ONE, kubelet="run-1"), "MIG-0")]
    found = settle(rows, listed("a", "MIG-0"), pods=[pod("a")])
    assert found.keepers == {"x": of_pod("a")}
    assert settle(rows, waited=ADMISSION_SECONDS - 1).removed == ()
    assert settle(rows, age=ADMISSION_SECONDS - 1).removed == (), "the kubelet started again meanwhile"
    assert settle(rows, pods=None).removed == ()
    assert settle(rows).removed == ("x",)


def test_a_running_pod_of_which_nobody_knows_what_it_has_may_have_anything_of_its_resource() -> None:
    held = [row("p", ProcessKeeper(7, 7), "MIG-3"), row("x", of_pod("b"), "MIG-1")]
    found = settle(held, listed("b", "MIG-1"), pods=[pod("a"), pod("b")], run="run-1")
    (supposed,) = found.added
    assert set(supposed.grants) == set(SLICES.values()) - {SLICES["MIG-3"], SLICES["MIG-1"]}
    assert str(supposed.keeper) == "pod ns/a"
    again = settle([*held, supposed], listed("b", "MIG-1"), pods=[pod("a"), pod("b")])
    assert again.empty
    assert again.undecided
    away = settle([*held, supposed], listed("b", "MIG-1"), pods=None)
    assert away.empty, "what is supposed stands while the API server does not answer"
    told = settle([*held, supposed], listed("a", "MIG-0"), listed("b", "MIG-1"), pods=[pod("a"), pod("b")])
    assert told.removed == (supposed.id,)
    assert [each.grants for each in told.added] == [(SLICES["MIG-0"],)]
    ended = settle([*held, supposed], listed("b", "MIG-1"), pods=[pod("b")])
    assert ended.removed == (supposed.id,)
    assert not ended.added


def test_a_whole_gpu_is_supposed_only_where_nothing_is_cut() -> None:
    found = settle([], pods=[pod("a", resource=GPU)])
    (supposed,) = found.added
    assert set(supposed.grants) == {*SLICES.values(), WholeGpu("GPU-1")}


def test_pods_that_ask_for_no_device_or_do_not_run_yet_are_no_holders() -> None:
    for each in (pod("a", resource="cpu"), pod("a", phase="Pending"), pod("a", phase="Succeeded")):
        assert settle([], pods=[each]).empty


words = st.sampled_from(["a", "b", "c"])
names = st.lists(st.tuples(words, st.sampled_from(sorted(SLICES))), unique_by=lambda each: each[1], max_size=5)
uids = st.sampled_from(["uid", "other"])


@given(
    held=names,
    now=names,
    same_run=st.booleans(),
    age=st.sampled_from([0.0, SETTLED_SECONDS, LONG]),
    pods=st.none() | st.dictionaries(words, st.tuples(uids, st.sampled_from(["Running", "Pending", "Failed"]))),
)
def test_nothing_is_freed_that_anybody_may_still_have(
    held: list[tuple[str, str]],
    now: list[tuple[str, str]],
    same_run: bool,
    age: float,
    pods: dict[str, tuple[str, str]] | None,
) -> None:
    rows = [row(f"row-{uuid}", of_pod(name), uuid) for name, uuid in held]
    run = "run-1" if same_run else "run-2"
    known = None if pods is None else [pod(name, uid=uid, phase=phase) for name, (uid, phase) in pods.items()]
    entries = [listed(name, uuid) for name, uuid in now]
    found = settle(rows, *entries, pods=known, run=run, age=age)
    for each in rows:
        keeper = each.keeper
        assert isinstance(keeper, PodKeeper)
        (grant,) = each.grants
        if each.id not in found.removed:
            continue
        assert (keeper.name, grant) not in {(name, SLICES[uuid]) for name, uuid in now}, "the kubelet lists it"
        if not same_run:
            assert pods is not None
            assert age >= SETTLED_SECONDS
            uid, phase = pods.get(keeper.name, ("", ""))
            assert uid != "uid" or phase == "Failed", "the API server says that it is there"
    after = holders(found, rows)
    for name, uuid in now:
        grant = SLICES[uuid]
        assert after.get(grant) == f"pod ns/{name}" or any(
            each.id not in found.removed and grant in each.grants for each in rows
        )
    kept = [each for each in rows if each.id not in found.removed]
    fresh = [grant for each in found.added for grant in each.grants]
    assert not any(overlap(one, two) for i, one in enumerate(fresh) for two in fresh[i + 1 :])
    assert not any(overlap(grant, other) for grant in fresh for each in kept for other in each.grants)


TENTH = FractionalShare(WholeGpu("GPU-1"), MEMORY // 10, Sharing.TIME_SLICING)


def replica_row(name: str, keeper: PodKeeper, *numbers: int) -> Allocation:
    keeper = keeper._replace(replicas=tuple(f"GPU-1::{number}" for number in numbers))
    part = TENTH._replace(memory=len(numbers) * TENTH.memory)
    return Allocation(name, Request(WholeGpus(1)), (part,), Phase.ACTIVE, 0.0, keeper=keeper)


def test_pods_with_replicas_of_one_gpu_are_told_apart_by_the_ids_that_the_kubelet_lists() -> None:
    admitted = PodKeeper(GPU, kubelet="run-1")
    rows = [replica_row("x", admitted, 0, 3), replica_row("y", admitted, 1)]
    entries = listed("b", "GPU-1::1", resource=GPU), listed("a", "GPU-1::0", "GPU-1::3", resource=GPU)
    found = settle(rows, *entries, pods=[pod("a", resource=GPU), pod("b", resource=GPU)])
    assert (found.removed, found.added) == ((), ())
    assert {name: (keeper.name, keeper.replicas) for name, keeper in (found.keepers or {}).items()} == {
        "x": ("a", ("GPU-1::0", "GPU-1::3")),
        "y": ("b", ("GPU-1::1",)),
    }


def test_one_pod_with_replicas_ends_and_its_neighbours_stay() -> None:
    rows = [replica_row(name, of_pod(name, resource=GPU), number) for number, name in enumerate("abc")]
    found = settle(
        rows,
        listed("a", "GPU-1::0", resource=GPU),
        listed("c", "GPU-1::2", resource=GPU),
        pods=[pod("a", resource=GPU), pod("c", resource=GPU)],
    )
    assert (found.removed, found.added, found.keepers) == (("b",), (), {})


def test_replicas_that_are_not_known_are_written_as_parts_that_all_have_room() -> None:
    entries = [listed(name, f"GPU-1::{number}", resource=GPU) for name, number in (("a", 3), ("b", 0))]
    entries.append(listed("c", "GPU-1::1", "GPU-1::2", resource=GPU))
    found = settle([], *entries, pods=[pod(name, resource=GPU) for name in "abc"])
    quarter = TENTH._replace(memory=MEMORY // 4)
    assert [each.grants for each in found.added] == [(quarter,), (quarter,), (quarter._replace(memory=MEMORY // 2),)]
    assert settle(found.added, *entries).empty


def test_a_gpu_of_which_processes_alone_were_seen_is_shared_when_the_kubelet_says_so() -> None:
    rows = [row("x", PodKeeper("", uid="uid-a"), "GPU-1")]
    entries = listed("a", "GPU-1::0", resource=GPU), listed("b", "GPU-1::1", resource=GPU)
    found = settle(rows, *entries, pods=[pod(name, resource=GPU) for name in "ab"], living={"uid-a"})
    assert found.removed == ("x",)
    assert [str(each.keeper) for each in found.added] == ["pod ns/a", "pod ns/b"]


def test_a_container_that_was_given_another_replica_of_its_gpu_gives_up_the_first() -> None:
    rows = [
        replica_row("x", of_pod("a", resource=GPU), 0),
        replica_row("y", of_pod("a", run="run-2", resource=GPU), 1),
    ]
    again, pods = listed("a", "GPU-1::1", resource=GPU), [pod("a", resource=GPU)]
    assert settle(rows, again, run="run-2", pods=pods, living={"uid-a": {"GPU-1"}}).removed == ("x",)
    assert settle(rows, again, run="run-2", pods=pods, living={"uid-a": None}).removed == ()
