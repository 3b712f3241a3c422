"""A cluster's snapshot: whoever knows an earlier one and hears what has changed knows this one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tranche.dashboard.cluster import snapshot
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, KubeNodeState, NameVisibility, SeenNode, namespace_of

NAMES = st.sampled_from(["a", "b", "c", "d"])
TURNS = st.lists(
    st.tuples(st.dictionaries(NAMES, st.sampled_from(["", "its agent does not answer"])), st.sets(NAMES)), max_size=12
)
Seen = tuple[dict[str, str], set[str]]


def after_each(turns: list[Seen]) -> list[ClusterSnapshot]:
    found = [ClusterSnapshot()]
    for when, (seen, gone) in enumerate(turns):
        nodes = [SeenNode(name, trouble=trouble, seen=float(when)) for name, trouble in seen.items()]
        found.append(found[-1].after(nodes, float(when), gone=gone))
    return found


def shown(each: ClusterSnapshot) -> dict[str, str]:
    return {name: node.trouble for name, node in each.nodes.items()}


@given(TURNS)
def test_who_hears_what_has_changed_since_any_version_knows_the_newest(turns: list[Seen]) -> None:
    every = after_each(turns)
    newest = every[-1]
    for earlier in every:
        known, change = shown(earlier), newest.since(earlier.version)
        assert change is not None
        for name in change.gone:
            known.pop(name, None)
        known |= {each.name: each.trouble for each in change.nodes}
        assert known == shown(newest)
        assert list(newest.nodes) == sorted(newest.nodes)


@given(TURNS)
def test_a_version_stands_for_what_is_shown(turns: list[Seen]) -> None:
    every = after_each(turns)
    for earlier, later in pairwise(every):
        assert (shown(earlier) == shown(later)) >= (earlier.version == later.version)
        assert later.version - earlier.version in (0, 1)


def test_what_is_seen_again_as_it_was_is_no_change_but_newer() -> None:
    first = ClusterSnapshot().after([SeenNode("a", KubeNodeState(ready=True), seen=1.0)], 1.0)
    again = first.after([SeenNode("a", KubeNodeState(ready=True), seen=2.0)], 2.0)
    assert (again.version, again.taken, again.nodes["a"].seen) == (first.version, 2.0, 2.0)
    change = again.since(first.version)
    assert change is not None
    assert change.nodes == ()
    cordoned = again.after([SeenNode("a", KubeNodeState(ready=True, unschedulable=True), seen=3.0)], 3.0)
    change = cordoned.since(first.version)
    assert change is not None
    assert [each.name for each in change.nodes] == ["a"]


def test_what_nobody_remembers_is_not_told() -> None:
    found = ClusterSnapshot().after([SeenNode(f"n{n:05}") for n in range(1_500)], 1.0)
    known = found.version
    for n in range(1_500):
        found = found.after((), 2.0, gone=[f"n{n:05}"])
    assert len(found.gone) == snapshot._GONE_KEPT
    assert found.since(known) is None
    change = found.since(found.version - 3)
    assert change is not None
    assert sorted(change.gone) == ["n01497", "n01498", "n01499"]
    assert found.since(found.version + 1) is None, "of another run"


def test_notes_are_a_change() -> None:
    found = ClusterSnapshot().after((), 1.0, notes=("nodes may not be read",))
    assert (found.version, found.notes) == (1, ("nodes may not be read",))
    assert found.after((), 2.0).notes == found.notes
    assert found.after((), 2.0, notes=()).version == 2


def test_a_namespace_is_of_pods_and_claims_alone() -> None:
    """The keeper of a command has a namespace as well: that of its pid."""
    pod = {"id": "a", "keeper": {"kind": "pod", "namespace": "team", "name": "train"}}
    placed = {"id": "c", "keeper": {"kind": "placed-pod", "namespace": "team", "name": "gated", "uid": "u"}}
    assert namespace_of(placed) == "team"
    process = {"id": "b", "keeper": {"kind": "process", "namespace": "4026531836", "pid": 7}}
    assert namespace_of(pod) == "team"
    assert namespace_of(process) == ""
    node = SeenNode("n", overview={"gpus": [], "allocations": [pod, process], "waiters": []})
    assert node.namespaces == {"a": "team", "b": ""}


def test_a_sight_of_some_namespaces_sees_nobody_elses_names() -> None:
    mine = NameVisibility(frozenset({"team"}))
    assert mine.sees("team")
    assert not mine.sees("other")
    assert not mine.sees("")
    assert NameVisibility(everywhere=True).sees("")
