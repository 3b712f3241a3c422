"""Where instances go: the sequences seen in public driver listings, GI ids, remaining capacity, exclusions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator.machines import (
    assert_sound,
    create,
    enable_mig,
    error_of,
    gpu,
    instances,
    make_machine,
    placements,
    profile_ids,
    talking_to,
)
from tests.support.length import cases

NO_ROOM = nvml.NVML_ERROR_INSUFFICIENT_RESOURCES

# What a driver was seen to do: board, swapped die, profile IDs created in order, starts (None: Insufficient Resources).
AGREEING = [
    ("A100-40GB", False, [19] * 7, [6, 4, 5, 0, 1, 2, 3]),
    ("A100-40GB", False, [14] * 3, [4, 0, 2]),
    ("A100-40GB", False, [9] * 2, [4, 0]),
    ("A100-40GB", False, [5], [0]),
    ("A100-40GB", False, [19, 19, 14, 9], [6, 4, 0, None]),
    ("A100-40GB", False, [9, 19, 14, 19], [4, 0, 2, 1]),
    ("A100-40GB", False, [14, 19, 19, 19, 19, 19], [4, 6, 0, 1, 2, 3]),
    ("H100-NVL-94GB", True, [9, 15, 19], [4, 0, 2]),
    ("A100-40GB", False, [9, 14, 19, 19], [4, 0, 2, 3]),
    ("A100-40GB", True, [5, 14, 19], [0, 4, 6]),
    ("A100-80GB", True, [19] * 7, [6, 4, 5, 0, 1, 2, 3]),
    ("A100-80GB", True, [9, 9], [4, 0]),
    ("A30-24GB", False, [14, 14, 5], [0, 1, 2]),
    ("RTX-PRO-6000-96GB", False, [14] * 4, [0, 3, 6, 9]),
    ("RTX-PRO-6000-96GB", False, [5, 5], [0, 6]),
]
# Seen, but not what the rule gives; the driver's own choice is closed.
EXCEPTIONS = [
    ("GH200-96GB", False, [15, 15, 15], [4, 0, 2], [6, 4, 0]),
    ("A100-40GB", True, [9, 9], [0, 4], [4, 0]),
]


def starts_of(root: Path, board: str, swapped: bool, profiles: list[int]) -> list[int | None]:
    machine = make_machine(root, board, swapped=swapped)
    starts: list[int | None] = []
    with talking_to(machine):
        enable_mig(machine)
        for profile in profiles:
            try:
                info = nvml.nvmlGpuInstanceGetInfo(create(gpu(), profile))
                starts.append(int(info.placement.start))
            except nvml.NVMLError_InsufficientResources:
                starts.append(None)
    return starts


@pytest.mark.parametrize(("board", "swapped", "profiles", "observed"), AGREEING)
def test_default_start_is_the_observed_one(
    tmp_path: Path, board: str, swapped: bool, profiles: list[int], observed: list[int | None]
) -> None:
    assert starts_of(tmp_path, board, swapped, profiles) == observed


@pytest.mark.parametrize(("board", "swapped", "profiles", "observed", "simulated"), EXCEPTIONS)
def test_known_exceptions_differ_as_documented(
    tmp_path: Path, board: str, swapped: bool, profiles: list[int], observed: list[int], simulated: list[int]
) -> None:
    starts = starts_of(tmp_path, board, swapped, profiles)
    assert starts == simulated
    assert starts != observed


def test_the_table_holds_all_seventeen_sequences() -> None:
    assert len(AGREEING) == 15
    assert len(EXCEPTIONS) == 2


NORMAL_IDS = {0: (0, 8), 1: (0, 4), 2: (4, 4), 3: (0, 2), 4: (2, 2), 5: (4, 2), 6: (6, 2)} | {
    7 + start: (start, 1) for start in range(7)
}
SWAPPED_IDS = {0: (0, 8), 1: (4, 4), 2: (0, 4), 3: (4, 2), 4: (6, 2), 5: (0, 2), 6: (2, 2)} | {
    7: (4, 1), 8: (5, 1), 9: (6, 1), 11: (0, 1), 12: (1, 1), 13: (2, 1), 14: (3, 1)
}  # fmt: skip
A30_IDS = {0: (0, 4), 1: (0, 2), 2: (2, 2), 3: (0, 1), 4: (1, 1), 5: (2, 1), 6: (3, 1)}
RTX_IDS = {0: (0, 12), 1: (0, 6), 2: (6, 6), 3: (0, 3), 4: (3, 3), 5: (6, 3), 6: (9, 3)}


@pytest.mark.parametrize(
    ("board", "swapped", "ids"),
    [
        ("A100-40GB", False, NORMAL_IDS),
        ("A100-40GB", True, SWAPPED_IDS),
        ("H100-80GB-SXM", False, NORMAL_IDS),
        ("B200", True, SWAPPED_IDS),
        ("A30-24GB", False, A30_IDS),
        ("RTX-PRO-6000-96GB", False, RTX_IDS),
    ],
)
def test_gi_id_is_the_place_in_the_tree(
    tmp_path: Path, board: str, swapped: bool, ids: dict[int, tuple[int, int]]
) -> None:
    seen = {}
    machine = make_machine(tmp_path, board, swapped=swapped)
    with talking_to(machine):
        enable_mig(machine)
        for profile in profile_ids(gpu()):
            for placement in placements(gpu(), profile):
                handle = create(gpu(), profile, int(placement.start))
                seen[int(nvml.nvmlGpuInstanceGetInfo(handle).id)] = (int(placement.start), int(placement.size))
                nvml.nvmlGpuInstanceDestroy(handle)
    assert seen == ids


def capacity(device: Any) -> dict[int, int]:
    return {p: nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, p) for p in profile_ids(device)}


def test_remaining_capacity_counts_what_still_fits(a100: Any) -> None:
    assert capacity(a100) == {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}
    create(a100, 5)
    create(a100, 14)
    assert capacity(a100) == {19: 1, 20: 1, 15: 1, 14: 0, 9: 0, 5: 0, 0: 0}


def test_two_3g_fill_the_memory_though_a_compute_slice_is_left(a100: Any) -> None:
    create(a100, 9)
    create(a100, 9)
    assert set(capacity(a100).values()) == {0}
    assert error_of(create, a100, 19) == NO_ROOM


def test_one_media_extension_instance_only(a100: Any) -> None:
    create(a100, 20)
    assert capacity(a100)[20] == 0
    assert capacity(a100)[19] == 6
    assert error_of(create, a100, 20) == NO_ROOM
    assert error_of(create, a100, 19) == 0


def test_a30_media_profiles_share_one_engine(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "A30-24GB")
    with talking_to(machine):
        enable_mig(machine)
        create(gpu(), 21)
        assert error_of(create, gpu(), 6) == NO_ROOM
        assert error_of(create, gpu(), 5) == 0


def test_all_media_engines_exclude_all_but_instances_without_media(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "RTX-PRO-6000-96GB")
    with talking_to(machine):
        enable_mig(machine)
        first = create(gpu(), 65)
        for profile in (14, 21, 47, 65, 64, 5, 35):
            assert error_of(create, gpu(), profile) == NO_ROOM, profile
        assert error_of(create, gpu(), 67) == 0
        assert error_of(create, gpu(), 66) == 0
        nvml.nvmlGpuInstanceDestroy(first)
        assert error_of(create, gpu(), 65) == 0, "beside instances without media engines"


def test_all_media_engines_need_the_others_free(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "RTX-PRO-6000-96GB")
    with talking_to(machine):
        enable_mig(machine)
        create(gpu(), 14)
        assert error_of(create, gpu(), 65) == NO_ROOM
        assert error_of(create, gpu(), 21) == 0, "+me beside a plain instance"
        assert error_of(create, gpu(), 64) == NO_ROOM


@settings(max_examples=cases(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    board=st.sampled_from(["A100-40GB", "H100-80GB-SXM", "A30-24GB", "RTX-PRO-6000-96GB", "RTX-PRO-5000-48GB"]),
    swapped=st.booleans(),
    choices=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=25),
)
def test_capacity_tells_whether_creation_succeeds(
    tmp_path_factory: pytest.TempPathFactory, board: str, swapped: bool, choices: list[tuple[bool, int]]
) -> None:
    machine = make_machine(tmp_path_factory.mktemp("m"), board, swapped=swapped)
    with talking_to(machine):
        enable_mig(machine)
        device = gpu()
        profiles = profile_ids(device)
        for destroys, pick in choices:
            present = sorted(instances(device))
            if destroys and present:
                gi = nvml.nvmlDeviceGetGpuInstanceById(device, present[pick % len(present)])
                nvml.nvmlGpuInstanceDestroy(gi)
            else:
                profile = profiles[pick % len(profiles)]
                room = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile)
                assert error_of(create, device, profile) == (0 if room else NO_ROOM)
                if room:
                    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile) < room
            assert_sound(device)
