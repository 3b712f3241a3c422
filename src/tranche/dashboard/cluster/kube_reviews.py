"""Asks the API server who a viewer is and what they may do. Remembers a yes for half a minute, a no for two.

A viewer without an answer sees nothing. While the API server does not answer, its last answer stands for five minutes: no viewer
sees more than before, and open pages do not go blank whenever a control plane restarts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tranche.core.errors import KubernetesUnavailable
from tranche.dashboard.cluster.authentication import KubeUser, plainly_allowed, reviewed_viewer
from tranche.dashboard.cluster.snapshot import NameVisibility
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.objects import RbacPermission

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ASKING = "check what a viewer may do"

FRESH_SECONDS = 30.0
"""How long a yes counts without asking again."""
REFUSED_SECONDS = 120.0
"""How long a no counts. Of many namespaces most belong to others, and a watching viewer would ask for each twice a minute."""
STANDING_SECONDS = 300.0
"""How long an answer stands while the API server does not answer."""
NOW_SECONDS = 5.0
"""How long a viewer waits for a current answer."""
_MOST_KEPT = 20_000
_AT_ONCE = 16

LIST_PODS = RbacPermission("list", "pods")
LIST_NODES = RbacPermission("list", "nodes")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class _Remembered:
    value: Any
    at: float


class AccessReviewClient:
    """To be used on one event loop. `clock` is monotonic, in seconds."""

    def __init__(self, connection: ApiConnection, *, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._answers: dict[Hashable, _Remembered] = {}
        self._asking: dict[Hashable, asyncio.Future[Any]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def who(self, token: str) -> KubeUser | None:
        """The user of that token; None if it has none. KubernetesUnavailable without an answer."""
        if not token or not token.isascii() or any(each.isspace() for each in token):
            return None
        return await self._known(("who", hashlib.sha256(token.encode()).digest()), lambda: self._ask_who(token))

    async def may(self, viewer: KubeUser, right: RbacPermission) -> bool:
        """Whether the viewer has that right. KubernetesUnavailable without an answer."""
        who = (viewer.user, viewer.groups, viewer.uid, viewer.extra)
        return await self._known(("may", who, right), lambda: self._ask_may(viewer, right))

    async def may_now(self, viewer: KubeUser, right: RbacPermission) -> bool:
        """Whether the viewer has that right now, by a current answer that is a plain yes.

        KubernetesUnavailable without an answer; the error for a refusal if the question itself is refused.
        """
        try:
            async with asyncio.timeout(NOW_SECONDS), self._gate:
                return plainly_allowed(viewer.question(right), await self._review(viewer, right))
        except TimeoutError as error:
            raise KubernetesUnavailable(f"cannot {_ASKING}: no answer within {NOW_SECONDS:.0f} s") from error

    async def sight(self, viewer: KubeUser, namespaces: Iterable[str]) -> NameVisibility:
        """The given namespaces whose pods the viewer may list: these show their names."""
        if await self.may(viewer, LIST_PODS):
            return NameVisibility(everywhere=True)
        asked = sorted({each for each in namespaces if each})
        rights = [RbacPermission(LIST_PODS.verb, LIST_PODS.resource, each) for each in asked]
        answers = await asyncio.gather(*(self.may(viewer, each) for each in rights))
        return NameVisibility(frozenset(each for each, allowed in zip(asked, answers, strict=True) if allowed))

    async def _known(self, key: Hashable, ask: Callable[[], Awaitable[Found]]) -> Found:
        known = self._answers.get(key)
        if known is not None and self._clock() - known.at < (FRESH_SECONDS if known.value else REFUSED_SECONDS):
            found: Found = known.value
            return found
        # Concurrent callers share one question.
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.ensure_future(self._asked(key, ask))
            self._asking[key] = asking
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        answer: Found = await asyncio.shield(asking)
        return answer

    async def _asked(self, key: Hashable, ask: Callable[[], Awaitable[Found]]) -> Found:
        try:
            async with self._gate:
                value = await ask()
        except KubernetesUnavailable:
            known = self._answers.get(key)
            if known is None or self._clock() - known.at >= STANDING_SECONDS:
                raise
            stands: Found = known.value
            return stands
        self._answers[key] = _Remembered(value, self._clock())
        if len(self._answers) > _MOST_KEPT:
            self._forget()
        return value

    def _forget(self) -> None:
        """Drop answers that are too old to stand, and all of them if too many remain."""
        now = self._clock()
        self._answers = {key: each for key, each in self._answers.items() if now - each.at < STANDING_SECONDS}
        if len(self._answers) > _MOST_KEPT:
            self._answers.clear()

    async def _ask_who(self, token: str) -> KubeUser | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        answer = await self._connection.ask("identify the owner of a token", "POST", _TOKEN_REVIEWS, body)
        return reviewed_viewer(answer.accepted(), token)

    async def _ask_may(self, viewer: KubeUser, right: RbacPermission) -> bool:
        status = (await self._review(viewer, right)).get("status")
        return isinstance(status, dict) and status.get("allowed") is True and not status.get("denied")

    async def _review(self, viewer: KubeUser, right: RbacPermission) -> Mapping[str, Any]:
        return (await self._connection.ask(_ASKING, "POST", _ACCESS_REVIEWS, viewer.question(right))).accepted()
