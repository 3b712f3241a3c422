"""The word of a node's label."""

from __future__ import annotations

from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force, node_mode
from tranche.kubernetes.claims.vocabulary import DYNAMIC_MIG_LABEL, MODE_LABEL


def test_a_node_without_the_label_is_as_it_always_was() -> None:
    assert node_mode({}) is NodeMode.STATIC


def test_the_label_is_heeded_and_an_unknown_word_is_not_guessed_at() -> None:
    assert node_mode({MODE_LABEL: "mixed"}) is NodeMode.MIXED
    assert node_mode({MODE_LABEL: "Mixed"}) is None
    assert node_mode({MODE_LABEL: ""}) is None


def test_the_label_of_run_ai_for_nodes_that_are_cut_on_demand_is_understood() -> None:
    assert node_mode({DYNAMIC_MIG_LABEL: "true"}) is NodeMode.DYNAMIC
    assert node_mode({DYNAMIC_MIG_LABEL: "false"}) is NodeMode.STATIC
    assert node_mode({DYNAMIC_MIG_LABEL: "true", MODE_LABEL: "shared"}) is NodeMode.SHARED


def test_nothing_is_given_away_where_the_mode_is_not_known() -> None:
    assert mode_in_force({}) is NodeMode.STATIC
    assert mode_in_force({MODE_LABEL: "dynamic"}) is NodeMode.DYNAMIC
    assert mode_in_force({MODE_LABEL: "dynamc"}) is mode_in_force(None) is NodeMode.OFF


def test_what_each_mode_offers_to_claims() -> None:
    assert [mode for mode in NodeMode if mode.offers_slices] == [NodeMode.DYNAMIC, NodeMode.MIXED]
    assert [mode for mode in NodeMode if mode.offers_parts] == [NodeMode.SHARED, NodeMode.MIXED]
    assert [mode for mode in NodeMode if mode.by_claims] == [NodeMode.DYNAMIC, NodeMode.SHARED, NodeMode.MIXED]
