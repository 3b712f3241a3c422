"""Claims that wait to be prepared: all that may begin are decided together, and GPUs are changed side by side.

What is decided on a GPU depends on how it will be cut. So the claims of a GPU whose change is under way wait for its end, and
are then decided under one look at the machine. The plans of one GPU are carried out in the order in which they were decided.

Time alone mends some of what is in the way: a holder that is ending, a change under way, no API server. After a refusal the
kubelet asks again only after a minute or more. So a claim or a pod that meets such an obstacle waits here, and is tried again
at each news. It is refused, with the reason, when the kubelet's patience is about to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tranche.core.allocation import Allocation
from tranche.core.errors import (
    GpuBusy,
    KubernetesUnavailable,
    LedgerUnavailable,
    NoRoom,
    StateMoved,
    TrancheError,
    WaitTimeout,
)
from tranche.node.claims import ClaimRequest, ReservedClaim


class ClaimBackend(Protocol):
    """`tranche.node.claims.ClaimRegister`; both methods block."""

    def promise(self, orders: Sequence[ClaimRequest]) -> tuple[ReservedClaim | TrancheError | None, ...]:
        """Decide on all of these; None for one that must be asked for again when the plans before it have ended."""
        ...

    def fulfil(self, promise: ReservedClaim) -> Allocation:
        """Carry a promise's plan out."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    order: ClaimRequest
    outcome: asyncio.Future[Allocation]

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(grant.gpu_uuid for grant in self.order.grants)

    def settle(self, outcome: Allocation | BaseException) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class ClaimQueue:
    """Serves claims until `run` is cancelled."""

    def __init__(
        self, realiser: Callable[[], ClaimBackend], finish: Callable[[ClaimRequest], None] = lambda order: None
    ) -> None:
        """`realiser` is asked for anew at each use. `finish` does what is left when a claim's plan has ended.

        It blocks, and what it raises is the claim's error; what the claim has stays.
        """
        self._realiser = realiser
        self._finish = finish
        self._waiting: list[_Waiting] = []
        self._busy: set[str] = set()
        self._wake = asyncio.Event()

    async def realise(self, order: ClaimRequest) -> Allocation:
        """What the claim has, once it is all there; the error of what stands in the way."""
        outcome: asyncio.Future[Allocation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(order, outcome))
        self._wake.set()
        return await outcome

    async def run(self) -> None:
        """Decide and carry out until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while batch := self._take():
                    for chain in await self._decide(batch):
                        group.create_task(self._carry_out(chain))

    def _take(self) -> list[_Waiting]:
        """All that may begin: whoever came first for a GPU goes before those who came later."""
        taken: list[_Waiting] = []
        left: list[_Waiting] = []
        closed = set(self._busy)
        for each in self._waiting:
            if each.gpus & closed:
                left.append(each)
                closed |= each.gpus
            else:
                taken.append(each)
        self._waiting = left
        for each in taken:
            self._busy |= each.gpus
        return taken

    async def _decide(self, batch: list[_Waiting]) -> list[list[tuple[_Waiting, ReservedClaim]]]:
        """The promises, in chains: those of a chain have GPUs in common."""
        promised: list[tuple[_Waiting, ReservedClaim]] = []
        again: list[_Waiting] = []
        try:
            answers = await asyncio.to_thread(self._realiser().promise, [each.order for each in batch])
        except Exception as error:
            for each in batch:
                each.settle(error)
        else:
            for each, answer in zip(batch, answers, strict=True):
                if answer is None:
                    again.append(each)
                elif isinstance(answer, ReservedClaim):
                    promised.append((each, answer))
                else:
                    each.settle(answer)
        self._waiting = [*again, *self._waiting]
        chains = _chains(promised)
        used = {gpu for chain in chains for each, _ in chain for gpu in each.gpus}
        self._free(frozenset(gpu for each in batch for gpu in each.gpus) - used)
        return chains

    async def _carry_out(self, chain: list[tuple[_Waiting, ReservedClaim]]) -> None:
        try:
            for each, promise in chain:
                try:
                    each.settle(await asyncio.to_thread(self._fulfil, each.order, promise))
                except Exception as error:
                    each.settle(error)
        finally:
            self._free(frozenset(gpu for each, _ in chain for gpu in each.gpus))

    def _fulfil(self, order: ClaimRequest, promise: ReservedClaim) -> Allocation:
        # On one thread: each step from thread to thread waits for a turn, which others have while a backlog is served.
        allocation = self._realiser().fulfil(promise)
        self._finish(order)
        return allocation

    def _free(self, gpus: frozenset[str]) -> None:
        self._busy -= gpus
        self._wake.set()


def _chains(promised: Sequence[tuple[_Waiting, ReservedClaim]]) -> list[list[tuple[_Waiting, ReservedClaim]]]:
    chains: list[tuple[set[str], list[tuple[_Waiting, ReservedClaim]]]] = []
    for each in promised:
        gpus = set(each[0].gpus)
        joined = [chain for chain in chains if chain[0] & gpus]
        merged = (gpus.union(*(chain[0] for chain in joined)), [link for chain in joined for link in chain[1]] + [each])
        chains = [chain for chain in chains if chain not in joined] + [merged]
    order = {id(link[0]): place for place, link in enumerate(promised)}
    return [sorted(links, key=lambda link: order[id(link[0])]) for _, links in chains]


PASSING = (GpuBusy, NoRoom, StateMoved, WaitTimeout, LedgerUnavailable, KubernetesUnavailable)
"""What time alone may mend. All else stands until somebody does something."""

LAST_WORD_SECONDS = 4.0
"""A try that begins this long before the kubelet gives up is the last: it may have a GPU to change."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 4.0

_Outcome = TypeVar("_Outcome")


@dataclass(slots=True, eq=False)
class _Guest:
    news: asyncio.Event = field(default_factory=asyncio.Event)
    waits: bool = False
    given_up: bool = False


class ClaimRetryQueue:
    """Those who wait, by uid; to be used from one event loop."""

    def __init__(self) -> None:
        self._guests: dict[str, _Guest] = {}

    @property
    def waiting(self) -> frozenset[str]:
        """Those about whom nothing is done until there is news."""
        return frozenset(uid for uid, guest in self._guests.items() if guest.waits)

    def tell(self) -> None:
        """Something has changed: all who wait try again."""
        for guest in self._guests.values():
            guest.news.set()

    def give_up(self, uid: str) -> None:
        """Nobody wants this any more: it is refused instead of waiting."""
        if (guest := self._guests.get(uid)) is not None:
            guest.given_up = True
            guest.news.set()

    async def persist(
        self,
        uid: str,
        attempt: Callable[[], Awaitable[_Outcome]],
        until: float,
        delayed: Callable[[TrancheError], None],
    ) -> _Outcome:
        """What the attempt comes to, made again and again `until` that time of the event loop; then its last error.

        `delayed` is told the first error. Nobody tells of some changes, such as the end of a process: these are found later.
        """
        loop = asyncio.get_running_loop()
        guest = self._guests[uid] = _Guest()
        pause = _FIRST_PAUSE_SECONDS
        told = False
        try:
            while True:
                guest.news.clear()
                try:
                    return await attempt()
                except PASSING as error:
                    left = until - loop.time()
                    if not told:
                        delayed(error)
                        told = True
                    if guest.given_up or left <= 0:
                        raise
                    guest.waits = True
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(pause, left)):
                            await guest.news.wait()
                    if guest.given_up:
                        raise
                    guest.waits = False
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            del self._guests[uid]
