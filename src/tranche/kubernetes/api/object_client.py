"""One kind of object on an API server: read, followed, and replaced only by a program that saw the latest version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import ObjectSource


class _Versioned(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


Item = TypeVar("Item", bound=_Versioned)


class ObjectClient(Generic[Item]):
    """The objects under `path`, of that `kind` in messages. Errors are those of `KubeClient`."""

    def __init__(
        self,
        connection: ApiConnection,
        kind: str,
        path: str,
        decode: Callable[[Json], Item],
        encode: Callable[[Item], Json],
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._path = path
        self._decode = decode
        self._encode = encode

    async def get(self, name: str) -> Item | None:
        """The object now; None when there is none."""
        answer = await self._connection.ask(f"read {self._kind} {name}", "GET", f"{self._path}/{name}")
        return self._decoded(answer.unless(404))

    async def create(self, item: Item) -> Item | None:
        """Create it; None when one of that name exists."""
        answer = await self._connection.ask(f"create {self._kind} {item.name}", "POST", self._path, self._encode(item))
        return self._decoded(answer.unless(409))

    async def replace(self, item: Item) -> Item | None:
        """Replace the object at its own `version`; None when that is no longer the latest, or the object is gone."""
        path, what = f"{self._path}/{item.name}", f"update {self._kind} {item.name}"
        return self._decoded((await self._connection.ask(what, "PUT", path, self._encode(item))).unless(404, 409))

    async def delete(self, item: Item) -> bool:
        """Remove the object at its `version`, in any version if it has none; False when it has changed since. A missing one
        counts as removed.
        """
        at = {"preconditions": {"resourceVersion": item.version}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **at} if item.version else None
        path, what = f"{self._path}/{item.name}", f"delete {self._kind} {item.name}"
        answer = await self._connection.ask(what, "DELETE", path, body)
        answer.unless(404, *((409,) if item.version else ()))
        return answer.status != 409

    def source(self, label: str, selector: Mapping[str, str]) -> ObjectSource[Item]:
        """Those that the selector picks; `label` names them in logs."""
        return ObjectSource(self._connection, label, self._path, selector, self._decode)

    def _decoded(self, found: Json | None) -> Item | None:
        return None if found is None else self._decode(found)
