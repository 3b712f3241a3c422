"""The controller's loop that chooses shares in clusters without claims: one replica leads, with a round after each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.gated.scheduler.cluster_state import ClusterState
from tranche.kubernetes.gated.scheduler.cluster_watch import ClusterWatch
from tranche.kubernetes.gated.scheduler.placer import waiting_text
from tranche.kubernetes.gated.scheduler.placing import PlacingClient, PlacingResult, PlacingRunner
from tranche.kubernetes.rollout.leadership import LeaderLease

_TRY_SECONDS = 3.0
_GATHER_SECONDS = 0.1
"""Pods arrive in bursts: one round serves all that arrive within this time."""
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 10.0
_SAY_SECONDS = 30.0
_MOST_SAID = 20

_log = logging.getLogger(__name__)


UNBOUND_SECONDS = 30.0
"""How long the scheduler may take to bind a released pod."""

REFUSED_SECONDS = 15.0
"""How long a node may refuse a choice: most refusals pass, for example when the previous pod has just ended."""

AVOIDED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """Released pods that do not start: when their job should recreate them, and which nodes to avoid then. Pure.

    The scheduler knows rules that the placer does not (affinity to other pods), and a node may have changed since its last
    report. Only pods that never ran are recreated, and only those of `tranche submit` jobs, which do not count them as failed.

    `since` has the pods in trouble by uid: why, and since when. `avoided_until` says until when a job avoids a node, by job uid
    and node.
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
