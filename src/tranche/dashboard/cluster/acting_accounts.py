"""With whose account something is done for a viewer: his own, by his token, or for one whom a proxy names the page's.

The API server judges each request of an account by that account's rights. So the page's, which may more than most viewers, does
nothing before the API server has said, just then, that the viewer may do exactly that himself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import quote

from tranche.core.errors import TrancheError, UsageError
from tranche.dashboard.cluster.kube_reviews import AccessReviewClient
from tranche.dashboard.cluster.kube_viewer import KubePermission, KubeUser
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer

_NO_TOKEN = (
    "you came through a proxy, which shows no token of yours, and this page does nothing for those: reach it without the proxy, "
    "and enter with a token"
)
_LONGEST_NAME = 900
"""Characters of a viewer's name as a header has it: the API server's audit log cuts a user agent at 1,024."""


class ActingClient(Protocol):
    """The account that something is done with, for one viewer."""

    @property
    def said(self) -> str:
        """Whose rights decide, in words for the viewer."""

    @property
    def done_by(self) -> str:
        """Who has done what was done with it, in the words of an event."""

    async def lacks(self, rights: Sequence[KubePermission]) -> str:
        """Which of these rights the viewer lacks, in words for him; "" where he is known to have all."""

    async def refuses(self, rights: Sequence[KubePermission]) -> str:
        """Why requests that need these rights must not be sent now; "" where they may be."""

    def connect(self) -> ApiConnection:
        """A connection with that account, to be closed."""


class ActingClientSource:
    """`server` is acted on. With `for_proxied` its own credentials serve viewers whom a proxy names; else they serve nobody."""

    def __init__(self, server: ApiServer, reviews: AccessReviewClient, *, for_proxied: bool) -> None:
        self._server = server
        self._reviews = reviews
        self._for_proxied = for_proxied

    def of(self, viewer: KubeUser) -> ActingClient:
        """The one for him; UsageError where there is none."""
        if viewer.token:
            return _OwnAccount(viewer, self._server, self._reviews)
        if not self._for_proxied:
            raise UsageError(_NO_TOKEN)
        if len(quote(viewer.user)) > _LONGEST_NAME:
            raise UsageError("your name is too long for an audit log, so nothing is done in it")
        return _PagesAccount(viewer, self._server, self._reviews)


@dataclass(frozen=True, slots=True)
class _OwnAccount:
    """The viewer's: the API server judges every request of it, so what is known of his rights here serves for words alone."""

    viewer: KubeUser
    server: ApiServer
    reviews: AccessReviewClient

    @property
    def said(self) -> str:
        return "Kubernetes judges it by your own rights."

    @property
    def done_by(self) -> str:
        return self.viewer.user

    async def lacks(self, rights: Sequence[KubePermission]) -> str:
        for each in rights:
            if not await self.reviews.may(self.viewer, each):
                return _lacking(each)
        return ""

    async def refuses(self, rights: Sequence[KubePermission]) -> str:
        return ""

    def connect(self) -> ApiConnection:
        token = self.viewer.token
        return ApiConnection(replace(self.server, token=lambda: token))


@dataclass(frozen=True, slots=True)
class _PagesAccount:
    """The page's own: nothing is remembered of what the viewer may, and whatever is not a plain yes is a no."""

    viewer: KubeUser
    server: ApiServer
    reviews: AccessReviewClient

    @property
    def said(self) -> str:
        return (
            "You came through a proxy: the page asks Kubernetes each time whether you may, and then does it with an account of "
            "its own. Your name is written down with it."
        )

    @property
    def done_by(self) -> str:
        return f"{self.viewer.user}, whom the proxy named,"

    async def lacks(self, rights: Sequence[KubePermission]) -> str:
        try:
            answers = await asyncio.gather(*(self.reviews.may_now(self.viewer, each) for each in rights))
        except TrancheError as error:
            return f"Nobody can say now whether you may do it ({error.reason}), so it is not done."
        return next((_lacking(each) for each, allowed in zip(rights, answers, strict=True) if not allowed), "")

    async def refuses(self, rights: Sequence[KubePermission]) -> str:
        return await self.lacks(rights)

    def connect(self) -> ApiConnection:
        return ApiConnection(self.server, user_agent=f"tranche-dashboard (for {quote(self.viewer.user)})")


def _lacking(right: KubePermission) -> str:
    return f"You may not {right}."
