"""Whether objects are what Kubernetes takes, by the schemas of its releases, offline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

OLDEST, NEWEST = 27, 37
VERSIONS = tuple(f"1.{minor}.0" for minor in range(OLDEST, NEWEST + 1))


def objections(objects: Iterable[dict[str, Any]], version: str) -> Iterator[str]:
    """What the schemas of that release object to, strictly: a field that they do not know is one."""
    for item in objects:
        if item["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # the Prometheus Operator's own
        named = f"Kubernetes {version}: {item['kind']} {item['metadata']['name']}"
        try:
            validator = _validator(item["kind"], item["apiVersion"], version)
        except FileNotFoundError:
            yield f"{named}: there is no {item['kind']} {item['apiVersion']}"
            continue
        for error in validator.iter_errors(item):
            yield f"{named}: {error.json_path}: {error.message}"


@cache
def _validator(kind: str, api_version: str, version: str) -> Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    file = f"{kind}-{group.partition('.')[0]}-{number}.json" if group else f"{kind}-{number}.json"
    schema = _contents(version, file.lower())
    return Draft202012Validator(schema, registry=_definitions(version) @ Registry())


@cache
def _definitions(version: str) -> Resource[Any]:
    return Resource.from_contents(_contents(version, "_definitions.json"))


def _contents(version: str, file: str) -> Any:
    return schema_contents(f"kubernetes-json-schema/v{version}-local-strict/{file}", version)
