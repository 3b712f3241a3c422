"""Export and assert, checkpoint and restore, on every machine that can be simulated."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.layout.conftest import Bench, cuts
from tests.layout.test_apply import MakeBench
from tranche.core.state import MigMode
from tranche_simulator.machines import MACHINE_TYPES


@pytest.mark.parametrize("machine_type", sorted(MACHINE_TYPES))
def test_an_export_asserts_on_every_machine(bench: MakeBench, machine_type: str) -> None:
    b = bench(machine_type)
    if any(gpu.mig_supported for gpu in b.machine.gpus()):
        b.apply("-c", "all-balanced")
    else:
        assert b.layout("apply", "-c", "all-balanced").code == 24
    exported = b.layout("export")
    assert exported.code == 0
    asserted = b.layout("assert", "-f", "-", stdin=exported.stdout)
    assert asserted.code == 0, asserted.stderr
    calls = b.machine.change_calls()
    assert b.layout("apply", "-f", "-", stdin=exported.stdout).code == 0
    assert b.machine.change_calls() == calls


def test_a_mixed_machine_is_exported_with_filters(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM", "A30-24GB", "H100-80GB-SXM", "T4"))
    b.apply("-c", "all-balanced")
    exported = b.layout("export", "-o", "json")
    assert exported.data == {
        "version": "v1",
        "mig-configs": {
            "current": [
                {
                    "device-filter": "0x233010DE",
                    "devices": "all",
                    "mig-enabled": True,
                    "mig-devices": {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
                },
                {
                    "device-filter": "0x20B710DE",
                    "devices": "all",
                    "mig-enabled": True,
                    "mig-devices": {"1g.6gb": 2, "2g.12gb": 1},
                },
                {"device-filter": "0x1EB810DE", "devices": "all", "mig-enabled": False, "mig-devices": {}},
            ]
        },
    }
    assert b.layout("assert", "-f", "-", stdin=exported.stdout).code == 0


def test_restoring_gives_back_every_slice_at_its_place_with_its_uuid(bench: MakeBench) -> None:
    b = bench(boards=("A100-40GB", "H100-80GB-SXM"))
    b.apply("-c", "all-balanced")
    before = b.observe()
    path = str(b.folder / "checkpoint.json")
    done = b.layout("checkpoint", "-f", path)
    assert (done.code, done.stdout) == (0, "")
    assert "MIG configuration checkpointed successfully" in done.stderr
    b.apply("-c", "all-disabled")
    assert [gpu.mode for gpu in b.observe()] == [MigMode.DISABLED] * 2
    restored = b.layout("restore", "-f", path)
    assert restored.code == 0, restored.stderr
    assert "MIG configuration restored successfully" in restored.stderr
    assert cuts(b.observe()) == cuts(before)
    calls = b.machine.change_calls()
    assert b.layout("restore", "-f", path).code == 0
    assert b.machine.change_calls() == calls, "what is right already stays"


def test_restoring_a_part_leaves_what_is_right(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    before = cuts(b.observe())
    recorded = b.layout("checkpoint", "-f", "-").stdout
    busy = next(uuid for uuid, place in before[0].items() if place.startswith("1g.10gb"))
    b.machine.inject_busy(busy, pid=5004711, name="trainer")
    b.apply("-c", "all-1g.10gb")
    outcome = b.layout("restore", "-f", "-", "-o", "json", stdin=recorded)
    assert outcome.code == 0, outcome.stderr
    assert outcome.data["kind"] == "LayoutRestored"
    assert cuts(b.observe()) == before


def test_the_checkpoint_is_compact_json_in_mig_parteds_format(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM", "H100-80GB-SXM", "T4"))
    text = (
        "version: v1\nmig-configs: {x: [{devices: [0], mig-enabled: true, mig-devices: {1g.20gb: 1, 1c.3g.40gb: 1}}]}"
    )
    assert b.layout("apply", "-f", "-", stdin=text).code == 0
    first, second, _ = b.observe().gpus
    at = {str(i.profile): i.placement for i in first.instances}
    expected = {
        "Version": "v1",
        "MigState": {
            "Devices": [
                {
                    "UUID": first.uuid,
                    "MigMode": 1,
                    "GpuInstances": [
                        {
                            "ProfileID": 2,
                            "Placement": {"Start": at["3g.40gb"].start, "Size": 4},
                            "ComputeInstances": [{"ProfileID": 0, "EngProfileID": 0}],
                        },
                        {
                            "ProfileID": 9,
                            "Placement": {"Start": at["1g.20gb"].start, "Size": 2},
                            "ComputeInstances": [{"ProfileID": 7, "EngProfileID": 0}],
                        },
                    ],
                },
                {"UUID": second.uuid, "MigMode": 0, "GpuInstances": None},
            ]
        },
    }
    assert b.layout("checkpoint", "-f", "-").stdout == json.dumps(expected, separators=(",", ":"))


def test_a_checkpoint_of_another_machine_is_refused(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    recorded = '{"Version":"v1","MigState":{"Devices":[{"UUID":"GPU-elsewhere","MigMode":0,"GpuInstances":null}]}}'
    outcome = b.layout("restore", "-f", "-", stdin=recorded)
    assert outcome.code == 16
    assert "GPU-elsewhere" in outcome.stderr


def test_slices_made_by_another_tool_are_kept_or_destroyed_as_the_layout_says(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-enabled")
    for profiles in ("9,19",):
        done = subprocess.run(
            ["nvidia-smi", "mig", "-cgi", profiles, "-C"],
            env=b.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout
    (foreign,) = cuts(b.observe())
    b.apply("-c", "all-balanced")
    assert foreign.items() <= cuts(b.observe())[0].items()
    b.apply("-c", "all-7g.80gb")
    assert len(cuts(b.observe())[0]) == 1


def test_looking_needs_no_ledger(bench: MakeBench) -> None:
    b: Bench = bench(boards=("H100-80GB-SXM",))
    for arguments in (("export",), ("generate",), ("assert", "-c", "all-disabled"), ("checkpoint", "-f", "-")):
        assert b.layout(*arguments, TRANCHE_STATE_DIR="/dev/null/nowhere").code == 0, arguments
    refused = b.layout("apply", "-c", "all-balanced", TRANCHE_STATE_DIR="/dev/null/nowhere")
    assert refused.code == 60
    assert "Traceback" not in refused.stderr
