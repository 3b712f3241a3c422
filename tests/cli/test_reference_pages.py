"""The reference pages say what the code does: errors, commands, JSON documents."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MakeMachine
from tests.cli.reference_pages import MARK, commands_part, errors_part, metrics_part
from tests.demo.test_demo_parts import result_of
from tests.documents.test_picture import every_kind
from tests.kubernetes.fleet.test_explanation import everything_is_held, has_its_slice
from tranche.cli.demo import result_json
from tranche.cli.fence import fence_document
from tranche.core.errors import all_errors
from tranche.dashboard.pages import waste_of
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.overview import overview_data
from tranche.kubernetes.fleet.explanation import explain_pod
from tranche.kubernetes.fleet.explanation import explanation_document as pod_explanation_document
from tranche.kubernetes.fleet.overview import gpu_document, node_document, summaries
from tranche.kubernetes.jobs.description import JobSummary, description_document
from tranche.kubernetes.jobs.job import JobPod, JobStatus, KubeJob, job_document, pod_document
from tranche.kubernetes.support.checkup import cluster_finding_document
from tranche.kubernetes.support.facts import ClusterFinding
from tranche.node.fence import FenceReport
from tranche.node.files.archive import ArchiveFile
from tranche.node.health.checkup import Status

REFERENCE = Path(__file__).parent.parent.parent / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "part"),
    [("errors.md", errors_part), ("cli.md", commands_part), ("metrics.md", metrics_part)],
    ids=["errors", "commands", "metrics"],
)
def test_a_page_has_what_the_code_has(name: str, part: Callable[[], str], request: pytest.FixtureRequest) -> None:
    page = REFERENCE / name
    intro, mark, made = page.read_text().partition(MARK)
    assert mark, f"{page} has lost the line that says where it is made from the code"
    if request.config.getoption("--update-goldens"):
        page.write_text(f"{intro}{MARK}\n{part()}")
    else:
        assert made == f"\n{part()}", "run make goldens"


def test_codes_leave_the_shells_own_alone() -> None:
    errors = all_errors()
    assert all(2 <= error.exit_code < 100 or error.exit_code == 127 for error in errors)
    page = (REFERENCE / "errors.md").read_text()
    ranges = [(int(low), int(high)) for low, high in re.findall(r"^\| (\d+) to (\d+) \|", page, re.MULTILINE)]
    single = {int(code) for code in re.findall(r"^\| (\d+) \| [^`]", page, re.MULTILINE)}
    for error in errors:
        assert error.exit_code in single or any(low <= error.exit_code <= high for low, high in ranges), error


def described_objects() -> dict[str, set[str]]:
    """The objects that json.md describes: a row of its first table, or a heading with a list of fields, one or more an item."""
    page = (REFERENCE / "json.md").read_text()
    names = r"(`\w+`(?:, `\w+`)*)"
    rows = re.findall(rf"^\| [^|]+ \| `(\w+)` \| {names}: ", page, re.MULTILINE)
    objects = {kind: set(re.findall(r"\w+", fields)) for kind, fields in rows}
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        items = re.findall(rf"^- {names}(?::|$)", section, re.MULTILINE)
        fields = set(re.findall(r"\w+", " ".join(items)))
        if fields:
            objects[section.split("\n", 1)[0].strip()] = fields
    return objects


def test_the_page_of_json_documents_names_every_field(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB", "A30-24GB")
    machine.cut_by_hand(0, "9")
    device = machine.json("gpus")["gpus"][0]["slices"][0]["devices"][0]["uuid"]
    machine.machine.inject_busy(device, pid=5004242, name="notebook")
    machine.hold("--mig-profile", "1g.5gb")
    machine.hold("--gpus", "1", "--gpu-model", "A30")
    machine.wait_in_queue("--gpus", "1", "--gpu-model", "A30")
    gpus, ps = machine.json("gpus"), machine.json("ps")
    explained = machine.json("explain", "--mig-profile", "4g.24gb")
    (step,) = re.findall("^- `steps`: (.+)$", (REFERENCE / "json.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", step)) == machine.json("explain", "--mig-profile", "2g.10gb")["steps"][0].keys()
    profiles, boards = machine.json("profiles", "--gpu", "0"), machine.json("profiles", "--boards")
    checkup, events = machine.json("doctor"), machine.json("events")
    gpu = gpus["gpus"][0]
    used = next(each for each in gpu["slices"] if each["processes"])
    record = machine.folder / "decisions.jsonl"
    machine.tranche("run", "--gpus", "9", "--record", str(record), "--", "true", code=31)
    replayed = machine.json("replay", str(record))
    machine.tranche("policy", "quota", "--shares", "9")
    policy = machine.json("policy", "list")
    file = machine.folder / "policy.yaml"
    machine.tranche("policy", "export", "-f", str(file))
    machine.tranche("reserve", "add", "--gpus", "1", "--from", "mon 9:00", "--for", "1h")
    reservations = machine.json("reserve", "list")
    printed: dict[str, dict[str, Any]] = {
        "GpuList": gpus,
        "Gpu": gpu,
        "Slice": used,
        "Vacancy": next(each for some in gpus["gpus"] for each in some["vacant"]),
        "Device": used["devices"][0],
        "Process": used["processes"][0],
        "AllocationList": ps,
        "Allocation": ps["allocations"][0],
        "Grant": ps["allocations"][0]["grants"][0],
        "Waiter": ps["waiters"][0],
        "Obstacle": ps["waiters"][0]["obstacles"][0],
        "Overview": machine.json("top"),
        "Explanation": explained,
        "ExplainedGpu": explained["gpus"][0],
        "Remedy": explained["remedies"][0],
        "EventList": events,
        "Event": events["events"][0],
        "Fence": fence_document(FenceReport(None, "", (), ())),
        "Replay": replayed,
        "Replayed": replayed["decisions"][0],
        "BootStatus": machine.json("boot", "status"),
        "Checkup": checkup,
        "Finding": checkup["findings"][0],
        "ProfileList": profiles,
        "Sheet": profiles["boards"][0],
        "Profile": profiles["boards"][0]["profiles"][0],
        "ComputeProfile": profiles["boards"][0]["profiles"][0]["computeProfiles"][0],
        "BoardList": boards,
        "Board": boards["boards"][0],
        "Version": machine.json("version"),
        "PolicyList": policy,
        "PolicyChange": machine.json("policy", "apply", "--dry-run", "-f", str(file)),
        "PolicyGpu": policy["gpus"][0],
        "UserQuota": policy["quotas"][0],
        "UsageReport": machine.json("report"),
        "ReservationList": reservations,
        "Reservation": reservations["reservations"][0],
    }
    described = described_objects()
    for name, document in printed.items():
        common = {"apiVersion", "kind"} if "apiVersion" in document else set()
        assert described[name] == document.keys() - common, name
    finding = cluster_finding_document(ClusterFinding("node", Status.PASS, "is Ready"))
    assert described["ClusterFinding"] == finding.keys()
    assert described["BundledFile"] == ArchiveFile("a", "b", b"").document().keys()
    assert described["Job"] == job_document(KubeJob("team-a", "train", JobStatus.PENDING)).keys()
    assert described["JobPod"] == pod_document(JobPod("team-a", "train-0")).keys()
    unprinted = {"Request", "Event data", "ClusterCheckup", "ClusterFinding", "Bundle", "BundledFile"}
    unprinted |= {"Hold", "MachineJobList", "MachineJob", "JobList", "Job", "JobPod", "JobDescription"}
    explained = pod_explanation_document(explain_pod(*everything_is_held()))
    assert described["PodExplanation"] == explained.keys()
    assert described["NodeGroup"] == explained["nodes"][0].keys()
    has = pod_explanation_document(explain_pod(*has_its_slice()))
    assert described["GivenDevice"] == has["given"][0].keys()
    description = JobSummary(KubeJob("team-a", "train", JobStatus.PENDING), (), {})
    assert described["JobDescription"] == description_document(description).keys()
    (summary, *_) = summaries(has_its_slice()[1])
    assert described["ClusterNode"] == node_document(summary).keys()
    assert described["ClusterGpu"] == gpu_document(summary.gpus[0]).keys()
    view = every_kind()
    seen = MachineSnapshot(1, 1.0, view, (), frozenset(), overview_data(view, (), ()), None)
    assert described["Waste"] == waste_of(seen, []).keys()
    assert described["DemoResult"] == result_json(result_of(slice_granted=1.0), "p4d.24xlarge", simulated=True).keys()
    unprinted |= {
        "DemoResult",
        "Waste",
        "PodExplanation",
        "NodeGroup",
        "GivenDevice",
        "NodeList",
        "ClusterNode",
        "ClusterGpuList",
        "ClusterGpu",
    }
    assert described.keys() - printed.keys() == unprinted
    asked = [ps["allocations"][0]["request"], ps["allocations"][1]["request"]]
    for fields in asked:
        assert fields.keys() <= described["Request"]
