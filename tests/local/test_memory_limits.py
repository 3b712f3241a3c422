"""Parts by the driver's own memory limits, from release 615 on: each command in a control group of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pynvml
import pytest

from tests.local.test_fractions import GB, GREEDY, OUT_OF_MEMORY, STEP_MIB, Tenant, end_daemons, holders, tenant
from tests.machines import TRANCHE, TestMachine, machine_in, wait_until
from tests.simulator.control_groups import hierarchy
from tests.simulator.cuda_programs import PREAMBLE
from tests.support.containers import on_version_2, start_container
from tranche.core.errors import HardwareError, LedgerUnavailable, SharingUnavailable
from tranche.core.quantity import GIB
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import NodeState
from tranche.hardware.control_groups import group_namespace, inside, own_group, remove_group
from tranche.hardware.nodes import LIBRARIES_IN_CONTAINER, SimulatedDeviceFiles
from tranche.node.execution.host_context import CDI_FOLDER
from tranche.node.limits.share_groups import CANARY, LimitTrialRunner, ShareGroup, ShareGroupManager
from tranche.node.state.session import StateFolder, boot_id

NO_DEVICE = 100
TOTAL = GREEDY.replace("tell([len(sizes)", "tell([check(cu.cuMemGetInfo())[1] >> 20, len(sizes)")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Path]:
    """A control group of version 2 of the test's own, in which everything is that it starts; others' groups are not in sight."""
    with hierarchy(tmp_path) as root:
        own = root / f"tranche-test-{uuid.uuid4().hex[:12]}"
        own.mkdir()
        with inside(own):
            yield own
        wait_until(lambda: remove_group(own))


@pytest.fixture
def t4(folder: Path, groups: Path) -> Iterator[TestMachine]:
    """A g4dn.xlarge with a driver of release 615."""
    with machine_in(folder, machine_type="g4dn.xlarge") as machine:
        machine.machine.set_driver("615.71.09")
        try:
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def of_shares(machine: TestMachine) -> list[str]:
    """The shares that the state folder has a group for."""
    notes = StateFolder(machine.state_dir).share_groups
    return sorted(os.listdir(notes)) if notes.is_dir() else []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("hold --gpu-memory 3G", "limit the memory of a command"),
        ("hold --cdi --gpu-memory 3G", "of these containers: the host's /sys/fs/cgroup is not cgroup v2"),
        ("run --cdi --gpu-memory 3G -- true", "of these containers: the host's /sys/fs/cgroup is not cgroup v2"),
    ],
)
def test_a_part_whose_limit_reaches_one_command_alone_is_refused_before_it_is_granted(
    t4: TestMachine, command: str, why: str
) -> None:
    script = f"{shlex.join(TRANCHE)} {command}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"umount --lazy --recursive /sys/fs/cgroup; {script}; exit $?"],
        env=t4.environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    told = "" if command.startswith("run") else f"(exit {SharingUnavailable.exit_code})\n"
    assert (done.returncode, done.stdout, why in done.stderr) == (SharingUnavailable.exit_code, told, True), done.stderr
    assert (holders(t4), t4.json("ps")["waiters"], t4.json("events")["events"]) == ([], [], [])


def test_four_programs_share_a_t4_by_the_drivers_limits_and_see_no_more_than_they_have(
    t4: TestMachine, groups: Path
) -> None:
    tenants = [tenant(t4, "--gpu-memory", "3G", code=TOTAL) for _ in range(4)]
    for each in tenants:
        total, got, code = each.told()
        assert code == OUT_OF_MEMORY
        assert 3 * GB - (STEP_MIB << 20) < got << 20 < total << 20 < 3 * GB + (600 << 20)
    shares = holders(t4)
    assert {(each["grants"][0]["mechanism"], each["grants"][0]["walls"]["faults"]) for each in shares} == {
        ("memory-limits", "own")
    }
    assert of_shares(t4) == sorted(each["id"] for each in shares)
    fifth = tenant(t4, "--gpu-memory", "3G", code=TOTAL)
    wait_until(lambda: len(t4.json("ps")["waiters"]) == 1, fifth.process)
    for each in tenants:
        each.go_on()
        assert each.ended()[0] == 0
    assert fifth.told()[2] == OUT_OF_MEMORY
    fifth.go_on()
    assert fifth.ended()[0] == 0
    assert of_shares(t4) == []
    assert not [each["id"] for each in shares if (groups / f"tranche-{each['id']}").exists()]


def test_processes_of_one_command_have_the_limit_together(t4: TestMachine) -> None:
    both = """
import subprocess
import sys
held = context(); taken = [check(cu.cuMemAlloc(2 << 30))]
inner = "from cuda.bindings import driver as cu; cu.cuInit(0); cu.cuCtxCreate(None, 0, 0); print(int(cu.cuMemAlloc(2 << 30)[0]))"
tell(int(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout))
"""
    assert tenant(t4, "--gpu-memory", "3G", code=both).told() == OUT_OF_MEMORY


def test_a_group_whose_run_was_killed_goes_with_the_next_command(t4: TestMachine, groups: Path) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    holder = t4.one_running()
    first.process.kill()
    first.process.wait()
    # The command lives, and so do its share, its group and its limit.
    assert of_shares(t4) == [holder["id"]]
    assert holders(t4) == [holder]
    os.kill(holder["pid"], signal.SIGKILL)
    wait_until(lambda: holders(t4) == [])
    wait_until(lambda: (t4.tranche("gpus"), of_shares(t4))[1] == [])
    assert not (groups / f"tranche-{holder['id']}").exists()


def test_a_note_that_cannot_be_written_says_nothing_of_the_driver(t4: TestMachine, groups: Path) -> None:
    notes = StateFolder(t4.state_dir).share_groups
    t4.state_dir.mkdir(parents=True, exist_ok=True)
    notes.write_text("a file where the folder should be")
    refused = t4.tranche("run", "--gpu-memory", "3G", "--", "true", code=LedgerUnavailable.exit_code)
    assert str(notes) in refused.stderr
    notes.unlink()
    assert nothing_on_trial(groups, t4)
    assert mechanism(t4) == "memory-limits"
    assert refusals(t4) == []


def test_a_note_that_is_being_written_is_no_note(tmp_path: Path) -> None:
    places = StateFolder(tmp_path)
    places.share_groups.mkdir()
    note = {"group": str(tmp_path / "tranche-a1"), "gpus": [], "namespace": "", "boot": ""}
    (places.share_groups / "a1.4711").write_text(json.dumps(note))
    manager = ShareGroupManager(places)
    assert manager.left([]) == ()
    (places.share_groups / "a1").write_text(json.dumps(note))
    assert [each.allocation_id for each in manager.left([])] == ["a1"]


# A driver that has no limits after all


def mechanism(machine: TestMachine) -> str:
    """By what the next share is made."""
    one = tenant(machine, "--gpu-memory", "3G")
    assert one.told()[1] == OUT_OF_MEMORY
    (holder,) = holders(machine)
    one.go_on()
    assert one.ended()[0] == 0
    return str(holder["grants"][0]["mechanism"])


def refusals(machine: TestMachine) -> list[str]:
    """What events say of mechanisms that were refused."""
    return [each["message"] for each in machine.json("events")["events"] if each["type"] == "SharingRefused"]


def nothing_on_trial(groups: Path, machine: TestMachine) -> bool:
    """Neither a share nor a trial has a group."""
    return not list(groups.glob("tranche-*")) and of_shares(machine) == []


def test_a_driver_whose_accounting_is_off_shares_by_mps(t4: TestMachine, groups: Path) -> None:
    t4.machine.set_limits_backend("off")
    said = next(each for each in t4.json("doctor")["findings"] if each["check"] == "sharing")
    assert "not by the driver's memory limits: the driver refuses them: Not Supported" in said["message"]
    assert not StateFolder(t4.state_dir).limit_trial.exists(), "doctor changes nothing"
    assert "by MPS" in t4.tranche("explain", "--gpu-memory", "3G").stdout
    assert mechanism(t4) == "mps"
    assert nothing_on_trial(groups, t4)


def test_a_request_that_only_limits_of_the_driver_could_serve_is_told_why_there_are_none(
    folder: Path, groups: Path
) -> None:
    with machine_in(folder, "T4", "T4") as machine:
        machine.machine.set_driver("615.71.09")
        machine.machine.set_limits_backend("off")
        where = ("--gpu-memory", "3G", "--count", "2")
        refused = machine.tranche("explain", *where, code=SharingUnavailable.exit_code)
        assert "the driver refuses them: Not Supported" in refused.stdout
        refused = machine.tranche("run", *where, "--", "true", code=SharingUnavailable.exit_code)
        assert "the driver refuses them: Not Supported" in refused.stderr


def test_a_driver_that_refuses_later_is_passed_over_at_once_and_asked_again_after_a_while(
    t4: TestMachine, groups: Path
) -> None:
    assert mechanism(t4) == "memory-limits"
    t4.machine.set_limits_backend("off")
    assert mechanism(t4) == "mps"
    (said,) = refusals(t4)
    assert "no new shares by the driver's memory limits: the driver refuses them" in said
    assert nothing_on_trial(groups, t4)
    assert mechanism(t4) == "mps"
    assert len(refusals(t4)) == 1
    t4.machine.set_limits_backend("misc")
    trial = StateFolder(t4.state_dir).limit_trial
    trial.write_text(json.dumps({**json.loads(trial.read_text()), "until": 1.0}))
    end_daemons(t4)
    wait_until(lambda: mechanism(t4) == "memory-limits")


def test_a_driver_that_shows_a_limit_and_does_not_keep_it_is_found_out_by_the_first_share(
    t4: TestMachine, groups: Path
) -> None:
    t4.machine.set_limits_backend("lax")
    assert mechanism(t4) == "mps"
    (said,) = refusals(t4)
    assert "reports a limit but lets a program exceed it" in said
    assert nothing_on_trial(groups, t4)
    assert mechanism(t4) == "mps"


def test_no_program_asks_for_more_where_that_is_not_wanted(t4: TestMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    t4.machine.set_limits_backend("lax")
    monkeypatch.setenv(CANARY, "off")
    one = tenant(t4, "--gpu-memory", "3G", code="context(); tell(0); wait()")
    assert one.told() == 0
    assert holders(t4)[0]["grants"][0]["mechanism"] == "memory-limits"
    one.go_on()
    one.ended()


def test_what_was_found_holds_for_one_start_and_one_driver(tmp_path: Path) -> None:
    trials = LimitTrialRunner(StateFolder(tmp_path), clock=lambda: 1000.0)
    node = NodeState((), "615.71.09", sharing=MachineSharing(frozenset(Sharing)))
    assert trials.on_node(node, remember=True) == node, "no GPU can tell"
    trials.refuse("615.71.09", HardwareError("no"))
    assert trials.on_node(node, remember=True).sharing.why_not(Sharing.MEMORY_LIMITS) == "no"
    assert trials.on_node(replace(node, driver_version="615.80"), remember=True).sharing == node.sharing
    known = json.loads(StateFolder(tmp_path).limit_trial.read_text())
    StateFolder(tmp_path).limit_trial.write_text(json.dumps({**known, "boot": "another"}))
    assert trials.on_node(node, remember=True) == node
    for damaged in ("", "[]", "{}", '{"boot": 1}', "\0"):
        StateFolder(tmp_path).limit_trial.write_text(damaged)
        assert trials.on_node(node, remember=True) == node


def test_a_trial_that_was_killed_leaves_nothing_to_the_next(t4: TestMachine, groups: Path) -> None:
    (groups / "tranche-trial-999999999-ab").mkdir()
    t4.tranche("explain", "--gpu-memory", "3G")
    assert nothing_on_trial(groups, t4)


# Where a process is


@pytest.mark.parametrize(
    ("own", "mount", "expected"),
    [
        ("0::/a/b\n", "/ /sys/fs/cgroup rw - cgroup2 none rw", "/sys/fs/cgroup/a/b"),
        ("12:cpu:/x\n0::/\n", "/ /mnt rw shared:4 - cgroup2 none rw", "/mnt"),
        ("0::/a/b\n", "/a /mnt rw - cgroup2 none rw", "/mnt/b"),
        ("0::/a/b\n", "/c /mnt rw - cgroup2 none rw", None),
        ("0::/a/b\n", "/ /mnt rw - cgroup none rw", None),
        ("12:cpu:/x\n", "/ /mnt rw - cgroup2 none rw", None),
    ],
)
def test_the_own_group_is_found_where_its_hierarchy_is_mounted(
    tmp_path: Path, own: str, mount: str, expected: str | None
) -> None:
    (tmp_path / "cgroup").write_text(own)
    (tmp_path / "mountinfo").write_text(f"30 29 0:26 {mount}\n")
    found = own_group(tmp_path)
    assert found == (None if expected is None else Path(expected))


# When a group goes


def noted(state_dir: Path, group: ShareGroup) -> ShareGroupManager:
    """The groups of a state folder that has a note of this one."""
    groups = ShareGroupManager(StateFolder(state_dir))
    groups._note(group)
    assert groups.left([]) == (group,)
    return groups


def group_at(folder: Path, **more: str) -> ShareGroup:
    namespace, boot = more.get("namespace", group_namespace()), more.get("boot", boot_id())
    return ShareGroup("aaaa0001", folder / "tranche-aaaa0001", ("GPU-a",), namespace, boot)


@pytest.mark.parametrize("below", ["", "session/scope"])
def test_a_group_that_somebody_removed_is_forgotten(tmp_path: Path, below: str) -> None:
    (tmp_path / "cgroup.procs").touch()
    group = group_at(tmp_path / below)
    groups = noted(tmp_path / "state", group)
    assert groups.drop(group)
    assert groups.left([]) == ()


@pytest.mark.parametrize("namespace", [None, "cgroup:[1]", ""])
def test_a_group_that_cannot_be_seen_from_here_is_not_forgotten(tmp_path: Path, namespace: str | None) -> None:
    """As in a container, where the path leads nowhere, or somewhere else; without a namespace the group above must be there."""
    if namespace is not None:
        (tmp_path / "cgroup.procs").touch()
    group = group_at(tmp_path / "pod", **({} if namespace is None else {"namespace": namespace}))
    groups = noted(tmp_path / "state", group)
    assert not groups.drop(group)
    assert groups.left([]) == (group,)


def test_a_group_of_an_earlier_start_of_the_machine_is_forgotten(tmp_path: Path) -> None:
    group = group_at(tmp_path, namespace="cgroup:[1]", boot="5b8d22c6-0000-4000-8000-000000000000")
    groups = noted(tmp_path / "state", group)
    assert groups.drop(group)
    assert groups.left([]) == ()


def test_a_group_of_which_the_kernel_does_not_say_who_is_in_it_stays(tmp_path: Path) -> None:
    group = group_at(tmp_path)._replace(gpu_uuids=())
    group.folder.mkdir()
    groups = noted(tmp_path / "state", group)
    assert not groups.drop(group)
    assert (group.folder.exists(), groups.left([])) == (True, (group,))


def test_group_and_note_stay_while_the_driver_does_not_lift_the_limit(t4: TestMachine, groups: Path) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    (holder,) = holders(t4)
    t4.machine.inject_error("nvmlDeviceSetMemoryLimits", pynvml.NVML_ERROR_UNKNOWN, calls=1000)
    first.go_on()
    assert first.ended()[0] == 0
    assert holders(t4) == []
    assert of_shares(t4) == [holder["id"]]
    (left,) = ShareGroupManager(StateFolder(t4.state_dir)).left([])
    assert left.folder.is_dir()
    t4.machine.clear_injections()
    assert holders(t4) == []
    assert of_shares(t4) == []
    assert not left.folder.exists()


def test_a_lost_gpu_keeps_no_group(t4: TestMachine, groups: Path) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    (left,) = ShareGroupManager(StateFolder(t4.state_dir)).left([])
    t4.machine.inject_lost(0)
    first.go_on()
    first.ended()
    wait_until(lambda: (t4.tranche("gpus"), of_shares(t4))[1] == [])
    assert not left.folder.exists()


def test_a_group_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    assert remove_group(tmp_path / "gone")


def test_a_share_that_a_lax_driver_gives_more_is_marked(t4: TestMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY, "off")
    t4.machine.set_limits_backend("lax")
    # Its environment names nothing: the control group tells whose it is.
    bare = 'import os; os.environ.pop("TRANCHE_ALLOCATION"); os.execv(sys.executable, [sys.executable, "-c", again])'
    again = "context(); check(cu.cuMemAlloc(5 << 30)); tell(0); wait()"
    one = tenant(t4, "--gpu-memory", "3G", code=f"again = {PREAMBLE + again!r}; {bare}")
    assert one.told() == 0
    (holder,) = holders(t4)
    assert (holder["grants"][0]["mechanism"], holder["grants"][0]["isolation"]) == ("memory-limits", "none")
    wait_until(lambda: "LimitExceeded" in t4.tranche("events").stdout)
    one.go_on()
    assert "Tranche now counts it as unlimited" in one.ended()[1]


# Containers


class ContainerShare:
    """A share that `tranche` holds for containers, until its command or session ends: a shell that takes lines."""

    def __init__(self, machine: TestMachine, groups: Path, folder: Path, how: str, more: str) -> None:
        self.groups, self.folder, self.how = groups, folder, how
        self.begun: set[str] = set()
        request = f"{how} --cdi --gpu-memory 3G {more}"
        tranche = shlex.join([*TRANCHE, *request.split()])
        script = f"exec {tranche} -- sh" if how == "run" else f'eval "$({tranche})"; exec sh'
        self.shell = subprocess.Popen(
            on_version_2(groups.parent, ["sh", "-c", script]),
            env=machine.environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.id = self.do("echo ${TRANCHE_CDI_DEVICE#tranche.dev/share=}")
        self.spec = CDI_FOLDER / f"tranche.dev-allocation_{self.id}.json"

    def do(self, line: str) -> str:
        """The line that a line tells."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(line + "\n")
        self.shell.stdin.flush()
        return self.shell.stdout.readline().strip()

    def container(self, name: str, code: str) -> Tenant:
        """A container with the share that runs this program."""
        program = [sys.executable, "-c", PREAMBLE + code]
        self.begun.add(name)
        return Tenant(
            start_container(self.spec, self.folder / name, self.groups.parent, f"{self.groups.name}/{name}", program)
        )

    def end(self) -> None:
        """End the command or the session."""
        self.shell.communicate(timeout=60)


@contextmanager
def held_for_containers(
    machine: TestMachine, groups: Path, folder: Path, how: str = "run", more: str = ""
) -> Iterator[ContainerShare]:
    """A share that ends with the block, and so do its containers."""
    if shutil.which("runc") is None:
        pytest.skip("there is no runc")
    held = ContainerShare(machine, groups, folder / "containers", how, more)
    try:
        yield held
    finally:
        for each in held.begun:
            with suppress(FileNotFoundError):
                (groups / each / "cgroup.kill").write_text("1")
        if held.shell.poll() is None:
            held.end()
        wait_until(lambda: (holders(machine), held.spec.exists()) == ([], False))


@pytest.fixture(params=["run", "hold"])
def share(t4: TestMachine, groups: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ContainerShare]:
    with held_for_containers(t4, groups, tmp_path, request.param) as held:
        yield held


@pytest.mark.parametrize("share", ["run"], indirect=True)
@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_a_container_sees_its_limit_gets_no_more_and_leaves_nothing(
    t4: TestMachine, groups: Path, share: ContainerShare, backend: Literal["misc", "dmem"]
) -> None:
    t4.machine.set_limits_backend(backend)
    one = share.container("one", TOTAL)
    total, got, code = one.told()
    assert code == OUT_OF_MEMORY
    assert 3 * GB - (STEP_MIB << 20) < got << 20 < total << 20 < 3 * GB + (600 << 20)
    (holder,) = holders(t4)
    assert (holder["id"], holder["grants"][0]["walls"]["memory"]) == (share.id, "driver")
    one.go_on()
    assert one.ended() == (0, "")
    share.end()
    wait_until(lambda: (t4.tranche("gpus"), of_shares(t4))[1] == [])
    assert holders(t4) == []
    if backend == "dmem":
        assert "soft limit: 0 MiB" in t4.smi("memory-limits", "--get", "-n", str(groups)), "no reservation stays above"


def test_a_container_with_two_gpus_is_limited_on_each(folder: Path, groups: Path, tmp_path: Path) -> None:
    code = """
for ordinal in (0, 1):
    context(ordinal)
    tell([check(cu.cuMemGetInfo())[1] >> 20, int(cu.cuMemAlloc(4 << 30)[0])])
"""
    with machine_in(folder, "T4", "T4") as machine:
        machine.machine.set_driver("615.71.09")
        with held_for_containers(machine, groups, tmp_path, more="--count 2") as share:
            one = share.container("one", code)
            for _ in range(2):
                total, refused = one.told()
                assert (total << 20 < 3 * GB + (600 << 20), refused) == (True, OUT_OF_MEMORY)
            assert one.ended() == (0, "")


TOGETHER = """
held = context(); taken = [check(cu.cuMemAlloc(2 << 30))]
inner = "from cuda.bindings import driver as cu; cu.cuInit(0); cu.cuCtxCreate(None, 0, 0); print(int(cu.cuMemAlloc(2 << 30)[0]))"
out, into = os.pipe()
if os.fork() == 0:
    os.dup2(into, 1)
    os.environ.clear()
    os.execve(sys.executable, [sys.executable, "-c", inner], {"LD_LIBRARY_PATH": LIBRARIES, "NVIDIA_VISIBLE_DEVICES": "all"})
tell(int(os.read(out, 9)))
wait()
"""


def test_processes_of_one_container_have_the_limit_together(share: ContainerShare) -> None:
    """Even one that was forked and executed, and has nothing of the share's environment."""
    one = share.container("one", f"LIBRARIES = {LIBRARIES_IN_CONTAINER!r}\n{TOGETHER}")
    assert one.told() == OUT_OF_MEMORY
    one.go_on()
    one.ended()


def test_a_second_container_of_one_share_starts_when_the_first_has_ended(share: ContainerShare) -> None:
    first = share.container("first", TOTAL)
    assert first.told()[2] == OUT_OF_MEMORY
    code, said = share.container("second", TOTAL).ended()
    assert code != 0
    why = f"/sys/fs/cgroup/{share.groups.name}/first) has the share; wait until it ends"
    assert why in said
    assert why in (share.folder / "run" / "tranche-limits" / ".last-failure").read_text(), "not every runtime shows it"
    first.go_on()
    assert first.ended()[0] == 0
    for name in ("second", "second"):  # a restart has the same control group
        second = share.container(name, TOTAL)
        assert second.told()[2] == OUT_OF_MEMORY
        second.go_on()
        assert second.ended()[0] == 0


@pytest.mark.parametrize("share", ["run"], indirect=True)
def test_no_container_starts_without_a_limit(t4: TestMachine, share: ContainerShare) -> None:
    t4.machine.set_limits_backend("off")
    code, said = share.container("one", "tell(0)").ended()
    assert (code != 0, "--set failed: Unable to set memory limit: Not Supported" in said) == (True, True), said
    t4.machine.set_limits_backend("misc")
    t4.machine.inject_error("nvmlDeviceGetMemoryLimits", pynvml.NVML_ERROR_UNKNOWN, calls=1)
    code, said = share.container("one", "tell(0)").ended()
    assert (code != 0, "MiB as the limit, but shows: Unable to get memory limit" in said) == (True, True), said
    record = share.folder / "run" / "tranche-limits" / "damaged"
    record.mkdir()
    code, said = share.container("one", "tell(0)").ended()
    assert (code != 0, "cannot read /run/tranche-limits/damaged" in said) == (True, True), said
    record.rmdir()
    one = share.container("one", TOTAL)
    assert one.told()[2] == OUT_OF_MEMORY
    one.go_on()
    one.ended()


def test_beside_its_container_a_share_gives_nothing(share: ContainerShare) -> None:
    assert share.do("echo ${CUDA_VISIBLE_DEVICES-unset}.") == "."
    tried = "from cuda.bindings import driver as cu; print(int(cu.cuInit(0)[0]) or int(cu.cuCtxCreate(None, 0, 0)[0]))"
    got = share.do(f"{sys.executable} -c {shlex.quote(tried)}")
    assert int(got) == NO_DEVICE
    if share.how == "run":
        got = share.do(f"CUDA_VISIBLE_DEVICES=0 {sys.executable} -c {shlex.quote(tried)}")
        assert int(got) == OUT_OF_MEMORY


def test_a_container_keeps_the_share_and_its_limit(t4: TestMachine, share: ContainerShare) -> None:
    one = share.container("one", f"tell(0); wait()\n{TOTAL}")
    assert one.told() == 0
    share.end()
    (holder,) = holders(t4)
    assert holder["id"] == share.id
    one.go_on()
    assert one.told()[2] == OUT_OF_MEMORY
    one.go_on()
    one.ended()
    wait_until(lambda: holders(t4) == [])


@pytest.mark.parametrize(
    ("own", "state"),
    [
        (True, '{"annotations": {"pid": "1", "a": "\\"pid\\": 1"}, "pid": PID, "id": "x"}'),
        (True, '{\n"id": "x",\n"pid":PID\n}'),
        (False, '{"pid": PID}'),
        (True, '{"id": "x"}'),
        (True, ""),
    ],
)
def test_a_container_without_a_control_group_of_its_own_does_not_start(
    t4: TestMachine, groups: Path, own: bool, state: str
) -> None:
    uuid = t4.json("gpus")["gpus"][0]["uuid"]
    hook = SimulatedDeviceFiles(t4.machine.state).limit_hook("share", uuid, GIB)
    leaf = groups / "leaf"
    leaf.mkdir()
    with inside(leaf if own else groups):
        program = subprocess.Popen(["sleep", "600"])
    try:
        done = subprocess.run(
            on_version_2(
                groups.parent,
                ["env", "-i", *hook.environment, hook.path, *hook.arguments[1:]],
                "mount -t tmpfs none /run",
            ),
            input=state.replace("PID", str(program.pid)),
            capture_output=True,
            text=True,
            check=False,
        )
        limited = own and "PID" in state
        assert (done.returncode == 0, "control group of its own" not in done.stderr) == (limited, limited), done.stderr
        if limited:
            assert "hard limit: 1024 MiB" in t4.smi("memory-limits", "--get", "-n", str(leaf))
    finally:
        program.kill()
        program.wait()
