"""The controller process: wires its parts, serves until a signal, then lingers while the API server finds another replica."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.backend_watch import BackendComponent, BackendWatch
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL
from tranche.kubernetes.component import Component
from tranche.kubernetes.gated.left_at_gate import StrandedPodWatch
from tranche.kubernetes.gated.scheduler.cluster_watch import ClusterWatch
from tranche.kubernetes.gated.scheduler.placing import PlacingClient, PlacingLeader
from tranche.kubernetes.rollout.leadership import LeaderLease
from tranche.kubernetes.serving.http_server import HttpServer, serve_health
from tranche.kubernetes.serving.supervisor import Supervisor
from tranche.kubernetes.webhook.identity import WebhookIdentity, webhook_configurations
from tranche.kubernetes.webhook.template_store import TemplateStore
from tranche.kubernetes.webhook.webhook import PodWebhook, gpu_model_watch

LEAVE_SECONDS = 5.0
"""How long the webhook still answers after SIGTERM: the API server keeps calling this replica until it learns that it leaves."""
PLACER_LEASE = "tranche-placer"
"""The lease that decides which replica chooses shares."""
_LONGEST_REVIEW = 8 * 1024**2
_MOST_REVIEWS = 512
_REVIEW_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """How one replica is set up.

    `backend` is the administrator's word on how the cluster gives shares, None to find out. `namespace` "" means the namespace
    named where the API server was found. `service` is the Service in it through which the API server reaches the webhook, and
    `configuration` the MutatingWebhookConfiguration. `replica` is this replica's name.
    """

    kubeconfig: str | None
    namespace: str
    service: str
    configuration: str
    replica: str
    webhook_host: str
    webhook_port: int
    health_host: str
    health_port: int
    lifetime: timedelta
    take_over: Sequence[str] = ()
    backend: AllocationBackend | None = None
    leave_seconds: float = LEAVE_SECONDS


def run_controller(options: ControllerOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Serve until SIGTERM or SIGINT.

    KubeconfigInvalid when no API server is known, UsageError when a port is taken, TlsUnavailable when no certificate can be
    made.
    """
    asyncio.run(_serve(options, environ))


async def _serve(options: ControllerOptions, environ: Mapping[str, str]) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = find_api_server(options.kubeconfig, environ)
    connection = ApiConnection(server)
    store = TemplateStore(connection)
    cards = gpu_model_watch(connection)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    identity = WebhookIdentity(
        webhook_configurations(connection),
        options.configuration,
        tls,
        options.replica,
        _hosts(options.service, options.namespace or server.namespace),
        options.lifetime,
        now=partial(datetime.now, UTC),
    )
    backend = BackendWatch(connection, options.backend)
    leases = LeaseClient(connection, options.namespace or server.namespace)
    client = PlacingClient(connection, leases)
    placer = PlacingLeader(
        client,
        ClusterWatch(connection, options.namespace or server.namespace),
        LeaderLease(leases, options.replica, clock=time.monotonic, name=PLACER_LEASE, label=PLACING_LABEL),
        clock=time.monotonic,
        random=random.random,
    )
    components: list[Component] = [
        identity,
        backend,
        BackendComponent(cards, backend.latest, BY_CLAIMS),
        BackendComponent(store, backend.latest, BY_CLAIMS),
        BackendComponent(StrandedPodWatch(connection, client.say), backend.latest, BY_CLAIMS),
        BackendComponent(placer, backend.latest, frozenset((AllocationBackend.GATES,))),
    ]
    supervisor = Supervisor(components, clock=time.monotonic)

    webhook = PodWebhook(store, cards.latest, backend.latest, take_over=options.take_over)
    pages = HttpServer(None, webhook.answer, longest=_LONGEST_REVIEW, most=_MOST_REVIEWS, seconds=_REVIEW_SECONDS)
    await identity.prepare()
    await pages.start(options.webhook_host, options.webhook_port, option="--webhook-port", tls=tls)
    health = await serve_health(options.health_host, options.health_port, supervisor.readiness)
    _log.info(
        "serving",
        extra={"api_server": server.url, "webhook_port": pages.port, "health_port": health.port},
    )
    running = asyncio.create_task(supervisor.run())
    try:
        await stopped.wait()
        _log.info("ending")
        health.stop()
        await asyncio.sleep(options.leave_seconds)
    finally:
        pages.stop()
        running.cancel()
        await asyncio.wait({running})
        await connection.aclose()


def _hosts(service: str, namespace: str) -> tuple[str, ...]:
    """The names under which the API server calls a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")
