"""MPS daemons of which nothing is written down any more: their records were lost, with the state folder or alone.

Such a daemon serves on, and its GPU stays in compute mode EXCLUSIVE_PROCESS. Whoever makes the new ledger finds it by the folder
of its sockets, which it carries in its environment, and takes it over. It lets nobody in, and ends when nobody shares its device.
Whoever decides later does the same as soon as something shows that a record is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Container, Iterable, Iterator
from typing import NamedTuple

from tranche.core.allocation import FractionalShare, Grant, NodeView
from tranche.core.devices import device_uuid, shareable_devices
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeMode, InstanceKey, NodeState
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.mps.mps_health import UNTIL
from tranche.node.mps.mps_records import DaemonRecord, name_of, record_of
from tranche.node.mps.mps_view import SERVER_PROGRAM
from tranche.node.state.session import boot_id

_LOST = "its record was lost"


class _Stray(NamedTuple):
    """A daemon, or a server that one left, by the name of its folder and the UUID of its device."""

    name: str
    device_uuid: str


def find_strays(daemons: MpsDaemonManager, uid: int) -> tuple[_Stray, ...]:
    """The daemons of root's and of user `uid` whose sockets are, or were, in the state folder, and that have no record."""
    from tranche.hardware.mps_process import served_folders  # slow to import, and a ledger is seldom new

    found = served_folders(daemons.records.folder, uid)
    if not found:
        return ()
    known = daemons.records.look()
    names = {name_of(record.device_uuid) for record in known.records} | known.damaged
    return tuple(_Stray(name, device) for name, device in sorted(found.items()) if name not in names)


def take_over(daemons: MpsDaemonManager, node: NodeState, uid: int, *, whole: bool) -> None:
    """Write down the strays. Of one whose device is not there, in the view of a `whole` machine, only its name is known."""
    homes = {uuid: (gpu.uuid, slot) for gpu in node for uuid, slot in shareable_devices(gpu).items()}
    for stray in find_strays(daemons, uid):
        home = homes.get(stray.device_uuid)
        if home is not None and name_of(stray.device_uuid) == stray.name:
            daemons.records.write(_record(daemons, *home, stray.device_uuid))
        elif whole:
            daemons.records.write_damaged(stray.name)


def note_missing(daemons: MpsDaemonManager, node: NodeState, grants: Iterable[Grant]) -> None:
    """Write down the daemons that somebody must have had who has these: those that died left a compute mode, or a server."""
    for grant in grants:
        if isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS:
            gpu = node.gpu(grant.gpu_uuid)
            if gpu.daemon_of(grant.slot) is None and (uuid := device_uuid(grant, gpu)):
                daemons.records.write(_record(daemons, gpu.uuid, grant.slot, uuid))


def record_missing(daemons: MpsDaemonManager, view: NodeView, working: Container[str]) -> bool:
    """Whether something shows that a daemon has lost its record: sockets, a server of MPS, or somebody who shares by MPS.

    GPUs that a plan is `working` on say nothing. A server may also be of a daemon that is not Tranche's.
    """
    return (
        bool(daemons.records.without_record())
        or bool(list(_without_daemon(view, working)))
        or any(each.name == SERVER_PROGRAM for gpu in view.node for each in gpu.all_processes)
    )


def find_again(daemons: MpsDaemonManager, view: NodeView, working: Collection[str], uid: int, *, whole: bool) -> None:
    """Write down the daemons that have lost their records, and remove the sockets that no process serves any more."""
    take_over(daemons, view.node, uid, whole=whole)
    note_missing(daemons, daemons.on_node(view.node), list(_without_daemon(view, working)))
    if not working:
        for name in daemons.records.without_record():
            shutil.rmtree(daemons.records.folder / name, ignore_errors=True)


def _without_daemon(view: NodeView, working: Container[str]) -> Iterator[FractionalShare]:
    """The parts by MPS that somebody holds, of devices that are there and have no daemon."""
    gpus = {gpu.uuid: gpu for gpu in view.node if not gpu.lost and gpu.uuid not in working}
    for allocation in view.allocations:
        for grant in allocation.grants:
            if not isinstance(grant, FractionalShare) or grant.sharing is not Sharing.MPS:
                continue
            gpu = gpus.get(grant.gpu_uuid)
            if gpu is not None and gpu.daemon_of(grant.slot) is None and device_uuid(grant, gpu):
                yield grant


def _record(daemons: MpsDaemonManager, gpu_uuid: str, slot: InstanceKey | None, device_uuid: str) -> DaemonRecord:
    """The record of a daemon that lives: unavailable where its sockets are there, else lost, since nobody comes to it any more.

    Which compute mode the GPU had is not known: it gets the driver's own.
    """
    record = record_of(gpu_uuid, slot, device_uuid, ComputeMode.DEFAULT if slot is None else None)
    record = record._replace(ready=True, wedged=True, fault=_LOST + UNTIL)
    found = daemons.process(device_uuid).find()
    if found is None or not daemons.records.reachable(record):
        return record
    return record._replace(
        pid=found.pid, started=found.started, uid=found.uid, every_user=found.every_user, boot=boot_id()
    )
