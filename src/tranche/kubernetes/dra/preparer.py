"""Serves the kubelet's requests to prepare claims and to take them back, each as often as the kubelet likes.

Each prepared claim has a CDI file. It exists before the kubelet hears of the devices, and goes after the share is free.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tranche.core.errors import CdiUnavailable, GpuBusy, KubernetesNotFound, NoRoom, TrancheError, WaitTimeout
from tranche.core.keeper import ChosenFor, ClaimKeeper
from tranche.core.state import GpuState
from tranche.hardware.cdi import CdiSpec, spec_file_name, write_spec
from tranche.hardware.nodes import DeviceFiles
from tranche.kubernetes.claims.claim import ClaimRef, KubeClaim
from tranche.kubernetes.claims.vocabulary import CDI_KIND
from tranche.kubernetes.devices.devices import NodeDevice
from tranche.kubernetes.dra.given import GivenDevice, Permission, given_devices, order_of
from tranche.kubernetes.node.claim_queue import LAST_WORD_SECONDS, ClaimQueue, ClaimRetryQueue
from tranche.kubernetes.node.share_edits import cdi_id, share_spec
from tranche.node.claims import ClaimRegister
from tranche.node.processes.pod_processes import claim_mark
from tranche.planning.decide.realise import ChosenDevice

_NAME_START, _NAME_END = spec_file_name(CDI_KIND, "|").split("|")


class ShareFiles:
    """The files in one CDI folder, by claim uid. Every method blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, spec: CdiSpec) -> None:
        """Write a claim's specification; CdiUnavailable when that fails.

        It does not sync to disk: a power loss takes instances and containers too, and the kubelet has each claim prepared again.
        """
        try:
            write_spec(spec, self._folder, outlasts_power=False)
        except OSError as error:
            raise CdiUnavailable(
                f"cannot write the CDI specification to {self._folder}: {error.strerror or error}",
                hint="make the folder writable",
            ) from error

    def remove(self, uid: str) -> None:
        """Remove a claim's specification, if there is one; CdiUnavailable when that fails."""
        path = self._folder / spec_file_name(CDI_KIND, uid)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CdiUnavailable(f"cannot remove {path}: {error.strerror or error}") from error

    def keepers(self) -> Mapping[str, ClaimKeeper]:
        """The claims that have a file, by uid. Namespace and name are empty where the file does not give them."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return {}
        uids = [
            name[len(_NAME_START) : -len(_NAME_END)]
            for name in names
            if name.startswith(_NAME_START) and name.endswith(_NAME_END)
        ]
        return {uid: self._keeper(uid) for uid in uids}

    def _keeper(self, uid: str) -> ClaimKeeper:
        mark = f"{claim_mark(uid)}="
        try:
            data = json.loads((self._folder / spec_file_name(CDI_KIND, uid)).read_text())
            words = [word for device in data["devices"] for word in device["containerEdits"]["env"]]
        except (OSError, ValueError, KeyError, TypeError):
            words = []
        named = next((word[len(mark) :] for word in words if str(word).startswith(mark)), "")
        namespace, _, name = named.partition("/")
        return ClaimKeeper(namespace, name, uid)


BUDGET_SECONDS = 40.0
"""The kubelet gives up after 45, and then says less about why."""

PATIENCE_SECONDS = BUDGET_SECONDS - LAST_WORD_SECONDS

_Outcome = TypeVar("_Outcome")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimNode:
    """What preparing needs of the node. `observe_gpu` and `held` block; the rest does not.

    `devices` are the node's by name; `permission` says which of them may be given now. `driver_version` is that of the GPUs'
    driver. `mps_pipes` gives the folder of a device's MPS daemon by the device's UUID.
    """

    pool: str
    claims: Callable[[], ClaimRegister]
    observe_gpu: Callable[[str], GpuState]
    devices: Callable[[], Awaitable[Mapping[str, NodeDevice]]]
    permission: Callable[[Sequence[GivenDevice]], Awaitable[Permission]]
    files: Callable[[], DeviceFiles]
    driver_version: Callable[[], str]
    mps_pipes: Callable[[str], Path]


class ClaimPreparer:
    """Prepares the claims of one node. `read` asks the API server for a claim; None when there is none.

    `changed` is called whenever a claim gets something, or no longer has anything; `met` when a claim cannot have what another
    holder has. It serves no request before `open`; callers wait. A claim that meets what time alone mends waits too, until
    `patience` seconds after the kubelet asked; call `news` when something on the node has changed.
    """

    def __init__(
        self,
        node: ClaimNode,
        read: Callable[[ClaimRef], Awaitable[KubeClaim | None]],
        share_files: ShareFiles,
        changed: Callable[[], None] = lambda: None,
        met: Callable[[], None] = lambda: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.backlog = ClaimQueue(node.claims, lambda order: self.write_file(order.keeper, order.grants))
        self._node = node
        self._read = read
        self._share_files = share_files
        self._changed = changed
        self._met = met
        self._patience = patience
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
                hint="the agent continues; the kubelet asks again",
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
            held = await asyncio.to_thread(self._node.claims().held)
            await asyncio.to_thread(work, uid in held)

        if uid not in self.under_way:
            await asyncio.shield(self._begin(self._repairing, uid, alone()))

    def write_file(self, keeper: ChosenFor, grants: tuple[ChosenDevice, ...]) -> None:
        """Write the file by which a container runtime finds the claim's devices; this blocks."""
        gpus = {uuid: self._node.observe_gpu(uuid) for uuid in dict.fromkeys(grant.gpu_uuid for grant in grants)}
        files, version = self._node.files(), self._node.driver_version()
        self._share_files.write(share_spec(keeper, grants, gpus, files, version, self._node.mps_pipes))

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
        claim = await self._read(ref)
        if claim is None:
            raise KubernetesNotFound(f"{ref} was deleted")
        devices = await self._node.devices()
        given = given_devices(claim, ref, self._node.pool, devices)
        permission = await self._node.permission(given)
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
        had = await asyncio.to_thread(lambda: self._node.claims().give_back(uid, why=why))
        self.news()
        await asyncio.to_thread(self._share_files.remove, uid)
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


def answers_of(ref: ClaimRef, given: tuple[GivenDevice, ...]) -> tuple[tuple[GivenDevice, str], ...]:
    """Each device of a prepared claim, with its name for the container runtime."""
    return tuple((each, cdi_id(ref.uid, number)) for number, each in enumerate(given))


def _note(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, TrancheError):
        _log.error("claim failed", exc_info=error)
