"""The demo on real GPUs: finds them, checks that they are free, and restores them afterwards."""

from __future__ import annotations

from pathlib import Path

from tranche.core.allocation import NodeView
from tranche.core.board import board_by_pci_id
from tranche.core.checkpoint import take_checkpoint
from tranche.core.errors import GpuBusy, MigNotSupported
from tranche.core.state import GpuState, NodeState
from tranche.node.host import Host
from tranche.planning.layouts.restore import plan_restore
from tranche.planning.occupancy.layout_occupancy import User, busy_error, gpu_users
from tranche.planning.steps.plan import Plan

_NVIDIA = "0x10de"


def mig_boards(system: Path = Path("/sys")) -> tuple[str, ...]:
    """The catalogue names of the MIG-capable GPUs on this machine's PCI bus; needs no driver."""
    found = []
    for device in sorted((system / "bus/pci/devices").glob("*")):
        if _read(device / "vendor") == _NVIDIA:
            number = int(_read(device / "device") or "0", 16)
            board = board_by_pci_id(f"0x{number:04X}10DE")
            found += [] if board is None else [board.key]
    return tuple(found)


def job_command(real_seconds: float) -> tuple[str, ...]:
    """A job that only takes its time."""
    return ("sleep", f"{real_seconds:.6f}")


def first_product(node: NodeState) -> tuple[GpuState, ...]:
    """The GPUs of the first product that can be cut; MigNotSupported if there is none."""
    capable = [gpu for gpu in node if gpu.mig_capable and not gpu.lost]
    if not capable:
        raise MigNotSupported("no GPU of this machine can be cut into MIG slices", hint="run the demo without --real")
    return tuple(gpu for gpu in capable if gpu.name == capable[0].name)


def check_free(host: Host, gpus: tuple[GpuState, ...]) -> None:
    """GpuBusy if anything uses or has cut one of the GPUs, or waits for a share."""
    view = host.view()
    users = tuple(user for gpu in gpus for user in gpu_users(view, gpu).users)
    if users:
        raise busy_error("the demo", users)
    for gpu in gpus:
        if gpu.instances:
            raise GpuBusy(
                f"{gpu.label} has {len(gpu.instances)} GPU instances, but the demo needs GPUs without any",
                hint="remove them with: tranche layout apply -c all-disabled",
            )
    if host.waiters():
        raise GpuBusy("other requests are waiting for this machine's GPUs", hint="see them with: tranche ps")


def put_back(host: Host, gpus: tuple[GpuState, ...]) -> None:
    """Restore the GPUs' MIG mode from these states, and remove their instances.

    Use a host that did not play the demo, so that leftovers of an interrupted one are cleared first. Raises GpuBusy, after the
    other GPUs, for those that have come into use meanwhile.
    """
    before = take_checkpoint(NodeState(gpus))
    newcomers: list[User] = []

    def decide(view: NodeView) -> Plan:
        decision = plan_restore(view, before)
        newcomers.extend(decision.blockers)
        return decision.plan

    host.change(decide)
    if newcomers:
        raise busy_error("restoring MIG mode", tuple(newcomers))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
