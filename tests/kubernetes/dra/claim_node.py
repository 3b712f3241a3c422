"""The driver for claims on a simulated machine, between a kubelet and an API server that are stand-ins on real sockets."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.dra.kubelet import DraKubelet
from tests.kubernetes.mig_manager.mig_node import ManagedNode, managed_node
from tests.kubernetes.waiting import until
from tests.mps_leftovers import end_daemons_below
from tranche.core.allocation import Allocation
from tranche.hardware.nodes import SimulatedDeviceFiles
from tranche.kubernetes.claims.claim import ClaimRef
from tranche.kubernetes.claims.vocabulary import DRIVER, MODE_LABEL
from tranche.kubernetes.dra.driver import ClaimDriver
from tranche.kubernetes.kubelet.proto import dra_pb2

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
GIB = 1 << 30


@dataclass
class ClaimNodeStandIn:
    """A node `n1` whose claims lie in namespace `team`. `now` is the monotonic clock of its driver, in seconds."""

    node: ManagedNode
    kubelet: DraKubelet
    cdi: Path
    now: float = 1000.0

    @property
    def standing(self) -> str:
        """All that tells why nothing goes on, for a test that waits in vain."""
        return f"files {self.files}; {self.node.standing}"

    async def set_mode(self, mode: str) -> None:
        """Label the node so, and wait until its parts know."""
        self.node.set_labels({MODE_LABEL: mode})
        seen = self.node.services.node
        await until(lambda: seen.synced and seen.value is not None and seen.value.labels.get(MODE_LABEL) == mode)

    @property
    def proc(self) -> Path:
        """What the kernel shows of the machine's processes."""
        folder = self.cdi.parent / "proc"
        folder.mkdir(exist_ok=True)
        return folder

    def allocate(
        self,
        name: str,
        *devices: str,
        pool: str = "n1",
        consumed: Mapping[str, str] | None = None,
        uid: str = "",
        tolerations: Sequence[Mapping[str, str]] = (),
        users: Sequence[Mapping[str, str]] = (),
    ) -> dra_pb2.Claim:
        """A claim that the scheduler has given these devices, each to a request `r<number>`; as the kubelet names it.

        It is reserved for `users`, without any for its pod.
        """
        results = [
            {"request": f"r{number}/one", "driver": DRIVER, "pool": pool, "device": device}
            | ({"tolerations": list(tolerations)} if tolerations else {})
            | ({"consumedCapacity": dict(consumed), "shareID": f"share-{name}"} if consumed else {})
            for number, device in enumerate(devices)
        ]
        claim = dra_pb2.Claim(namespace="team", name=name, uid=uid or f"uid-{name}")
        reserved = list(users) or [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        self.node.server.put(f"{CLAIMS}/{name}", {"metadata": {"uid": claim.uid}, "status": status})
        return claim

    def process(self, pid: int, pod: str, environment: str = "") -> Path:
        """A process in the control group of the pod with that uid; the folder that the kernel shows of it."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod}/main\n")
        (folder / "stat").write_text(f"{pid} (python) S 1" + " 0" * 48)
        (folder / "environ").write_text(environment)
        return folder

    def delete(self, name: str) -> None:
        """As when its pod is gone."""
        self.node.server.delete(f"{CLAIMS}/{name}")

    async def prepare(self, *claims: dra_pb2.Claim) -> list[str]:
        """The error of each claim, "" when it is prepared."""
        answers = await self.kubelet.prepare(*claims)
        assert answers.keys() == {claim.uid for claim in claims}
        return [answers[claim.uid].error for claim in claims]

    async def unprepare(self, *claims: dra_pb2.Claim) -> None:
        answers = await self.kubelet.unprepare(*claims)
        errors = [answers[claim.uid].error for claim in claims]
        assert errors == [""] * len(claims), errors

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return self.node.host.view().allocations

    def specification(self, claim: dra_pb2.Claim) -> dict[str, Any]:
        """The CDI specification of a claim."""
        data: dict[str, Any] = json.loads((self.cdi / f"tranche.dev-share_{claim.uid}.json").read_text())
        return data

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir()) if self.cdi.is_dir() else []

    @asynccontextmanager
    async def driver(
        self, instance: str = "pod-1", *, care_seconds: float = 0.01, wait: bool = True, patience: float = 0.0
    ) -> AsyncIterator[ClaimDriver]:
        """A driver for the length of the block, registered, and ready unless it is not waited for.

        Claims wait `patience` seconds for what time alone mends.
        """

        async def configured() -> None:
            return None

        state = Path(self.node.machine.machine.environment()["TRANCHE_SIM_STATE"])
        driver = ClaimDriver(
            self.node.services,
            kubelet_folder=self.kubelet.folder,
            instance=instance,
            cdi_folder=self.cdi,
            files=lambda: SimulatedDeviceFiles(state),
            configured=configured,
            clock=lambda: self.now,
            care_seconds=care_seconds,
            patience=patience,
            proc=self.proc,
        )
        task = asyncio.create_task(driver.run())
        try:
            await self.kubelet.register()
            if wait:
                await until(lambda: driver.ready().ready)
            yield driver
        finally:
            ended_before = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not ended_before, "the driver ended by itself"


def ref_of(claim: dra_pb2.Claim) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)


def on_claim_node(
    test: Callable[[ClaimNodeStandIn], Coroutine[Any, Any, None]], *boards: str, machine_type: str = ""
) -> None:
    """Run the test on a node in mode `mixed` with those GPUs, in a folder whose path leaves room for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))

    async def run() -> None:
        async with managed_node(folder, *boards, machine_type=machine_type) as node:
            stand_in = ClaimNodeStandIn(node, DraKubelet(folder / "k"), folder / "cdi")
            await stand_in.set_mode("mixed")
            await test(stand_in)

    try:
        asyncio.run(run())
    finally:
        end_daemons_below(folder)
        shutil.rmtree(folder)
