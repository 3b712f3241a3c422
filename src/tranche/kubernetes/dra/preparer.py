"""Serves the kubelet's requests to prepare claims and to take them back, each as often as the kubelet likes.

Each prepared claim has a CDI file. It exists before the kubelet hears of the devices, and goes after the share is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tranche.core.errors import GpuBusy, KubernetesNotFound, NoRoom, TrancheError, WaitTimeout
from tranche.core.keeper import ChosenFor
from tranche.core.state import NodeState
from tranche.hardware.nodes import DeviceFiles
from tranche.kubernetes.claims.claim import ClaimRef, KubeClaim
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.claims.vocabulary import CDI_KIND, TaintKey
from tranche.kubernetes.devices.devices import NodeDevice, devices_of
from tranche.kubernetes.devices.taints import kept_sizes
from tranche.kubernetes.dra.given import GivenDevice, Permission, given_devices, order_of
from tranche.kubernetes.node.claim_queue import LAST_WORD_SECONDS, ClaimQueue, ClaimRetryQueue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.node.share_edits import ShareFiles, spec_now
from tranche.node.claims import ClaimRegister
from tranche.planning.decide.realise import ChosenDevice

BUDGET_SECONDS = 40.0
"""The kubelet gives up after 45, and then says less about why."""

PATIENCE_SECONDS = BUDGET_SECONDS - LAST_WORD_SECONDS

_Outcome = TypeVar("_Outcome")
_log = logging.getLogger(__name__)


class ClaimPreparer:
    """Prepares the claims of one node. `read` asks the API server for a claim; None when there is none.

    `files` is called at each use. `changed` is called whenever a claim gets something, or no longer has anything; `met` when a
    claim cannot have what another holder has. It serves no request before `open`; callers wait. A claim that meets what time
    alone mends waits too, until `patience` seconds after the kubelet asked; call `news` when something on the node has changed.
    """

    def __init__(
        self,
        services: NodeContext,
        read: Callable[[ClaimRef], Awaitable[KubeClaim | None]],
        files: Callable[[], DeviceFiles],
        cdi_folder: Path,
        *,
        changed: Callable[[], None],
        met: Callable[[], None],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.backlog = ClaimQueue(
            ClaimRegister(services.host), lambda order: self.write_file(order.keeper, order.grants)
        )
        self.share_files = ShareFiles(cdi_folder, CDI_KIND)
        self.read = read
        self._services = services
        self._files = files
        self._changed = changed
        self._met = met
        self._patience = patience
        self._known: dict[str, NodeDevice] = {}
        self._basis: object = None
        self._waiting = ClaimRetryQueue()
        self._opened = asyncio.Event()
        self._preparing: dict[str, asyncio.Task[tuple[GivenDevice, ...]]] = {}
        self._giving_back: dict[str, asyncio.Task[None]] = {}
        self._repairing: dict[str, asyncio.Task[None]] = {}

    @property
    def under_way(self) -> frozenset[str]:
        """The claims, by uid, with work running or waiting."""
        return frozenset({*self._preparing, *self._giving_back, *self._repairing})

    @property
    def busy(self) -> bool:
        """Whether work on a claim is running."""
        return bool(self.under_way - self._waiting.waiting)

    def news(self) -> None:
        """Wake waiting claims to try again after a change on the node."""
        self._waiting.tell()

    def open(self) -> None:
        """Start serving, including requests that already wait."""
        self._opened.set()

    async def prepare(self, ref: ClaimRef) -> tuple[GivenDevice, ...]:
        """The claim's devices, once each is ready for it and a container runtime can find it.

        WaitTimeout after 40 seconds; the work goes on, and the next call gets its result. Otherwise the errors of what is in the
        way; those that time alone mends come after `patience`. After an error nothing has been changed for the claim.
        """
        until = asyncio.get_running_loop().time() + self._patience
        try:
            async with asyncio.timeout(BUDGET_SECONDS):
                await self._opened.wait()
                while (before := self._giving_back.get(ref.uid) or self._repairing.get(ref.uid)) is not None:
                    await asyncio.wait({before})
                task = self._preparing.get(ref.uid)
                if task is None:
                    task = self._begin(self._preparing, ref.uid, self._prepare(ref, until))
                await asyncio.wait({task})
        except TimeoutError as error:
            raise WaitTimeout(
                f"{ref} was not prepared within {BUDGET_SECONDS:.0f} s",
                hint="the agent continues; the kubelet will ask again",
            ) from error
        return task.result()

    async def unprepare(self, ref: ClaimRef) -> None:
        """Take back what the claim has. Its CDI file goes last, so that an earlier crash is detected."""
        await self._opened.wait()
        task = self._giving_back.get(ref.uid)
        if task is None:
            task = self._begin(self._giving_back, ref.uid, self._unprepare(ref.uid, "its pods have ended"))
        await asyncio.shield(task)

    async def forget(self, uid: str, why: str) -> None:
        """Take back what a claim has that the kubelet does not give back."""
        if uid not in self.under_way:
            await asyncio.shield(self._begin(self._giving_back, uid, self._unprepare(uid, why)))

    async def repair(self, uid: str, work: Callable[[bool], None]) -> None:
        """Do `work` on a claim while it is neither prepared nor taken back; does nothing where such work is running.

        `work` blocks. It is told whether the claim has something by now: what was seen of it before may have changed.
        """

        async def alone() -> None:
            held = await asyncio.to_thread(ClaimRegister(self._services.host).held)
            await asyncio.to_thread(work, uid in held)

        if uid not in self.under_way:
            await asyncio.shield(self._begin(self._repairing, uid, alone()))

    def write_file(self, keeper: ChosenFor, grants: tuple[ChosenDevice, ...]) -> None:
        """Write the file by which a container runtime finds the claim's devices; this blocks.

        It is not synced to disk: a power loss takes instances and containers too, and the kubelet has each claim prepared again.
        """
        self.share_files.write(spec_now(self._services, self._files(), keeper, grants), outlasts_power=False)

    async def devices(self) -> Mapping[str, NodeDevice]:
        """The node's devices by name, including those of GPUs lost by now."""
        node = (await self._services.inventory.latest.first()).view.node
        basis = _basis(node)
        if basis != self._basis:
            self._known.update((each.name, each) for each in devices_of(node))
            self._basis = basis
        return self._known

    async def _permission(self, given: Sequence[GivenDevice]) -> Permission:
        """What may be given now. The kept places are known once the devices were shown; claims that tolerate the taint wait for
        it.
        """
        node, reserved = await self._services.node.first(), frozenset[str]()
        kept, _ = kept_sizes({} if node is None else node.annotations)
        if kept and any(each.allocated.tolerates(TaintKey.RESERVED) for each in given):
            reserved = await self._services.reserved.first()
        mode = mode_in_force(None if node is None else node.labels)
        return Permission(mode, self._services.device_health.faults.value, reserved)

    async def _prepare(self, ref: ClaimRef, until: float) -> tuple[GivenDevice, ...]:
        loop = asyncio.get_running_loop()
        asked = loop.time()

        def delayed(error: TrancheError) -> None:
            _log.info("claim waits", extra={"claim": f"{ref.namespace}/{ref.name}", "error": error.message})
            if isinstance(error, GpuBusy | NoRoom):
                self._met()
            self._changed()

        try:
            given = await self._waiting.persist(ref.uid, lambda: self._try(ref), until, delayed)
        finally:
            self._changed()  # also after a refusal: then what is shown was wrong
        seconds = round(loop.time() - asked, 6)
        _log.info("prepared", extra={"claim": f"{ref.namespace}/{ref.name}", "uid": ref.uid, "seconds": seconds})
        return given

    async def _try(self, ref: ClaimRef) -> tuple[GivenDevice, ...]:
        """Prepare what the claim is allocated now: it may have lost its allocation while it waited."""
        claim = await self.read(ref)
        if claim is None:
            raise KubernetesNotFound(f"{ref} was deleted")
        devices = await self.devices()
        given = given_devices(claim, ref, self._services.node_name, devices)
        permission = await self._permission(given)
        order = replace(
            order_of(replace(claim, ref=ref), given), permit=lambda view: permission.refuse(given, devices, view)
        )
        await self.backlog.realise(order)
        return given

    async def _unprepare(self, uid: str, why: str) -> None:
        while (repair := self._repairing.get(uid)) is not None:
            await asyncio.wait({repair})
        if (before := self._preparing.get(uid)) is not None:
            self._waiting.give_up(uid)
            await asyncio.wait({before})
        had = await asyncio.to_thread(lambda: ClaimRegister(self._services.host).give_back(uid, why=why))
        self.news()
        await asyncio.to_thread(self.share_files.remove, uid)
        if had:
            self._changed()
            _log.info("given back", extra={"uid": uid, "why": why})

    def _begin(
        self, tasks: dict[str, asyncio.Task[_Outcome]], uid: str, work: Awaitable[_Outcome]
    ) -> asyncio.Task[_Outcome]:
        async def do() -> _Outcome:
            try:
                return await work
            finally:
                del tasks[uid]

        task = asyncio.create_task(do())
        # The caller may have gone; the next caller gets the error.
        task.add_done_callback(_note)
        tasks[uid] = task
        return task


def _basis(node: NodeState) -> object:
    """What a node's devices depend on."""
    gpus = tuple((gpu.uuid, gpu.minor, gpu.index, gpu.lost, gpu.usable_memory, gpu.profiles) for gpu in node)
    return gpus, node.sharing, node.driver_version


def _note(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, TrancheError):
        _log.error("claim failed", exc_info=error)
