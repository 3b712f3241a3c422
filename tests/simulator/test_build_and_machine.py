"""Building the library, and machines as things that are created, listed and destroyed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.machines import make_machine, talking_to
from tranche_simulator import MACHINE_TYPES, SimulatedMachine, build, ensure_built, machines_directory
from tranche_simulator.board_tables import GI_SLOTS, load_models
from tranche_simulator.errors import InvalidRequest, SimulatorError
from tranche_simulator.recipe import COMPILE_FLAGS, NATIVE

# Stands in for a compiler, which takes ten seconds of processor for each builder: it waits until both have begun, once.
COMPILER = """#!/bin/sh
[ -e "{met}" ] || {{
    until [ "$(ls -d "{cache}"/simulator/build-* | wc -l)" = 2 ]; do sleep 0.02; done
    : > "{met}"
}}
while [ "$1" != -o ]; do shift; done
: > "$2"
"""


def test_processes_that_build_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, compiler = tmp_path / "cache", tmp_path / "compiler"
    compiler.write_text(COMPILER.format(cache=cache, met=tmp_path / "met"))
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    code = (
        "import sys; from pathlib import Path; from tranche_simulator.build import ensure_built;"
        "print(ensure_built(Path(sys.argv[1])).library)"
    )
    command = [sys.executable, "-c", code, str(cache)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0]
    (library,) = answers
    assert Path(library).is_file()
    assert len(list((cache / "simulator").iterdir())) == 1, "the other's work is cleaned up"


def test_an_existing_build_is_used_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_built()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ensure_built() == first


def test_no_compiler_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SimulatorError, match="cannot run the C compiler") as raised:
        ensure_built(tmp_path)
    assert "CC" in raised.value.hint
    assert capsys.readouterr().err == "compiling the simulator, once for this version\n"
    assert list((tmp_path / "simulator").iterdir()) == []


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'the headers are missing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(SimulatorError, match="the headers are missing"):
        ensure_built(tmp_path / "cache")


def test_an_unwritable_cache_is_a_clear_error(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(SimulatorError, match="cannot write the simulator's build folder"):
        ensure_built(in_the_way)


def test_cache_folder_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANCHE_CACHE_DIR", str(tmp_path / "own"))
    assert build.cache_directory() == tmp_path / "own"
    monkeypatch.delenv("TRANCHE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.cache_directory() == tmp_path / "xdg" / "tranche"
    monkeypatch.setenv("HOME", str(tmp_path))
    for none in ("", "xdg"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert build.cache_directory() == tmp_path / ".cache" / "tranche"


def test_library_has_the_soname_of_nvml_and_the_control_build_another() -> None:
    built = ensure_built()
    assert b"libnvidia-ml.so.1\0" in built.library.read_bytes()
    assert b"libnvidia-ml.so.1\0" not in built.control.read_bytes()


def test_nvidia_smi_needs_no_library_of_its_host(tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    linked = subprocess.run(
        ["cc", "-static", str(source), "-o", str(tmp_path / "empty")], capture_output=True, check=False
    )
    if linked.returncode != 0:
        pytest.skip("this host's compiler has no static C library")
    headers = subprocess.run(["ldd", str(ensure_built().nvidia_smi)], capture_output=True, text=True, check=False)
    assert "not a dynamic executable" in headers.stderr + headers.stdout


def test_create_list_open_destroy(tmp_path: Path) -> None:
    assert SimulatedMachine.list(tmp_path / "none") == []
    SimulatedMachine.create("b", boards=["A30-24GB"], root=tmp_path)
    SimulatedMachine.create(machine_type="g4dn.xlarge", root=tmp_path)
    assert [machine.name for machine in SimulatedMachine.list(tmp_path)] == ["b", "g4dn.xlarge"]
    opened = SimulatedMachine.open("b", root=tmp_path)
    assert [gpu.name for gpu in opened.gpus()] == ["NVIDIA A30"]
    opened.destroy()
    assert [machine.name for machine in SimulatedMachine.list(tmp_path)] == ["g4dn.xlarge"]
    with pytest.raises(SimulatorError, match="no simulated machine 'b'"):
        SimulatedMachine.open("b", root=tmp_path)


def test_description_for_people(tmp_path: Path) -> None:
    machine = SimulatedMachine.create(machine_type="a30-server", root=tmp_path, time_scale=0.5, seed=3)
    description = json.loads((machine.directory / "machine.json").read_text())
    assert (description["type"], description["timeScale"], description["seed"]) == ("a30-server", 0.5, 3)
    assert [gpu["uuid"] for gpu in description["gpus"]] == [gpu.uuid for gpu in machine.gpus()]


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    first = SimulatedMachine.create("m", boards=["T4"], root=tmp_path)
    uuid = first.gpus()[0].uuid
    with pytest.raises(SimulatorError, match="simulated machine 'm' already exists"):
        SimulatedMachine.create("m", boards=["L4"], root=tmp_path)
    assert SimulatedMachine.open("m", root=tmp_path).gpus()[0].uuid == uuid
    assert sorted(path.name for path in first.directory.iterdir()) == ["machine.json", "state"]


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 65, "-flag"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(InvalidRequest):
            SimulatedMachine.create(name, boards=["T4"], root=tmp_path)
    with pytest.raises(SimulatorError):
        SimulatedMachine.open(name, root=tmp_path)


def test_what_to_simulate_must_be_said_once_and_be_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="unknown board 'H900'"):
        SimulatedMachine.create("m", boards=["H900"], root=tmp_path)
    with pytest.raises(InvalidRequest, match=r"unknown machine type 'p9\.huge'"):
        SimulatedMachine.create(machine_type="p9.huge", root=tmp_path)
    with pytest.raises(InvalidRequest, match="either"):
        SimulatedMachine.create("m", root=tmp_path)
    with pytest.raises(InvalidRequest, match="either"):
        SimulatedMachine.create("m", machine_type="g4dn.xlarge", boards=["T4"], root=tmp_path)
    with pytest.raises(InvalidRequest, match="time scale"):
        SimulatedMachine.create("m", boards=["T4"], root=tmp_path, time_scale=-1)
    assert SimulatedMachine.list(tmp_path) == []


@pytest.mark.parametrize("board", ["a100-40gb", "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"])
def test_boards_by_key_or_product_name(tmp_path: Path, board: str) -> None:
    machine = SimulatedMachine.create("m", boards=[board], root=tmp_path)
    assert machine.gpus()[0].board == "A100-40GB"


def test_an_unwritable_root_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulatorError, match="cannot create") as refused:
        SimulatedMachine.create("m", boards=["T4"], root=tmp_path / "file")
    assert refused.value.hint == (
        "if another user is creating it now, run the command again; otherwise, set TRANCHE_SIM_ROOT to a writable folder"
    )


def test_root_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANCHE_SIM_ROOT", str(tmp_path))
    assert machines_directory() == tmp_path
    SimulatedMachine.create("m", boards=["T4"])
    assert (tmp_path / "m" / "state").is_file()


def test_environment_puts_the_simulator_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    environment = make_machine(tmp_path).environment()
    built = ensure_built()
    assert environment["LD_LIBRARY_PATH"] == f"{built.library.parent}:/before"
    assert environment["PATH"].startswith(f"{built.nvidia_smi.parent}:")
    assert environment["TRANCHE_SIM_STATE"] == str(tmp_path / "machine" / "state")


@pytest.mark.parametrize("board", [str(model["key"]) for model in load_models()])
def test_every_board_of_the_catalogue_can_be_simulated(tmp_path: Path, board: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        (gpu,) = machine.gpus()
        assert gpu.board == board
        assert gpu.name.startswith(("NVIDIA ", "Tesla "))


def test_derived_numbers_are_marked(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "A100-40GB", "T4", "B300", "RTX-PRO-5000-48GB")
    assert [gpu.unverified for gpu in machine.gpus()] == [False, False, True, True]


def test_every_legal_placement_has_a_gi_id() -> None:
    for model in load_models():
        for profile in model.get("profiles", ()):
            for slots in GI_SLOTS[model["placement_units"] or model["compute_slices"]]:
                for start in profile["placement_starts"] or ():
                    assert (start, profile["placement_size"]) in slots.values(), (model["key"], profile["name"])


def test_no_machine_type_has_two_gpus_at_one_address() -> None:
    for machine in MACHINE_TYPES.values():
        assert len({gpu.pci for gpu in machine.gpus}) == len(machine.gpus)


@pytest.mark.parametrize(
    ("asked", "name", "device"),
    [
        ("RTX-PRO-6000-96GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 0x2BB5),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            0x2BB1,
        ),
        (
            "rtx pro 6000 blackwell max-q workstation edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            0x2BB4,
        ),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", 0x20B2),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe", 0x20B5),
        ("T4", "Tesla T4", 0x1EB8),
    ],
)
def test_a_product_is_that_product_and_not_the_first_of_its_board(
    tmp_path: Path, asked: str, name: str, device: int
) -> None:
    (gpu,) = SimulatedMachine.create("m", boards=[asked], root=tmp_path).gpus()
    assert (gpu.name, gpu.pci_device_id) == (name, device << 16 | 0x10DE)


def test_no_source_needs_what_one_c_library_alone_shows() -> None:
    """glibc shows more of POSIX under -pthread than it is asked for; musl, with which wheels are made, does not."""
    flags = [flag for flag in COMPILE_FLAGS if flag != "-pthread"]
    sources = sorted(NATIVE.glob("**/*.c"))
    assert sources
    command = [
        "cc",
        *flags,
        "-Werror=implicit-function-declaration",
        f"-I{NATIVE}",
        "-fsyntax-only",
        *map(str, sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
