"""The device plugin's options of `tranche agent`: what is refused is named, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.machines import TestMachine, machine_in
from tranche.cli.agent import PLUGIN_OPTIONS, plugin_settings


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "T4") as machine:
        yield machine


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--mps-root=/run/nvidia/mps"], 17, "--mps-root is not supported"),
        (["--imex-required"], 17, "--imex-required is not supported"),
        (["--imex-channel-ids=0"], 17, "--imex-channel-ids is not supported"),
        (["--mig-strategy=both"], 17, "--mig-strategy: 'both' is not one of none, single, mixed"),
        (["--device-list-strategy=envvar", "--device-list-strategy=cdi"], 17, "'cdi' is not one of"),
        (["--pass-device-specs=perhaps"], 17, "must be true or false"),
        (["--disable-healthchecks=often"], 17, "'often' is not an XID"),
        (["--fallback-strategies=named,last"], 2, "'last' is not one of named, single, empty"),
    ],
)
def test_a_wrong_option_is_named(machine: TestMachine, arguments: list[str], code: int, words: str) -> None:
    assert words in machine.tranche("agent", *arguments, code=code).stderr


def test_a_wrong_variable_or_file_is_named_too(machine: TestMachine, tmp_path: Path) -> None:
    assert "MPS_ROOT is not supported" in machine.tranche("agent", code=17, MPS_ROOT="/x").stderr
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nflags: {migStrategie: mixed}")
    assert "unknown field: flags.migStrategie" in machine.tranche("agent", f"--config-file={file}", code=17).stderr
    file.write_text("version: [")
    assert "is not valid YAML" in machine.tranche("agent", code=17, CONFIG_FILE=str(file)).stderr


def test_flags_that_are_refused_are_taken_with_the_value_that_changes_nothing(
    machine: TestMachine, tmp_path: Path
) -> None:
    harmless = ["--mps-root=", "--fail-on-init-error", "--device-discovery-strategy=auto"]
    missing = tmp_path / "no-kubeconfig"
    done = machine.tranche("agent", *harmless, "--pass-device-specs", f"--kubeconfig={missing}", code=44)
    assert "not supported" not in done.stderr
    assert "--mps-root" not in machine.tranche("agent", "--help").stdout


@pytest.mark.parametrize(
    ("older", "flag"),
    [
        ("--nvidia-driver-root", "--driver-root"),
        ("--nvidia-dev-root", "--dev-root"),
        ("--container-driver-root", "--driver-root-ctr-path"),
        ("--nvidia-ctk-path", "--nvidia-cdi-hook-path"),
    ],
)
def test_older_names_of_flags_are_taken(older: str, flag: str) -> None:
    command = click.Command("agent", params=[*PLUGIN_OPTIONS])
    with command.make_context("agent", [f"{older}=/x"]) as context:
        assert plugin_settings(context.params, {}).flags == {flag: "/x"}
