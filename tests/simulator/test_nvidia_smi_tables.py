"""nvidia-smi -L, the main table, and the listings of instances."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.simulator.smi_runner import MIG_BOARDS, Smi, make_smi, smi_of_swapped_a100, without_date
from tranche_simulator import ensure_built


@pytest.fixture
def sliced(tmp_path: Path) -> Smi:
    """The A100 of a published listing: 4g.20gb, 2g.10gb in two compute instances, 1g.5gb."""
    smi = smi_of_swapped_a100(tmp_path)
    smi.enable_mig()
    smi.succeed("mig", "-cgi", "4g.20gb,2g.10gb,1g.5gb")
    smi.succeed("mig", "-gi", "2", "-cci", "4g.20gb")
    smi.succeed("mig", "-gi", "3", "-cci", "1c.2g.10gb,1c.2g.10gb")
    smi.succeed("mig", "-gi", "9", "-cci")
    return smi


def test_list_of_gpus(tmp_path: Path, golden: Golden) -> None:
    golden("L-whole.txt", make_smi(tmp_path, "A100-40GB", "T4").succeed("-L"))


def test_list_of_gpus_with_slices(sliced: Smi, golden: Golden) -> None:
    golden("L-slices.txt", sliced.succeed("-L"))


def test_gpu_instances(sliced: Smi, golden: Golden) -> None:
    golden("lgi-A100-40GB.txt", sliced.succeed("mig", "-lgi"))


def test_compute_instances(sliced: Smi, golden: Golden) -> None:
    golden("lci-A100-40GB.txt", sliced.succeed("mig", "-lci"))


def test_main_table_of_whole_gpus(tmp_path: Path, golden: Golden) -> None:
    golden("main-whole.txt", without_date(make_smi(tmp_path, "H100-80GB-SXM", "T4").succeed()))


def test_main_table_with_mig_and_no_slices(tmp_path: Path, golden: Golden) -> None:
    smi = make_smi(tmp_path, "RTX-PRO-6000-96GB")
    smi.enable_mig()
    golden("main-no-slices.txt", without_date(smi.succeed()))


def test_main_table_with_slices(sliced: Smi, golden: Golden) -> None:
    golden("main-slices.txt", without_date(sliced.succeed()))


def test_main_table_with_processes(tmp_path: Path, golden: Golden) -> None:
    smi = make_smi(tmp_path, "H100-80GB-SXM", "A30-24GB")
    smi.succeed("-i", "0", "-mig", "1")
    smi.succeed("mig", "-i", "0", "-cgi", "3g.40gb", "-C")
    slice_uuid = smi.succeed("-L").split("(UUID: MIG-")[1].split(")")[0]
    whole_uuid = smi.succeed("--query-gpu=uuid", "--format=csv,noheader", "-i", "1").strip()
    smi.machine.inject_busy(f"MIG-{slice_uuid}", pid=4_100_001, memory=1714 << 20)
    smi.machine.inject_busy(whole_uuid, pid=4_100_002, memory=512 << 20)
    golden("main-processes.txt", without_date(smi.succeed()))


def test_the_header_says_that_the_machine_is_simulated(tmp_path: Path) -> None:
    header = make_smi(tmp_path, "T4").succeed().splitlines()[2]
    assert header.startswith("| NVIDIA-SMI 580.95.05 (simulated) ")
    assert "Driver Version: 580.95.05 " in header


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_every_box_is_straight(tmp_path: Path, board: str) -> None:
    """With the longest name, and with the most memory, no row is wider or narrower than its frame."""
    smi = make_smi(tmp_path, board)
    smi.enable_mig()
    rows = [line.split() for line in smi.succeed("mig", "-lgip").splitlines() if " MIG " in line]
    longest = max(rows, key=lambda row: len(row[3]))[3]
    largest = max(rows, key=lambda row: float(row[6]))[3]
    for profile in (longest, largest):
        smi.succeed("mig", "-cgi", profile, "-C")
        uuid = smi.succeed("-L").split("(UUID: MIG-")[1].split(")")[0]
        smi.machine.inject_busy(
            f"MIG-{uuid}", pid=4_194_303, memory=2 << 30, name="a-program-with-quite-a-long-name" * 2
        )
        for arguments in ((), ("mig", "-lgip"), ("mig", "-lgi"), ("mig", "-lcip"), ("mig", "-lci")):
            boxed = [line for line in smi.succeed(*arguments).splitlines() if line.startswith(("|", "+"))]
            assert len({len(line) for line in boxed}) == 1, arguments
        smi.machine.clear_injections()
        smi.succeed("mig", "-dci")
        smi.succeed("mig", "-dgi")


def test_a_choice_of_gpus(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4", "A30-24GB", "L4")
    names = smi.succeed("--query-gpu=uuid,pci.bus_id", "--format=csv,noheader").splitlines()
    uuid, bus_id = names[1].split(", ")
    whole = smi.succeed("-L").splitlines()
    domain_free = bus_id.split(":", 1)[1].lower()
    for chosen in ("1", uuid, uuid.lower(), bus_id, bus_id.lower(), bus_id[4:], domain_free):
        assert smi.succeed("-L", "-i", chosen).splitlines() == [whole[1]]
    assert smi.succeed("-L", "--id=2,0").splitlines() == [whole[0], whole[2]]
    for unknown in ("3", "GPU-00000000-0000-0000-0000-000000000000", "0000:99:00.0", "1,7", ""):
        answer = smi("-L", "-i", unknown)
        assert (answer.code, answer.text) == (6, "No devices were found\n")


def test_without_a_machine_there_is_no_driver(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4")
    answer = Smi(smi.machine, {"TRANCHE_SIM_STATE": str(tmp_path / "nothing")})("-L")
    assert answer.code == 9
    assert answer.text.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_what_a_container_sees(sliced: Smi) -> None:
    uuid = sliced.succeed("-L").splitlines()[4].split("(UUID: ")[1].rstrip(")")
    seen = Smi(sliced.machine, {"NVIDIA_VISIBLE_DEVICES": uuid}).succeed("-L").splitlines()
    assert len(seen) == 2
    assert seen[1] == f"  MIG 1g.5gb      Device  0: (UUID: {uuid})"


def test_it_runs_where_there_is_nothing_else(tmp_path: Path) -> None:
    """In a root directory that holds only the program and a machine's state at its fixed place."""
    if os.geteuid() != 0:
        pytest.skip("only root may change the root directory")
    program = ensure_built().nvidia_smi
    if needs_a_loader(program.read_bytes()):
        pytest.skip("the C compiler has no static C library, so nvidia-smi needs the shared one")
    smi = make_smi(tmp_path, "T4")
    jail = tmp_path / "jail"
    state = jail / "run/tranche/simulator/state"
    state.parent.mkdir(parents=True)
    shutil.copy(smi.machine.state, state)
    shutil.copy(program, jail / "nvidia-smi")
    chroot = shutil.which("chroot")
    assert chroot is not None
    command = [chroot, str(jail), "/nvidia-smi", "-L"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.stdout == smi.succeed("-L"), done.stderr


def needs_a_loader(elf: bytes) -> bool:
    """Whether a 64-bit ELF file has a program header of type PT_INTERP."""
    interpreter = 3
    table = int.from_bytes(elf[32:40], sys.byteorder)
    size, count = (int.from_bytes(elf[at : at + 2], sys.byteorder) for at in (54, 56))
    types = (int.from_bytes(elf[table + size * i :][:4], sys.byteorder) for i in range(count))
    return interpreter in types
