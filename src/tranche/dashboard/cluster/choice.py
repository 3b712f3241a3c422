"""Which nodes somebody looks for. Pure; names that he may not see are not looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from tranche.dashboard.cluster.node_row import NodeRow
from tranche.dashboard.cluster.visibility import NameVisibility


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """What an address asks for; "" is everything. `q` is a text that is said of the node or of a holder. `sort` is the order."""

    q: str = ""
    state: str = ""
    model: str = ""
    namespace: str = ""
    sort: str = ""

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> NodeFilter:
        """What the address asks for."""
        return cls(*(query.get(name, "").strip() for name in ("q", "state", "model", "namespace", "sort")))

    @property
    def query(self) -> str:
        """The same in an address; "" for everything."""
        return urlencode(self.asked_for, errors="replace")

    @property
    def asked_for(self) -> Mapping[str, str]:
        """The fields of the address that ask for something."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def leaves_out(self) -> bool:
        """Whether it is not everything."""
        return bool(self.q or self.state or self.model or self.namespace)

    def takes(self, row: NodeRow, sight: NameVisibility) -> bool:
        """Whether the node is one of those, as far as the viewer may know."""
        if (self.state and self.state not in row.states) or (self.model and self.model not in row.models):
            return False
        if self.namespace and not any(each == self.namespace and sight.sees(each) for each, _ in row.holders):
            return False
        wanted = self.q.casefold()
        return (
            not wanted
            or wanted in row.said
            or any(wanted in f"{name} {namespace}" and sight.sees(namespace) for namespace, name in row.holders)
        )
