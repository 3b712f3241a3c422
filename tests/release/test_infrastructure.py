"""The examples for clouds and booting machines pass their checks, and one wrong value in each is caught."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from release.infrastructure import DEPLOY, objections_to_file
from release.mime_parts import MimeBroken, mime_parts
from release.unit_check import objections_to_unit

from release import infrastructure
from tests.support.length import some_of
from tranche.boot.unit import unit_text

UNIT_TEXT = unit_text(("/opt/tranche/bin/tranche", "boot"), settings_file="/etc/default/mig", seconds=120.0)
SEVEN = "19,19,19,19,19,19,19"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def objections(folder: Path, name: str, right: str, wrong: str) -> str:
    """What is said of the file when that text in it is another."""
    text = (DEPLOY / name).read_text()
    assert right in text
    changed = folder / Path(name).name
    changed.write_text(text.replace(right, wrong))
    return "\n".join(objections_to_file(name, changed))


def test_everything_is_as_it_should_be() -> None:
    assert infrastructure.problems() == []


@pytest.mark.parametrize(
    ("name", "right", "wrong", "words"),
    [
        ("eks/cluster.yaml", "instanceType: p4d", "instancType: p4d", "'instancType' was unexpected"),
        ("eks/cluster.yaml", "desiredCapacity: 1", "desiredCapacity: 2", "not between minSize and maxSize"),
        ("eks/cluster.yaml", "effect: NoSchedule", "effect: NoSchedul", "'NoSchedul' is not one of"),
        ("eks/cluster.yaml", SEVEN, "19:4", "includes a placement"),
        ("eks/cluster.yaml", "export -f install_tranche", "if", "bash:"),
        ("eks/node-group.yaml", "id: lt-0", "id: l-0", "does not match"),
        ("eks/node-group.yaml", "apiVersion: eksctl.io/v1alpha5", "apiVersion: eksctl.io/v1", "'eksctl.io/v1alpha5' was"),
        ("eks/node-group.yaml", "    privateNetworking", "    instanceType: p4d.24xlarge\n    privateNetworking", "p4d"),
        ("eks/karpenter.yaml", "kind: NodePool", "kind: NodePol", "there is no schema for the kind 'NodePol'"),
        ("eks/karpenter.yaml", "alias: al2023@latest", "alias: al2@latest", "does not match"),
        ("eks/karpenter.yaml", "volumeSize: 200Gi", "volumeSize: 200", "200 is not of type 'string'"),
        ("eks/karpenter.yaml", "consolidateAfter: 10m", "consolidateAfter: soon", "'soon' does not match"),
        ("eks/karpenter.yaml", "mig-1g.5gb: 56", "mig-1g.5gb: none", "'none' is not of type 'integer'"),
        ("eks/karpenter.yaml", "text/x-shellscript", "text/x-shell", "knows parts of the type text/x-shell"),
        ("eks/karpenter.yaml", "    --//--", "    --//", "what comes before it may be cut off"),
        ("eks/user-data.mime", "kubelet:", "kublet:", "NodeConfig: $.spec: "),
        ("eks/user-data.mime", "#cloud-config", "# cloud-config", "cloud-init would not read it"),
        ("eks/user-data.mime", "/etc/default/mig", "/etc/default/mg", "does not write /etc/default/mig once"),
        ("eks/user-data.mime", 'boundary="//"', 'boundary="/"', "the last line is not '--/--'"),
        ("eks/user-data.mime", "tranche_gpu-0.1.0-", "tranche_gpu-0.0.9-", "does not install tranche_gpu-0.1.0-"),
        ("eks/karpenter.yaml", "https://wheels.example.com/tranche_gpu-0.1.0-py3", "tranche-py3", "by a name alone"),
        ("eks/user-data.mime", "--no-block ", "", "without waiting"),
        ("boot/cloud-init.yaml", "permissions: \"0644\"", "permissions: 644", "644 is not of type 'string'"),
        ("boot/cloud-init.yaml", "runcmd:", "runcmds:", "'runcmds' was unexpected"),
        ("boot/cloud-init.yaml", SEVEN, "7x19", "not a MIG profile name"),
        ("boot/cloud-init.yaml", "/tranche_gpu-", "/tranche-", "does not install tranche_gpu-0.1.0-"),
        ("eks/cluster.yaml", "https://wheels.example.com/tranche_gpu-", "tranche_gpu-", "by a name alone"),
        ("boot/cloud-init.yaml", "start, --no-block", "start", "without waiting"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_caught(tmp_path: Path, name: str, right: str, wrong: str, words: str) -> None:
    assert words in objections(tmp_path, name, right, wrong)


@pytest.mark.parametrize(
    "broken",
    some_of(
        [
            ("HttpTokens: required", "HttpToken: required", "'HttpToken'"),
            ("VolumeType: gp3", "VolumeType: gp9", "'gp9' is not one of"),
            (f"Default: {SEVEN}", 'Default: "19,,19"', "a profile is missing"),
        ],
        1,
    ),
)
def test_a_wrong_value_in_the_template_is_caught(tmp_path: Path, broken: tuple[str, str, str]) -> None:
    right, wrong, words = broken
    assert words in objections(tmp_path, "eks/cloudformation.yaml", right, wrong)


def test_a_file_that_nobody_checks_or_that_is_missing_is_named(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY / "boot", deploy / "boot")
    (deploy / "boot/other.yaml").touch()
    found = infrastructure.problems(deploy)
    assert "boot/other.yaml: nothing checks this file" in found
    assert "eks/cluster.yaml: the file is missing" in found


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("Before=nodeadm-run.service kubelet.service", "Before=nodeadm-run.service", "not ordered before kubelet.service"),
        ("After=nvidia-persistenced.service ", "After=", "not ordered after nvidia-persistenced.service"),
        ("TimeoutStartSec=300", "TimeoutStartSec=infinity", "its start has no end in time"),
        pytest.param("RemainAfterExit", "RemainAfterExt", "Unknown key", marks=needs_systemd),
        pytest.param("Type=oneshot", "Type=oneshoot", "Failed to parse service type", marks=needs_systemd),
        pytest.param("After=nvidia-p", "After=kubelet.service nvidia-p", "ordering cycle", marks=needs_systemd),
    ],
)  # fmt: skip
def test_a_wrong_value_in_the_unit_is_caught(right: str, wrong: str, words: str) -> None:
    assert right in UNIT_TEXT
    assert words in "\n".join(objections_to_unit(UNIT_TEXT.replace(right, wrong)))


@pytest.mark.parametrize(
    "text", ["", "MIME-Version: 1.0\n", "a\n\nb", "MIME-Version: 1.0\nContent-Type: text/plain\n\nx"]
)
def test_what_is_no_mime_document(text: str) -> None:
    with pytest.raises(MimeBroken):
        mime_parts(text)
