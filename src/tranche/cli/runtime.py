"""What every command works with: the chosen machine, its driver, the host with its ledger, and a look at them.

`--simulate` and `--state-dir` may stand before or after the subcommand's name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tranche.cli.output import say, warn
from tranche.core.errors import AllocationUnknown, HardwareError, TrancheError, UsageError
from tranche.hardware.simulator_errors import simulator_errors
from tranche.node.state.session import StateFolder

if TYPE_CHECKING:
    from tranche.core.allocation import NodeView
    from tranche.core.keeper import Actor
    from tranche.core.state import NodeState
    from tranche.hardware.nvml import NvmlDriver
    from tranche.node.host import Host
    from tranche_simulator.machine import SimulatedMachine


Command = TypeVar("Command", bound=Callable[..., Any])
Seen = TypeVar("Seen")

SECONDS = 60.0
"""How long a command waits for a driver that may hang."""
_SECONDS_AFTERWARDS = 1.0


@dataclass(slots=True)
class Settings:
    """The options that all commands share; None where they were not given."""

    simulate: str | None = None
    state_dir: str | None = None


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        setattr(context.find_root().ensure_object(Settings), str(parameter.name), value)


def _complete_as_before_the_command(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    root = context.find_root()
    (before,) = (each for each in root.command.params if each.name == parameter.name)
    return before.shell_complete(root, incomplete)


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--simulate"],
            metavar="MACHINE",
            expose_value=False,
            callback=_remember,
            hidden=True,
            is_eager=True,
            shell_complete=_complete_as_before_the_command,
        ),
        click.Option(
            ["--state-dir"], metavar="DIR", expose_value=False, callback=_remember, hidden=True, is_eager=True
        ),
    ]


class TrancheCommand(click.Command):
    """A command that also takes the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class TrancheGroup(click.Group):
    """A group whose commands take the shared options; one that works as a command takes them itself, too."""

    command_class = TrancheCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.invoke_without_command:
            self.params += _shared_options()


def output_option(*formats: str) -> Callable[[Command], Command]:
    """The `-o` option: `table` and `json`, or the formats given; the first is the default."""
    choices = formats or ("table", "json")
    return click.option(
        "-o", "--output", type=_Format(choices), default=choices[0], show_default=True, help="Output format."
    )


class _Format(click.Choice[str]):
    """A choice that tells people who ask for YAML that JSON is YAML."""

    def get_invalid_choice_message(self, value: str, ctx: click.Context | None) -> str:
        """What click says, and what helps."""
        text = super().get_invalid_choice_message(value=value, ctx=ctx)
        return f"{text} JSON is also valid YAML: use -o json." if value.lower() in ("yaml", "yml") else text


_STATE_DIR = Path("/var/lib/tranche")


@contextmanager
def open_driver(settings: Settings) -> Iterator[NvmlDriver]:
    """The driver of this machine, or of the simulated one; DriverNotFound where there is none."""
    machine = simulated_machine(settings)
    reset_command = "nvidia-smi"
    if machine is not None:
        from tranche_simulator.library import preload

        with simulator_errors():
            reset_command = str(preload(machine.state).nvidia_smi)
    from tranche.hardware.nvml import NvmlDriver

    socket = socket_of_service(settings) if os.geteuid() != 0 else None
    if socket is not None:
        from tranche.local.served_driver import ServedDriver  # root needs none

        opened: NvmlDriver = ServedDriver(socket, reset_command=reset_command)
    else:
        opened = NvmlDriver(reset_command=reset_command)
    with closing(opened) as driver:
        yield driver


def observe(settings: Settings) -> NodeState:
    """That machine as its driver shows it, without its register."""
    with open_driver(settings) as driver:
        return driver.observe()


@contextmanager
def open_host(
    settings: Settings,
    *,
    reading: bool = False,
    anywhere: bool = False,
    changes_own_share: str = "",
    actor: Actor | None = None,
    uid: int | None = None,
) -> Iterator[Host]:
    """That machine as its register knows it; errors of the driver and of the ledger as they are. Events name the `actor`.
    Shares are for the user `uid`, by default this process's.

    A command that is only `reading` needs no right to write. Every other one is refused where the register is not, but for one
    that may work `anywhere`: of the agents of one node, the cluster says which may change it. None changes anything from inside
    a share, except for the share itself where its id begins with `changes_own_share`.
    """
    with open_driver(settings) as driver:
        from tranche.node.host import Host

        places = register_places(settings, reading=reading, anywhere=anywhere)
        recovered = _say_recovered if reading else lambda purpose: None
        opened = Host(
            driver,
            places.state_dir,
            environment=child_environment(settings),
            reading=reading,
            recovered=recovered,
            actor=actor,
            uid=os.getuid() if uid is None else uid,
        )
        with closing(opened) as host:
            if not reading and not anywhere:
                _refuse_inside_share(host, but=changes_own_share)
            yield host


def _refuse_inside_share(host: Host, *, but: str) -> None:
    """UsageError for a process that runs in a share of this machine: it has that share, and changes nothing else.

    `but` is the beginning of the id of the one share that may be changed from inside.
    """
    from tranche.node.processes.processes import MARK
    from tranche.node.store import register

    allocation_id = os.environ.get(MARK, "")
    if not allocation_id or (but and allocation_id.startswith(but)):
        return
    with host.ledger.read() as db:
        inside = any(each.id == allocation_id for each in register.allocations(db))
    if inside:
        raise UsageError(
            f"this process is running inside share {allocation_id}, and Tranche does not change the machine from inside a share",
            hint="run this outside the share; inside it, start commands without tranche",
        )


def _say_recovered(purpose: str) -> None:
    say(f"tranche: '{purpose}' was interrupted and has been undone")


def user_name() -> str:
    """The user whose rights this process has."""
    import pwd  # seldom asked

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def socket_of_service(settings: Settings) -> Path | None:
    """Where the service of this machine listens, for a user who may not write its register; None without one.

    Root of a user namespace (a rootless container) may not write the register either.
    """
    places = register_places(settings, reading=True)
    return places.socket if os.path.exists(places.socket) and not places.writable else None


def simulated_machine(settings: Settings) -> SimulatedMachine | None:
    """The machine that --simulate names, made at first use when the name is a machine type; None without --simulate."""
    name = settings.simulate
    if name is None:
        return None
    from tranche_simulator.errors import SimulatorError
    from tranche_simulator.machine import SimulatedMachine, machines_directory

    state = machines_directory() / name / "state"
    with simulator_errors():
        if not os.path.exists(state):
            from tranche_simulator.machines import MACHINE_TYPES

            if name in MACHINE_TYPES:
                try:
                    return SimulatedMachine.create(name, machine_type=name)
                except SimulatorError:
                    # Another command may have made it meanwhile; if that is not the reason, open() says what is wrong.
                    if not os.path.exists(state):
                        raise
        return SimulatedMachine.open(name)


def register_places(settings: Settings, *, reading: bool = False, anywhere: bool = False) -> StateFolder:
    """The files of the machine's register; PermissionDenied when a command that changes something was told another folder."""
    from tranche.node.state.register_place import register_folder, settle_register

    home = _home(settings)
    chosen = settings.state_dir or os.environ.get("TRANCHE_STATE_DIR")
    if chosen and anywhere:
        return StateFolder(Path(chosen))
    found = register_folder(home)
    if chosen and not reading:
        settle_register(home, Path(chosen))
    elif chosen and found is not None and os.path.realpath(found) != os.path.realpath(chosen):
        warn(f"this machine's register is in {found}: reading it there, not in {chosen}")
        return StateFolder(found)
    return StateFolder(Path(chosen) if chosen else found or home)


def _home(settings: Settings) -> Path:
    """The machine's own place for its register: beside a simulated machine's state, else /var/lib/tranche."""
    machine = simulated_machine(settings)
    if machine is not None:
        return machine.directory / "tranche"
    simulated = os.environ.get("TRANCHE_SIM_STATE")
    return Path(simulated).parent / "tranche" if simulated else _STATE_DIR


def child_environment(settings: Settings) -> dict[str, str]:
    """This process's environment, with what makes a child see the simulated machine where one is meant."""
    machine = simulated_machine(settings)
    return {**os.environ, **(machine.environment() if machine is not None else {})}


def look_at(host: Host) -> NodeView:
    """The machine as it is now, for a command that only shows it. Clears what dead processes left, if that is possible now."""
    from tranche.node.locks.deciding import slow_decision

    view = host.look(unsettled)
    if (slow := slow_decision(host.places)) is not None:
        warn(f"{slow}; {slow.hint}")
    return view


def warn_of_hidden_devices(node: NodeState) -> None:
    """Warn that the node may be only what a share or a container shows."""
    from tranche.core.state import DeviceVisibility

    if node.scope is not DeviceVisibility.ALL:
        warn("NVIDIA_VISIBLE_DEVICES may hide devices of this machine; run this outside any share or container")


def unsettled(error: TrancheError) -> None:
    """Say that what dead processes left is still there, and why."""
    warn(f"cannot clean up after dead processes, so this list still shows what they left: {error.message}")


def full_id(host: Host, typed: str) -> str:
    """The id of the allocation or waiting request that begins with `typed`; `typed` itself if there is none.

    AllocationUnknown if several begin with it.
    """
    from tranche.node.store import register

    with host.ledger.read() as db:
        ids = [each.id for each in register.allocations(db)] + [each.id for each in host.waiters()]
    if typed in ids:
        return typed
    found = sorted(each for each in ids if typed and each.startswith(typed))
    if len(found) > 1:
        raise AllocationUnknown(
            f"several ids begin with {typed}: {', '.join(found)}", hint="type more characters of the id"
        )
    return found[0] if found else typed


class DriverReader:
    """Asks a driver that may hang, on its own threads, one after the other. After one unanswered call, each further call gets a
    second.
    """

    def __init__(self) -> None:
        self._seconds = SECONDS

    def to(self, look: Callable[[], Seen]) -> Seen:
        """What `look` returns or raises; HardwareError if it does neither in time, leaving its thread behind."""
        from contextvars import copy_context

        seen: list[Seen] = []
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                seen.append(look())
            except BaseException as error:
                failures.append(error)

        # click finds its command by the context.
        asking = threading.Thread(target=copy_context().run, args=(ask,), daemon=True)
        asking.start()
        asking.join(self._seconds)
        if failures:
            raise failures[0]
        if seen:
            return seen[0]
        waited, self._seconds = self._seconds, min(self._seconds, _SECONDS_AFTERWARDS)
        raise HardwareError(
            f"the NVIDIA driver has not answered for {waited:g} s",
            hint="check whether nvidia-smi hangs too, and read the kernel log: dmesg",
        )
