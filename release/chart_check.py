"""Whether the chart is what Helm and Kubernetes take, under all the values that it is tried with."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from release.chart import CHART, NAMESPACE, cases, render
from release.errors import ReleaseError
from release.helm import helm
from release.kubernetes_schemas import VERSIONS, objections

_WITHOUT_ADMISSION_POLICY = ("1.27.0", "1.28.0", "1.29.0")


def problems(chart: Path = CHART, versions: Sequence[str] = VERSIONS) -> list[str]:
    """Helm's own objections, and those of the schemas of these releases of Kubernetes."""
    found = []
    for name, file in cases(chart).items():
        found += [f"values {name}: {line}" for line in _lint(chart, file)]
        for version in versions:
            old = {"admissionPolicy": {"enabled": False}} if version in _WITHOUT_ADMISSION_POLICY else {}
            try:
                objects = render(old, files=(file,), kubernetes=version, chart=chart)
            except ReleaseError as error:
                found.append(f"values {name}: Kubernetes {version}: {error}")
                break
            found += [f"values {name}: {line}" for line in objections(objects, version)]
    return found


def _lint(chart: Path, values: Path) -> list[str]:
    """What `helm lint --strict` objects to under these values."""
    done = subprocess.run(
        [str(helm()), "lint", "--strict", "--quiet", f"--namespace={NAMESPACE}", f"--values={values}", str(chart)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line] if done.returncode else []
