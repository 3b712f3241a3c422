"""The report of an agent of whose node a controller may choose."""

from __future__ import annotations

from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.gated.leases import NodeGpus
from tranche.kubernetes.telling.told_view import ShareOffer, ViewReport, bare, told_to_lease


def gpus_to_lease(gpus: NodeGpus, owner: tuple[str, str]) -> Lease:
    """The lease in which a controller reads that, on a node of mode `mixed`."""
    offer = ShareOffer(NodeMode.MIXED, gpus.view.withheld, gpus.refused)
    said = ViewReport(gpus.node, bare(gpus.view), offer=offer, to_people=False, generation=gpus.generation)
    return told_to_lease(said, owner)
