"""What a claim says that it was given: only what a scheduler gives that keeps to what the node shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gpu_on
from tranche.core.allocation import FractionalShare
from tranche.core.board import board_by_key
from tranche.core.errors import SharingUnavailable, TrancheError, UsageError
from tranche.core.quantity import MIB
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import NodeState
from tranche.kubernetes.claims.claim import ClaimRef, decode_claim
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.devices.devices import NodeDevice, devices_of
from tranche.kubernetes.dra.given import GivenDevice, given_devices
from tranche.kubernetes.dra.pool import encode_device

REF = ClaimRef("team", "a", "uid-a")
MEANS = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), mps_clients=48)


def devices() -> dict[str, NodeDevice]:
    board = board_by_key("A100-40GB")
    assert board is not None
    gpus = (replace(gpu_on(board), minor=0), replace(gpu_on(board), minor=1, index=1, uuid="GPU-other"))
    return {each.name: each for each in devices_of(NodeState(gpus, sharing=MEANS))}


DEVICES = devices()
SHARED = DEVICES["gpu-0-shared"]


def accepted(*names: str, **consumed: str) -> tuple[GivenDevice, ...]:
    results = [
        {"request": "r", "driver": DRIVER, "pool": "n1", "device": name, "consumedCapacity": consumed} for name in names
    ]
    status = {"allocation": {"devices": {"results": results}}}
    claim = decode_claim({"metadata": {"namespace": "team", "name": "a", "uid": "uid-a"}, "status": status})
    return given_devices(claim, REF, "n1", DEVICES)


@pytest.mark.parametrize(
    ("consumed", "error", "words"),
    [
        ({"memory": "1500m"}, UsageError, "'1500m' is not a whole number"),
        ({"memory": "2"}, SharingUnavailable, "the minimum is"),
        ({"memory": "0"}, SharingUnavailable, "the minimum is"),
        (
            {"memory": "-4Gi"},
            SharingUnavailable,
            "was allocated -4294967296 of memory on gpu-0-shared: the minimum is",
        ),
        ({"memory": "4294967297"}, SharingUnavailable, "in steps of 1048576"),
        ({"memory": "900Gi"}, SharingUnavailable, "the device has only"),
        ({"memory": "4Gi", "clients": "0"}, SharingUnavailable, "was allocated 0 of clients"),
        ({"memory": "4Gi", "clients": "-40"}, SharingUnavailable, "was allocated -40 of clients"),
        ({"memory": "4Gi", "clients": "500m"}, UsageError, "not a whole number"),
        ({"memory": "4Gi", "compute": "-1"}, SharingUnavailable, "was allocated -1 of compute"),
        ({"memory": "4Gi", "compute": "101"}, SharingUnavailable, "the device has only 100"),
        (
            {"memory": "4Gi", "turns": "1"},
            SharingUnavailable,
            "was allocated 1 of turns on gpu-0-shared: the device has none",
        ),
    ],
)
def test_an_amount_outside_of_what_is_shown_is_refused_by_name(
    consumed: dict[str, str], error: type[TrancheError], words: str
) -> None:
    with pytest.raises(error, match=words):
        accepted("gpu-0-shared", **consumed)


@given(st.integers(-(1 << 40), 1 << 40) | st.integers(0, 50_000).map(lambda each: each * MIB))
def test_an_amount_is_accepted_exactly_when_the_policy_that_is_shown_allows_it(amount: int) -> None:
    shown = encode_device(SHARED)["capacity"]["memory"]["requestPolicy"]["validRange"]
    assert shown["step"] == "1Mi"
    memory = SHARED.capacity["memory"]
    fits = memory.least <= amount <= memory.value and (amount - memory.least) % MIB == 0
    try:
        ((found),) = accepted("gpu-0-shared", memory=str(amount))
    except SharingUnavailable:
        assert not fits
    else:
        assert fits
        assert isinstance(found.grant, FractionalShare)
        assert found.grant.memory == amount


@pytest.mark.parametrize(
    "names",
    [
        ("gpu-0-1g-5gb-0", "gpu-0-2g-10gb-0"),
        ("gpu-0-1g-5gb-0", "gpu-0-1g-5gb-0"),
        ("gpu-0", "gpu-0-1g-5gb-6"),
        ("gpu-0-1g-5gb-me-0", "gpu-0-1g-5gb-me-1"),
        ("gpu-0-shared", "gpu-1", "gpu-0"),
    ],
)
def test_devices_that_cannot_both_be_there_are_refused_by_their_names(names: tuple[str, ...]) -> None:
    with pytest.raises(
        UsageError, match=f"team/a was allocated {names[0]} and {names[-1]}, which cannot exist together"
    ):
        accepted(*names)


def test_devices_side_by_side_are_accepted() -> None:
    assert len(accepted("gpu-0-1g-5gb-0", "gpu-0-1g-5gb-1", "gpu-1")) == 3
    assert len(accepted("gpu-0-shared", "gpu-1-shared", memory="4Gi")) == 2


def test_two_parts_of_one_device_are_refused_by_its_name_and_with_what_to_ask_for() -> None:
    with pytest.raises(SharingUnavailable, match="team/a was allocated several parts of gpu-0-shared") as refused:
        accepted("gpu-0-shared", "gpu-0-shared", memory="4Gi")
    assert "one claim for each part" in str(refused.value.hint)
    assert "distinctAttribute: gpu.tranche.dev/uuid" in str(refused.value.hint)
