"""Whatever stands in a lease, it is a view that can be shown, or it cannot be read: nothing else comes of it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.gated.reports import gpus_to_lease
from tests.kubernetes.telling.garbling import garbled, lease_of, with_value
from tests.strategies import node_views, sharing_views
from tranche.core.errors import UsageError
from tranche.documents.overview import overview_data
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.gated.leases import NodeGpus, gpus_from_lease
from tranche.kubernetes.telling.told_view import layouts_from_text, told_from_lease, told_node
from tranche.planning.decide.recording import view_to_dict

VIEWS = st.one_of(node_views(max_gpus=2), sharing_views(max_gpus=2))
SOME = view_to_dict(a100s(1))


@given(garbled(VIEWS))
@example("[" * 100_000)
@example('{"node":' * 50_000)
@example("null")
@example(json.dumps(with_value(SOME, ("node", "gpus", 0, "memory"), 10**400)))
@example(json.dumps(with_value(SOME, ("node", "gpus", 0, "memory"), float("nan"))))
@example(json.dumps(with_value(SOME, ("node", "driver_version"), "\ud800")))
@example(json.dumps(SOME)[:-1] + ', "more": ' + "[" * 20_000 + '"\\ud800"' + "]" * 20_000 + "}")
def test_a_view_can_be_shown_or_cannot_be_read(text: str) -> None:
    with suppress(UsageError):
        json.dumps(overview_data(told_from_lease(lease_of(text)).view, (), ()), allow_nan=False).encode()


def test_why_a_view_cannot_be_read_is_said_in_short() -> None:
    for value in ("x" * 100_000, [[["x"] * 1000] * 100]):
        with pytest.raises(UsageError) as failed:
            told_from_lease(lease_of(json.dumps(with_value(SOME, ("node", "gpus", 0, "memory"), value))))
        assert len(failed.value.message) < 500


@given(garbled(VIEWS))
@example("[" * 100_000)
def test_so_it_is_with_what_a_controller_decides_by(text: str) -> None:
    lease = gpus_to_lease(NodeGpus("n1", a100s(1)), ("n1", "uid"))
    garbage = replace(lease, annotations={**lease.annotations, "tranche.dev/view": _packed(text)})
    with suppress(UsageError):
        gpus_from_lease(garbage)


def test_layouts_as_deep_as_nobody_reads_are_not_told() -> None:
    with pytest.raises(UsageError):
        layouts_from_text(_packed("[" * 100_000))


def test_a_lease_tells_of_the_node_of_its_name_alone() -> None:
    lease = lease_of(json.dumps(SOME), "cpu")
    assert told_from_lease(lease).node == "cpu"
    other = replace(lease, holder="gpu-1", annotations={**lease.annotations, "tranche.dev/node": "gpu-1"})
    assert told_node(other) == "cpu"
    with pytest.raises(UsageError, match="another node's lease"):
        told_from_lease(other)
    long = lease_of(json.dumps(SOME), "n" * 240)
    assert told_node(long) == told_node(replace(long, holder="")) == "n" * 240
    assert told_node(Lease("tranche-report-x")) == "x"


def _packed(text: str) -> str:
    return lease_of(text).annotations["tranche.dev/view"]
