"""`tranche run --gpu-memory` on GPUs without MIG: unmodified CUDA programs side by side, each with its own memory and no more."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.served import Dashboards
from tests.layout.test_hooks import Recorder
from tests.machines import TestMachine, machine_in, wait_until
from tests.node.test_mps_daemons import end
from tests.simulator.cuda_programs import PREAMBLE
from tests.support.length import some_of
from tranche.core.errors import MpsPathTooLong, SharingUnavailable
from tranche.hardware.mps_control import ServerStatus
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.mps.mps_records import DaemonRecordStore
from tranche.node.state.session import StateFolder

GB = 10**9
STEP_MIB = 64
GREEDY = f"""
context()
sizes = []
while True:
    result, pointer = cu.cuMemAlloc({STEP_MIB} << 20)
    if int(result):
        tell([len(sizes) * {STEP_MIB}, int(result)])
        break
    sizes.append(pointer)
wait()
tell(code(cu.cuCtxSynchronize()))
"""
TELL_SECONDS = 300.0
END_SECONDS = 120.0
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def t4(folder: Path) -> Iterator[TestMachine]:
    """A g4dn.xlarge: one T4, which has no MIG. Its daemons end with the test."""
    with machine_in(folder, machine_type="g4dn.xlarge") as machine:
        try:
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def end_daemons(machine: TestMachine) -> None:
    places = StateFolder(machine.state_dir)
    for record in DaemonRecordStore(places.mps).all():
        MpsDaemonManager(places, machine.environment).process(record.device_uuid).stop()


@dataclass
class Tenant:
    """A program under `tranche run`, which tells what it got and then waits for a word."""

    process: subprocess.Popen[str]
    _unread: bytes = b""

    def told(self) -> Any:
        """What it tells next; fails when it has ended, and says what it said."""
        found = self.told_or_ended()
        if found is None:
            code, said = self.ended()
            pytest.fail(f"it ended with {code} and told nothing: {said}")
        return found

    def told_or_ended(self) -> Any:
        """What it tells next; None when it has ended."""
        stdout, stderr = self.process.stdout, self.process.stderr
        assert stdout is not None
        assert stderr is not None
        while b"\n" not in self._unread:
            if not select.select([stdout], [], [], TELL_SECONDS)[0]:
                said = os.read(stderr.fileno(), 65536) if select.select([stderr], [], [], 0)[0] else b"nothing"
                pytest.fail(f"it told nothing in {TELL_SECONDS:g} s; tranche said: {said.decode()}")
            more = os.read(stdout.fileno(), 65536)
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def go_on(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what was said on stderr."""
        try:
            _, said = self.process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"it does not end in {END_SECONDS:g} s; tranche said: {(error.stderr or b'nothing').decode()}")
        return self.process.returncode, said


def tenant(machine: TestMachine, *request: str, code: str = GREEDY) -> Tenant:
    program = [sys.executable, "-c", PREAMBLE + code]
    process = machine.start("run", *request, "--", *program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return Tenant(process)


def holders(machine: TestMachine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = machine.json("ps")["allocations"]
    return found


def isolations(machine: TestMachine) -> list[str]:
    """The isolation of each share."""
    return [each["grants"][0]["isolation"] for each in holders(machine)]


def server_states(machine: TestMachine) -> list[ServerStatus]:
    """What the daemon of the only device says of its servers."""
    places = StateFolder(machine.state_dir)
    (record,) = DaemonRecordStore(places.mps).all()
    control = MpsDaemonManager(places, machine.environment).process(record.device_uuid).control
    return [control.server_status(server) for server in control.servers()]


def nothing_left(machine: TestMachine) -> None:
    """No daemon, no record, no compute mode."""
    assert compute_mode(machine) == "Default"
    assert DaemonRecordStore(StateFolder(machine.state_dir).mps).all() == ()


def nothing_is_left(machine: TestMachine) -> bool:
    return compute_mode(machine) == "Default" and DaemonRecordStore(StateFolder(machine.state_dir).mps).all() == ()


def compute_mode(machine: TestMachine) -> str:
    return machine.smi("--query-gpu=compute_mode", "--format=csv,noheader").strip()


def nothing_stays(machine: TestMachine) -> None:
    """The next commands end what nobody needs; one that meets somebody else who decides leaves it to him."""
    wait_until(lambda: (machine.tranche("gpus"), nothing_is_left(machine))[1])


# Passes the daemon by, as a job script does that cleans the environment.
ALONE = """
del os.environ["CUDA_MPS_PIPE_DIRECTORY"]
check(cu.cuInit(0))
tell(code(cu.cuCtxCreate(None, 0, check(cu.cuDeviceGet(0)))))
"""


def test_the_first_program_on_a_gpu_cannot_pass_the_daemon_by(t4: TestMachine) -> None:
    first = tenant(t4, "--gpu", "0.2", code=ALONE)
    assert first.told() != 0
    first.ended()


def later(machine: TestMachine, seconds: float = 3600) -> None:
    """Let the daemons look as if nobody had needed them for an hour; with a negative time they do not end meanwhile."""
    for path in StateFolder(machine.state_dir).mps.glob("*.json"):
        os.utime(path, (0, path.stat().st_mtime - seconds))


@pytest.mark.parametrize("driver", some_of(["515.65.01", "615.71.09", "580.95.05"], 2))
def test_four_programs_share_a_t4_and_a_fifth_waits(t4: TestMachine, driver: str) -> None:
    t4.machine.set_driver(driver)
    tenants = [tenant(t4, "--gpu-memory", "3G") for _ in range(4)]
    for each in tenants:
        got, code = each.told()
        assert code == OUT_OF_MEMORY
        assert 3 * GB - (STEP_MIB << 20) < got << 20 < 3 * GB + (400 << 20)
    assert isolations(t4) == ["soft"] * 4
    fifth = tenant(t4, "--gpu-memory", "3G")
    wait_until(lambda: len(t4.json("ps")["waiters"]) == 1, fifth.process)
    tenants[0].go_on()
    assert tenants[0].told() == 0
    assert fifth.told() is not None
    for each in (*tenants[1:], fifth):
        each.go_on()
        assert each.told() == 0
        assert each.ended()[0] == 0
    assert holders(t4) == []
    later(t4)
    nothing_stays(t4)


@pytest.mark.parametrize("isolation", ["soft", "none"])
def test_two_halves_are_all_that_the_driver_leaves_of_the_memory(t4: TestMachine, isolation: str) -> None:
    halves = [tenant(t4, "--gpu", "0.5", "--isolation", isolation) for _ in range(2)]
    got = [each.told()[0] for each in halves]
    given_away = [each["grants"][0]["memoryBytes"] for each in holders(t4)]
    assert sum(given_away) <= t4.json("gpus")["gpus"][0]["memoryBytes"] - (446 << 20)
    assert len(set(given_away)) == 1
    assert isolation == "none" or got[0] == got[1]


def test_four_programs_share_one_slice(folder: Path) -> None:
    with machine_in(folder, "A100-40GB") as machine:
        try:
            machine.cut_by_hand(0, "4g.20gb", "3g.20gb")
            machine.hold("--mig-profile", "4g.20gb")
            tenants = [tenant(machine, "--gpu-memory", "4G", "--compute", "25") for _ in range(4)]
            for each in tenants:
                got, code = each.told()
                assert code == OUT_OF_MEMORY
                assert 4 * GB - (STEP_MIB << 20) < got << 20 < 4 * GB + (540 << 20)
            shares = [each["grants"][0] for each in holders(machine)][1:]
            assert {(each["mechanism"], each["profile"], each["walls"]["compute"]) for each in shares} == {
                ("mps", "3g.20gb", "ceiling")
            }
        finally:
            machine.end()
            end_daemons(machine)


@pytest.fixture
def once_shared(folder: Path) -> Iterator[TestMachine]:
    """An H100 in one piece whose MPS daemon nobody needs any more."""
    with machine_in(folder, "H100-80GB-SXM") as machine:
        try:
            machine.tranche("policy", "set", "--gpu", "0", "sharing=shared")
            machine.tranche("run", "--gpu", "0.2", "--", "true")
            machine.tranche("policy", "set", "--gpu", "0", "sharing=auto")
            assert len(DaemonRecordStore(StateFolder(machine.state_dir).mps).all()) == 1
            later(machine, -3600)  # else it ends after a minute, and a busy machine takes longer
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def test_a_layouts_plan_shows_that_an_idle_daemon_ends(once_shared: TestMachine, folder: Path) -> None:
    """What is planned, also without changing anything, is what is carried out."""
    cut = ("-c", "all-3g.40gb")
    planned = once_shared.tranche("layout", "plan", *cut).stdout
    assert "MPS daemon" in planned
    assert once_shared.tranche("layout", "apply", *cut, "--dry-run").stdout == planned
    saved = folder / "plan.json"
    saved.write_text(once_shared.tranche("layout", "plan", *cut, "-o", "json").stdout)
    assert once_shared.tranche("layout", "apply", "--dry-run", "--plan", str(saved)).stdout == planned
    steps = [line.split(maxsplit=1)[1] for line in planned.splitlines()[1:]]
    applied = json.loads(once_shared.tranche("layout", "apply", "--plan", str(saved), "-o", "json").stdout)
    assert applied["steps"] == steps
    nothing_left(once_shared)


def test_the_end_of_an_idle_daemon_is_no_cut_for_the_hooks(once_shared: TestMachine, folder: Path) -> None:
    saved, hooks = folder / "plan.json", Recorder(folder)
    saved.write_text(once_shared.tranche("layout", "plan", "-m", "-c", "all-3g.40gb", "-o", "json").stdout)
    once_shared.tranche("layout", "apply", "--plan", str(saved), "-k", hooks.file())
    assert [moment for moment, _, _ in hooks.runs()] == ["apply-start", "pre-apply-mode", "apply-exit"]
    nothing_left(once_shared)


def test_turns_limit_no_memory_and_are_given_only_where_they_are_asked_for(t4: TestMachine) -> None:
    t4.machine.set_driver("470.82.01")
    got, code = tenant(t4, "--gpu-memory", "3G", "--isolation", "none").told()
    assert got > 12 * 1024
    assert code == OUT_OF_MEMORY
    assert isolations(t4) == ["none"]
    assert [each["grants"][0]["mechanism"] for each in holders(t4)] == ["time-slicing"]


def test_a_tenant_that_is_taken_back_disturbs_nobody(t4: TestMachine) -> None:
    first, second = tenant(t4, "--gpu-memory", "3G"), tenant(t4, "--gpu-memory", "5G")
    assert first.told() is not None
    assert second.told() is not None
    (name,) = [each["id"] for each in holders(t4) if each["request"]["gpuMemoryBytes"] == 3 * GB]
    t4.tranche("release", name, "--terminate")
    assert first.ended()[0] == 128 + signal.SIGTERM
    second.go_on()
    assert second.told() == 0
    assert second.ended()[0] == 0


def test_a_daemon_that_dies_is_told_at_once_and_nobody_more_is_let_in(t4: TestMachine) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    assert isolations(t4) == ["soft"]
    (record,) = DaemonRecordStore(StateFolder(t4.state_dir).mps).all()
    end(record.pid)
    assert isolations(t4) == ["none"]
    wait_until(lambda: "LimitsLost" in t4.tranche("events").stdout)
    assert "has died" in t4.tranche("explain", "--gpu-memory", "3G").stdout
    t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true", code=32)
    first.go_on()
    _, said = first.ended()
    assert "so nothing limits its memory" in said
    # As soon as nobody shares the GPU any more, it serves again.
    again = tenant(t4, "--gpu-memory", "3G")
    assert again.told() is not None
    assert isolations(t4) == ["soft"]


@pytest.mark.parametrize("how", ["killed", "shut down"])
def test_a_server_that_ends_under_a_share_is_told_and_written_down_once(t4: TestMachine, how: str) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    places = StateFolder(t4.state_dir)
    (record,) = DaemonRecordStore(places.mps).all()
    process = MpsDaemonManager(places, t4.environment).process(record.device_uuid)
    (server,) = process.servers()
    if how == "killed":
        os.kill(server.pid, signal.SIGKILL)
    else:
        process.control.ask(f"shutdown_server {server.pid} -f")
    wait_until(lambda: "ServerEnded" in t4.tranche("events").stdout)
    (share,) = holders(t4)
    first.go_on()
    _, said = first.ended()
    assert said.count(f"process {server.pid}, was killed or shut down") == 1
    assert "806" in said
    told = [each for each in t4.json("events")["events"] if each["type"] == "ServerEnded"]
    assert [(each["allocationId"], each["data"]) for each in told] == [(share["id"], {"pid": server.pid})]
    again = tenant(t4, "--gpu-memory", "3G")
    assert again.told() is not None


def test_nothing_is_promised_on_a_daemon_whose_limits_somebody_has_just_changed(t4: TestMachine) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    places = StateFolder(t4.state_dir)
    (record,) = DaemonRecordStore(places.mps).all()
    control = MpsDaemonManager(places, t4.environment).process(record.device_uuid).control
    control.ask("set_default_device_pinned_mem_limit 0 15G")
    assert "limits were changed" in t4.tranche("doctor").stdout
    assert t4.json("explain", "--gpu-memory", "3G")["status"] == "Waiting"
    dashboards = Dashboards(t4)
    try:
        assert "<strong>Waiting</strong>" in dashboards.start().ask("/ask?kind=gpu_memory&amount=3G").text
    finally:
        dashboards.end()
    first.go_on()
    first.ended()


def test_a_fault_of_one_ends_its_neighbours_and_fences_the_gpu_until_they_are_gone(t4: TestMachine) -> None:
    faulty = "context(); tell(0); wait(); tell(code(cu.cuMemAlloc(1))); wait()"
    one, other = tenant(t4, "--gpu-memory", "3G", code=faulty), tenant(t4, "--gpu-memory", "3G")
    assert one.told() == 0
    assert other.told() is not None
    t4.machine.inject_error("cuMemAlloc", ILLEGAL_ADDRESS)
    one.go_on()
    assert one.told() == ILLEGAL_ADDRESS
    wait_until(lambda: ServerStatus.FAULT in server_states(t4))
    other.go_on()
    assert other.told() == ILLEGAL_ADDRESS
    # The first still lives: whoever came now would get an error that is not his.
    refused = t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true", code=32)
    assert "fault" in refused.stderr
    events = t4.json("events")["events"]
    (fault,) = [each for each in events if each["type"] == "DaemonFault"]
    hit = [each for each in events if each["type"] == "FaultShared"]
    assert {each["allocationId"] for each in hit} >= {each["id"] for each in holders(t4)}, "whoever is still there"
    assert {each["cause"] for each in hit} == {fault["position"]}
    one.go_on()
    assert one.ended()[0] == other.ended()[0] == 0
    again = tenant(t4, "--gpu-memory", "3G")
    assert again.told()[1] == OUT_OF_MEMORY


def test_a_fault_is_written_down_when_the_program_that_made_it_ends_at_once(t4: TestMachine) -> None:
    faulty = "context(); tell(0); wait(); check(cu.cuMemAlloc(1))"
    one, other = tenant(t4, "--gpu-memory", "3G", code=faulty), tenant(t4, "--gpu-memory", "3G")
    assert one.told() == 0
    assert other.told() is not None
    shares = {each["id"] for each in holders(t4)}
    t4.machine.inject_error("cuMemAlloc", ILLEGAL_ADDRESS)
    one.go_on()
    assert one.ended()[0] != 0
    hit = [each for each in t4.json("events")["events"] if each["type"] == "FaultShared"]
    assert {each["allocationId"] for each in hit} == shares
    other.go_on()
    assert other.told() == ILLEGAL_ADDRESS


def test_a_server_that_a_kill_amid_work_has_wedged_is_replaced_for_the_next_program(t4: TestMachine) -> None:
    t4.machine.set_time_scale(1.0)
    at_work = "context(); work = kernel(); launch(work, 600 * 10**6); tell(0); wait()"
    alone = tenant(t4, "--gpu-memory", "3G", code=at_work)
    assert alone.told() == 0
    holder = t4.one_running()
    t4.machine.inject_error("mpsClientKilled", 999)
    os.kill(holder["pid"], signal.SIGKILL)
    assert alone.ended()[0] == 128 + signal.SIGKILL
    # Without a new daemon this one would hang in cuInit.
    assert tenant(t4, "--gpu-memory", "3G").told()[1] == OUT_OF_MEMORY


def test_a_program_that_is_taken_back_amid_its_work_is_drained_first(t4: TestMachine) -> None:
    t4.machine.set_time_scale(1.0)
    at_work = "context(); work = kernel(); launch(work, 2 * 10**6); tell(0); wait()"
    working, beside = tenant(t4, "--gpu-memory", "3G", code=at_work), tenant(t4, "--gpu-memory", "5G")
    assert working.told() == 0
    assert beside.told() is not None
    (name,) = [each["id"] for each in holders(t4) if each["request"]["gpuMemoryBytes"] == 3 * GB]
    t4.machine.inject_error("mpsClientKilled", 999)
    t4.tranche("release", name, "--terminate")
    beside.go_on()
    assert beside.told() == 0


def test_tenants_that_are_killed_leave_nothing(t4: TestMachine) -> None:
    tenants = [tenant(t4, "--gpu-memory", "3G") for _ in range(2)]
    for each in tenants:
        assert each.told() is not None
    for holder in t4.running():
        os.kill(holder["pid"], signal.SIGKILL)
    tenants[1].process.kill()
    wait_until(lambda: holders(t4) == [])
    nothing_stays(t4)


def test_a_driver_without_limits_is_refused_by_name(t4: TestMachine) -> None:
    t4.machine.set_driver("470.82.01")
    before = t4.changes()
    refused = t4.tranche("run", "--gpu-memory", "3G", "--", "true", code=SharingUnavailable.exit_code)
    assert "470.82.01 is older than 495" in refused.stderr
    assert t4.changes() == before


def test_a_state_folder_with_too_long_a_path_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    with machine_in(tmp_path / ("x" * 90), machine_type="g4dn.xlarge") as machine:
        before = machine.changes()
        refused = machine.tranche("run", "--gpu-memory", "3G", "--", "true", code=MpsPathTooLong.exit_code)
        assert "107" in refused.stderr
        assert "--state-dir" in refused.stderr
        assert machine.changes() == before
        assert holders(machine) == []
        nothing_left(machine)


def test_a_command_whose_processes_have_more_together_than_its_share_is_marked_and_nobody_joins_it(
    t4: TestMachine,
) -> None:
    """MPS limits each process singly."""
    both = """
import subprocess
held = context(); check(cu.cuMemAlloc(2 << 30))
inner = "import sys; from cuda.bindings import driver as cu; cu.cuInit(0); cu.cuCtxCreate(None, 0, 0); "
inner += "print(int(cu.cuMemAlloc(2 << 30)[0]), flush=True); sys.stdin.readline()"
child = subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
tell(int(child.stdout.readline())); wait(); child.communicate("\\n")
"""
    beside = tenant(t4, "--gpu-memory", "2G", code="context(); tell(0); wait()")
    assert beside.told() == 0
    two = tenant(t4, "--gpu-memory", "3G", code=both)
    assert two.told() == 0, "each process has the limit for itself"
    assert sorted(isolations(t4)) == ["none", "soft"]
    (marked,) = [each for each in holders(t4) if each["grants"][0]["isolation"] == "none"]
    assert marked["grants"][0]["walls"]["memory"] == "none"
    assert "  none " in t4.tranche("ps").stdout
    (gpu,) = t4.json("gpus")["gpus"]
    assert gpu["sharing"]["walls"]["memory"] == "none"
    wait_until(lambda: "LimitExceeded" in t4.tranche("events").stdout)
    t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true", code=32)
    two.go_on()
    _, said = two.ended()
    assert "Tranche now counts it as unlimited" in said
    assert isolations(t4) == ["soft"]
    t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true")
    beside.go_on()
    assert beside.ended()[0] == 0
