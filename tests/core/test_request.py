"""The request grammar: what each option means, and what each mistake is answered with."""

from __future__ import annotations

import shlex
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import demands, requests
from tranche.core.errors import LedgerCorrupt, UsageError
from tranche.core.profile import parse_profile
from tranche.core.quantity import GIB
from tranche.core.request import Demand, GpuMemory, GpuShare, Isolation, MigSlice, Request, WholeGpus, parse_request
from tranche.core.wire import request_from_dict, request_to_dict

REQUESTS = requests() | st.builds(
    Request,
    demands() | st.builds(GpuMemory, st.integers(1, 10**13)),
    st.sampled_from(Isolation),
    st.sampled_from(["", "A100", "NVIDIA H100 80GB HBM3"]),
)


@pytest.mark.parametrize(
    ("options", "demand"),
    [
        ({"gpus": "1"}, WholeGpus(1)),
        ({"gpus": "8"}, WholeGpus(8)),
        ({"gpu": "0.5"}, GpuShare(Fraction(1, 2))),
        ({"gpu": "1"}, GpuShare(Fraction(1))),
        ({"gpu_memory": "4Gi"}, GpuMemory(4 * GIB)),
        ({"gpu_memory": "4000M"}, GpuMemory(4_000_000_000)),
        ({"mig_profile": "2g.10gb+me"}, MigSlice(parse_profile("2g.10gb+me"))),
    ],
)
def test_each_option_makes_its_demand(options: dict[str, str], demand: Demand) -> None:
    assert parse_request(**options) == Request(demand)


def test_conditions_stand_beside_the_demand() -> None:
    request = parse_request(gpu="0.5", isolation="any", gpu_model=" A100 ")
    assert request == Request(GpuShare(Fraction(1, 2)), Isolation.ANY, "A100")


@given(REQUESTS)
def test_the_text_of_a_request_is_the_options_that_make_it(request: Request) -> None:
    words = shlex.split(str(request))
    options = {
        option.removeprefix("--").replace("-", "_"): value
        for option, value in zip(words[::2], words[1::2], strict=True)
    }
    assert parse_request(**options) == request


@given(REQUESTS)
def test_a_request_survives_the_wire(request: Request) -> None:
    assert request_from_dict(request_to_dict(request)) == request


@pytest.mark.parametrize("share", ["1e999999999", "1/0", "", "x", "1" * 500, "-1/2"])
def test_a_share_that_is_no_fraction_is_not_read(share: str) -> None:
    with pytest.raises(LedgerCorrupt):
        request_from_dict({"gpu": share, "isolation": "soft", "gpuModel": ""})


@pytest.mark.parametrize("options", [{}, {"gpus": "1", "gpu": "0.5"}, {"gpu_memory": "4G", "mig_profile": "1g.5gb"}])
def test_exactly_one_demand_is_asked_for(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="exactly one of --gpus, --gpu, --gpu-memory or --mig-profile"):
        parse_request(**options)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "one", "", "+1", " 1", "٣", "9" * 5000])
def test_a_count_of_gpus_is_a_positive_whole_number(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number of whole GPUs") as caught:
        parse_request(gpus=text)
    assert "--gpu 0.5" in caught.value.hint


def test_memory_that_the_driver_enforces_is_the_least_unless_something_else_is_said() -> None:
    assert parse_request(gpus="1").isolation is Isolation.SOFT
    assert [parse_request(gpus="1", isolation=each).isolation for each in Isolation] == list(Isolation)


@pytest.mark.parametrize("text", ["firm", "HARD", ""])
def test_other_words_for_isolation_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="'hard', 'soft', 'none' or 'any'"):
        parse_request(gpus="1", isolation=text)


def test_a_share_may_have_a_ceiling_and_several_of_its_kind() -> None:
    assert parse_request(gpu="0.5", count="2") == Request(GpuShare(Fraction(1, 2)), count=2)
    assert parse_request(gpu="20%", compute="30%") == Request(GpuShare(Fraction(1, 5)), compute=30)
    assert parse_request(mig_profile="1g.5gb", count="3").count == 3


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.5", "half", "", "%", "9" * 5000])
def test_a_ceiling_is_a_whole_number_of_percent(text: str) -> None:
    with pytest.raises(UsageError, match="is not a compute ceiling") as caught:
        parse_request(gpu="0.5", compute=text)
    assert "from 1 to 100" in caught.value.hint


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_a_number_of_shares_is_positive(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number of shares"):
        parse_request(gpu="0.5", count=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": "2", "count": "2"}, "--count needs --gpu, --gpu-memory or --mig-profile"),
        ({"gpus": "1", "compute": "30"}, "cannot be used with --gpus 1"),
        ({"mig_profile": "1g.5gb", "compute": "30"}, "cannot be used with --mig-profile 1g.5gb"),
        ({"gpu": "0.5", "compute": "30", "isolation": "hard"}, "--compute cannot be used with --isolation hard"),
    ],
)
def test_conditions_that_no_share_has_together_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_request(**options)
    assert caught.value.hint


def test_a_slice_inside_a_gpu_instance_is_a_matter_of_layouts() -> None:
    with pytest.raises(UsageError, match=r"1c\.3g\.20gb") as caught:
        parse_request(mig_profile="1c.3g.20gb")
    assert "3g.20gb" in caught.value.hint
    assert "layout" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "0"}, "more than 0"),
        ({"gpu": "1.5"}, "more than one GPU"),
        ({"gpu_memory": "lots"}, "not an amount of memory"),
        ({"mig_profile": "1g"}, "not a MIG profile name"),
    ],
)
def test_a_malformed_value_is_a_usage_error(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_request(**options)
