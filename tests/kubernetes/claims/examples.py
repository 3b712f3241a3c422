"""Requests of every kind with every condition, and clusters that they are asked of."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.strategies import requests
from tranche.core.errors import TrancheError, UsageError
from tranche.core.quantity import MIB
from tranche.core.request import Request, parse_request
from tranche.kubernetes.claims.spec import SharedGpuModel, claim_spec

CARDS = (SharedGpuModel(14_914, 14_850 * MIB, 4), SharedGpuModel(40_000, 39_936 * MIB, 8))
MANY_CARDS = tuple(SharedGpuModel(1000 * number, 990 * number * MIB, 20 - number) for number in range(1, 11))


def _combinations() -> tuple[Request, ...]:
    demands: list[dict[str, str]] = [
        {"gpu_memory": "4Gi"},
        {"gpu_memory": "4G"},
        {"gpu": "0.2"},
        {"gpu": "0.125"},
        {"gpu": "0.9"},
        {"gpu": "1"},
        {"mig_profile": "2g.10gb"},
        {"mig_profile": "1g.24gb+me.all"},
        {"mig_profile": "1g.24gb-me"},
        {"gpus": "1"},
        {"gpus": "8"},
    ]
    conditions: list[dict[str, str]] = [
        {},
        {"isolation": "hard"},
        {"isolation": "none"},
        {"count": "2"},
        {"count": "2", "isolation": "any"},
        {"compute": "30"},
        {"gpu_model": 'A100 "x"'},
    ]
    found = []
    for demand in demands:
        for condition in conditions:
            try:
                request = parse_request(**demand, **condition)
                claim_spec(request, CARDS)
            except UsageError:
                continue  # which the request's own grammar refuses
            found.append(request)
    return tuple(found)


REQUESTS = _combinations()


def possible_requests() -> st.SearchStrategy[Request]:
    """Requests that become claims."""

    def possible(request: Request) -> bool:
        try:
            claim_spec(request, CARDS)
        except TrancheError:
            return False
        return True

    return requests().filter(possible)
