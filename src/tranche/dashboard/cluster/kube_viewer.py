"""The viewer of a cluster's page: a user known to Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KubePermission:
    """A verb on a kind of object of the core API; in all namespaces with none, of all names with none."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


@dataclass(frozen=True, slots=True)
class KubeUser:
    """A user as Kubernetes knows it. `token` is the user's own; "" if a proxy vouches for the user. The repr omits it."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    token: str = field(default="", repr=False)

    def question(self, right: KubePermission) -> dict[str, Any]:
        """Whether the user has that right, as a SubjectAccessReview."""
        wanted = {
            "verb": right.verb,
            "resource": right.resource,
            "namespace": right.namespace,
            "name": right.name,
        }
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": self.user,
                "groups": list(self.groups),
                **({"uid": self.uid} if self.uid else {}),
                **({"extra": {key: list(values) for key, values in self.extra}} if self.extra else {}),
                "resourceAttributes": {key: value for key, value in wanted.items() if value},
            },
        }


def reviewed_viewer(review: Mapping[str, Any], token: str) -> KubeUser | None:
    """The user that a TokenReview's answer names; None if it names none."""
    status = review.get("status")
    user = status.get("user") if isinstance(status, Mapping) and status.get("authenticated") is True else None
    name = user.get("username") if isinstance(user, Mapping) else None
    if not isinstance(user, Mapping) or not name:
        return None
    extra, groups = user.get("extra"), user.get("groups")
    return KubeUser(
        str(name),
        _texts(groups),
        str(user.get("uid") or ""),
        tuple(sorted((str(key), _texts(values)) for key, values in extra.items()))
        if isinstance(extra, Mapping)
        else (),
        token,
    )


def plainly_allowed(question: Mapping[str, Any], review: Mapping[str, Any]) -> bool:
    """Whether a SubjectAccessReview's answer is a yes to that question, without reservation."""
    status = review.get("status")
    return (
        isinstance(status, Mapping)
        and status.get("allowed") is True
        and status.get("denied") in (None, False)
        and not status.get("evaluationError")
        and _has(review, {"kind": question["kind"], "spec": question["spec"]})
    )


def _has(found: object, asked: object) -> bool:
    """Whether the answer contains the whole question; an API server adds fields, and leaves none out."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_has(found.get(key), value) for key, value in asked.items())
    return found == asked or (not found and not asked)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
