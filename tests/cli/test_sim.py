"""`tranche sim`: machines are made, listed, used, disturbed and removed from the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import in_process
from tranche_simulator.library import special_faults

TRANCHE = (sys.executable, "-c", "from tranche.cli.main import main; main()")


class Cli:
    """Runs `tranche` with its simulated machines under one folder."""

    def __init__(self, root: Path, variables: Mapping[str, str] | None = None) -> None:
        self.environment = {**os.environ, "TRANCHE_SIM_ROOT": str(root), **(variables or {})}
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = in_process.run(arguments, {**self.environment, **variables}, seconds=120)
        assert done.code is not None, f"`tranche {' '.join(arguments)}` does not end: {done.stdout} {done.stderr}"
        return subprocess.CompletedProcess(arguments, done.code, done.stdout, done.stderr)

    def succeed(self, *arguments: str, **variables: str) -> str:
        done = self(*arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def variables(self, name: str) -> dict[str, str]:
        """What `sim env` gives for a machine."""
        variables: dict[str, str] = json.loads(self.succeed("sim", "env", name, "--shell", "json"))
        return variables

    def smi(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """nvidia-smi as a shell with the machine's variables would run it."""
        return subprocess.run(
            ["nvidia-smi", *arguments],
            env={**self.environment, **self.variables(name)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "machines")


def test_a_machine_lives_from_create_to_destroy(cli: Cli) -> None:
    done = cli("sim", "create", "p4d.24xlarge", "--time-scale", "0")
    assert (done.returncode, done.stdout) == (0, "")
    assert "8 GPUs" in done.stderr
    (item,) = json.loads(cli.succeed("sim", "list", "-o", "json"))["items"]
    assert (item["name"], item["timeScale"], len(item["gpus"])) == ("p4d.24xlarge", 0.0, 8)
    assert cli.smi("p4d.24xlarge", "-L").stdout.count("NVIDIA A100-SXM4-40GB") == 8
    cli.succeed("sim", "destroy", "p4d.24xlarge")
    assert json.loads(cli.succeed("sim", "list", "-o", "json"))["items"] == []


def test_a_machine_may_have_another_name_than_its_type(cli: Cli) -> None:
    cli.succeed("sim", "create", "alpha", "--machine", "g4dn.xlarge")
    cli.succeed("sim", "create", "beta", "--gpu", "A30-24GB", "--gpu", "T4", "--time-scale", "0.5")
    table = cli.succeed("sim", "list").splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "alpha", "beta"]
    assert "Tesla T4" in cli.smi("alpha", "-L").stdout
    assert [line.split("(")[0] for line in cli.smi("beta", "-L").stdout.splitlines()] == [
        "GPU 0: NVIDIA A30 ",
        "GPU 1: Tesla T4 ",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("m", "--machine", "p3.2xlarge"),
        ("m", "--machine", "g4dn.xlarge", "--gpu", "T4"),
        ("m", "--gpu", "Voodoo2"),
        ("m", "--gpu", "T4", "--time-scale", "-1"),
        ("../outside", "--gpu", "T4"),
    ],
)
def test_what_cannot_be_created_leaves_nothing(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("sim", "create", *arguments)
    assert done.returncode in (2, 27)
    assert "Traceback" not in done.stderr
    assert json.loads(cli.succeed("sim", "list", "-o", "json"))["items"] == []


def test_a_machine_of_too_many_gpus_says_how_many_there_can_be(cli: Cli) -> None:
    cli.succeed("sim", "create", "large", *("--gpu", "A100-40GB") * 32)
    refused = cli("sim", "create", "larger", *("--gpu", "A100-40GB") * 33)
    assert refused.returncode == 2
    assert "a simulated machine has at most 32 GPUs, not 33" in refused.stderr
    assert "larger" not in cli.succeed("sim", "list")


def test_a_name_is_taken_once(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4")
    before = cli.smi("m", "-L").stdout
    done = cli("sim", "create", "m", "--gpu", "A30-24GB")
    assert done.returncode == 27
    assert "m" in done.stderr
    assert cli.smi("m", "-L").stdout == before


@pytest.mark.parametrize("action", [("destroy", "m"), ("env", "m"), ("reboot", "m"), ("inject", "m", "clear")])
def test_an_unknown_machine_is_named(cli: Cli, action: tuple[str, ...]) -> None:
    done = cli("sim", *action)
    assert done.returncode == 27
    assert done.stdout == ""
    assert "m" in done.stderr
    assert "Traceback" not in done.stderr


def test_env_for_each_shell(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4")
    wanted = cli.variables("m")
    assert {"LD_LIBRARY_PATH", "PATH", "TRANCHE_SIM_STATE"} <= set(wanted)
    shell = cli.succeed("sim", "env", "m") + 'printf %s "$TRANCHE_SIM_STATE"; command -v nvidia-smi >&2'
    done = subprocess.run(["sh", "-c", shell], env=cli.environment, capture_output=True, text=True, check=True)
    assert done.stdout == wanted["TRANCHE_SIM_STATE"]
    assert done.stderr.strip() == str(Path(wanted["PATH"].split(":")[0]) / "nvidia-smi")
    fish = cli.succeed("sim", "env", "m", "--shell", "fish").splitlines()
    assert f"set -gx TRANCHE_SIM_STATE '{wanted['TRANCHE_SIM_STATE']}'" in fish


def test_reboot_takes_instances_and_applies_the_pending_mode(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "A30-24GB", "--time-scale", "0")
    cli.smi("m", "-mig", "1")
    cli.succeed("sim", "reboot", "m")
    assert cli.smi("m", "mig", "-cgi", "1g.6gb", "-C").returncode == 0
    assert cli.smi("m", "-L").stdout.count(" MIG ") == 1
    cli.succeed("sim", "reboot", "m")
    assert cli.smi("m", "-L").stdout.count(" MIG ") == 0
    mode = cli.smi("m", "--query-gpu=mig.mode.current", "--format=csv,noheader").stdout
    assert mode == "Enabled\n"


def test_injected_faults_and_their_clearing(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "H100-80GB-SXM", "--gpu", "T4", "--time-scale", "0")
    cli.smi("m", "-i", "0", "-mig", "1")
    cli.succeed("sim", "inject", "m", "error", "nvmlDeviceCreateGpuInstance", "--code", "23", "--calls", "2")
    assert [cli.smi("m", "mig", "-cgi", "19").returncode for _ in range(3)] == [23, 23, 0]
    cli.succeed("sim", "inject", "m", "busy", "1", "--pid", "4100001", "--memory", "1Gi")
    assert "4100001, 1024 MiB" in cli.smi("m", "--query-compute-apps=pid,used_memory", "--format=csv").stdout
    cli.succeed("sim", "inject", "m", "lost", "1")
    assert cli.smi("m").returncode == 15
    cli.succeed("sim", "inject", "m", "clear")
    assert "No running processes found" in cli.smi("m").stdout


def test_a_fault_of_a_cuda_function(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    cli.succeed("sim", "inject", "m", "error", "cuMemGetInfo", "--code", "700")
    program = """
from cuda.bindings import driver
driver.cuInit(0), driver.cuCtxCreate(None, 0, 0)
print(*(int(driver.cuMemGetInfo()[0]) for _ in range(2)))
"""
    environment = {**cli.environment, **cli.variables("m")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "700 700\n", "a fatal one stays"


def test_whatever_the_page_names_can_be_made_to_fail(cli: Cli) -> None:
    """The page, the command and the simulator know the same names beside the functions of NVML and CUDA."""
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    page = (Path(__file__).parents[2] / "docs" / "reference" / "simulator.md").read_text()
    names = set(re.findall(r"^\| `error (\w+)` \|", page, re.MULTILINE)) - {"FUNCTION"}
    assert names == set(special_faults())
    for name in special_faults():
        cli.succeed("sim", "inject", "m", "error", name)
        cli.succeed("sim", "inject", "m", "latency", name, "0.01")


def test_a_stuck_mode_and_a_slow_call(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "H100-80GB-SXM", "--time-scale", "0")
    cli.succeed("sim", "inject", "m", "stuck-mode", "0")
    assert "pending enable state" in cli.smi("m", "-mig", "1").stdout
    cli.succeed("sim", "inject", "m", "latency", "nvmlDeviceGetName", "0.01")
    cli.succeed("sim", "inject", "m", "xid", "0", "79")
    assert cli.smi("m", "-L").returncode == 0


@pytest.mark.parametrize(
    "fault",
    [
        ("error", "nvmlNonsense", "--code", "19"),
        ("error", "cuNonsense", "--code", "2"),
        ("lost", "7"),
        ("xid", "7", "79"),
        ("stuck-mode", "7"),
        ("busy", "7"),
        ("busy", "MIG-00000000-0000-0000-0000-000000000000"),
        ("busy", "0", "--memory", "lots"),
        ("latency", "nvmlNonsense", "1"),
    ],
)
def test_faults_that_mean_nothing_are_refused(cli: Cli, fault: tuple[str, ...]) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    done = cli("sim", "inject", "m", *fault)
    assert done.returncode not in (0, 1)
    assert "Traceback" not in done.stderr


def test_attach_holds_the_gpu_while_the_command_runs(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    uuid = cli.smi("m", "--query-gpu=uuid", "--format=csv,noheader").stdout.strip()
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,used_memory", "--format=csv,noheader"]
    done = cli("sim", "attach", uuid, "--memory", "512Mi", "--", *query, **cli.variables("m"))
    assert (done.returncode, done.stdout) == (0, f"{uuid}, 512 MiB\n")
    assert "No running processes found" in cli.smi("m").stdout


def test_attach_takes_its_target_from_the_environment_and_gives_the_exit_code(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    uuid = cli.smi("m", "--query-gpu=uuid", "--format=csv,noheader").stdout.strip()
    within = {**cli.variables("m"), "CUDA_VISIBLE_DEVICES": uuid}
    assert cli("sim", "attach", "--", "sh", "-c", "exit 7", **within).returncode == 7
    assert cli("sim", "attach", "--", "sh", "-c", "kill -9 $$", **within).returncode == 128 + signal.SIGKILL
    assert cli("sim", "attach", "--", "no-such-command-here", **within).returncode == 127
    for target in (uuid, "0"):
        done = cli("sim", "attach", "--simulate", "m", "--", "true", CUDA_VISIBLE_DEVICES=target)
        assert done.returncode == 0, done.stderr


def test_attach_without_a_command_stays_until_a_signal(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    uuid = cli.smi("m", "--query-gpu=uuid", "--format=csv,noheader").stdout.strip()
    arguments = ["nohup", *TRANCHE, "sim", "attach", uuid, "--simulate", "m"]
    with subprocess.Popen(arguments, env=cli.environment, stderr=subprocess.PIPE, text=True) as holder:
        assert holder.stderr is not None
        while "attached to" not in (line := holder.stderr.readline()):
            assert line
        holder.send_signal(signal.SIGHUP)
        assert str(holder.pid) in cli.smi("m", "--query-compute-apps=pid", "--format=csv,noheader").stdout.split()
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(30) == 0
    assert cli.smi("m", "--query-compute-apps=pid", "--format=csv,noheader").stdout == ""


def test_attach_passes_signals_to_the_command(cli: Cli) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4", "--time-scale", "0")
    uuid = cli.smi("m", "--query-gpu=uuid", "--format=csv,noheader").stdout.strip()
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    arguments = [*TRANCHE, "sim", "attach", uuid, "--simulate", "m", "--", "sh", "-c", script]
    with subprocess.Popen(arguments, env=cli.environment, stdout=subprocess.PIPE, text=True) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == "ready\n"
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(30) == 9


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (("--simulate", "m"), {}),
        (("1", "--simulate", "m"), {}),
        (("GPU-00000000-0000-0000-0000-000000000000", "--simulate", "m"), {}),
        (("--simulate", "m", "--memory", "lots"), {"CUDA_VISIBLE_DEVICES": "GPU-0"}),
    ],
)
def test_attach_to_nothing_is_refused(cli: Cli, arguments: tuple[str, ...], variables: dict[str, str]) -> None:
    cli.succeed("sim", "create", "m", "--gpu", "T4")
    done = cli("sim", "attach", *arguments, "--", "true", **variables)
    assert done.returncode not in (0, 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("state", [b"", b"junk", b"TRNCHSIM" + bytes(100)])
def test_a_machine_that_cannot_be_read_hides_no_other(cli: Cli, tmp_path: Path, state: bytes) -> None:
    for name in ("a", "b", "c"):
        cli.succeed("sim", "create", name, "--gpu", "T4")
    (tmp_path / "machines" / "b" / "state").write_bytes(state)
    table, listed = cli("sim", "list"), cli("sim", "list", "-o", "json")
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["NAME", "a", "c"]
    assert [item["name"] for item in json.loads(listed.stdout)["items"]] == ["a", "c"]
    for done in (table, listed):
        assert done.returncode == 0
        assert "skipping b: " in done.stderr
    cli.succeed("sim", "destroy", "b")
    assert cli("sim", "list").stderr == ""


def test_a_machine_of_another_version_is_named_as_the_reason(tmp_path: Path) -> None:
    tranche = Cli(tmp_path)
    tranche.succeed("sim", "create", "g4dn.xlarge")
    state = tmp_path / "g4dn.xlarge" / "state"
    with state.open("r+b") as file:
        file.seek(len("TRNCHSIM"))
        file.write((2**31).to_bytes(4, "little"))
    done = tranche("--simulate", "g4dn.xlarge", "gpus")
    assert done.returncode != 0
    assert "another version of Tranche created it; remove it with: tranche sim destroy" in done.stderr
    tranche.succeed("sim", "destroy", "g4dn.xlarge")
