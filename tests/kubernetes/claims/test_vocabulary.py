"""Names under which Kubernetes knows profiles."""

from __future__ import annotations

import re

import pytest

from tranche.core.board import catalogue
from tranche.core.profile import parse_profile
from tranche.kubernetes.claims.vocabulary import profile_class, profile_label, profile_of_label


@pytest.mark.parametrize(
    ("profile", "label"),
    [("1g.5gb", "1g-5gb"), ("1g.5gb+me", "1g-5gb-me"), ("1g.24gb+me.all", "1g-24gb-me-all"), ("1g.24gb-me", "1g-24gb-no-me")],
)  # fmt: skip
def test_a_profile_as_a_label(profile: str, label: str) -> None:
    assert profile_label(parse_profile(profile)) == label
    assert profile_class(parse_profile(profile)) == f"{label}.gpu.tranche.dev"
    assert parse_profile(profile_of_label(label)) == parse_profile(profile)


def test_no_two_profiles_of_any_board_have_one_name() -> None:
    profiles = {profile.name for board in catalogue() for profile in board.profiles}
    labels = {profile_label(each) for each in profiles}
    assert len(labels) == len(profiles) == len({each.resource_name for each in profiles})
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", label) for label in labels)
