"""As few writes as keep the pool whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from tranche.kubernetes.api.object_client import NodeSlice, decode_slice, encode_slice
from tranche.kubernetes.dra.pool import SliceUpdate, slice_writes

OWNER = ("n", "uid-1")


def device(name: str, memory: str = "4864Mi", **more: object) -> dict[str, object]:
    return {"name": name, "capacity": {"memory": {"value": memory}}, **more}


def contents(*names: str, **more: object) -> tuple[NodeSlice, ...]:
    return tuple(NodeSlice(name, devices=(device("a", **more), device("b"))) for name in names)  # type: ignore[arg-type]


def written(writes: SliceUpdate, known: Sequence[NodeSlice] = ()) -> tuple[NodeSlice, ...]:
    """What the API server then has, as it gives it back: with times at taints, and quantities as it writes them."""
    gone = {each.name for each in (*writes.replace, *writes.remove)}
    there = [each for each in known if each.name not in gone] + [*writes.create, *writes.replace]
    return tuple(as_kept(each) for each in sorted(there, key=lambda each: each.name))


def as_kept(each: NodeSlice) -> NodeSlice:
    raw = json.loads(json.dumps(encode_slice(each)).replace('"4980736Ki"', '"4864Mi"'))
    raw["metadata"]["resourceVersion"] = "7"
    for found in raw["spec"].get("devices", []):
        for taint in found.get("taints", []):
            taint.setdefault("timeAdded", "2026-01-01T00:00:00Z")
    return decode_slice(raw)


def test_a_pool_that_is_not_there_is_written_and_then_left_alone() -> None:
    first = slice_writes(contents("x", "y"), (), OWNER)
    assert [(each.name, each.generation, each.count, each.owner_node) for each in first.create] == [
        ("x", 1, 2, ("n", "uid-1")),
        ("y", 1, 2, ("n", "uid-1")),
    ]
    assert slice_writes(contents("x", "y"), written(first), OWNER).count == 0


def test_quantities_are_compared_by_their_meaning() -> None:
    known = written(slice_writes(contents("x"), (), OWNER))
    assert slice_writes(contents("x", memory="4980736Ki"), known, OWNER).count == 0
    assert slice_writes(contents("x", memory="4865Mi"), known, OWNER).count == 1


def test_a_reordering_is_one_write_in_the_same_generation() -> None:
    known = written(slice_writes(contents("x", "y"), (), OWNER))
    wanted = (contents("x")[0], NodeSlice("y", devices=(device("b"), device("a"))))
    writes = slice_writes(wanted, known, OWNER)
    assert (writes.generation, writes.create, writes.remove) == (1, (), ())
    (replaced,) = writes.replace
    assert (replaced.name, replaced.version, [each["name"] for each in replaced.devices]) == ("y", "7", ["b", "a"])


def test_a_slice_that_somebody_deleted_comes_back_in_its_generation() -> None:
    known = written(slice_writes(contents("x", "y"), (), OWNER))
    writes = slice_writes(contents("x", "y"), known[:1], OWNER, 1)
    assert [(each.name, each.generation) for each in writes.create] == [("y", 1)]
    assert writes.count == 1


def test_a_pool_that_the_kubelet_wiped_comes_back_in_a_newer_generation() -> None:
    writes = slice_writes(contents("x", "y"), (), OWNER, 4)
    assert {each.generation for each in writes.create} == {5}


def test_a_slice_that_somebody_edited_is_put_right() -> None:
    known = written(slice_writes(contents("x", "y"), (), OWNER))
    edited = (replace(known[0], devices=(device("a", "1Mi"),)), known[1])
    assert [each.name for each in slice_writes(contents("x", "y"), edited, OWNER).replace] == ["x"]
    other_owner = (replace(known[0], owner_node=("n", "other")), known[1])
    assert [each.name for each in slice_writes(contents("x", "y"), other_owner, OWNER).replace] == ["x"]


def test_another_number_of_slices_begins_a_generation_in_which_all_are_written() -> None:
    known = written(slice_writes(contents("x", "y"), (), OWNER))
    writes = slice_writes(contents("x", "y", "z"), known, OWNER)
    assert ([each.name for each in writes.create], [each.name for each in writes.replace]) == (["z"], ["x", "y"])
    assert {(each.generation, each.count) for each in (*writes.create, *writes.replace)} == {(2, 3)}
    fewer = slice_writes(contents("x"), known, OWNER)
    assert [each.name for each in fewer.remove] == ["y"]
    assert {(each.generation, each.count) for each in fewer.replace} == {(2, 1)}


def test_what_was_half_written_is_written_again_in_a_newer_generation() -> None:
    known = written(slice_writes(contents("x", "y"), (), OWNER))
    half = (replace(known[0], generation=2, count=3), known[1])
    writes = slice_writes(contents("x", "y", "z"), half, OWNER, 2)
    assert {each.generation for each in (*writes.create, *writes.replace)} == {3}
    whole = written(writes, half)
    assert slice_writes(contents("x", "y", "z"), whole, OWNER, 3).count == 0


def test_a_taint_keeps_the_time_at_which_it_was_set() -> None:
    def tainted(*keys: str) -> tuple[NodeSlice, ...]:
        return (NodeSlice("x", devices=(device("a", taints=[{"key": key, "effect": "NoSchedule"} for key in keys]),)),)

    known = written(slice_writes(tainted("lost"), (), OWNER))
    assert slice_writes(tainted("lost"), known, OWNER).count == 0
    (replaced,) = slice_writes(tainted("lost", "held"), known, OWNER).replace
    assert [each.get("timeAdded") for each in replaced.devices[0]["taints"]] == ["2026-01-01T00:00:00Z", None]
