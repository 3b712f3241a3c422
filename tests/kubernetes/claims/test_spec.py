"""Requests as claims: what each combination becomes, and what is promised of all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Golden
from tests.kubernetes.claims.examples import CARDS, MANY_CARDS, REQUESTS, possible_requests
from tests.strategies import PLACEABLE_BOARDS, requests
from tranche.core.errors import DoesNotFit, SharingUnavailable, TooManyGpus, TrancheError, UsageError
from tranche.core.quantity import GIB, MIB
from tranche.core.request import GpuMemory, GpuShare, Isolation, Request, parse_request
from tranche.kubernetes.claims.quantity import parse_quantity
from tranche.kubernetes.claims.spec import (
    MOST_ALTERNATIVES,
    SharedGpuModel,
    claim_spec,
    needs_cards,
    read_share_request,
    share_request,
)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize("kind", ["gpu-memory", "gpu", "mig-profile", "gpus"])
def test_every_combination(kind: str, golden: Golden) -> None:
    asked = [request for request in REQUESTS if str(request).startswith(f"--{kind} ")]
    texts = [f"# {request}\n{yaml.safe_dump(_devices(request), sort_keys=False, width=120)}" for request in asked]
    golden(f"{kind}.yaml", "---\n".join(texts))


def test_a_share_is_listed_for_the_commonest_sizes_and_says_what_it_left_out() -> None:
    spec = claim_spec(Request(GpuShare(Fraction(1, 2))), MANY_CARDS)
    names = [each["name"] for each in spec.devices["requests"][0]["firstAvailable"]]
    assert len(names) == MOST_ALTERNATIVES
    assert names[0] == "slice"
    assert [each.memory for each in spec.left_out] == [8_000, 9_000, 10_000]
    assert {f"shared-{each.memory}mi" for each in spec.left_out}.isdisjoint(names)


def test_more_than_half_of_a_gpu_may_be_a_whole_one() -> None:
    def names(share: Fraction) -> list[str]:
        (request,) = claim_spec(Request(GpuShare(share)), CARDS).devices["requests"]
        return [each["name"] for each in request["firstAvailable"]]

    assert names(Fraction(1, 2))[-1].startswith("shared-")
    assert names(Fraction(51, 100))[-1] == "whole"
    assert names(Fraction(1)) == ["slice", "whole"]


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (Request(GpuMemory(GIB), count=2, compute=50), SharingUnavailable, "on only one GPU"),
        (parse_request(gpus="33"), TooManyGpus, "a claim can have at most 32"),
        (parse_request(gpu="0.1", count="33"), TooManyGpus, "a claim can have at most 32"),
        (parse_request(gpu="0.1", gpu_model="a" * 65), DoesNotFit, "65 characters"),
    ],
)
def test_the_impossible_is_refused_by_name(request_: Request, error: type[TrancheError], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        claim_spec(request_, CARDS)
    assert refused.value.hint


def test_a_ceiling_on_a_share_needs_a_shared_gpu() -> None:
    with pytest.raises(SharingUnavailable, match="no GPU in this cluster is shared"):
        claim_spec(parse_request(gpu="0.5", compute="50"))


@given(st.fractions(0, 1).filter(bool), st.sampled_from(PLACEABLE_BOARDS))
def test_a_slice_serves_a_share_by_its_memory_slices(share: Fraction, board: Any) -> None:
    asked = claim_spec(Request(GpuShare(share), Isolation.HARD)).devices["requests"][0]["firstAvailable"][0]
    least = int(asked["capacity"]["requests"]["share"])
    for profile in board.profiles:
        says = 100 * profile.size // board.memory_slices
        assert (says >= least) == (Fraction(profile.size, board.memory_slices) >= share)


@given(st.integers(2, 16), st.integers(64, 300_000), st.integers(1, 400 * GIB))
def test_as_many_equal_parts_fit_as_the_share_says(number: int, memory: int, room: int) -> None:
    room = max(room, number * MIB)
    spec = claim_spec(Request(GpuShare(Fraction(1, number))), [SharedGpuModel(memory, room)])
    part = spec.devices["requests"][0]["firstAvailable"][1]["capacity"]["requests"]["memory"]
    assert number * parse_quantity(part) <= room


@given(requests(), st.lists(st.builds(SharedGpuModel, st.integers(1, 99), st.integers(1, GIB), st.integers(1, 9))))
def test_every_claim_keeps_to_the_limits_of_the_api_and_leaves_nothing_out_in_silence(
    request_: Request, cards: list[SharedGpuModel]
) -> None:
    unique = list({each.memory: each for each in cards}.values())
    try:
        spec = claim_spec(request_, unique)
    except TrancheError:
        return  # the impossible, which has a test of its own
    (asked,) = spec.devices["requests"]
    alternatives = asked.get("firstAvailable", [])
    assert ("exactly" in asked) != bool(alternatives)
    assert len(alternatives) <= MOST_ALTERNATIVES
    names = [each["name"] for each in alternatives]
    assert len(set(names)) == len(names)
    assert all(_LABEL.fullmatch(name) for name in names)
    listed = {each.memory for each in unique if f"shared-{each.memory}mi" in names}
    if needs_cards(request_) and alternatives:
        assert listed | {each.memory for each in spec.left_out} == {each.memory for each in unique}
    assert yaml.safe_load(yaml.safe_dump(spec.devices)) == spec.devices


@given(st.integers(1, 10**15))
def test_an_amount_of_memory_is_asked_for_exactly(amount: int) -> None:
    spec = claim_spec(Request(GpuMemory(amount)))
    assert parse_quantity(spec.devices["requests"][0]["exactly"]["capacity"]["requests"]["memory"]) == amount


@given(possible_requests())
def test_the_claim_keeps_the_request(request_: Request) -> None:
    (config,) = claim_spec(request_, CARDS).devices["config"]
    assert read_share_request(config["opaque"]["parameters"]) == request_


@pytest.mark.parametrize(
    "change",
    [
        {"apiVersion": "gpu.tranche.dev/v2"},
        {"kind": "Else"},
        {"request": None},
        {"request": ""},
        {"request": "--gpus"},
        {"request": "--gpus 1 --gpus 2"},
        {"request": "gpus 1"},
        {"request": "--help 1"},
        {"request": "--gpus '1"},
    ],
)
def test_parameters_that_hold_no_request_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_share_request({**share_request(parse_request(gpus="1")), **change})


def _devices(request: Request) -> Any:
    devices = dict(claim_spec(request, CARDS).devices)
    assert devices.pop("config")[0]["opaque"]["parameters"]["request"] == str(replace(request))
    return devices
