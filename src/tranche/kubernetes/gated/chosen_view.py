"""A node's view with the choices that its agent has not taken up yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tranche.core.allocation import ComputeSlice, NodeView
from tranche.core.errors import TrancheError
from tranche.core.keeper import ChosenFor, PlacedPodKeeper
from tranche.kubernetes.gated.leases import ChosenShare
from tranche.planning.decide.realise import given, realise
from tranche.planning.steps.plan import Plan, apply

CHOSEN = "chosen-"
"""The prefix of such shares' ids. The pod's uid follows."""


def with_choices(view: NodeView, choices: Iterable[ChosenShare]) -> NodeView:
    """The view after realising every choice that the node's agent has not taken up yet."""
    taken = {each.keeper.uid for each in view.allocations if isinstance(each.keeper, ChosenFor)}
    for choice in choices:
        if choice.uid in taken:
            continue
        grants = tuple(each for each in choice.grants if not isinstance(each, ComputeSlice))
        try:
            plan = realise(view, grants, f"for pod {choice.namespace}/{choice.name}")
        except TrancheError:
            continue  # the node no longer has this GPU, so it cannot be given to others either
        after = apply(plan, view) if isinstance(plan, Plan) else view
        view = given(after, f"{CHOSEN}{choice.uid}", choice.grants)
        keeper = PlacedPodKeeper(choice.namespace, choice.name, choice.uid)
        named = (each._replace(keeper=keeper) for each in view.allocations[-1:])
        view = replace(view, allocations=(*view.allocations[:-1], *named)) if choice.grants else view
    return view
