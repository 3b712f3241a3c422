"""Who the webhook is to the API server: its certificate, made and rotated here, and trusted before it serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta

from tranche.kubernetes.component import Readiness
from tranche.kubernetes.webhook.certificate import ServingCertificate, make_certificate
from tranche.kubernetes.webhook.trust import bundle_with
from tranche.kubernetes.webhook.webhook_configuration import ConfigurationClient, WebhookConfig

SETTLE_SECONDS = 2.0
"""So long the API servers of a cluster may take to hear of a certificate that one of them has stored."""

_log = logging.getLogger(__name__)


class WebhookIdentity:
    """Keeps a certificate in `tls`, and keeps it trusted by the webhook's configuration, whoever writes that as well.

    A new certificate is trusted first and serves afterwards, at half of the `lifetime` of the one before it.
    """

    name = "certificate"

    def __init__(
        self,
        configuration: ConfigurationClient,
        tls: ssl.SSLContext,
        replica: str,
        hosts: Sequence[str],
        lifetime: timedelta,
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`now` gives the time in UTC."""
        self._configuration = configuration
        self._tls = tls
        self._replica = replica
        self._hosts = tuple(hosts)
        self._lifetime = lifetime
        self._now = now
        self._sleep = sleep
        self._wanted: tuple[ServingCertificate, ...] = ()
        self._serving: ServingCertificate | None = None
        self._missing = f"the webhook configuration {configuration.name} was not read yet"
        self._trusted = asyncio.Event()

    def ready(self) -> Readiness:
        """Whether the API server can trust what is served."""
        if self._missing:
            return Readiness(False, self._missing)
        if self._serving is None:
            return Readiness(False, "the API servers have not heard of the certificate yet")
        return Readiness(True)

    async def prepare(self) -> None:
        """Have something to serve, before the port is opened."""
        await self._make()
        self._wanted[-1].load_into(self._tls)

    async def run(self) -> None:
        """Make, have trusted, serve, and again; and put back what somebody else has written over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._rotate())

    async def _rotate(self) -> None:
        if not self._wanted:
            await self._make()
        while True:
            newest = self._wanted[-1]
            await self._publish()
            await self._trusted.wait()
            await self._sleep(SETTLE_SECONDS)
            newest.load_into(self._tls)
            self._serving = newest
            _log.info("serving with a certificate", extra={"expires": newest.expires.isoformat()})
            left = newest.expires - self._now() - self._lifetime / 2
            await self._sleep(max(left.total_seconds(), 0.0))
            await self._make()

    async def _make(self) -> None:
        made = await asyncio.to_thread(make_certificate, self._replica, self._hosts, self._now(), self._lifetime)
        self._wanted = (*self._wanted[-1:], made)
        self._trusted.clear()

    async def _follow(self) -> None:
        async with aclosing(self._configuration.watch()) as versions:
            async for found in versions:
                if not self._look(found):
                    await self._publish()

    def _look(self, found: WebhookConfig | None) -> bool:
        """Whether all that this one serves and will serve is trusted."""
        if found is None:
            self._missing = f"there is no MutatingWebhookConfiguration {self._configuration.name}"
            return True
        bundle = found.bundle
        lacking = [each for each in self._wanted if each.certificate.strip() not in bundle]
        self._missing = "its certificate is not trusted" if lacking else ""
        if not lacking:
            self._trusted.set()
        return not lacking

    async def _publish(self) -> None:
        """Until it is written, by this one or so that nothing has to be."""
        while (found := await self._configuration.get()) is not None:
            own = [each.certificate for each in self._wanted]
            bundle = bundle_with(found.bundle, own, self._now().timestamp())
            if bundle == found.bundle or await self._configuration.trust(found, bundle):
                return
