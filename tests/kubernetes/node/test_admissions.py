"""Nobody asks the kubelet for its list while it gives a device away."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tranche.kubernetes.node.pod_register import ENTERED_SECONDS, AdmissionTracker


def test_a_look_waits_until_the_kubelet_has_entered_what_it_gave() -> None:
    """Three admissions, one right after the other; the look begins during the first."""

    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        under_way, begun = AdmissionTracker(), asyncio.Event()
        answered = 0.0

        async def admit() -> None:
            nonlocal answered
            for _ in range(3):
                with under_way.one():
                    begun.set()
                    await asyncio.sleep(0.03)
                answered = loop.time()

        task = asyncio.create_task(admit())
        await begun.wait()
        await under_way.over()
        looked = loop.time()
        await task
        return answered, looked

    answered, looked = asyncio.run(run())
    assert looked >= answered + ENTERED_SECONDS - 0.001


def test_a_look_is_not_put_off_for_ever() -> None:
    async def run() -> None:
        under_way = AdmissionTracker()
        with under_way.one():
            await under_way.over()

    asyncio.run(run())


def test_nothing_is_waited_for_when_nothing_was_given() -> None:
    async def run() -> None:
        under_way = AdmissionTracker()
        with suppress(LookupError), under_way.one():
            raise LookupError
        look = asyncio.create_task(under_way.over())
        await asyncio.sleep(0)
        assert look.done()

    asyncio.run(run())
