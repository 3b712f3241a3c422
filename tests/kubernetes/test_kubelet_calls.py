"""What a kubelet's log says of claims that drivers prepared, as the comparison of drivers reads it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from bench.claim_latency import GO_MODULE, percentile, pinned_version, preparations
from hypothesis import given
from hypothesis import strategies as st

OURS, THEIRS = "gpu.tranche.dev", "gpu.nvidia.com"
CALLING, DONE = "Calling NodePrepareResources rpc", "Done calling NodePrepareResources rpc"


def line(at: float, said: str, driver: str, rest: str, day: int = 1122) -> str:
    """A line as a kubelet of 1.36 writes it, `at` so many seconds after noon."""
    clock = f"12:{int(at) // 60:02d}:{at % 60:09.6f}"
    return f'I{day:04d} {clock}    2844 dra_plugin.go:80] "{said}" logger="dra-plugin" driverName="{driver}" {rest}\n'


def calling(at: float, uid: str, driver: str = OURS) -> str:
    request = f'claims:{{namespace:\\"a\\" uid:\\"{uid}\\" name:\\"p0-gpu-k6bkf\\"}}'
    return line(at, CALLING, driver, f'endpoint="/dra.sock" request="{request}"')


def done(at: float, uid: str, driver: str = OURS) -> str:
    device = 'devices:{request_names:\\"gpu\\" pool_name:\\"p4d\\" device_name:\\"gpu-0\\"}'
    response = f'claims:{{key:\\"{uid}\\" value:{{{device}}}}}'
    return line(at, DONE, driver, f'endpoint="/dra.sock" response="{response}" err=null')


def refused(at: float, uid: str) -> str:
    response = f'claims:{{key:\\"{uid}\\" value:{{error:\\"error acquiring lock: devices\\"}}}}'
    return line(at, DONE, OURS, f'response="{response}" err=null')


def failed(at: float) -> str:
    return line(at, DONE, OURS, 'response=null err="rpc error: code = Unavailable"')


def test_a_claim_takes_from_the_call_to_the_answer() -> None:
    (found,) = preparations(calling(0.5, "u") + "I1122 something else\n" + done(0.512_345, "u"), OURS)

    assert found.uid == "u"
    assert found.seconds == pytest.approx(0.012_345, abs=1e-6)


@pytest.mark.parametrize(
    "without_success", [refused(10.0, "u"), failed(45.0), ""], ids=["refused", "failed", "no answer"]
)
def test_a_claim_that_is_asked_for_again_takes_from_the_first_call(without_success: str) -> None:
    (found,) = preparations(calling(0.0, "u") + without_success + calling(50.0, "u") + done(51.0, "u"), OURS)

    assert found.seconds == pytest.approx(51.0)


def test_what_is_not_prepared_is_no_preparation() -> None:
    assert preparations(calling(0.0, "u") + refused(1.0, "u") + calling(2.0, "u"), OURS) == ()
    assert preparations(done(1.0, "asked before this log begins"), OURS) == ()


def test_another_drivers_claims_do_not_count() -> None:
    log = calling(0.0, "u", THEIRS) + calling(1.0, "v") + done(2.0, "u", THEIRS) + done(4.0, "v")

    assert [each.uid for each in preparations(log, OURS)] == ["v"]
    assert [each.uid for each in preparations(log, THEIRS)] == ["u"]


def test_one_call_may_be_for_several_claims() -> None:
    request = 'claims:{namespace:\\"a\\" uid:\\"u\\" name:\\"x\\"} claims:{namespace:\\"a\\" uid:\\"v\\" name:\\"y\\"}'
    response = 'claims:{key:\\"u\\" value:{devices:{}}} claims:{key:\\"v\\" value:{error:\\"no\\"}}'
    log = line(0.0, CALLING, OURS, f'request="{request}"') + line(1.0, DONE, OURS, f'response="{response}" err=null')

    assert [each.uid for each in preparations(log, OURS)] == ["u"]


def test_midnight_is_a_moment_like_others() -> None:
    before = calling(0.0, "u").replace("I1122 12:00:00.000000", "I1122 23:59:59.900000")
    after = done(0.0, "u").replace("I1122 12:00:00.000000", "I1123 00:00:00.100000")

    (found,) = preparations(before + after, OURS)

    assert found.seconds == pytest.approx(0.2)


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_calls_at_the_same_time_are_told_apart(microseconds: list[int], random: Random) -> None:
    ends = {f"u{number}": 1 + each / 1e6 for number, each in enumerate(microseconds)}
    calls = [calling(0.0, uid) for uid in ends]
    random.shuffle(calls)
    answers = [done(at, uid) for uid, at in sorted(ends.items(), key=lambda item: item[1])]

    found = {each.uid: each.seconds for each in preparations("".join(calls + answers), OURS)}

    assert found == pytest.approx(ends, abs=2e-6)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values_and_grows_with_the_share(values: Sequence[float], share: float) -> None:
    found = percentile(values, share)

    assert found in values
    assert min(values) == percentile(values, 0.0) <= found <= percentile(values, 1.0) == max(values)


def test_what_is_built_is_a_tool_of_the_pinned_module() -> None:
    text = (GO_MODULE.folder / "go.mod").read_text()

    assert pinned_version().startswith("v")
    assert "tool sigs.k8s.io/dra-driver-nvidia-gpu/cmd/gpu-kubelet-plugin\n" in text
