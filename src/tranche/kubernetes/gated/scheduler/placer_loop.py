"""The controller's loop that chooses shares in clusters without claims: one replica leads, with a round after each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.gated.scheduler.cluster_state import ClusterState
from tranche.kubernetes.gated.scheduler.cluster_watch import ClusterWatch
from tranche.kubernetes.gated.scheduler.placer import waiting_text
from tranche.kubernetes.gated.scheduler.placing import PlacingResult, PlacingRunner
from tranche.kubernetes.gated.scheduler.placing_api import PlacingClient
from tranche.kubernetes.gated.scheduler.retry_history import RetryHistory
from tranche.kubernetes.rollout.leadership import LeaderLease

_TRY_SECONDS = 3.0
_GATHER_SECONDS = 0.1
"""Pods arrive in bursts: one round serves all that arrive within this time."""
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 10.0
_SAY_SECONDS = 30.0
_MOST_SAID = 20

_log = logging.getLogger(__name__)


class PlacingLeader:
    """A component. `clock` is monotonic, in seconds; `random` returns numbers from 0 to 1."""

    name = "placer"

    def __init__(
        self,
        api: PlacingClient,
        watch: ClusterWatch,
        leadership: LeaderLease,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._watch = watch
        self._leadership = leadership
        self._placing = PlacingRunner(api)
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._tries = RetryHistory()
        self._said: dict[str, tuple[str, float]] = {}

    def ready(self) -> Readiness:
        """Always ready: another replica may lead, and the webhook still answers."""
        return Readiness(True)

    async def run(self) -> None:
        """Compete for the lead, and lead, until cancelled."""
        while True:
            try:
                if await self._leadership.try_to_lead():
                    await self._lead()
            except TrancheError as error:
                _log.info("not leading the choice of shares", extra={"reason": error.reason, "error": str(error)})
            await self._sleep(_TRY_SECONDS * (0.5 + self._random()))

    async def _lead(self) -> None:
        _log.info("choosing shares")
        await self._leadership.lead(self._watch.run(), self._choose(), sleep=self._sleep)

    async def _choose(self) -> None:
        """Choose until another replica may lead. Two leaders at once are safe, but some of their writes fail."""
        while True:
            await self._watch.changed.wait()
            await self._sleep(_GATHER_SECONDS)
            self._watch.changed.clear()
            if not self._watch.synced:
                continue
            if not self._leadership.sure:
                return
            pause = _AGAIN_SECONDS if (await self._look()).unfinished else _LOOK_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._watch.changed.wait()
            self._watch.changed.set()

    async def _look(self) -> PlacingResult:
        now = self._watch.now()
        self._tries = self._tries.look(now, self._clock())
        done = await self._placing.round(now, self._tries.avoided(now, self._clock()))
        for each in done.written:
            self._watch.wrote(each)
        self._watch.forget(done.unwritten)
        await self._make_anew(now)
        await self._say(now, done)
        return done

    async def _make_anew(self, now: ClusterState) -> None:
        """Recreate pods of our jobs that cannot start on their chosen node, so that they try another."""
        for uid, why in self._tries.due(self._clock()).items():
            pod = now.pods.get(uid)
            if pod is None:
                continue
            try:
                if await self._api.make_anew(pod):
                    self._tries = self._tries.made_anew(uid, self._clock())
                    _log.warning("recreated a pod", extra={"pod": str(pod), "why": why})
            except TrancheError as error:
                _log.warning("cannot recreate a pod", extra={"pod": str(pod), "error": str(error)})

    async def _say(self, now: ClusterState, done: PlacingResult) -> None:
        words = {each.pod.uid: waiting_text(each) for each in done.waiting} | dict(done.wrong)
        self._said = {uid: said for uid, said in self._said.items() if uid in words}
        moment, count = self._clock(), 0
        for uid, text in words.items():
            before, when = self._said.get(uid, ("", float("-inf")))
            if text == before or moment - when < _SAY_SECONDS or count >= _MOST_SAID or uid not in now.pods:
                continue
            count += 1
            self._said[uid] = (text, moment)
            try:
                await self._api.say(now.pods[uid], "WaitsForShare", text)
            except TrancheError as error:
                _log.info("cannot record an event", extra={"pod": str(now.pods[uid]), "error": str(error)})
