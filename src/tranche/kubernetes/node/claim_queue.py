"""Claims that wait to be prepared. The queue decides together on all that may begin, and changes GPUs side by side.

A decision about a GPU depends on how the GPU will be cut. So the claims of a GPU under change wait for its end, and are then
decided under one look at the machine. The plans of one GPU are carried out in the order of their decisions.

Some obstacles pass with time alone: a holder that is ending, a change under way, no API server. After a refusal the kubelet asks
again only after a minute or more. So a claim or a pod that meets such an obstacle waits here, and each piece of news brings a new
try. It is refused, with the reason, shortly before the kubelet gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

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
from tranche.kubernetes.latest_value import within
from tranche.node.claims import ClaimRegister, ClaimRequest, ReservedClaim


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

    def __init__(self, claims: ClaimRegister, finish: Callable[[ClaimRequest], None] = lambda order: None) -> None:
        """`finish` does what is left when a claim's plan has ended.

        It blocks. What it raises is the claim's error, and the claim keeps what it has.
        """
        self._claims = claims
        self._finish = finish
        self._waiting: list[_Waiting] = []
        self._busy: set[str] = set()
        self._wake = asyncio.Event()

    async def realise(self, order: ClaimRequest) -> Allocation:
        """What the claim has, once everything is there. Raises what stands in the way."""
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
        """All that may begin: for each GPU, earlier claims go first."""
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
        """The promises, in chains. The promises of a chain share GPUs."""
        promised: list[tuple[_Waiting, ReservedClaim]] = []
        again: list[_Waiting] = []
        try:
            answers = await asyncio.to_thread(self._claims.promise, [each.order for each in batch])
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
        # On one thread: each change of thread waits its turn, which others take while a backlog is served.
        allocation = self._claims.fulfil(promise)
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
"""Errors that may pass with time alone. All others last until someone acts."""

LAST_WORD_SECONDS = 4.0
"""A try that begins this long before the kubelet gives up is the last: it may have to change a GPU."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 4.0

_Outcome = TypeVar("_Outcome")


@dataclass(slots=True, eq=False)
class _Guest:
    news: asyncio.Event = field(default_factory=asyncio.Event)
    waits: bool = False
    given_up: bool = False


class ClaimRetryQueue:
    """The waiting claims and pods, by uid; to be used from one event loop."""

    def __init__(self) -> None:
        self._guests: dict[str, _Guest] = {}

    @property
    def waiting(self) -> frozenset[str]:
        """Those at rest until there is news."""
        return frozenset(uid for uid, guest in self._guests.items() if guest.waits)

    def tell(self) -> None:
        """Report a change: all that wait try again."""
        for guest in self._guests.values():
            guest.news.set()

    def give_up(self, uid: str) -> None:
        """Refuse instead of waiting: no one wants this any more."""
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
        """The result of the attempt, repeated `until` that time of the event loop; then its last error.

        `delayed` gets the first error. Some changes bring no news, such as the end of a process: a later try finds them.
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
                    await within(min(pause, left), guest.news.wait())
                    if guest.given_up:
                        raise
                    guest.waits = False
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            del self._guests[uid]
