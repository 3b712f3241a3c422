"""A backlog of claims: decided together, GPUs side by side, one GPU in order, and each with its own outcome."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kubernetes.waiting import patiently
from tests.support.length import cases
from tranche.core.allocation import Allocation, Phase, WholeGpu
from tranche.core.errors import GpuBusy, HardwareError, TrancheError
from tranche.core.keeper import ClaimKeeper
from tranche.core.request import Request, WholeGpus
from tranche.kubernetes.node.claim_queue import ClaimQueue
from tranche.node.claims import ClaimRegister, ClaimRequest, ReservedClaim


def order(name: str, *gpus: str) -> ClaimRequest:
    return ClaimRequest(ClaimKeeper("ns", name, name), Request(WholeGpus(1)), tuple(map(WholeGpu, gpus)))


class Machine:
    """Promises everything, and writes down what is done. `answers` are given once instead, by name; `gate` holds plans up."""

    def __init__(self, answers: dict[str, list[TrancheError | None]] | None = None) -> None:
        self.batches: list[list[str]] = []
        self.done: list[str] = []
        self.working: set[str] = set()
        self.clashes: list[str] = []
        self.failing: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self._answers = answers or {}
        self._lock = threading.Lock()

    def promise(self, orders: Sequence[ClaimRequest]) -> tuple[ReservedClaim | TrancheError | None, ...]:
        self.batches.append([each.keeper.name for each in orders])
        return tuple(map(self._answer, orders))

    def _answer(self, each: ClaimRequest) -> ReservedClaim | TrancheError | None:
        if planned := self._answers.get(each.keeper.name):
            return planned.pop(0)
        made = Allocation(each.keeper.name, each.request, each.grants, Phase.PREPARING, 0.0, keeper=each.keeper)
        return ReservedClaim(made, "plan")

    def fulfil(self, promise: ReservedClaim) -> Allocation:
        gpus = {grant.gpu_uuid for grant in promise.allocation.grants}
        with self._lock:
            self.clashes += sorted(gpus & self.working)
            self.working |= gpus
        self.gate.wait(60)
        with self._lock:
            self.working -= gpus
            self.done.append(promise.allocation.id)
        if promise.allocation.id in self.failing:
            raise HardwareError("no")
        return promise.allocation


def served(
    machine: Machine,
    test: Callable[[ClaimQueue], Coroutine[Any, Any, None]],
    finish: Callable[[ClaimRequest], None] = lambda order: None,
) -> None:
    async def run() -> None:
        backlog = ClaimQueue(cast(ClaimRegister, machine), finish)
        serving = asyncio.create_task(backlog.run())
        try:
            await patiently(test(backlog))
        finally:
            machine.gate.set()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(run())


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True), min_size=1, max_size=20),
    st.integers(),
)
@settings(max_examples=cases(40), deadline=None)
def test_every_claim_is_served_and_no_gpu_is_changed_by_two_at_once(wanted: list[list[str]], seed: int) -> None:
    machine = Machine({f"{n}": [None] for n in range(len(wanted)) if n % 5 == 4})
    rng = random.Random(seed)

    async def test(backlog: ClaimQueue) -> None:
        async def one(number: int, gpus: list[str]) -> Allocation:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            return await backlog.realise(order(f"{number}", *gpus))

        found = await asyncio.gather(*(one(number, gpus) for number, gpus in enumerate(wanted)))
        assert [each.id for each in found] == [f"{number}" for number in range(len(wanted))]

    served(machine, test)
    assert not machine.clashes
    assert len(machine.done) == len(wanted)


def test_those_who_wait_for_a_gpu_are_decided_together_in_their_order() -> None:
    machine = Machine()
    machine.gate.clear()

    async def test(backlog: ClaimQueue) -> None:
        first = asyncio.create_task(backlog.realise(order("first", "a")))
        while not machine.working:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(backlog.realise(order(f"{n}", "a"))) for n in range(3)]
        other = asyncio.create_task(backlog.realise(order("other", "b")))
        while machine.working != {"a", "b"}:
            await asyncio.sleep(0.001)
        machine.gate.set()
        await asyncio.gather(first, other, *rest)

    served(machine, test)
    assert machine.batches == [["first"], ["other"], ["0", "1", "2"]]
    assert [name for name in machine.done if name != "other"] == ["first", "0", "1", "2"]


def test_a_refusal_and_a_failure_are_their_own() -> None:
    machine = Machine({"refused": [GpuBusy("held")]})
    machine.failing = {"failing"}

    async def test(backlog: ClaimQueue) -> None:
        names = ("refused", "failing", "served")
        found = await asyncio.gather(*(backlog.realise(order(name, "a")) for name in names), return_exceptions=True)
        assert [type(each) for each in found] == [GpuBusy, HardwareError, Allocation]
        machine.promise = _broken  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            await backlog.realise(order("broken", "a"))

    served(machine, test)


def test_a_claim_has_what_it_is_given_only_when_that_is_finished() -> None:
    machine, finished = Machine(), []

    def finish(each: ClaimRequest) -> None:
        assert each.keeper.name in machine.done, "the plan comes first"
        if each.keeper.name == "unfinished":
            raise HardwareError("no")
        finished.append(each.keeper.name)

    async def test(backlog: ClaimQueue) -> None:
        names = ("unfinished", "served")
        found = await asyncio.gather(*(backlog.realise(order(name, "a")) for name in names), return_exceptions=True)
        assert [type(each) for each in found] == [HardwareError, Allocation]
        assert finished == ["served"]

    served(machine, test, finish)


def _broken(orders: Sequence[ClaimRequest]) -> tuple[ReservedClaim | TrancheError | None, ...]:
    raise ZeroDivisionError
