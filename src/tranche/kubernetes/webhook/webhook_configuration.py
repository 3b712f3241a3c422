"""The cluster's object that says which pods the API server asks the webhook about, and which certificates it trusts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import ObjectSource, named

_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """A `MutatingWebhookConfiguration` as the API server has it."""

    raw: Json

    @property
    def bundle(self) -> str:
        """The trusted certificates, as PEM, from its first webhook; all have the same."""
        for each in self.raw.get("webhooks") or ():
            try:
                return base64.b64decode((each.get("clientConfig") or {}).get("caBundle") or "").decode(
                    "ascii", "replace"
                )
            except (binascii.Error, ValueError):
                return ""
        return ""

    def with_bundle(self, bundle: str) -> Json:
        """The object with other trusted certificates."""
        encoded = base64.b64encode(bundle.encode()).decode()
        webhooks = [
            {**each, "clientConfig": {**(each.get("clientConfig") or {}), "caBundle": encoded}}
            for each in self.raw.get("webhooks") or ()
        ]
        return {**self.raw, "webhooks": webhooks}


class ConfigurationClient:
    """The configuration of that name. Errors are those of `KubeClient`."""

    def __init__(self, connection: ApiConnection, name: str) -> None:
        self.name = name
        self._connection = connection

    async def get(self) -> WebhookConfig | None:
        """Its present state; None if it does not exist."""
        answer = await self._connection.ask(
            f"read the webhook configuration {self.name}", "GET", f"{_PATH}/{self.name}"
        )
        return None if answer.status == 404 else WebhookConfig(answer.accepted())

    async def trust(self, found: WebhookConfig, bundle: str) -> bool:
        """Write other trusted certificates; False when it has changed since it was read."""
        what = f"write the webhook configuration {self.name}"
        answer = await self._connection.ask(what, "PUT", f"{_PATH}/{self.name}", found.with_bundle(bundle))
        if answer.status not in (404, 409):
            answer.accepted()
        return answer.status not in (404, 409)

    def watch(self) -> AsyncGenerator[WebhookConfig | None, None]:
        """Its present state, then after each change; None while it does not exist."""
        source = ObjectSource(
            self._connection, f"webhook configuration {self.name}", _PATH, named(self.name), WebhookConfig
        )
        return source.versions()
