"""The chart on a test cluster, as an administrator installs, upgrades and removes it: by Helm itself."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from release.chart import CHART
from release.helm import helm
from release.image import MadeImage

from cluster.agents import remove_device_classes
from cluster.chart_values import give_image
from cluster.cluster import Cluster
from cluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class HelmRelease:
    """A release of the chart by that name, in a namespace that exists; `values` go with every installation and upgrade.

    Every node gets the image, wherever the agents are: the controller's pods and the uninstallation's job run on any of them.
    """

    cluster: Cluster
    name: str
    namespace: str
    image: MadeImage
    values: Mapping[str, Any]

    @property
    def objects(self) -> str:
        return f"{self.name}-tranche-agent"

    def install(self, **values: object) -> str:
        """Install it, and wait until its agents are ready; what Helm tells the administrator."""
        # Helm takes nothing over that others made, as agents of earlier tests did.
        remove_device_classes(self.cluster)
        give_image(self.cluster.nodes, self.image)
        said = self._helm("install", self.name, str(CHART), "--values=-", stdin=self._with(values))
        self.wait_until_ready()
        return said

    def upgrade(self, **values: object) -> None:
        """Upgrade it.

        Raises:
            ClusterError: Helm refuses it.
        """
        self._helm("upgrade", self.name, str(CHART), "--values=-", stdin=self._with(values))

    def rollback(self) -> None:
        self._helm("rollback", self.name)

    def wait_until_ready(self) -> None:
        """Wait until each node has a ready agent of the last revision; Helm's own `--wait` lets `maxUnavailable` be missing."""
        self.cluster.kubectl(
            "rollout", "status", f"daemonset/{self.objects}", "--namespace", self.namespace, "--timeout=180s"
        )

    def uninstall(self) -> None:
        """Remove it, and wait until it is gone.

        Raises:
            ClusterError: something stays; it says what the pods of the namespace are at.
        """
        give_image(self.cluster.nodes, self.image)
        try:
            self._helm("uninstall", self.name, "--wait", "--timeout=180s")
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self._pods_and_events()}") from error

    def _pods_and_events(self) -> str:
        shown = (("get", "pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp"))
        return "\n".join(self.cluster.kubectl(*words, "--namespace", self.namespace) for words in shown)

    def _with(self, values: Mapping[str, object]) -> str:
        return yaml.safe_dump({**self.values, **values})

    def _helm(self, *arguments: str, stdin: str = "") -> str:
        reached = (f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={self.namespace}")
        done = subprocess.run([helm(), *arguments, *reached], input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"helm {arguments[0]}: {done.stderr.strip()}")
        return done.stdout
