"""The admission webhook's question and its answers (`admission.k8s.io/v1`). Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tranche.core.errors import KubernetesRejected
from tranche.core.json_text import read_json
from tranche.core.printable import one_line, shortened
from tranche.kubernetes.api.decoding import Json

_VERSION = "admission.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A pod that somebody creates. Nothing may be written for a `dry_run`."""

    uid: str
    namespace: str
    pod: Json
    dry_run: bool = False


def read_review(body: bytes) -> AdmissionRequest | None:
    """The pod that is asked about; None for another question, which does not concern the webhook.

    Raises:
        KubernetesRejected: it is no AdmissionReview of version v1.
    """
    try:
        review = read_json(body)
        request = review["request"]
        version, uid = review["apiVersion"], str(request["uid"])
        created = request["kind"]["kind"] == "Pod" and request["operation"] == "CREATE"
        pod, namespace = request.get("object"), str(request.get("namespace") or "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubernetesRejected("the question is no AdmissionReview") from error
    if version != _VERSION:
        raise KubernetesRejected(f"the question is of version {version}, not {_VERSION}")
    if not created or not isinstance(pod, Mapping) or request.get("subResource"):
        return None
    return AdmissionRequest(uid, namespace, pod, bool(request.get("dryRun")))


def allowed(uid: str, patch: Sequence[Mapping[str, Any]] = ()) -> Json:
    """The answer that lets the pod in, changed by a JSON patch."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        encoded = base64.b64encode(json.dumps(list(patch)).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def refused(uid: str, code: int, message: str) -> Json:
    """The answer that keeps the pod out; `message` is what the person sees, after the webhook's name, on one line."""
    response = {"uid": uid, "allowed": False, "status": {"code": code, "message": shortened(one_line(message))}}
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def uid_of(body: bytes) -> str:
    """The uid of a question, whatever else is wrong with it."""
    try:
        return str(read_json(body)["request"]["uid"])
    except (ValueError, KeyError, TypeError):
        return ""
