"""Released pods that do not start: when their job should recreate them, and which nodes to avoid then. Pure.

The scheduler knows rules that the placer does not (spread, affinity to other pods), and a node may have changed since its last
report. Only pods that never ran are recreated, and only those of `tranche submit` jobs, which do not count them as failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tranche.kubernetes.gated.scheduler.cluster_state import ClusterState

UNBOUND_SECONDS = 30.0
"""How long the scheduler may take to bind a released pod."""

REFUSED_SECONDS = 15.0
"""How long a node may refuse a choice: most refusals pass, for example when the previous pod has just ended."""

AVOIDED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """`since` has the pods in trouble by uid: why, and since when. `avoided_until` says until when a job avoids a node, by
    job uid and node.
    """

    since: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    avoided_until: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def look(self, now: ClusterState, moment: float) -> RetryHistory:
        """The history as of `moment`, in seconds."""
        since: dict[str, tuple[str, float]] = {}
        nodes: dict[str, tuple[str, str]] = {}
        for pod in now.pods.values():
            found = now.choice_of(pod) if pod.job and not (pod.waits or pod.finished or pod.ending) else None
            if found is None:
                continue
            node, _ = found
            refusals = now.gpus[node].refused if node in now.gpus else {}
            why = "refused" if pod.uid in refusals else "unbound" if not pod.node else ""
            if why:
                before = self.since.get(pod.uid, (why, moment))
                since[pod.uid] = before if before[0] == why else (why, moment)
                nodes[pod.uid] = (pod.job, node)
        kept = {key: until for key, until in self.avoided_until.items() if until > moment}
        return RetryHistory(since, nodes, kept)

    def due(self, moment: float) -> Mapping[str, str]:
        """The pods to recreate, by uid, and why."""
        longest = {"refused": REFUSED_SECONDS, "unbound": UNBOUND_SECONDS}
        return {uid: why for uid, (why, began) in self.since.items() if moment - began >= longest[why]}

    def made_anew(self, uid: str, moment: float) -> RetryHistory:
        """The history after recreating the pod: its job avoids its node for a while."""
        rest = {each: known for each, known in self.since.items() if each != uid}
        return replace(
            self, since=rest, avoided_until={**self.avoided_until, self.nodes[uid]: moment + AVOIDED_SECONDS}
        )

    def avoided(self, now: ClusterState, moment: float) -> Mapping[str, frozenset[str]]:
        """The nodes to avoid, by pod uid."""
        by_job: dict[str, set[str]] = {}
        for (job, node), until in self.avoided_until.items():
            if until > moment:
                by_job.setdefault(job, set()).add(node)
        return {pod.uid: frozenset(by_job[pod.job]) for pod in now.pods.values() if pod.job in by_job}
