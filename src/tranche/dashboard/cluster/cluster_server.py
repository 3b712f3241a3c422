"""The page of a cluster as a process: watches, serves until a signal, and reports its health."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tranche.core.errors import UsageError
from tranche.dashboard.acting.forms import FormKeyStore
from tranche.dashboard.cluster.authentication import (
    LEAST_SECRET,
    RequestAuthenticator,
    SessionStore,
    TrustedProxySettings,
)
from tranche.dashboard.cluster.cluster_actions import ClusterActionHandler
from tranche.dashboard.cluster.cluster_app import ClusterRequestHandler
from tranche.dashboard.cluster.fleet_reader import FleetReader
from tranche.dashboard.cluster.kube_reviews import AccessReviewClient
from tranche.dashboard.cluster.source import ClusterSource
from tranche.dashboard.server import GuardedServer, guarded_config, listening
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.serving.health_server import HealthServer
from tranche.kubernetes.serving.supervisor import Supervisor

_MOST_CONNECTIONS = 2_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterPageOptions:
    """How the page is served.

    `namespace` is the agents'; "" means the one of the connection to the API server. `hosts` are the names that browsers use for
    the server, besides the loopback's. `proxy_secret` is the file with the secret of a proxy that vouches for its users. With
    `act`, viewers can do what Kubernetes lets them; with `proxy_act` so can viewers whom the proxy names, with the server's own
    account.
    """

    kubeconfig: str | None
    namespace: str
    name: str
    host: str
    port: int
    health_host: str
    health_port: int
    hosts: Sequence[str] = ()
    proxy_secret: Path | None = None
    user_header: str = "X-Remote-User"
    group_header: str = "X-Remote-Group"
    act: bool = False
    proxy_act: bool = False


def serve_cluster_page(options: ClusterPageOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Serve until SIGTERM or SIGINT.

    KubeconfigInvalid when no API server is known, UsageError when a port is taken or the secret is invalid.
    """
    asyncio.run(_serve(options, environ))


async def _serve(options: ClusterPageOptions, environ: Mapping[str, str]) -> None:
    server = find_api_server(options.kubeconfig, environ)
    if options.act and server.tls is not None and (options.kubeconfig or environ.get("KUBECONFIG")):
        # A kubeconfig's client certificate would accompany a viewer's token, and act as the certificate's owner.
        raise UsageError("--act needs the page to run as a pod", hint="leave --kubeconfig and $KUBECONFIG out")
    if options.proxy_act and not (options.act and options.proxy_secret is not None):
        raise UsageError(
            "--proxy-act needs --act and --proxy-secret", hint="the proxy's secret is what it is trusted for"
        )
    entrance = RequestAuthenticator(frozenset(each.lower() for each in options.hosts), _proxy(options))
    connection = ApiConnection(server)
    namespace = options.namespace or server.namespace
    reviews = AccessReviewClient(connection, clock=time.monotonic)
    fleets = FleetReader(connection, namespace, clock=time.monotonic)
    acts = None
    if options.act:
        events = KubeClient(connection, now=partial(datetime.now, UTC), random=random.random)
        acts = ClusterActionHandler(server, reviews, fleets, FormKeyStore(), events, for_proxied=options.proxy_act)
    app = ClusterRequestHandler(
        options.name, entrance, reviews, SessionStore(time.monotonic), fleets, acts, clock=time.monotonic
    )
    source = ClusterSource(connection, namespace, app.take, app.lose, random=random.random)
    supervisor = Supervisor([source], clock=time.monotonic)
    health = HealthServer(supervisor.readiness)
    with listening(options.host, options.port) as listener:
        await health.start(options.health_host, options.health_port)
        config = guarded_config(app, _MOST_CONNECTIONS, lifespan="off")
        port = listener.getsockname()[1]
        _log.info("serving", extra={"api_server": server.url, "port": port, "health_port": health.port})
        running = asyncio.create_task(supervisor.run())
        try:
            await GuardedServer(config).serve([listener])
        finally:
            app.end()
            health.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await connection.close()


def _proxy(options: ClusterPageOptions) -> TrustedProxySettings | None:
    """The trusted proxy, if any. An invalid secret is refused with an error rather than ignored."""
    if options.proxy_secret is None:
        return None
    try:
        secret = options.proxy_secret.read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"--proxy-secret {options.proxy_secret}: it cannot be read: {error}") from error
    if len(secret) < LEAST_SECRET:
        raise UsageError(
            f"--proxy-secret {options.proxy_secret}: a secret has {LEAST_SECRET} characters or more",
            hint="make one: head -c 32 /dev/urandom | base64",
        )
    return TrustedProxySettings(secret, options.user_header.lower(), options.group_header.lower())
