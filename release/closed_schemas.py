"""What the examples for EKS, Karpenter and cloud-init may hold, by schemas of ours: the keys that are used, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

_FILE = Path(__file__).with_suffix(".yaml")


def objections_to(data: object, kind: str) -> Iterator[str]:
    """What the schema of that kind objects to: keys that it does not know, and wrong values, each with its place."""
    schemas = _schemas()
    if kind not in schemas:
        yield f"there is no schema for the kind '{kind}'"
        return
    for error in Draft202012Validator(schemas[kind]).iter_errors(data):
        yield f"{error.json_path}: {error.message}"


@cache
def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = yaml.safe_load(_FILE.read_text())["schemas"]
    return schemas
