"""Everything known of a cluster's GPUs: one value, from which everything else is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.fleet.devices import Pool
from tranche.kubernetes.fleet.objects import FleetClaim, FleetNode
from tranche.kubernetes.fleet.pool_usage import PoolUsage, room_of


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes, their offers, and every claim. `unread` says what the caller may not read, by what was to be read.

    `classes` are the names of the existing device classes; None where unknown. `within` is the namespace whose claims these are;
    empty for all. `whole` says whether all nodes are here.
    """

    nodes: tuple[FleetNode, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    claims: tuple[FleetClaim, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    classes: frozenset[str] | None = None
    within: str = ""
    whole: bool = True

    def rooms(self) -> Mapping[str, PoolUsage]:
        """What is left of each node that offers something."""
        by_node: dict[str, dict[FleetClaim, None]] = {}
        for claim in self.claims:
            for given in claim.given:
                by_node.setdefault(given.node, {})[claim] = None
        return {node: room_of(pool, by_node.get(node, ())) for node, pool in self.pools.items()}

    def claims_named(self, namespace: str, names: Iterable[str]) -> tuple[FleetClaim, ...]:
        """The existing claims with these names."""
        wanted = set(names)
        return tuple(each for each in self.claims if each.namespace == namespace and each.name in wanted)

    def knows_claims_of(self, namespace: str) -> bool:
        """Whether a claim of that namespace that is missing here does not exist."""
        return self.within in ("", namespace) and f"claims in {namespace}" not in self.unread
