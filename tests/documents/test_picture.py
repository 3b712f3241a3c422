"""The picture of a machine's GPUs: it shows what the JSON documents say, of every machine, and is legible."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given

from tests.conftest import Golden
from tests.documents.test_markup import HOSTILE
from tests.strategies import gpu_on, instance_of, node_views, placed, sharing_views, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu, WithheldDevice
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import PodKeeper, ProcessKeeper
from tranche.core.quantity import GIB
from tranche.core.request import GpuMemory, MigSlice, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess
from tranche.documents.blocks import BlockRow, BlockStatus, blocks_of
from tranche.documents.machine import gpu_document
from tranche.documents.markup import printable
from tranche.documents.overview import allocation_document
from tranche.documents.picture import CLASSES, FILLS, PATTERNS, bar, draw_picture, fitted, pattern_of, text_width

SVG = "{http://www.w3.org/2000/svg}"


def documents_of(view: NodeView) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    gpus = [gpu_document(view, gpu) for gpu in view.node]
    return gpus, [allocation_document(each, view) for each in view.allocations]


def every_kind() -> NodeView:
    """One GPU of each kind of use."""
    board = board_by_key("A100-40GB")
    assert board is not None
    profiles = {str(profile.name): profile for profile in placed(board)}
    cut = gpu_on(board, 0)
    shown = [("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2), ("1g.5gb", 5), ("1g.5gb", 6)]
    made = [
        instance_of(
            profiles[name], Placement(start, profiles[name].size), processes=[GpuProcess(77, "notebook")] * (start == 5)
        )
        for name, start in shown
    ]
    cut = replace(cut, instances=tuple(made))
    keys = [cut.key(each) for each in made]

    def held(id: str, grant: Any, demand: Any, command: str, phase: Phase = Phase.ACTIVE) -> Allocation:
        return Allocation(id, Request(demand), (grant,), phase, 1.0, command=command, keeper=ProcessKeeper(7, 7))

    def slot(index: int) -> Slice:
        return Slice(keys[index].gpu_uuid, keys[index].profile, keys[index].placement)

    t4 = uncuttable_gpu(1)
    promised = Slice(cut.uuid, keys[0].profile, Placement(4, 1))
    pod = PodKeeper("nvidia.com/gpu", "team-a", "train-0", "main", "uid", "run")
    allocations = [
        held("11111111", slot(0), MigSlice(keys[0].profile), "python train.py"),
        held("22222222", promised, MigSlice(keys[0].profile), "python eval.py", Phase.PREPARING),
        held(
            "33333333", FractionalShare(WholeGpu(t4.uuid), 4 * GIB, Sharing.MPS), GpuMemory(4 * GIB), "python serve.py"
        ),
        held("44444444", FractionalShare(WholeGpu(t4.uuid), 6 * GIB, Sharing.MPS), GpuMemory(6 * GIB), "jupyter lab"),
        held("55555555", WholeGpu(gpu_on(board, 2).uuid), WholeGpus(1), "")._replace(keeper=pod),
        held(
            "66666666",
            Slice(gpu_on(board, 5).uuid, keys[2].profile, Placement(0, 2)),
            MigSlice(keys[2].profile),
            "gone",
        ),
    ]
    gpus = [
        cut,
        t4,
        gpu_on(board, 2),
        replace(uncuttable_gpu(3), processes=(GpuProcess(99, "trainer"),)),
        uncuttable_gpu(4),
        gpu_on(board, 5),
        replace(gpu_on(board, 6), lost=True),
        replace(gpu_on(board, 7), instances=(instance_of(profiles["3g.20gb"], Placement(0, 4)),)),
        gpu_on(board, 8),
        uncuttable_gpu(9),
    ]
    view = view_of(*gpus, allocations=allocations, owned=keys[:3], changing=[gpus[4].uuid])
    half = Slice(gpus[8].uuid, profiles["3g.20gb"].name, Placement(4, 4))
    return replace(
        view,
        withheld=(
            WithheldDevice(WholeGpu(gpus[7].uuid), "cordoned by root: its fan"),
            WithheldDevice(half, "3g.20gb at 4:4 is kept for larger requests", for_large=True),
            WithheldDevice(WholeGpu(gpus[9].uuid), "it has reported an error (XID 79)", faulty=True),
        ),
    )


def test_the_picture_of_every_kind_of_use(golden: Golden) -> None:
    golden("every-kind.svg", draw_picture(*documents_of(every_kind()), "somewhere, now"))


def test_each_kind_of_use_has_its_look() -> None:
    drawn = blocks_of(*documents_of(every_kind()))
    looks = [[each.look for each in gpu.blocks] for gpu in drawn]
    assert looks == [
        [
            BlockStatus.HELD,
            BlockStatus.IDLE,
            BlockStatus.IDLE,
            BlockStatus.PREPARING,
            BlockStatus.IN_USE,
            BlockStatus.IDLE,
            BlockStatus.UNUSABLE,
        ],
        [BlockStatus.SHARED, BlockStatus.SHARED, BlockStatus.FREE],
        [BlockStatus.HELD],
        [BlockStatus.IN_USE],
        [BlockStatus.UNUSABLE],
        [BlockStatus.MISSING, BlockStatus.FREE],
        [BlockStatus.LOST],
        [BlockStatus.CORDONED, BlockStatus.CORDONED],
        [BlockStatus.FREE, BlockStatus.KEPT],
        [BlockStatus.FAULTY],
    ]
    assert [each.foreign for each in drawn[0].blocks] == [False, False, False, False, True, True, False]
    assert not drawn[5].blocks[0].foreign
    assert drawn[2].blocks[0].who == "team-a/train-0"
    assert drawn[4].changing


def test_a_narrow_block_names_the_user_rather_than_half_a_command() -> None:
    """`notebook (ada) 1f2e3d4c`, without the id, or the user alone: the longest that there is room for."""
    view = every_kind()
    gpus, allocations = documents_of(view)
    owned = [{**each, "owner": {"kind": "user", "name": "ada"}} for each in allocations]
    (drawn, *_) = blocks_of(gpus[:1], owned)

    def shown(width: float) -> list[str]:
        return [str(each.children[-1].children[0]) for each in bar(drawn, width)[:1]]  # type: ignore[union-attr]

    assert shown(2400) == ["python train.py (ada) 11111111"]
    assert shown(1300) == ["python train.py (ada)"]
    assert shown(700) == ["ada"]


def covered(gpu: BlockRow) -> bool:
    """Whether the blocks fill the GPU from its beginning to its end, without a gap and none over another."""
    ends = [0.0, *itertools.accumulate(each.size for each in gpu.blocks)]
    starts = [each.start for each in gpu.blocks]
    return all(abs(a - b) < 1e-6 for a, b in zip(ends, [*starts, gpu.units], strict=True))


def promised_look(each: dict[str, Any], vacant: list[dict[str, Any]]) -> BlockStatus:
    if each["state"] == "idle":
        state = next(vacancy["state"] for vacancy in vacant if vacancy["placement"] == each["placement"])
        return {"free": BlockStatus.IDLE, "kept": BlockStatus.KEPT}.get(state) or BlockStatus(state)
    return {"held": BlockStatus.HELD, "in use": BlockStatus.IN_USE, "preparing": BlockStatus.PREPARING}.get(
        each["state"], BlockStatus.MISSING
    )


@given(sharing_views())
def test_blocks_fill_each_gpu_and_are_the_documents_slices(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    for gpu, drawn in zip(gpus, blocks_of(gpus, allocations), strict=True):
        assert covered(drawn)
        if gpu["lost"]:
            assert [each.look for each in drawn.blocks] == [BlockStatus.LOST]
            continue
        alone = [each for each in gpu["slices"] if each["sharing"] is None or each["state"] != "held"]
        expected = Counter(
            (each["placement"]["start"], promised_look(each, gpu["vacant"]), each["profile"]) for each in alone
        )
        shown = Counter((each.start, each.look, each.name) for each in drawn.blocks)
        assert expected <= shown
        parts = sum(each.look is BlockStatus.SHARED for each in drawn.blocks)
        devices = [each for each in gpu["slices"] if each["state"] == "held"] + ([] if gpu["slices"] else [gpu])
        assert parts == sum(len(each["allocationIds"]) for each in devices if each["sharing"] is not None)


@given(node_views())
def test_every_picture_is_xml_that_needs_nothing_from_elsewhere(view: NodeView) -> None:
    root = ElementTree.fromstring(draw_picture(*documents_of(view)))
    ids = {each.get("id") for each in root.iter()} - {None}
    for each in root.iter():
        assert each.tag.removeprefix(SVG) in {
            "svg", "title", "desc", "style", "defs", "pattern", "path", "circle", "rect", "text", "g"
        }  # fmt: skip
        for name, value in each.attrib.items():
            assert not name.startswith("on")
            assert "href" not in name
            if value.startswith("url("):
                assert value[5:-1] in ids
    assert root.get("role") == "img"
    assert all(id in ids for id in str(root.get("aria-labelledby")).split())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text(text: str) -> None:
    gpus, allocations = documents_of(every_kind())
    plain = ElementTree.fromstring(draw_picture(gpus, allocations))
    hostile = [{**each, "command": text} for each in allocations]
    drawn = draw_picture([{**gpu, "name": text} for gpu in gpus], hostile, caption=text)
    root = ElementTree.fromstring(drawn)
    assert {each.tag for each in root.iter()} == {each.tag for each in plain.iter()}
    assert printable(text).strip() in " ".join("".join(each.itertext()) for each in root.iter(f"{SVG}desc"))


def luminance(colour: str) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_have_contrast_enough(dark: bool) -> None:
    colours = {name: pair[dark] for name, pair in FILLS.items()}
    pairs = [("tr-text", background) for background in ("tr-card", *CLASSES.values())] + [("tr-muted", "tr-card")]
    for text, background in pairs:
        lighter, darker = sorted((luminance(colours[text]), luminance(colours[background])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, background)


def test_colour_is_never_the_only_difference() -> None:
    patterns = [str(pattern) for pattern in PATTERNS.children]
    plain = [look for look in BlockStatus if pattern_of(look) == "none"]
    assert plain == [BlockStatus.HELD, BlockStatus.FREE]  # one is filled, the other is the background
    assert len(patterns) == len(BlockStatus) - len(plain)


def test_texts_fit_their_room() -> None:
    assert fitted("3g.20gb", 100) == "3g.20gb"
    assert fitted("python train.py", 60) == "python t…"
    assert fitted("abcdef", 10) == ""
    for text in ("漢字" * 20, "W" * 50, "i" * 200):
        assert text_width(fitted(text, 150)) <= 150
