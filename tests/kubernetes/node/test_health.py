"""Which XIDs mean a sick GPU, whom they hit, and when a GPU is well again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.device_plugin.nodes import ALL_1G, cut, lost, node, whole
from tranche.core.errors import PluginConfigInvalid
from tranche.hardware.gpu_events import GpuEvent, GpuEventKind
from tranche.kubernetes.node.health import (
    IGNORED_XIDS,
    QUIET_SECONDS,
    FaultyDevices,
    XidPolicy,
    recall_lost,
    xid_policy,
)
from tranche.kubernetes.node.resources import PluginDevice, slices_of

NODE = node(cut(0, *ALL_1G), cut(1, *ALL_1G), whole(2))
SLICES = [list(slices_of(gpu)) for gpu in NODE.gpus[:2]]
WHOLE = PluginDevice(NODE.gpus[2])


def xid(number: int, gpu: int | None, instance: int | None = None) -> GpuEvent:
    return GpuEvent(GpuEventKind.XID, "" if gpu is None else NODE.gpus[gpu].uuid, number, instance)


@pytest.mark.parametrize(
    ("disabled", "enabled", "xids", "critical"),
    [
        ("", "", (48, 79, 94), True),
        ("", "", tuple(IGNORED_XIDS), False),
        ("48,79", "", (48, 79), False),
        ("48", "", (79,), True),
        ("all", "", (48, 79), False),
        ("48,xids", "", (79,), False),
        ("all", "79", (79,), True),
        ("all", "79", (48,), False),
        ("", "13", (13,), True),
        ("48", "48", (48,), True),
        ("", "all", (13, 31, 48), True),
        ("all", "all", (13, 48), True),
    ],
)
def test_which_xids_mean_a_sick_gpu(disabled: str, enabled: str, xids: tuple[int, ...], critical: bool) -> None:
    policy = xid_policy(disabled, enabled)
    assert {policy.critical(each) for each in xids} == {critical}


def test_a_word_that_is_no_xid_is_refused() -> None:
    with pytest.raises(PluginConfigInvalid, match="'often' is not an XID"):
        xid_policy("48, often", "")


def test_an_error_of_a_gpu_hits_every_sibling() -> None:
    faults = FaultyDevices().admit(xid(48, 0), XidPolicy(), NODE, now=10)
    assert all(faults.why_sick(device) == "XID 48" for device in [*SLICES[0], PluginDevice(NODE.gpus[0])])
    assert not any(map(faults.why_sick, [*SLICES[1], WHOLE]))


def test_an_error_of_an_instance_hits_that_one_and_the_gpu_as_a_whole() -> None:
    victim = SLICES[0][3]
    assert victim.instance is not None
    faults = FaultyDevices().admit(xid(94, 0, victim.instance.id), XidPolicy(), NODE, now=10)
    assert [device for device in SLICES[0] if faults.why_sick(device)] == [victim]
    assert faults.why_sick(PluginDevice(NODE.gpus[0]))


def test_an_error_of_nobody_knows_whom_hits_all() -> None:
    faults = FaultyDevices().admit(xid(79, None), XidPolicy(), NODE, now=10)
    assert all(map(faults.why_sick, [*SLICES[0], *SLICES[1], WHOLE]))


def test_what_is_ignored_or_no_xid_hits_nobody() -> None:
    changed = GpuEvent(GpuEventKind.CUT_CHANGED, NODE.gpus[0].uuid)
    for event in (xid(31, 0), changed):
        assert FaultyDevices().admit(event, XidPolicy(), NODE, now=10) == FaultyDevices()


def test_well_again_means_quiet_and_asked() -> None:
    faults = FaultyDevices().admit(xid(48, 0), XidPolicy(), NODE, now=10)
    gpu = NODE.gpus[0].uuid
    assert not faults.quiet(10 + QUIET_SECONDS - 1)
    assert faults.discharge([gpu], 10 + QUIET_SECONDS - 1) == faults
    assert faults.quiet(10 + QUIET_SECONDS) == {gpu}
    assert faults.discharge([], 10 + QUIET_SECONDS) == faults, "the driver wants a reset first"
    assert faults.discharge([gpu], 10 + QUIET_SECONDS) == FaultyDevices()
    again = faults.admit(xid(48, 0), XidPolicy(), NODE, now=50)
    assert again.sick[0].since == 10
    assert not again.quiet(10 + QUIET_SECONDS), "the second error begins the minute anew"


@given(st.lists(st.tuples(st.sampled_from([13, 31, 48, 79]), st.sampled_from([None, 0, 1, 2]), st.integers(0, 300))))
def test_a_device_is_sick_only_while_an_error_of_its_gpu_is_recent(errors: list[tuple[int, int | None, int]]) -> None:
    faults = FaultyDevices()
    now = 0.0
    uuids = [gpu.uuid for gpu in NODE]
    last: dict[int, float] = {}
    for number, gpu, pause in errors:
        now += pause
        faults = faults.discharge(uuids, now).admit(xid(number, gpu), XidPolicy(), NODE, now)
        if number not in IGNORED_XIDS:
            last.update(dict.fromkeys([gpu] if gpu is not None else range(3), now))
        for index, gpu_state in enumerate(NODE):
            recent = index in last and now - last[index] < QUIET_SECONDS
            assert bool(faults.why_sick(PluginDevice(gpu_state))) == recent


def test_a_lost_gpu_is_remembered_as_it_was() -> None:
    gone = lost(NODE.gpus[0])
    recalled, missing = recall_lost(node(gone, NODE.gpus[1]), {gpu.uuid: gpu for gpu in NODE})
    assert recalled.gpus == NODE.gpus[:2]
    assert missing == {NODE.gpus[0].uuid}
    assert recall_lost(node(gone), {}) == (node(gone), frozenset())
