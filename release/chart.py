"""The chart as Helm renders it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from release.errors import ReleaseError
from release.helm import helm

CHART = Path(__file__).parents[1] / "deploy" / "chart" / "tranche"
RELEASE = "tranche"
NAMESPACE = "tranche-system"
KUBERNETES = "1.36.0"
# The one in C takes an eighth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a chart may ask for beside Kubernetes' own objects.
PROMETHEUS_OPERATOR = "monitoring.coreos.com/v1"

KubeObject = dict[str, Any]
Values = Mapping[str, Any]


def render(
    values: Values | None = None,
    *,
    files: Sequence[Path] = (),
    namespace: str = NAMESPACE,
    release: str = RELEASE,
    kubernetes: str = KUBERNETES,
    apis: Sequence[str] = (PROMETHEUS_OPERATOR,),
    chart: Path = CHART,
) -> list[KubeObject]:
    """The chart's objects, hooks included, under these values and those of `files`, for a cluster of that version and those APIs.

    Raises:
        ReleaseError: the chart refuses the values, in Helm's words.
    """
    chosen = (*(f"--values={file}" for file in files), f"--kube-version={kubernetes}")
    chosen = (*chosen, *(f"--api-versions={api}" for api in apis))
    text = _rendered(release, namespace, chosen, yaml.safe_dump(dict(values or {})), str(chart))
    return [item for item in yaml.load_all(text, Loader=_LOADER) if item]


@cache
def _rendered(release: str, namespace: str, options: tuple[str, ...], values: str, chart: str) -> str:
    command = [str(helm()), "template", release, chart, f"--namespace={namespace}", *options, "--values=-"]
    # It ends before collecting garbage pays, and that is a fifth of its time.
    environment = {**os.environ, "GOGC": "off"}
    done = subprocess.run(command, input=values, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(done.stderr.strip().removeprefix("Error: "))
    return done.stdout


def cases(chart: Path = CHART) -> dict[str, Path]:
    """The values that the chart is tried with, by name: the files of its folder `ci`, which chart-testing knows, too."""
    found = {file.name.removesuffix("-values.yaml"): file for file in sorted((chart / "ci").glob("*-values.yaml"))}
    return {**found, "from-gpu-operator": chart / "values-from-gpu-operator.yaml"}
