"""The administrator's words: which one counts for a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import uncuttable_gpu
from tranche.core.errors import GpuNotFound, UsageError
from tranche.core.sharing import GpuPolicy
from tranche.core.sharing_policy import SharingPolicy, gpu_named, parse_word
from tranche.core.state import NodeState

NODE = NodeState(tuple(uncuttable_gpu(index) for index in range(3)))
FIRST, SECOND, THIRD = (gpu.uuid for gpu in NODE)
uses = st.none() | st.sampled_from(GpuPolicy)


@given(uses, st.dictionaries(st.sampled_from([FIRST, SECOND]), st.sampled_from(GpuPolicy)))
def test_a_gpus_own_word_counts_before_the_word_for_all(every: GpuPolicy | None, own: dict[str, GpuPolicy]) -> None:
    policy = SharingPolicy(every, own)
    for gpu in NODE:
        assert policy.use_of(gpu.uuid) is own.get(gpu.uuid, every or GpuPolicy.AUTO)
        assert policy.on(NODE).get(gpu.uuid, GpuPolicy.AUTO) is policy.use_of(gpu.uuid)


@given(uses, st.lists(st.tuples(st.sets(st.sampled_from([FIRST, SECOND, THIRD])), uses), max_size=6))
def test_the_last_word_counts_and_can_be_taken_back(
    every: GpuPolicy | None, words: list[tuple[set[str], GpuPolicy | None]]
) -> None:
    policy = SharingPolicy(every)
    for uuids, use in words:
        policy = policy.with_word(tuple(uuids), use)
        for uuid in uuids:
            assert policy.gpus.get(uuid) is use
        if not uuids:
            assert policy.every is use
    for uuid in (FIRST, SECOND, THIRD):
        policy = policy.with_word((uuid,), None)
    assert policy.with_word((), None) == SharingPolicy()


def test_a_word_is_written_with_its_name() -> None:
    assert [parse_word(f"sharing={use}") for use in GpuPolicy] == list(GpuPolicy)
    for text in ("", "mig", "sharing", "sharing=", "sharing=MIG", "use=mig"):
        with pytest.raises(UsageError, match="is not a policy") as caught:
            parse_word(text)
        assert "auto, mig, shared, off" in caught.value.hint


def test_a_gpu_is_named_by_index_or_uuid() -> None:
    assert gpu_named("1", NODE).uuid == gpu_named(SECOND, NODE).uuid == SECOND
    for text in ("3", "-1", "", "GPU-x", "\u0661"):
        with pytest.raises(GpuNotFound):
            gpu_named(text, NODE)
