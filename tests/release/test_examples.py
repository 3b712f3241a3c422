"""The examples under deploy/: they pass, and a wrong name or value in one is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.examples_check import EXAMPLES, problems

from release import argo
from tranche.demo.schedule import SLICE_SECONDS, WHOLE_GPU_SECONDS

JOBS = EXAMPLES / "56-jobs"


def loaded(name: str) -> Any:
    return yaml.safe_load((JOBS / name).read_text())


def test_the_examples_are_what_kubernetes_and_argo_take() -> None:
    assert problems() == []


def test_a_wrong_value_of_a_job_is_caught(tmp_path: Path) -> None:
    job = loaded("slices.yaml")
    job["spec"]["completionMode"] = 56
    job["spec"]["completion"] = 56
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    said = "\n".join(problems(tmp_path))
    assert "completionMode: 56 is not of type" in said
    assert "'completion' was unexpected" in said


def rename_template(workflow: Any) -> None:
    workflow["spec"]["templates"][1]["name"] = "other"


def no_arguments(workflow: Any) -> None:
    del workflow["spec"]["templates"][0]["dag"]["tasks"][0]["arguments"]


def no_entrypoint(workflow: Any) -> None:
    workflow["spec"]["entrypoint"] = "main"


def no_such_task(workflow: Any) -> None:
    workflow["spec"]["templates"][0]["dag"]["tasks"][0]["dependencies"] = ["before"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rename_template, "there is no template simulate"),
        (no_arguments, "simulate wants the parameters member"),
        (no_entrypoint, "the entrypoint main is no template"),
        (no_such_task, "it depends on before, which is no task"),
    ],
)
def test_a_name_in_a_workflow_that_leads_nowhere_is_caught(change: Callable[[Any], None], said: str) -> None:
    workflow = loaded("argo.yaml")
    assert list(argo.dangling(workflow)) == []
    change(workflow)
    assert said in "\n".join(argo.dangling(workflow))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("spec", "templates", 0, "dag", "tasks", 0, "withSequnce"), {"count": "56"}, "'withSequnce' was unexpected"),
        (("spec", "templates", 1, "container", "command"), "sleep", "'sleep' is not of type 'array'"),
        (("spec", "entryPoint"), "all", "'entryPoint' was unexpected"),
    ],
)
def test_what_argos_schema_does_not_know_is_caught(place: tuple[Any, ...], value: object, said: str) -> None:
    if reason := argo.why_no_schema():
        pytest.skip(reason)
    workflow = loaded("argo.yaml")
    assert list(argo.objections(workflow)) == []
    inner = workflow
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert said in "\n".join(argo.objections(workflow))


def test_the_lengths_are_those_of_the_demo() -> None:
    seconds = {name: _variable(loaded(f"{name}.yaml")["spec"]["template"]["spec"]) for name in ("slices", "whole-gpus")}
    assert seconds == {"slices": SLICE_SECONDS, "whole-gpus": WHOLE_GPU_SECONDS}
    (_, workflow) = loaded("argo.yaml")["spec"]["templates"]
    assert _variable({"containers": [workflow["container"]]}) == SLICE_SECONDS


def _variable(spec: Any) -> float:
    (container,) = spec["containers"]
    (variable,) = container["env"]
    return float(variable["value"])
