"""Simulated machines as objects: create, open, list, destroy, inject faults, attach work."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tranche_simulator import library
from tranche_simulator.build import ensure_built
from tranche_simulator.errors import InvalidRequest, MachineExists, MachineUnknown, SimulatorError

if TYPE_CHECKING:
    from tranche_simulator.machines import GpuSpec
    from tranche_simulator.simulated_gpu import SimulatedGpu

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DRIVER = re.compile(r"\d{3}\.\d{2,3}(\.\d{2})?")


class Client(NamedTuple):
    """A process (or, for a phantom, only a pid) that uses a GPU or one of its instances.

    Memory in bytes. `compute_seconds` is how long its kernels have had a whole GPU, before the time scale: half a GPU for two
    seconds is one second. `mps_server` is the pid of the MPS server that it uses the GPU through.
    """

    pid: int
    gpu: int
    gpu_instance_id: int | None
    compute_instance_id: int | None
    memory: int
    utilization: int
    compute_seconds: float
    name: str
    phantom: bool
    mps_server: int | None = None


def machines_directory() -> Path:
    """Where machines are kept: $TRANCHE_SIM_ROOT, else the state folder of root or of this user."""
    chosen = os.environ.get("TRANCHE_SIM_ROOT")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/tranche/simulator")
    return Path.home() / ".local" / "state" / "tranche" / "simulator"


def _names_in(folder: Path) -> tuple[str, ...]:
    """The machines in the folder, as far as it is readable."""
    try:
        return tuple(sorted(each.name for each in folder.iterdir() if (each / "state").exists()))
    except OSError:
        return ()


class SimulatedMachine:
    """One simulated machine: a folder with the state that NVML shows and a description for people."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self._handle: c_void_p | None = None

    @classmethod
    def create(
        cls,
        name: str = "",
        *,
        machine_type: str = "",
        boards: Sequence[str] = (),
        gpus: Sequence[GpuSpec] = (),
        root: Path | None = None,
        time_scale: float = 1.0,
        seed: int = 0,
        driver: str = "",
    ) -> SimulatedMachine:
        """Create a machine of a named type, of boards (catalogue keys or product names), or of explicit GPUs.

        `time_scale` multiplies how long operations take: 1 as on hardware, 0 no time at all. The same name, GPUs and seed give
        the same UUIDs. `driver` is its version; the usual one is 580.95.05.

        Raises:
            InvalidRequest: bad name, no version, unknown type or board, too many GPUs, or not exactly one of type, boards and
                GPUs.
            MachineExists: there is one of that name.
            SimulatorError: the folder cannot be written.
        """
        # Only creating a machine reads the catalogue: every command opens a machine at its start.
        from tranche_simulator.machine_specs import chosen_gpus, spec_structs

        specs = chosen_gpus(machine_type, boards, gpus)
        if len(specs) > library.MOST_GPUS:
            raise InvalidRequest(f"a simulated machine has at most {library.MOST_GPUS} GPUs, not {len(specs)}")
        name = name or machine_type or "machine"
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name!r} is not a valid machine name", hint="use letters, digits, dots, dashes and underscores"
            )
        if not 0 <= time_scale < float("inf"):
            raise InvalidRequest(f"the time scale must be a non-negative number, not {time_scale}")
        if driver and not DRIVER.fullmatch(driver):
            raise InvalidRequest(f"{driver!r} is not a driver version", hint="write it like 580.95.05")
        machine = cls((root or machines_directory()) / name)
        try:
            machine.directory.mkdir(parents=True, exist_ok=True)
            machine.directory.chmod(0o755)
        except OSError as error:
            raise SimulatorError(
                f"cannot create {machine.directory}: {error.strerror}",
                hint="if another user is creating it now, run the command again; otherwise, set TRANCHE_SIM_ROOT to a "
                "writable folder",
            ) from error
        structs = spec_structs(specs)
        code = library.control_library().trancheSimCreate(
            os.fsencode(machine.state), name.encode(), structs, len(specs), time_scale, seed
        )
        if code == library.IN_USE:
            raise MachineExists(f"simulated machine {name!r} already exists in {machine.directory.parent}", name=name)
        library.check(code, f"cannot create the simulated machine {name!r}")
        if driver:
            machine.set_driver(driver)
        machine._describe(name, machine_type, time_scale, seed)
        return machine

    @classmethod
    def open(cls, name: str, *, root: Path | None = None) -> SimulatedMachine:
        """Open a machine by name.

        Raises:
            MachineUnknown: no machine of that name.
        """
        machine = cls((root or machines_directory()) / name)
        if not NAME.fullmatch(name) or not os.path.isfile(machine.state):
            folder = machine.directory.parent
            raise MachineUnknown(f"no simulated machine {name!r} in {folder}", name=name, known=_names_in(folder))
        return machine

    @staticmethod
    def list(root: Path | None = None) -> list[SimulatedMachine]:
        """Every machine in the folder, by name."""
        directory = root or machines_directory()
        if not os.path.isdir(directory):
            return []
        return [SimulatedMachine(path) for path in sorted(directory.iterdir()) if (path / "state").is_file()]

    def destroy(self) -> None:
        """Remove the machine, and end its MPS daemons. Other processes that still use it then find no driver.

        Raises:
            SimulatorError: the folder cannot be removed.
        """
        import shutil  # its compression modules cost more than all else here

        from tranche_simulator.mps_processes import end_mps  # rarely needed, too

        end_mps(self.state.absolute())
        try:
            self.state.unlink(missing_ok=True)
            shutil.rmtree(self.directory)
        except OSError as error:
            raise SimulatorError(f"cannot remove {self.directory}: {error.strerror}") from error

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.directory.name

    @property
    def time_scale(self) -> float:
        """Factor on how long operations take."""
        return float(self._description().time_scale)

    def set_time_scale(self, scale: float) -> None:
        """Change how long operations take, for all processes from now on."""
        self._call("trancheSimSetTimeScale", scale, doing=f"cannot set the time scale of {self.name} to {scale}")

    @property
    def driver(self) -> str:
        """The version of its driver."""
        return str(self._description().driver.decode())

    def set_driver(self, version: str) -> None:
        """Change the driver, for processes started from now on."""
        self._call(
            "trancheSimSetDriver", version.encode(), doing=f"cannot set the driver version of {self.name} to {version}"
        )

    def set_context_memory(self, memory: int) -> None:
        """Change how much device memory a new CUDA context takes, in bytes; 0 derives it from its multiprocessors."""
        self._call("trancheSimSetContextMemory", memory, doing=f"cannot set the context size of {self.name}")

    def set_limits_backend(self, backend: Literal["misc", "dmem", "off", "lax"]) -> None:
        """Change how the driver keeps memory limits of control groups: in its own table, by the kernel, or not at all.

        "lax" is a fault: limits are accepted and shown, but not enforced.
        """
        number = ("misc", "dmem", "off", "lax").index(backend)
        self._call("trancheSimSetLimitsBackend", number, doing=f"cannot set the back end of {self.name} to {backend}")

    @property
    def boots(self) -> int:
        """How many times the machine was rebooted."""
        return int(self._description().boots)

    @property
    def changed_at(self) -> float:
        """When a change of a GPU last took effect, by any process, in seconds of time.monotonic; 0 if none did.

        A change is an instance made or destroyed, a mode set, or a reset. A reboot is none.
        """
        return float(self._description().changed_at) / 1e9

    def gpus(self) -> tuple[SimulatedGpu, ...]:
        """Every GPU on the machine, regardless of NVIDIA_VISIBLE_DEVICES."""
        return tuple(self._gpu(index) for index in range(self._description().gpu_count))

    def clients(self) -> tuple[Client, ...]:
        """The present users of the GPUs."""
        structs = (library.ClientStruct * library.MAX_CLIENTS)()
        count = c_uint(library.MAX_CLIENTS)
        self._call("trancheSimListClients", structs, byref(count), doing=f"cannot list the clients of {self.name}")
        return tuple(_client(struct) for struct in structs[: count.value])

    def environment(self) -> dict[str, str]:
        """The environment that a process needs to see this machine instead of a real driver.

        LD_LIBRARY_PATH and PATH are the present values with the simulator's folders in front.
        """
        built = ensure_built()
        return {
            "LD_LIBRARY_PATH": _prepend(built.library.parent, os.environ.get("LD_LIBRARY_PATH")),
            "PATH": _prepend(built.nvidia_smi.parent, os.environ.get("PATH")),
            "TRANCHE_SIM_STATE": str(self.state.absolute()),
        }

    def capability_files(self) -> Path:
        """The folder of the files of MIG capabilities. It is created now; from then on the library keeps it correct.

        Raises:
            SimulatorError: the folder cannot be written.
        """
        from tranche_simulator.capabilities import machine_capabilities

        folder = self.directory / "capabilities"
        try:
            for name, text in machine_capabilities().items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    path.write_text(text)
        except OSError as error:
            raise SimulatorError(f"cannot write {folder}: {error.strerror}") from error
        self._call("trancheSimUpdateCapabilityFiles", doing=f"cannot write {folder}")
        return folder

    def preload(self) -> None:
        """Make NVML in this process (and its children) show this machine. Call it before anything initialises NVML."""
        library.preload(self.state.absolute())

    def reboot(self) -> None:
        """Reboot: instances and clients go, pending MIG modes are applied, and only Ampere keeps MIG mode."""
        self._call("trancheSimReboot", doing=f"cannot reboot {self.name}")

    def reset_gpu(self, gpu: int) -> None:
        """Reset a GPU as `nvidia-smi --gpu-reset` does.

        Raises:
            GpuInUse: it has clients.
            NotPermitted: the caller is neither root nor the machine's owner.
        """
        self._call("trancheSimResetGpu", gpu, doing=f"cannot reset GPU {gpu} of {self.name}")

    def inject_error(self, function: str, code: int, *, calls: int = 1, gpu: int | None = None) -> None:
        """Make the next `calls` calls of an NVML function (on one GPU, or any) return `code`."""
        number = library.ANY_GPU if gpu is None else gpu
        doing = f"cannot inject error {code} into {function}"
        self._call("trancheSimInjectError", function.encode(), code, calls, number, doing=doing)

    def inject_latency(self, function: str, seconds: float, *, gpu: int | None = None) -> None:
        """Make every call of an NVML function take `seconds` longer until cleared, regardless of the time scale."""
        number = library.ANY_GPU if gpu is None else gpu
        doing = f"cannot inject latency into {function}"
        self._call("trancheSimInjectLatency", function.encode(), seconds, number, doing=doing)

    def inject_xid(
        self, gpu: int, xid: int, *, gpu_instance_id: int | None = None, compute_instance_id: int | None = None
    ) -> None:
        """Deliver an XID to every event set that is registered for it."""
        instances = [library.NO_INSTANCE if i is None else i for i in (gpu_instance_id, compute_instance_id)]
        self._call("trancheSimInjectXid", gpu, *instances, xid, doing=f"cannot deliver XID {xid} on GPU {gpu}")

    def inject_lost(self, gpu: int, *, lost: bool = True) -> None:
        """Let a GPU fall off the bus, or come back."""
        self._call("trancheSimInjectLost", gpu, int(lost), doing=f"cannot change whether GPU {gpu} is lost")

    def inject_stuck_mode(self, gpu: int, *, stuck: bool = True) -> None:
        """From now on a pending MIG mode of the GPU never becomes current."""
        self._call("trancheSimInjectStuckMode", gpu, int(stuck), doing=f"cannot change the MIG mode fault of GPU {gpu}")

    def inject_busy(self, uuid: str, *, pid: int = 4_999_999, name: str = "phantom", memory: int = 0) -> None:
        """Pin a client without a process on a GPU or MIG device, until cleared or rebooted.

        Choose `pid` beyond 4194304, the largest that Linux gives: a living process of that id shows its own name.
        """
        doing = f"cannot make {uuid} busy"
        self._call("trancheSimInjectBusy", uuid.encode(), pid, name.encode(), memory, doing=doing)

    def clear_injections(self) -> None:
        """Undo every injection, phantom clients included."""
        self._call("trancheSimClearInjections", doing=f"cannot clear the injected faults of {self.name}")

    def attach(self, uuid: str, *, memory: int = 0, utilization: int = 100) -> int:
        """Make this process a client of a GPU or MIG device. Returns the number to detach with. Memory in bytes.

        The process stays a client until it detaches or dies; a forked child is none.

        Raises:
            GpuUnknown: no such UUID.
            GpuInUse: not that much memory is free, or it is a whole GPU in MIG mode.
        """
        client = c_uint()
        doing = f"cannot attach to {uuid}"
        self._call("trancheSimAttach", uuid.encode(), memory, utilization, byref(client), doing=doing)
        return client.value

    def detach(self, client: int) -> None:
        """Stop being the client that `attach` returned."""
        self._call("trancheSimDetach", client, doing=f"cannot detach client {client}")

    @contextmanager
    def attached(self, uuid: str, *, memory: int = 0, utilization: int = 100) -> Iterator[None]:
        """Attach for the duration of a block."""
        client = self.attach(uuid, memory=memory, utilization=utilization)
        try:
            yield
        finally:
            self.detach(client)

    def change_calls(self) -> Mapping[str, int]:
        """How often any process has called each changing function on this machine, including failed calls."""
        counts = {}
        for function in library.change_functions():
            count = c_ulonglong()
            doing = f"cannot read the counters of {self.name}"
            self._call("trancheSimChangeCalls", function.encode(), byref(count), doing=doing)
            counts[function] = count.value
        return counts

    def total_change_calls(self) -> int:
        """How many calls have asked for a change so far."""
        return sum(self.change_calls().values())

    def _call(self, function: str, *arguments: object, doing: str) -> None:
        if self._handle is None:
            self._handle = library.open_state(self.state)
        library.check(getattr(library.control_library(), function)(self._handle, *arguments), doing)

    def _description(self) -> library.DescriptionStruct:
        struct = library.DescriptionStruct()
        self._call("trancheSimDescribe", byref(struct), doing=f"cannot read {self.state}")
        return struct

    def _gpu(self, index: int) -> SimulatedGpu:
        from tranche_simulator.simulated_gpu import described_gpu

        struct = library.GpuDescriptionStruct()
        self._call("trancheSimDescribeGpu", index, byref(struct), doing=f"cannot read GPU {index} of {self.name}")
        return described_gpu(index, struct)

    def _describe(self, name: str, machine_type: str, time_scale: float, seed: int) -> None:
        """Write machine.json, for people and scripts; nothing reads it back."""
        description = {
            "name": name,
            "type": machine_type or None,
            "timeScale": time_scale,
            "seed": seed,
            "gpus": [
                {"index": gpu.index, "board": gpu.board, "name": gpu.name, "uuid": gpu.uuid, "busId": gpu.bus_id}
                for gpu in self.gpus()
            ],
        }
        try:
            (self.directory / "machine.json").write_text(json.dumps(description, indent=2) + "\n")
        except OSError as error:
            raise SimulatorError(f"cannot describe the machine in {self.directory}: {error.strerror}") from error


def _client(struct: library.ClientStruct) -> Client:
    def instance(number: int) -> int | None:
        return None if number == library.NO_INSTANCE else number

    return Client(
        pid=struct.pid,
        gpu=struct.gpu,
        gpu_instance_id=instance(struct.gpu_instance_id),
        compute_instance_id=instance(struct.compute_instance_id),
        memory=struct.memory_bytes,
        utilization=struct.utilization_percent,
        compute_seconds=struct.compute_nanoseconds / 1e9,
        name=struct.name.decode(errors="replace"),
        phantom=bool(struct.phantom),
        mps_server=struct.mps_server or None,
    )


def _prepend(folder: Path, present: str | None) -> str:
    return f"{folder}{os.pathsep}{present}" if present else str(folder)
