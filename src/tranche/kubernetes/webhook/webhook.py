"""The admission webhook: gives a pod that asks by annotations a claim, or makes it wait for its share, or says why it cannot.

A Job gets the claim in its pod template, and so do a few other kinds: a queue reads there what it has to count.

Question and answers are `admission.k8s.io/v1`.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tranche.core.errors import (
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRejected,
    KubernetesUnavailable,
    TrancheError,
    UsageError,
)
from tranche.core.json_text import read_json
from tranche.core.printable import one_line, shortened
from tranche.core.request import Request
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json, part
from tranche.kubernetes.api.informer import ObjectSource
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.annotations import in_annotations
from tranche.kubernetes.claims.spec import claim_spec, needs_cards, refuse_alternatives
from tranche.kubernetes.claims.vocabulary import DRIVER, QUEUE_LABEL
from tranche.kubernetes.fleet.devices import FleetDevice, decode_fleet_slice, shared_cards
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.node_watch import ObjectWatch
from tranche.kubernetes.serving.http_server import HttpResponse
from tranche.kubernetes.webhook.injection import (
    asks_for_share,
    demand_of,
    gating,
    injection,
    is_counted,
    pod_templates,
    template_name,
    template_of,
)
from tranche.kubernetes.webhook.template_store import TemplateStore

_PATH = "/apis/resource.k8s.io/v1/resourceslices"


def gpu_model_watch(connection: ApiConnection) -> ObjectWatch[tuple[FleetDevice, ...]]:
    """The shared devices of the cluster: their kinds decide how many bytes a fraction of a GPU is."""
    selector = {"fieldSelector": f"spec.driver={DRIVER}"}
    source = ObjectSource(connection, "resource slices", _PATH, selector, _shared)

    async def watch() -> AsyncIterator[tuple[FleetDevice, ...]]:
        async with aclosing(source.snapshots()) as snapshots:
            async for found in snapshots:
                yield tuple(device for devices in found for device in devices)

    return ObjectWatch("cards", watch, "the controller has not read the ResourceSlices yet")


def _shared(resource_slice: Mapping[str, Any]) -> tuple[FleetDevice, ...]:
    """What matters here of a slice: a cluster has many, with tens of devices each."""
    return tuple(each for each in decode_fleet_slice(resource_slice).devices if each.shared)


PATH = "/pods"

_log = logging.getLogger(__name__)


class PodWebhook:
    """Answers AdmissionReviews. Pods that name a scheduler in `take_over` get the cluster's own.

    `cards` knows the cluster's shared devices, and `backend` says how it gives shares.
    """

    def __init__(
        self,
        templates: TemplateStore,
        cards: LatestValue[tuple[FleetDevice, ...]],
        backend: LatestValue[AllocationBackend],
        *,
        take_over: Collection[str] = (),
    ) -> None:
        self._templates = templates
        self._cards = cards
        self._backend = backend
        self._take_over = frozenset(take_over)

    async def answer(self, path: str, body: bytes) -> HttpResponse:
        """The answer to a POST."""
        if path != PATH:
            return HttpResponse(HTTPStatus.NOT_FOUND, b"{}")
        try:
            review = _read_review(body)
        except KubernetesRejected as error:
            return HttpResponse(HTTPStatus.BAD_REQUEST, json.dumps({"message": one_line(error.message)}).encode())
        answered = _allowed(_uid_of(body)) if review is None else await self.review(review)
        return HttpResponse(HTTPStatus.OK, json.dumps(answered).encode())

    async def review(self, review: AdmissionRequest) -> Json:
        """The answer about one pod, or about pod templates."""
        patch: list[dict[str, Any]] = []
        needed: list[tuple[Mapping[str, Any], str]] = []
        try:
            demands = [(path, pod, demand) for path, pod in review.pods if (demand := demand_of(pod)) is not None]
            backend = self._backend.value if self._backend.synced else None
            if not demands:
                return _allowed(review.uid)
            if backend not in BY_CLAIMS:
                _refuse_backend(backend)
            for path, pod, demand in demands:
                if backend in BY_CLAIMS:
                    devices = self._devices(demand.request)
                    if review.queued:
                        refuse_alternatives(demand.request, devices)
                    name = template_name(devices)
                    if review.kind == "Pod" and is_counted(pod) and template_of(pod) != name:
                        name = await self._counted(review.namespace, pod, demand.request)
                    else:
                        needed.append((devices, str(demand.request)))
                    changes = injection(pod, demand, name, self._take_over)
                else:
                    changes = gating(pod, demand, self._take_over)
                    if review.kind == "Pod" and is_counted(pod) and any(asks_for_share(each) for each in changes):
                        raise _not_counted(demand.request)
                patch += [{**each, "path": path + each["path"]} for each in changes]
            # Faults of a pod are reported before anything is written for it.
            for devices, request in needed if not review.dry_run else ():
                await self._templates.ensure(review.namespace, devices, request)
        except KubernetesUnavailable as error:
            if review.kind != "Pod":
                return _allowed(review.uid)  # as without a controller; its pods are asked about again
            return self._refused(review, HTTPStatus.SERVICE_UNAVAILABLE, error)
        except (KubernetesForbidden, KubernetesNotFound, KubernetesRejected) as error:
            return self._refused(review, HTTPStatus.FORBIDDEN, error)
        except TrancheError as error:
            return self._refused(review, HTTPStatus.UNPROCESSABLE_ENTITY, error)
        return _allowed(review.uid, patch)

    async def _counted(self, namespace: str, pod: Json, request: Request) -> str:
        """The template of the claim that Kueue has counted, if it was made for the same request; else UsageError."""
        name = template_of(pod)
        counted = await self._templates.request_of(namespace, name) if name else ""
        if counted == str(request):
            return name  # the sizes of the cluster's GPUs are others now
        raise _not_counted(request, counted)

    def _devices(self, request: Request) -> Mapping[str, Any]:
        shared = self._cards.value if self._cards.synced else ()
        if not self._cards.synced and needs_cards(request):
            raise KubernetesUnavailable(
                "the controller does not know the cluster's GPUs yet; a fraction depends on their size"
            )
        return claim_spec(request, shared_cards(shared, request.gpu_model)).devices

    def _refused(self, review: AdmissionRequest, status: HTTPStatus, error: TrancheError) -> Json:
        kind = review.kind.lower()
        _log.info(
            f"{kind} refused",
            extra={"namespace": review.namespace, kind: review.name, "reason": error.reason, "error": error.message},
        )
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        return _refusal(review.uid, status.value, in_annotations(message))


def _not_counted(request: Request, counted: str = "") -> UsageError:
    return UsageError(
        f"the annotations request {request}, but Kueue counted {counted or 'no share'} for this pod",
        hint="create its Job again: Kueue counts a Job's request when the Job is created",
    )


def _refuse_backend(backend: AllocationBackend | None) -> None:
    if backend is None:
        raise KubernetesUnavailable("the controller does not yet know how this cluster assigns shares")
    if backend is AllocationBackend.NONE:
        raise UsageError(
            "this cluster assigns no shares on demand: it has neither claims nor scheduling gates",
            hint="use Kubernetes 1.27 or newer",
        )


_VERSION = "admission.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A pod about to be created, or an object with pod templates, new or changed: `pods`, each with its path in the object.

    For a `dry_run` nothing may be written. `queued` says that it names a queue of Kueue.
    """

    uid: str
    namespace: str
    kind: str
    name: str
    pods: tuple[tuple[str, Json], ...]
    dry_run: bool = False
    queued: bool = False


def _read_review(body: bytes) -> AdmissionRequest | None:
    """The pod or pod templates of the question; None for another question, which does not concern the webhook.

    Raises:
        KubernetesRejected: it is no AdmissionReview of version v1.
    """
    try:
        review = read_json(body)
        request = review["request"]
        version, uid = review["apiVersion"], str(request["uid"])
        kind, operation = str(request["kind"]["kind"]), request["operation"]
        raw, namespace = request.get("object"), str(request.get("namespace") or "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubernetesRejected("the request is not an AdmissionReview") from error
    if version != _VERSION:
        raise KubernetesRejected(f"the request has version {version}, not {_VERSION}")
    if not isinstance(raw, Mapping) or request.get("subResource"):
        return None
    meta = part(raw, "metadata")
    if operation == "CREATE" and kind == "Pod":
        pods = [("", raw)]
    elif operation == "CREATE":
        pods = list(pod_templates(kind, raw))
    elif operation == "UPDATE":
        # Whoever applies the manifest again takes the claims out. What never had one stays so: templates may be immutable.
        before = dict(pod_templates(kind, part(request, "oldObject")))
        pods = [(path, pod) for path, pod in pod_templates(kind, raw) if template_of(before.get(path, {}))]
    else:
        return None
    name = str(meta.get("name") or meta.get("generateName") or "")
    queued = QUEUE_LABEL in part(meta, "labels")
    return AdmissionRequest(uid, namespace, kind, name, tuple(pods), bool(request.get("dryRun")), queued)


def _allowed(uid: str, patch: Sequence[Mapping[str, Any]] = ()) -> Json:
    """The answer that lets the pod in, changed by a JSON patch."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        encoded = base64.b64encode(json.dumps(list(patch)).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def _refusal(uid: str, code: int, message: str) -> Json:
    """The answer that keeps the pod out; `message` is what the user sees, after the webhook's name, on one line."""
    response = {"uid": uid, "allowed": False, "status": {"code": code, "message": shortened(one_line(message))}}
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def _uid_of(body: bytes) -> str:
    """The uid of a question, even if the rest is invalid."""
    try:
        return str(read_json(body)["request"]["uid"])
    except (ValueError, KeyError, TypeError):
        return ""
