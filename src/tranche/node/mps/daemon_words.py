"""What the MPS daemons of shared devices say now, for those who only look: as a decision would hear it, but nothing is
written down.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tranche.core.allocation import NodeView
from tranche.core.lost_limits import with_lost_limits
from tranche.core.state import NodeState
from tranche.node.mps.daemon_due import DeviceKey, shared_by_mps
from tranche.node.mps.mps_daemons import MpsDaemonManager

_LISTEN_SECONDS = 2.0
"""Who only looks gives daemons so long to answer; one that is silent for longer lets nobody in now, as far as anybody knows."""


def node_as_said(node: NodeState, shared: Collection[DeviceKey], daemons: MpsDaemonManager) -> NodeState:
    """The node, where the daemons of the `shared` devices are as they say.

    Who may not judge a daemon sees what is written down of it.
    """
    if not shared or not daemons.records.writable:
        return node
    records = [each for each in daemons.records.all() if each.key in shared]
    news = {each.key: each.seen for each in daemons.health.news(records, _LISTEN_SECONDS)}
    if not news:
        return node
    return replace(
        node,
        gpus=tuple(
            replace(gpu, daemons=tuple(news.get((gpu.uuid, each.slot), each) for each in gpu.daemons)) for gpu in node
        ),
    )


def view_as_said(view: NodeView, daemons: MpsDaemonManager) -> NodeView:
    """The view, where shared daemons are as they say, and those whose limits they do not keep are unlimited."""
    node = node_as_said(view.node, shared_by_mps(view.allocations), daemons)
    if node is view.node:
        return view
    return replace(view, node=node, allocations=with_lost_limits(view.allocations, node))
