"""Who is on each GPU."""

from __future__ import annotations

from hypothesis import given

from tests.strategies import node_views
from tranche.core.allocation import NodeView
from tranche.planning.occupancy.gpu_occupancy import tenancy


@given(node_views())
def test_every_instance_and_every_grant_is_sorted_once(view: NodeView) -> None:
    for here in (tenancy(view, gpu) for gpu in view.node):
        sorted_out = [here.gpu.key(each) for each in (*here.in_use, *here.idle)]
        assert len(set(sorted_out)) == len(sorted_out)
        assert not set(sorted_out) & set(here.promised)
        assert {here.gpu.key(each) for each in here.gpu.instances} <= {*sorted_out, *here.promised}
        assert {each.id for each in here.allocations} == {
            each.id for each in view.allocations for grant in each.grants if grant.gpu_uuid == here.gpu.uuid
        }
