"""The simulator's errors reach a person with the words and exit codes of Tranche's tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_sim import Cli
from tranche.core.errors import TrancheError
from tranche.hardware.simulator_errors import simulator_errors
from tranche_simulator import errors as simulator


def kinds(cls: type[simulator.SimulatorError]) -> list[type[simulator.SimulatorError]]:
    return [cls, *(kind for child in cls.__subclasses__() for kind in kinds(child))]


ERRORS: dict[type[simulator.SimulatorError], simulator.SimulatorError] = {
    simulator.MachineExists: simulator.MachineExists("what happened", name="m"),
    simulator.MachineUnknown: simulator.MachineUnknown("what happened", name="m", known=("n",)),
}


@pytest.mark.parametrize("cls", kinds(simulator.SimulatorError), ids=lambda cls: cls.__name__)
def test_every_kind_has_a_class_of_tranches(cls: type[simulator.SimulatorError]) -> None:
    error = ERRORS[cls] if cls in ERRORS else cls("what happened", hint="what to do")
    with pytest.raises(TrancheError) as raised, simulator_errors():
        raise error
    assert raised.value.message == "what happened"
    assert raised.value.hint


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("sim", "create", "g4dn.xlarge"), 27, "`tranche sim destroy g4dn.xlarge`"),
        (("sim", "create", "m", "--gpu", "H900"), 2, "known boards: "),
        (("--simulate", "nowhere", "gpus"), 27, "`tranche sim list` shows the machines"),
        (("sim", "destroy", "p5.48xlarge"), 27, "did you mean 'p5en.48xlarge'"),
        (("--simulate", "g4dn.xlarge", "sim", "attach", "GPU-none"), 23, "`nvidia-smi -L`"),
        (("--simulate", "g4dn.xlarge", "sim", "attach", "0", "--memory", "900G"), 80, "`nvidia-smi` shows"),
    ],
)
def test_the_command_line_reports_them_as_its_own(
    arguments: tuple[str, ...], code: int, hint: str, tmp_path: Path
) -> None:
    cli = Cli(tmp_path / "machines")
    cli.succeed("sim", "create", "g4dn.xlarge")
    done = cli(*arguments)
    assert done.returncode == code
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_library_that_cannot_be_built_is_a_finding_of_doctor(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "machines")
    cli.succeed("sim", "create", "g4dn.xlarge")
    nowhere = {"CC": "no-such-compiler", "TRANCHE_CACHE_DIR": str(tmp_path / "cache")}
    done = cli("--simulate", "g4dn.xlarge", "--state-dir", str(tmp_path / "state"), "doctor", **nowhere)
    assert "fail  cannot run the C compiler" in done.stdout
