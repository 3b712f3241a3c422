"""Generated layouts by board, and what an export says of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grid_model import filled_instance
from tests.strategies import PLACEABLE_BOARDS, gpu_on, instance_of, node_views, uncuttable_gpu, view_of
from tranche.core.allocation import NodeView
from tranche.core.board import Board, board_by_key, catalogue
from tranche.core.errors import MigNotSupported, ProfileUnknown
from tranche.core.grid import Placement
from tranche.core.layout import Layout
from tranche.core.layout_format import layouts_to_data, parse_layouts
from tranche.core.profile import parse_profile
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.present_layout import export_layout, find_mismatches


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


def named(*gpus: GpuState) -> dict[str, list[tuple[list[str], dict[str, int]]]]:
    file = generate_layouts(NodeState(gpus))
    return {
        layout.name: [([f.text for f in s.filters], {str(p): n for p, n in s.slices}) for s in layout.specs]
        for layout in file.layouts
    }


# The names and counts that mig-parted ships for these boards, and its all-balanced table.
SHIPPED = {
    "A30-24GB": "1g.6gb 4, 1g.6gb.me 1, 2g.12gb 2, 2g.12gb.me 1, 4g.24gb 1",
    "A100-40GB": "1g.5gb 7, 1g.5gb.me 1, 1g.10gb 4, 2g.10gb 3, 3g.20gb 2, 4g.20gb 1, 7g.40gb 1",
    "A100-80GB": "1g.10gb 7, 1g.10gb.me 1, 1g.20gb 4, 2g.20gb 3, 3g.40gb 2, 4g.40gb 1, 7g.80gb 1",
    "H100-80GB-SXM": "1g.10gb 7, 1g.10gb.me 1, 1g.20gb 4, 2g.20gb 3, 3g.40gb 2, 4g.40gb 1, 7g.80gb 1",
    "H100-NVL-94GB": "1g.12gb 7, 1g.12gb.me 1, 1g.24gb 4, 2g.24gb 3, 3g.47gb 2, 4g.47gb 1, 7g.94gb 1",
    "GH200-96GB": "1g.12gb 7, 1g.12gb.me 1, 1g.24gb 4, 2g.24gb 3, 3g.48gb 2, 4g.48gb 1, 7g.96gb 1",
    "H200-141GB": "1g.18gb 7, 1g.18gb.me 1, 1g.35gb 4, 2g.35gb 3, 3g.71gb 2, 4g.71gb 1, 7g.141gb 1",
    "B200": "1g.23gb 7, 1g.23gb.me 1, 1g.45gb 4, 2g.45gb 3, 3g.90gb 2, 4g.90gb 1, 7g.180gb 1",
    "RTX-PRO-6000-96GB": "1g.24gb 4, 1g.24gb.me 1, 1g.24gb.gfx 4, 1g.24gb.me.all 1, 1g.24gb-me 4, 2g.48gb 2, 2g.48gb.gfx 2, "
    "2g.48gb.me.all 1, 2g.48gb-me 2, 4g.96gb 1, 4g.96gb.gfx 1",
}
BALANCED = {
    "A30-24GB": {"1g.6gb": 2, "2g.12gb": 1},
    "A100-40GB": {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
    "A100-80GB": {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
    "H100-80GB-SXM": {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
    "H100-NVL-94GB": {"1g.12gb": 2, "2g.24gb": 1, "3g.47gb": 1},
    "GH200-96GB": {"1g.12gb": 2, "2g.24gb": 1, "3g.48gb": 1},
    "H200-141GB": {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1},
    "B200": {"1g.23gb": 2, "2g.45gb": 1, "3g.90gb": 1},
    "RTX-PRO-6000-96GB": {"1g.24gb": 2, "2g.48gb": 1},
}


@pytest.mark.parametrize("key", SHIPPED)
def test_names_counts_and_the_balanced_layout_of_each_board(key: str) -> None:
    layouts = named(gpu_on(board(key)))
    expected = dict(entry.rsplit(" ", 1) for entry in SHIPPED[key].split(", "))
    counts = {
        name.removeprefix("all-"): str(next(iter(specs[0][1].values())))
        for name, specs in layouts.items()
        if name not in ("all-disabled", "all-enabled", "all-balanced")
    }
    assert counts == expected
    assert layouts["all-balanced"] == [([], BALANCED[key])]
    assert layouts["all-disabled"] == layouts["all-enabled"] == [([], {})]


def test_two_products_get_filters_and_one_spec_for_each_count() -> None:
    layouts = named(gpu_on(board("A100-40GB")), gpu_on(board("H100-80GB-SXM"), 1), uncuttable_gpu(2))
    assert layouts["all-1g.10gb"] == [(["0x20B010DE"], {"1g.10gb": 4}), (["0x233010DE"], {"1g.10gb": 7})]
    assert layouts["all-1g.5gb"] == [(["0x20B010DE"], {"1g.5gb": 7})]
    assert layouts["all-enabled"] == [([], {})]


def test_a_two_slice_board_has_no_balanced_layout() -> None:
    small = next(b for b in catalogue() if b.key == "RTX-PRO-5000-48GB")
    gpu = gpu_on(board("A30-24GB"))
    assert "all-balanced" not in named(replace(gpu, profiles=small.profiles))


def test_a_machine_without_mig_has_no_layouts() -> None:
    with pytest.raises(MigNotSupported, match="no MIG-capable devices found on the system"):
        generate_layouts(NodeState((uncuttable_gpu(),)))
    blind = replace(gpu_on(board("A30-24GB")), profiles=())
    with pytest.raises(ProfileUnknown, match="no MIG profiles discovered for MIG-capable GPUs"):
        generate_layouts(NodeState((blind,)))


def exported(*gpus: GpuState) -> list[dict[str, object]]:
    data = layouts_to_data(export_layout(NodeState(gpus), "current"))
    specs: list[dict[str, object]] = data["mig-configs"]["current"]
    return specs


def cut(gpu_index: int, *names: tuple[str, int]) -> GpuState:
    of = board("H100-80GB-SXM")
    instances = []
    for name, start in names:
        profile = of.profile(parse_profile(name))
        assert profile is not None
        instances.append(filled_instance(profile, Placement(start, profile.size), [parse_profile(name)]))
    return gpu_on(of, gpu_index, instances=instances)


def test_gpus_alike_are_exported_together() -> None:
    assert exported(cut(0, ("1g.10gb", 0)), cut(1, ("1g.10gb", 6))) == [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 1}}
    ]
    assert exported(cut(0, ("1g.10gb", 0)), cut(1), cut(2, ("1g.10gb", 6))) == [
        {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"1g.10gb": 1}},
        {"devices": [1], "mig-enabled": True, "mig-devices": {}},
    ]


def test_several_products_are_told_apart_by_filters() -> None:
    a30 = board("A30-24GB")
    assert exported(cut(0, ("1g.10gb", 0)), gpu_on(a30, 1, mode=MigMode.DISABLED), uncuttable_gpu(2)) == [
        {"device-filter": "0x233010DE", "devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 1}},
        {"device-filter": ["0x1EB810DE", "0x20B710DE"], "devices": "all", "mig-enabled": False, "mig-devices": {}},
    ]


def test_compute_slices_are_exported_by_their_own_names() -> None:
    of = board("H100-80GB-SXM")
    profile = of.profile(parse_profile("3g.40gb"))
    assert profile is not None
    inside = [parse_profile("2c.3g.40gb"), parse_profile("1c.3g.40gb")]
    gpu = gpu_on(of, instances=[filled_instance(profile, Placement(4, 4), inside)])
    assert exported(gpu) == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 1, "2c.3g.40gb": 1}}]


@given(node_views())
def test_what_is_exported_is_what_the_machine_shows(view: NodeView) -> None:
    settled = tuple(g for g in view.node if not g.mode_pending and all(i.compute_instances for i in g.instances))
    usable = NodeState(tuple(gpu for gpu in settled if not gpu.lost))
    read = parse_layouts(layouts_to_data(export_layout(NodeState(settled), "current")))
    assert read.names == (("current",) if usable.gpus else ())
    if not usable.gpus:
        return
    assert not find_mismatches(usable, read.select("current"))
    assert all(read.select("current").spec_for(gpu) is not None for gpu in usable)


@given(st.sampled_from(PLACEABLE_BOARDS), st.booleans())
def test_asserting_tells_what_is_different(of: Board, enabled: bool) -> None:
    gpu = gpu_on(of, mode=MigMode.ENABLED if enabled else MigMode.DISABLED)
    file = generate_layouts(view_of(gpu).node)
    shown = [layout.name for layout in file.layouts if not find_mismatches(NodeState((gpu,)), layout)]
    assert shown == (["all-enabled"] if enabled else ["all-disabled"])
    modes = [layout.name for layout in file.layouts if not find_mismatches(NodeState((gpu,)), layout, mode_only=True)]
    assert ("all-disabled" in modes) is not enabled
    assert ("all-enabled" in modes) is enabled


def test_the_difference_is_in_words() -> None:
    def words(gpu: GpuState, name: str) -> list[str]:
        layout: Layout = generate_layouts(NodeState((gpu,))).select(name)
        return [str(mismatch) for mismatch in find_mismatches(NodeState((gpu,)), layout)]

    assert words(cut(3, ("1g.10gb", 6), ("3g.40gb", 0)), "all-2g.20gb") == [
        "GPU 3: it has 1x 3g.40gb, 1x 1g.10gb, not 3x 2g.20gb"
    ]
    assert words(cut(3), "all-disabled") == ["GPU 3: MIG mode is enabled, not disabled"]
    of = board("H100-80GB-SXM")
    empty = instance_of(of.profiles[0], Placement(2, 1), filled=False)
    assert words(gpu_on(of, instances=[empty]), "all-enabled") == [
        "GPU 0: it has 1g.10gb at 2:1 without a compute instance"
    ]
