"""Annotations as requests: Tranche's words, those of Run:ai and KAI, and what is refused in the same words."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Golden
from tests.strategies import requests
from tranche.core.errors import UsageError
from tranche.core.request import Request
from tranche.kubernetes.claims.annotations import DOMAIN, FOREIGN_ANNOTATIONS, pod_demand

OWN = "tranche.dev/"
CASES: tuple[dict[str, str], ...] = (
    {},
    {"example.com/owner": "us"},
    {OWN + "gpu-memory": "4Gi"},
    {OWN + "gpu": "20%", OWN + "isolation": "hard"},
    {OWN + "mig-profile": "1g.5gb+me", OWN + "count": "2"},
    {OWN + "gpus": "2", OWN + "gpu-model": "A100 SXM", OWN + "container": "train"},
    {OWN + "gpu-memory": "4G", OWN + "compute": "30", OWN + "isolation": "none"},
    # As Run:ai and KAI write it.
    {"gpu-memory": "2000"},
    {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"},
    {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2", "user": "alice"},
    # Two things, half a thing, and the same thing twice.
    {OWN + "gpu-memory": "4Gi", "gpu-fraction": "0.5"},
    {OWN + "gpu-memory": "4Gi", OWN + "gpu": "0.5", OWN + "gpus": "1"},
    {OWN + "gpu-memory": "4Gi", "gpu-memory": "4096"},
    {"gpu-fraction": "0.5", OWN + "count": "2", "gpu-fraction-num-devices": "2"},
    {OWN + "isolation": "hard"},
    {"gpu-fraction-num-devices": "2"},
    {OWN + "container": "train"},
    {OWN + "gpu": "0.5", OWN + "container": "train", "gpu-fraction-container-name": "serve"},
    {OWN + "gpu": "0.5", OWN + "container": " "},
    # Nonsense.
    {OWN + "gpu-memory": "lots"},
    {OWN + "gpu-memory": "0"},
    {OWN + "gpu-memory": "16"},
    {OWN + "gpu": "1.5"},
    {"gpu-fraction": "half"},
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "none"},
    {OWN + "mig-profile": "1g.5g"},
    {OWN + "gpus": "-1"},
    {OWN + "gpus": "1", OWN + "compute": "50"},
    {OWN + "gpu-memory": "4Gi", OWN + "isolation": "hard", OWN + "compute": "50"},
    {OWN + "gpu-memory": "4Gi", OWN + "isolation": "strong"},
    {OWN + "gpumemory": "4Gi"},
    {OWN + "memory": "4Gi"},
)


def outcome(annotations: dict[str, str]) -> str:
    try:
        demand = pod_demand(annotations)
    except UsageError as error:
        return f"refused: {error.message}; {error.hint}".rstrip("; ")
    return (
        "nothing"
        if demand is None
        else f"{demand.request}" + (f", container {demand.container}" * bool(demand.container))
    )


def test_what_each_asks_for(golden: Golden) -> None:
    text = "".join(
        "".join(f"{name}: {value}\n" for name, value in each.items()) + f"  -> {outcome(each)}\n" for each in CASES
    )
    golden("annotations.txt", text)


@given(requests())
def test_every_request_can_be_asked_for_by_annotations(request: Request) -> None:
    words = shlex.split(str(request))
    annotations = {
        f"{DOMAIN}{name.removeprefix('--')}": value for name, value in zip(words[::2], words[1::2], strict=True)
    }
    demand = pod_demand(annotations)
    assert demand is not None
    assert demand.request == request


NAMES = st.sampled_from(
    [
        *FOREIGN_ANNOTATIONS,
        *(OWN + each for each in ("gpu", "gpu-memory", "gpus", "mig-profile", "count", "isolation", "container")),
    ]
)


@given(
    st.dictionaries(
        NAMES | st.text(max_size=20), st.sampled_from(["", "1", "0.5", "4Gi", "hard", "1g.5gb"]) | st.text(max_size=9)
    )
)
def test_any_annotations_are_a_request_or_nothing_or_refused_in_their_own_words(annotations: dict[str, str]) -> None:
    known = [name for name in annotations if name.startswith(OWN) or name in FOREIGN_ANNOTATIONS]
    said = outcome(annotations)
    assert (said == "nothing") == (not known)
    # A mistake is told in the words of annotations, but for what is quoted of them.
    if said.startswith("refused") and not any("--" in each for each in (*annotations, *annotations.values())):
        assert "--" not in said


@pytest.mark.parametrize("name", ["gpu-memory", "gpu-fraction"])
def test_a_word_of_others_is_read_only_where_it_stands_alone(name: str) -> None:
    assert pod_demand({f"example.com/{name}": "1"}) is None
