"""The schema of Argo Workflows, out of its Go module, and what it objects to in a workflow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from release.errors import ReleaseError
from tranche_simulator.build import cache_directory

_MODULE, _VERSION = "github.com/argoproj/argo-workflows/v3", "v3.7.0"
_SUM = "h1:TDijZztm6dLruB7yZLH+Ps4OJKRwu0YSAJ4/NvceON0="
_WORKFLOW = "io.argoproj.workflow.v1alpha1.Workflow"
# Kinds of values whose schema says `object` or `string` and means more, or anything.
_OPEN = ("io.argoproj.workflow.v1alpha1.Item", "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1")


def why_no_schema() -> str:
    """Why the schema cannot be had here; empty when it can."""
    return "" if _cached().is_file() or shutil.which("go") else "there is no Go to fetch Argo's module with"


def objections(workflow: Any) -> Iterator[str]:
    """What the schema objects to, strictly: a field that it does not know is one, too."""
    for error in _validator().iter_errors(workflow):
        yield f"{error.json_path}: {error.message}"


def dangling(workflow: Any) -> Iterator[str]:
    """Names that lead nowhere, which no schema sees: templates, tasks that others depend on, and parameters."""
    spec = workflow.get("spec") or {}
    templates = {each["name"]: each for each in spec.get("templates") or ()}
    if spec.get("entrypoint") not in templates:
        yield f"the entrypoint {spec.get('entrypoint')} is no template"
    for name, template in templates.items():
        tasks = (template.get("dag") or {}).get("tasks") or ()
        for task in tasks:
            where = f"task {task['name']} of template {name}"
            called = templates.get(task.get("template"))
            if called is None:
                yield f"{where}: there is no template {task.get('template')}"
                continue
            given = {each["name"] for each in (task.get("arguments") or {}).get("parameters") or ()}
            inputs = (called.get("inputs") or {}).get("parameters") or ()
            wanted = {each["name"] for each in inputs if "value" not in each and "default" not in each}
            if missing := sorted(wanted - given):
                yield f"{where}: {called['name']} wants the parameters {', '.join(missing)}"
            others = {each["name"] for each in tasks}
            if unknown := sorted(set(task.get("dependencies") or ()) - others):
                yield f"{where}: it depends on {', '.join(unknown)}, which is no task"


@cache
def _validator() -> Draft202012Validator:
    schema = json.loads(_schema().read_text())
    for name, definition in schema["definitions"].items():
        if definition.get("properties") and name not in _OPEN:
            definition["additionalProperties"] = False
    return Draft202012Validator({"$ref": f"#/definitions/{_WORKFLOW}", "definitions": schema["definitions"]})


def _cached() -> Path:
    return cache_directory() / "argo" / f"workflows-{_VERSION}.json"


def _schema() -> Path:
    """The schema's file; 10 MB are fetched the first time.

    Raises:
        ReleaseError: it cannot be fetched, or is not what it was when its checksum was written down here.
    """
    cached = _cached()
    if cached.is_file():
        return cached
    go = shutil.which("go")
    if go is None:
        raise ReleaseError(f"Argo's schema cannot be had: {why_no_schema()}", hint="install Go")
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        done = subprocess.run(
            [go, "mod", "download", "-json", f"{_MODULE}@{_VERSION}"],
            cwd=folder,
            env=os.environ | {"GOFLAGS": "-modcacherw", "GOMODCACHE": f"{folder}/modules"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ReleaseError(f"Argo's schema cannot be had: {(done.stderr or done.stdout).strip()[-500:]}")
        module = json.loads(done.stdout)
        if module["Sum"] != _SUM:
            raise ReleaseError(f"{_MODULE}@{_VERSION} is not what it was: its sum is {module['Sum']}")
        draft = Path(folder) / "schema.json"
        shutil.copyfile(Path(module["Dir"]) / "api" / "jsonschema" / "schema.json", draft)
        draft.rename(cached)
    return cached
