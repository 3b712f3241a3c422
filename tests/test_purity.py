"""What says that it is pure is pure, and all of the folders that decide: no clock, file, process, thread or network.

A module acts when it imports something of the standard library that acts, or when it imports a function or a class with a life of
its own from a module that acts. Frozen data, enums, errors and constants are free to come from anywhere. So purity follows from a
docstring's word "Pure." or from the folder, and no list is kept by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
FOLDERS = ("core", "planning", "documents", "kubernetes/claims", "kubernetes/devices")
ACTING = frozenset(
    (
        "asyncio",
        "ctypes",
        "fcntl",
        "grpc",
        "httpx2",
        "multiprocessing",
        "os",
        "pathlib",
        "pynvml",
        "random",
        "select",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "starlette",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uvicorn",
    )
)

Import = tuple[str, str]
"""A module, and what is imported of it; "" for the module itself."""


def module_files() -> dict[str, Path]:
    files = (path for path in (SOURCE / "tranche").rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc")))
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


FILES = module_files()


def imports_of(tree: ast.Module) -> Iterator[Import]:
    """What is imported when the module runs, inside functions too."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.Import, ast.ImportFrom))]
    for_types = (
        node
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    skipped = {id(inner) for node in for_types for inner in ast.walk(node)}
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                yield (whole, "") if whole in FILES else (node.module, each.name)


def is_data(module: str, name: str) -> bool:
    if not name:
        return False
    found = getattr(importlib.import_module(module), name)
    if isinstance(found, type):
        frozen = is_dataclass(found) and found.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen or issubclass(found, (Enum, tuple, BaseException))
    return not inspect.isroutine(found)


def acting(imports: Mapping[str, tuple[Import, ...]]) -> dict[str, str]:
    """The modules that act, each with the import by which it does."""
    found = {
        module: outside
        for module, each in imports.items()
        for outside, _ in each
        if outside.partition(".")[0] in ACTING
    }
    while True:
        more = {
            module: f"{inside}.{name}".rstrip(".")
            for module, each in imports.items()
            if module not in found
            for inside, name in each
            if inside in found and not is_data(inside, name)
        }
        if not more:
            return found
        found |= more


@cache
def trees() -> Mapping[str, ast.Module]:
    return {module: ast.parse(path.read_text()) for module, path in FILES.items()}


@cache
def all_imports() -> Mapping[str, tuple[Import, ...]]:
    return {module: tuple(imports_of(tree)) for module, tree in trees().items()}


def held_to_it() -> Iterator[str]:
    for module, tree in trees().items():
        in_folder = str(FILES[module].relative_to(SOURCE / "tranche")).startswith(tuple(f"{each}/" for each in FOLDERS))
        if in_folder or re.search(r"\bPure\b", ast.get_docstring(tree) or ""):
            yield module


def test_what_is_pure_acts_by_nothing() -> None:
    why = acting(all_imports())
    pure = list(held_to_it())
    assert len(pure) > 120, "the search has found them"
    assert {module: why[module] for module in pure if module in why} == {}


def test_a_pure_module_that_asks_one_that_acts_is_found() -> None:
    planted = {**all_imports(), "tranche.core.planted": (("tranche.node.store.ledger", "Ledger"),)}
    assert "tranche.core.planted" in acting(planted)
