"""The administrator's words: which one counts for a GPU, and what of a file is understood."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import uncuttable_gpu
from tranche.core.errors import GpuNotFound, PolicyInvalid, UsageError
from tranche.core.sharing import GpuPolicy
from tranche.core.sharing_policy import SharingPolicy, gpu_named, parse_policy, parse_word
from tranche.core.state import NodeState

NODE = NodeState(tuple(uncuttable_gpu(index) for index in range(3)))
FIRST, SECOND, THIRD = (gpu.uuid for gpu in NODE)
uses = st.none() | st.sampled_from(GpuPolicy)


def file(**fields: object) -> dict[str, Any]:
    return {"apiVersion": "tranche.dev/v1", "kind": "SharingPolicy", **fields}


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


def test_a_file_has_a_word_for_all_and_words_for_some() -> None:
    document = file(sharing="mig", gpus=[{"gpu": 0, "sharing": "shared"}, {"gpu": THIRD, "sharing": False}])
    assert parse_policy(document, NODE) == SharingPolicy(GpuPolicy.MIG, {FIRST: GpuPolicy.SHARED, THIRD: GpuPolicy.OFF})
    assert parse_policy(file(), NODE) == SharingPolicy()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "this is not a"),
        ([], "this is not a"),
        ({"kind": "SharingPolicy"}, "this is not a"),
        (file(sharing="fair"), "sharing of the policy must be one of auto, mig, shared, off"),
        (file(sharing=True), "sharing of the policy must be one of"),
        (file(sharing=None), "sharing of the policy must be one of"),
        (file(share="mig"), "unknown fields: share"),
        (file(gpus={}), "gpus is not a list"),
        (file(gpus=[3]), "exactly the fields gpu and sharing"),
        (file(gpus=[{"gpu": 0}]), "exactly the fields gpu and sharing"),
        (file(gpus=[{"gpu": True, "sharing": "mig"}]), "neither an index nor a UUID"),
        (file(gpus=[{"gpu": 0, "sharing": ["mig"]}]), "sharing of GPU 0 must be one of"),
        (file(gpus=[{"gpu": 0, "sharing": "mig"}, {"gpu": FIRST, "sharing": "off"}]), f"names GPU {FIRST} twice"),
    ],
)
def test_a_file_that_says_something_else_is_refused(document: object, message: str) -> None:
    with pytest.raises(PolicyInvalid, match=message):
        parse_policy(document, NODE)


def test_a_file_that_names_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(GpuNotFound, match="no GPU 7"):
        parse_policy(file(gpus=[{"gpu": 7, "sharing": "mig"}]), NODE)
