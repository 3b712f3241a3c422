"""The machines of the demo: a simulated p4d.24xlarge in a temporary folder, or real GPUs.

Real GPUs are found, checked to be free, and restored afterwards.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tranche.core.allocation import NodeView
from tranche.core.board import board_by_pci_id
from tranche.core.checkpoint import take_checkpoint
from tranche.core.errors import GpuBusy, MigNotSupported, SimulatorError
from tranche.core.state import GpuState, NodeState
from tranche.hardware.nvml import NvmlDriver
from tranche.node.host import Host
from tranche.planning.layouts.restore import plan_restore
from tranche.planning.occupancy.layout_occupancy import User, busy_error, gpu_users
from tranche.planning.steps.plan import Plan
from tranche_simulator.build import ensure_built
from tranche_simulator.machine import SimulatedMachine

MACHINE_TYPE = "p4d.24xlarge"
JOB_MEMORY_MIB = 2048
_LIMITING_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "TRANCHE_SIM_TIME_SCALE", "TRANCHE_SIM_UNPRIVILEGED")


@dataclass(frozen=True, slots=True)
class _DemoMachine:
    """The machine's host, the environment of its jobs, and the program that they run."""

    host: Host
    environment: Mapping[str, str]
    job_program: Path
    nvidia_smi: Path

    @property
    def look(self) -> str:
        """The shell command that shows the machine from another terminal."""
        state = self.environment["TRANCHE_SIM_STATE"]
        return f"TRANCHE_SIM_STATE={shlex.quote(state)} {shlex.quote(str(self.nvidia_smi))}"

    def job_command(self, real_seconds: float) -> tuple[str, ...]:
        """A job that uses its share for that many real seconds."""
        return (str(self.job_program), f"{real_seconds:.6f}", str(JOB_MEMORY_MIB))


@contextmanager
def demo_machine(time_scale: float) -> Iterator[_DemoMachine]:
    """A machine with operations at `time_scale` of their time on hardware, removed when the block ends.

    From then on this process sees no other driver, and all of this machine, whatever its environment said.

    Raises:
        tranche_simulator.SimulatorError: it cannot be built.
        SimulatorError: its folder cannot be used.
    """
    with _folder() as root:
        machine = SimulatedMachine.create(machine_type=MACHINE_TYPE, root=root, time_scale=time_scale)
        for variable in _LIMITING_VARIABLES:
            os.environ.pop(variable, None)
        machine.preload()
        built = ensure_built()
        with (
            closing(NvmlDriver(reset_command=str(built.nvidia_smi))) as driver,
            closing(Host(driver, root / "tranche")) as host,
        ):
            yield _DemoMachine(host, {**os.environ, **machine.environment()}, built.job, built.nvidia_smi)


@contextmanager
def _folder() -> Iterator[Path]:
    try:
        made = tempfile.TemporaryDirectory(prefix="tranche-demo-")
    except OSError as error:
        raise SimulatorError(
            f"cannot create a directory for the demo: {error.strerror}", hint="set TMPDIR to a writable directory"
        ) from error
    with made as folder:
        yield Path(folder)


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
        raise MigNotSupported(
            "no GPU on this machine can be partitioned into MIG slices", hint="run the demo without --real"
        )
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
