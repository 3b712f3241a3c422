"""An API server that knows a few people: whose token is whose, and who may do what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.fake_api_server import FakeApiServer, Json

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass
class People:
    """Tokens with their users, and rights as (user, verb, resource, namespace); the namespace "" is all of them.

    A right of `@group` is that of everybody in the group. `questions` are what was asked about rights, in full.
    """

    users: dict[str, str] = field(default_factory=dict)
    rights: set[tuple[str, str, str, str]] = field(default_factory=set)
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    questions: list[Json] = field(default_factory=list)
    tokens_asked: int = 0

    def serve(self, server: FakeApiServer) -> None:
        server.reviews[TOKEN_REVIEWS] = self._who
        server.reviews[ACCESS_REVIEWS] = self._may

    def let(self, user: str, *verbs_on: str, namespaces: Iterable[str] = ("",)) -> None:
        """Give rights, each as `verb resource`."""
        for each in verbs_on:
            verb, resource = each.split()
            self.rights |= {(user, verb, resource, namespace) for namespace in namespaces}

    def _who(self, body: Json) -> Json:
        self.tokens_asked += 1
        user = self.users.get(body["spec"]["token"])
        if user is None:
            return {"authenticated": False, "error": "unknown"}
        return {
            "authenticated": True,
            "user": {"username": user, "groups": ["system:authenticated"], "uid": f"u-{user}"},
        }

    def _may(self, body: Json) -> dict[str, Any]:
        spec = body["spec"]
        wanted = spec["resourceAttributes"]
        question = (spec["user"], wanted["verb"], wanted["resource"], wanted.get("namespace", ""))
        self.asked.append(question)
        self.questions.append(spec)
        for who in (spec["user"], *(f"@{each}" for each in spec.get("groups", ()))):
            if {(who, *question[1:]), (who, *question[1:3], "")} & self.rights:
                return {"allowed": True}
        return {"allowed": False}
