"""nvidia-smi -mig, --gpu-reset and the mig actions: the sentences and exit codes that programs look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.smi_runner import Smi, make_smi

NOT_PERMITTED, NOT_FOUND, IN_USE, NO_ROOM, INVALID, OTHER, USAGE = 4, 6, 19, 23, 2, 255, 2


@pytest.fixture
def a100(tmp_path: Path) -> Smi:
    smi = make_smi(tmp_path, "A100-40GB")
    smi.enable_mig()
    return smi


@pytest.fixture
def h100(tmp_path: Path) -> Smi:
    smi = make_smi(tmp_path, "H100-80GB-SXM")
    smi.enable_mig()
    return smi


def bus_ids(smi: Smi) -> list[str]:
    return smi.succeed("--query-gpu=pci.bus_id", "--format=csv,noheader").split()


def mode(smi: Smi, gpu: int = 0) -> str:
    return smi.succeed("--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader", "-i", str(gpu)).strip()


def first_slice(smi: Smi) -> str:
    return "MIG-" + smi.succeed("-L").split("(UUID: MIG-")[1].split(")")[0]


def test_create_destroy_in_full(a100: Smi) -> None:
    assert a100.succeed("mig", "-cgi", "9,3g.20gb", "-C").splitlines() == [
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.20gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile MIG 3g.20gb (ID  2)",
        "Successfully created GPU instance ID  1 on GPU  0 using profile MIG 3g.20gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  1 using profile MIG 3g.20gb (ID  2)",
    ]
    assert a100.succeed("mig", "-dci").splitlines() == [
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  1",
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  2",
    ]
    assert a100.succeed("mig", "-dgi").splitlines() == [
        "Successfully destroyed GPU instance ID  1 from GPU  0",
        "Successfully destroyed GPU instance ID  2 from GPU  0",
    ]


def test_a_list_stops_at_the_first_failure_and_keeps_what_was_made(a100: Smi) -> None:
    """A listing of NVIDIA's MIG guide."""
    answer = a100("mig", "-cgi", "19,19,14,9")
    assert answer.lines == [
        "Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)",
        "Successfully created GPU instance ID 11 on GPU  0 using profile MIG 1g.5gb (ID 19)",
        "Successfully created GPU instance ID  3 on GPU  0 using profile MIG 2g.10gb (ID 14)",
        "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources",
        "Failed to create GPU instances: Insufficient Resources",
    ]
    assert answer.code == NO_ROOM
    assert len([line for line in a100.succeed("mig", "-lgi").splitlines() if " MIG " in line]) == 3


@pytest.mark.parametrize("profile", ["1", "1g.6gb", "MIG 8g.40gb", "19:x", ":4"])
def test_an_unknown_profile_is_echoed_as_typed(a100: Smi, profile: str) -> None:
    answer = a100("mig", "-cgi", profile)
    assert answer.lines == [
        f"Unable to create a GPU instance on GPU  0 using profile {profile}: Invalid Argument",
        "Failed to create GPU instances: Invalid Argument",
    ]
    assert answer.code == INVALID


@pytest.mark.parametrize("profile", ["9:4", "3g.20gb:4", "MIG 3g.20gb:4"])
def test_a_placement_may_be_given(a100: Smi, profile: str) -> None:
    a100.succeed("mig", "-cgi", profile)
    row = next(line for line in a100.succeed("mig", "-lgi").splitlines() if " MIG " in line)
    assert row == "|   0  MIG 3g.20gb            9        2          4:4     |"


def test_the_command_covers_every_mig_gpu_and_no_other(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A30-24GB", "T4", "A30-24GB")
    smi("-mig", "1")
    smi.succeed("--gpu-reset")
    lines = smi.succeed("mig", "-cgi", "1g.6gb").splitlines()
    assert [line.partition(" on ")[2] for line in lines] == [
        "GPU  0 using profile MIG 1g.6gb (ID 14)",
        "GPU  2 using profile MIG 1g.6gb (ID 14)",
    ]
    assert smi.succeed("mig", "-dgi", "-i", "2").endswith(" from GPU  2\n")
    assert smi.succeed("mig", "-lgi").count(" MIG 1g.6gb ") == 1


def test_compute_instances_in_a_chosen_gpu_instance(a100: Smi) -> None:
    a100.succeed("mig", "-cgi", "9,9")
    assert a100.succeed("mig", "-gi", "1", "-cci", "0,1c.3g.20gb:2").splitlines() == [
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  1 using profile MIG 1c.3g.20gb (ID  0)",
        "Successfully created compute instance ID  1 on GPU  0 GPU instance ID  1 using profile MIG 1c.3g.20gb (ID  0)",
    ]
    rows = [line for line in a100.succeed("mig", "-lci").splitlines() if " MIG " in line]
    assert rows == [
        "|   0      1       MIG 1c.3g.20gb       0         0          0:1     |",
        "|   0      1       MIG 1c.3g.20gb       0         1          2:1     |",
    ]
    answer = a100("mig", "-cci", "-gi", "1")
    assert answer.code == NO_ROOM
    assert answer.lines[-1] == "Failed to create compute instances: Insufficient Resources"
    assert a100.succeed("mig", "-dci", "-gi", "1", "-ci", "1").splitlines() == [
        "Successfully destroyed compute instance ID  1 from GPU  0 GPU instance ID  1"
    ]


def test_an_instance_in_use_stays(a100: Smi) -> None:
    a100.succeed("mig", "-cgi", "1g.5gb", "-C")
    answer = a100("mig", "-dgi")
    assert answer.lines == [
        "Unable to destroy GPU instance ID 13 from GPU  0: In use by another client",
        "Failed to destroy GPU instances: In use by another client",
    ]
    assert answer.code == IN_USE
    a100.machine.inject_busy(first_slice(a100), pid=4_100_001, memory=1 << 20)
    answer = a100("mig", "-dci")
    assert answer.lines == [
        "Unable to destroy compute instance ID  0 from GPU  0 GPU instance ID 13: In use by another client",
        "Failed to destroy compute instances: In use by another client",
    ]
    assert answer.code == IN_USE


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-lgi",), "No GPU instances found: Not Found"),
        (("-lcip",), "No GPU instances found: Not Found"),
        (("-dgi",), "No GPU instances found: Not Found"),
        (("-cci",), "No GPU instances found: Not Found"),
        (("-lci",), "No compute instances found: Not Found"),
        (("-dci",), "No compute instances found: Not Found"),
    ],
)
def test_an_empty_gpu(a100: Smi, arguments: tuple[str, ...], sentence: str) -> None:
    answer = a100("mig", *arguments)
    assert (answer.code, answer.text) == (NOT_FOUND, sentence + "\n")


@pytest.mark.parametrize("action", [("-lgi",), ("-lci",), ("-lcip",), ("-cgi", "19"), ("-dgi",), ("-cci",), ("-dci",)])
def test_no_gpu_in_mig_mode(tmp_path: Path, action: tuple[str, ...]) -> None:
    answer = make_smi(tmp_path, "A100-40GB")("mig", *action)
    assert (answer.code, answer.text) == (NOT_FOUND, "No MIG-enabled devices found.\n")


def test_mode_on_hopper_changes_at_once(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "H100-80GB-SXM", "H100-80GB-SXM")
    first, second = bus_ids(smi)
    assert smi.succeed("-mig", "1").splitlines() == [
        f"Enabled MIG Mode for GPU {first}",
        f"Enabled MIG Mode for GPU {second}",
        "All done.",
    ]
    assert smi.succeed("-i", "1", "-mig", "DISABLED").splitlines() == [
        f"Disabled MIG Mode for GPU {second}",
        "All done.",
    ]
    assert [mode(smi, 0), mode(smi, 1)] == ["Enabled, Enabled", "Disabled, Disabled"]


def test_mode_of_a_board_without_mig_is_a_warning(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4")
    assert smi.succeed("-mig", "1").splitlines() == [
        f"Unable to enable MIG Mode for GPU {bus_ids(smi)[0]}: Not Supported",
        "Treating as warning and moving on.",
        "All done.",
    ]


def test_mode_is_refused_while_instances_exist(h100: Smi) -> None:
    h100.succeed("mig", "-cgi", "1g.10gb", "-C")
    answer = h100("-mig", "0")
    assert answer.lines == [
        f"Unable to disable MIG Mode for GPU {bus_ids(h100)[0]}: In use by another client",
        "Terminating early due to previous errors.",
    ]
    assert answer.code == IN_USE
    assert mode(h100) == "Enabled, Enabled"


def test_reset_makes_a_pending_mode_current(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A100-40GB")
    smi.succeed("-mig", "1")
    (bus_id,) = bus_ids(smi)
    assert smi.succeed("-r", "-i", "0").splitlines() == [f"GPU {bus_id} was successfully reset.", "All done."]
    assert mode(smi) == "Enabled, Enabled"


def test_a_gpu_in_use_is_not_reset(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4", "L4")
    uuid = smi.succeed("--query-gpu=uuid", "--format=csv,noheader", "-i", "0").strip()
    smi.machine.inject_busy(uuid, pid=4_100_001, memory=1 << 20)
    busy, idle = bus_ids(smi)
    answer = smi("--gpu-reset")
    assert answer.code == OTHER
    assert answer.lines[:4] == [
        f"GPU {idle} was successfully reset.",
        "",
        "The following GPUs could not be reset:",
        f"  GPU {busy}: In use by another client",
    ]
    assert answer.lines[5].startswith("1 device is currently being used by one or more other processes (e.g., ")


def test_a_stuck_mode_change_stays_pending(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "H100-80GB-SXM")
    smi.machine.inject_stuck_mode(0)
    (bus_id,) = bus_ids(smi)
    lines = smi.succeed("-mig", "1").splitlines()
    assert lines[0].startswith(f"Warning: MIG mode is in pending enable state for GPU {bus_id}:")
    assert lines[-1] == "All done."
    assert mode(smi) == "Disabled, Enabled"


def test_an_injected_refusal_reads_as_the_driver_would_say_it(a100: Smi) -> None:
    a100.machine.inject_error("nvmlDeviceCreateGpuInstance", code=NOT_PERMITTED, calls=1)
    answer = a100("mig", "-cgi", "19")
    assert answer.code == NOT_PERMITTED
    assert answer.lines[-1] == "Failed to create GPU instances: Insufficient Permissions"
    a100.succeed("mig", "-cgi", "19")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nonsense",), "ERROR: Option --nonsense is not recognized. Please run 'nvidia-smi -h' for help."),
        (("-i",), "ERROR: Option -i is missing its value. Please run 'nvidia-smi -h' for help."),
        (("mig", "-cgi"), "ERROR: Option -cgi is missing its value. Please run 'nvidia-smi -h' for help."),
        (("mig", "-lgi", "-x"), "ERROR: Option -x is not recognized. Please run 'nvidia-smi -h' for help."),
        (("-L", "-r"), "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."),
        (("-mig", "2"), "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."),
        (("mig", "-lgi", "-lci"), "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."),
        (("mig", "-cci", "-C"), "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."),
        (("mig", "-dgi", "-gi", "one"), "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    answer = make_smi(tmp_path, "A30-24GB")(*arguments)
    assert (answer.code, answer.text) == (USAGE, sentence + "\n")


def test_a_lost_gpu_ends_what_concerns_it_and_spares_what_names_others(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A100-40GB", "A100-40GB")
    first, _ = bus_ids(smi)
    smi.machine.inject_lost(1)
    for arguments in ((), ("-L",), ("-r",), ("-L", "-i", "1"), ("-r", "-i", "0,1")):
        answer = smi(*arguments)
        assert answer.code == 15, arguments
        assert "GPU is lost" in answer.lines[0]
    smi.succeed("-mig", "1", "-i", "0")
    assert smi.succeed("-r", "-i", first).splitlines()[0] == f"GPU {first} was successfully reset."
