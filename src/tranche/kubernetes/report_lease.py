"""A lease in which an agent reports on its node. The writer writes changes, retries failures, and rereads after a conflict."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from tranche.kubernetes.api.leases import Lease, LeaseClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.serving.reconciler import LookResult, Reconciler

PAUSE_SECONDS = 1.0
_RETRY_SECONDS = 5.0

_log = logging.getLogger(__name__)

Said = TypeVar("Said")


class _LeaseReport(Protocol[Said]):
    """The contents of a lease; equal contents are no news."""

    def about(self) -> KubeNode | None:
        """The node to report on now; None while there is nothing to say."""
        ...

    def lease_name(self, node: KubeNode) -> str:
        """The name of its lease."""
        ...

    def read(self, lease: Lease) -> Said | None:
        """What a lease says; None if it is unreadable."""
        ...

    async def now(self, node: KubeNode, before: Said | None) -> Said:
        """What to say now. The lease says `before`, None if there is no lease or its contents are unknown."""
        ...

    async def to_lease(self, node: KubeNode, said: Said, before: Lease | None, *, changed: bool) -> Lease:
        """The lease that says it, replacing `before`, None if there is none; `changed` is whether it is news."""
        ...


@dataclass(frozen=True, slots=True)
class _Standing(Generic[Said]):
    """The lease as it stands, what it says, and when it was read or written, by `clock`."""

    lease: Lease | None
    says: Said | None
    at: float


class LeaseWriter(Generic[Said]):
    """Writes the lease when there is news, at most once in `pause` seconds.

    With `renew` it also writes after reading, and again `every` seconds after a write; otherwise it rereads as often, because the
    lease may have been deleted. While `fresh` returns False it writes only news, and the lease keeps its age. `clock` is
    monotonic, in seconds.
    """

    def __init__(
        self,
        leases: LeaseClient,
        news: _LeaseReport[Said],
        *,
        every: float,
        renew: bool,
        clock: Callable[[], float],
        fresh: Callable[[], bool] = lambda: True,
        trouble: str = "",
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reconciler = Reconciler(
            _log, "cannot report on the node", trouble=trouble, longest=_RETRY_SECONDS, sleep=sleep
        )
        self._leases = leases
        self._news = news
        self._every = every
        self._renew = renew
        self._fresh = fresh
        self._clock = clock
        self._pause = pause
        self._standing: _Standing[Said] | None = None

    async def run(self, needed: Sequence[LatestValue[Any]], others: Sequence[LatestValue[Any]] = ()) -> None:
        """Maintain the lease until cancelled, and leave it in place. A change of any of these may bring news, once all `needed`
        are known.
        """
        self._standing = None
        await self._reconciler.run(self._look, needed, (each.changes() for each in others))

    @property
    def trouble(self) -> str:
        """Why the lease does not say what it should, "" when it does."""
        return self._reconciler.trouble

    def _left(self, standing: _Standing[Said] | None) -> float:
        """How long until the lease is due without changes."""
        return self._every if standing is None else max(0.0, standing.at + self._every - self._clock())

    async def _look(self) -> LookResult:
        if (node := self._news.about()) is not None:
            before, self._standing = self._standing, None  # unknown after a failure
            self._standing = await self._written(node, before)
        return LookResult(self._pause, self._left(self._standing))

    async def _written(self, node: KubeNode, standing: _Standing[Said] | None) -> _Standing[Said] | None:
        """The lease as it stands once it says what it should; None if someone else has written it meanwhile."""
        fresh, due = self._fresh(), standing is None or not self._left(standing)
        renew = self._renew and fresh
        if standing is None or (due and not renew):
            lease = await self._leases.get(self._news.lease_name(node))
            standing = _Standing(lease, None if lease is None else self._news.read(lease), self._clock())
        at = self._clock()
        said = await self._news.now(node, standing.says)
        changed = said != standing.says
        if not changed and not (due and renew):
            return standing
        wanted = await self._news.to_lease(node, said, standing.lease, changed=changed)
        if standing.lease is None:
            answer = await self._leases.create(wanted)
        else:
            before = standing.lease
            wanted = replace(wanted, version=before.version, renewed=before.renewed)
            answer = await self._leases.replace(wanted, renew=fresh or not before.renewed)
        if answer is None:
            self._reconciler.wake()  # someone else has written or removed it: read it again
        return None if answer is None else _Standing(answer, said, at)
