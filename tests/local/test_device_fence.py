"""The fence: the kernel lets users open GPUs only in shares, and only those of the share; nobody's share ends by it."""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.local.test_service import SharedMachine
from tests.machines import machine_in, needs_root, readable_folder, wait_until
from tests.support import in_process
from tests.support.in_process import NOBODY
from tranche.core.errors import FenceUnavailable, NoRoom, ServiceUnavailable, UsageError
from tranche.hardware import device_filter
from tranche.hardware.control_groups import inside, machine_group, members, move_into, remove_group
from tranche.hardware.device_filter import FenceFilter, attach_filter, attached_filters, detach_filters
from tranche.hardware.nodes import SIMULATED_CAPABILITY_MAJOR, SIMULATED_GPU_MAJOR
from tranche.node.store import records
from tranche.node.store.ledger import Ledger

OTHER = NOBODY + 10_000
_OWNER = "/tests"


def _why_not() -> str:
    """Why this machine enforces no filter, "" if it does."""
    top = machine_group() if os.geteuid() == 0 else None
    if top is None:
        return "needs root, and the machine's control groups of version 2"
    with group_in(top, "tranche-tests") as folder:
        try:
            attach_filter(folder, FenceFilter((SIMULATED_GPU_MAJOR,), frozenset()), _OWNER)
        except FenceUnavailable as error:
            return error.message
    return ""


@contextmanager
def group_in(folder: Path, name: str) -> Iterator[Path]:
    """A group, removed afterwards unless it was there before."""
    made = folder / name
    before = made.exists()
    made.mkdir(exist_ok=True)
    try:
        yield made
    finally:
        if not before:
            with suppress(FileNotFoundError):
                made.rmdir()


pytestmark = [needs_root, pytest.mark.skipif(bool(why := _why_not()), reason=why)]

GPU = (SIMULATED_GPU_MAJOR, 0)
CONTROL = (SIMULATED_GPU_MAJOR, 255)
FILTERS = [
    # rule, uid, the device's numbers, whether it opens
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset()), NOBODY, GPU, False),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset()), 0, GPU, False),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset(), frozenset({0})), 0, GPU, True),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset(), frozenset({0})), NOBODY, GPU, False),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset(), frozenset({NOBODY, 2**31 + 5})), NOBODY, GPU, True),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset(), frozenset({2**31 + 5})), NOBODY, GPU, False),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset({GPU})), NOBODY, GPU, True),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset({GPU})), NOBODY, (SIMULATED_GPU_MAJOR, 1), False),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset({(SIMULATED_CAPABILITY_MAJOR, 1)})), NOBODY, GPU, False),
    (FenceFilter((1, SIMULATED_GPU_MAJOR), frozenset({GPU})), NOBODY, (1, 3), False),
    (FenceFilter((SIMULATED_GPU_MAJOR,), frozenset()), NOBODY, (1, 3), True),
]


@pytest.mark.parametrize(("rule", "uid", "numbers", "opens"), FILTERS, ids=range(len(FILTERS)))
def test_a_filter_opens_what_its_rule_says(
    rule: FenceFilter, uid: int, numbers: tuple[int, int], *, opens: bool
) -> None:
    with readable_folder() as folder, group_in(_top(), "tranche-tests") as group:
        node = device(folder, *numbers)
        attach_filter(group, rule, _OWNER)
        assert opened(node, group, uid) is opens
        detach_filters(group, _OWNER)
        assert opened(node, group, uid)


def test_a_filter_takes_the_place_of_its_owners_earlier_one_and_leaves_those_of_others() -> None:
    every, none = (
        FenceFilter((SIMULATED_GPU_MAJOR,), allowed) for allowed in (frozenset({GPU}), frozenset[tuple[int, int]]())
    )
    with readable_folder() as folder, group_in(_top(), "tranche-tests") as group:
        node = device(folder, *GPU)
        for rule in (none, every, none, none, every):
            attach_filter(group, rule, _OWNER)
            assert attached_filters(group, _OWNER) == (rule.name(_OWNER),)
            assert attached_filters(group, "/others") == ()
        assert opened(node, group, NOBODY)
        attach_filter(group, none, "/others")
        assert not opened(node, group, NOBODY)
        attach_filter(group, every, _OWNER)
        detach_filters(group, _OWNER)
        assert not opened(node, group, NOBODY)
        assert attached_filters(group, "/others") == (none.name("/others"),)


@contextmanager
def exclusive_filter(folder: Path, uid: int | None = None) -> Iterator[None]:
    """A filter that keeps the group and those below from having any other; with a `uid`, it denies that user nothing."""
    rule = FenceFilter((SIMULATED_GPU_MAJOR,), frozenset(), frozenset() if uid is None else frozenset({uid}))
    folder.mkdir(exist_ok=True)
    group, program = os.open(folder, os.O_RDONLY), device_filter._load(rule, rule.name(_OWNER))
    device_filter._bpf(
        device_filter._PROG_ATTACH, struct.pack("<IIIII", group, program, device_filter._ATTACH_TYPE, 0, 0)
    )
    try:
        yield
    finally:
        os.close(group)
        os.close(program)
        detach_filters(folder, _OWNER)


def _top() -> Path:
    found = machine_group()
    assert found is not None
    return found


def device(folder: Path, major: int, minor: int) -> Path:
    """A file for that device; the simulated ones have no driver, so that opening them fails with ENXIO."""
    path = folder / f"{major}-{minor}"
    with suppress(FileExistsError):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)
    return path


_PROBE = 'for each; do cat "$each" 2>&1; done'
_DENIED, _PASSED = "Operation not permitted", "No such device or address"


def probe(*nodes: Path) -> list[str]:
    """A command that opens each of the files and prints how that ends."""
    return ["sh", "-c", _PROBE, "sh", *map(str, nodes)]


def opened(node: Path, group: Path, uid: int) -> bool:
    """Whether a process of that user in that group gets past the filters."""
    return answers(in_group(group, uid, node)) in ([True], [])  # /dev/null has nothing to print


def answers(printed: str) -> list[bool]:
    """Whether each file opened; one without a driver says so once the filters let it pass."""
    lines = printed.splitlines()
    assert all(line.endswith((_DENIED, _PASSED)) for line in lines), printed
    return [not line.endswith(_DENIED) for line in lines]


def in_group(group: Path, uid: int, *nodes: Path) -> str:
    """What the probe prints as that user in that group."""
    with inside(group):
        done = subprocess.run(
            probe(*nodes),
            env={"LC_ALL": "C", "PATH": os.defpath},
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    return done.stdout


class FencedMachine:
    """Two A100 with the service, and users in sessions."""

    def __init__(self, shared: SharedMachine, sessions: Path) -> None:
        self.shared, self.sessions = shared, sessions
        self.folder = shared.machine.folder
        self.started: list[subprocess.Popen[str]] = []

    @property
    def owner(self) -> str:
        return str(self.shared.machine.state_dir.resolve())

    def fence(self, *arguments: str) -> dict[str, object]:
        found: dict[str, object] = self.shared.machine.json("policy", "fence", *arguments)
        return found

    def confined(self) -> bool:
        sessions = self.fence()["sessions"]
        assert isinstance(sessions, list)
        return not any(each["opensGpus"] for each in sessions)

    def start(
        self, *arguments: str, uid: int = NOBODY, stdin: int = subprocess.DEVNULL, **variables: str
    ) -> subprocess.Popen[str]:
        """`tranche` of a user in a session."""
        environment = {**self.shared.machine.environment, "LC_ALL": "C", **variables}
        with inside(self.sessions):
            process = in_process.start(arguments, environment, stdin=stdin, stdout=subprocess.PIPE, user=uid)
        self.started.append(process)
        return process

    def nodes(self, *devices: tuple[int, int]) -> list[Path]:
        return [device(self.folder, *each) for each in devices]

    def in_session(self, *devices: tuple[int, int], uid: int = NOBODY) -> list[bool]:
        return answers(in_group(self.sessions, uid, *self.nodes(*devices)))

    def in_share(self, *devices: tuple[int, int], request: Sequence[str], uid: int = NOBODY) -> list[bool]:
        process = self.start("run", "-q", *request, "--", *probe(*self.nodes(*devices)), uid=uid)
        out, err = process.communicate(timeout=120)
        assert not err, err
        return answers(out)

    def hold_until_told(self) -> subprocess.Popen[str]:
        """A command on one GPU that waits for a line, and then opens both."""
        held = self.start(
            "run",
            "-q",
            "--gpus",
            "1",
            "--",
            "sh",
            "-c",
            f"echo on; read line; {_PROBE}",
            "sh",
            *map(str, self.nodes(*GPUS)),
            stdin=subprocess.PIPE,
        )
        assert held.stdout is not None
        assert held.stdout.readline() == "on\n"
        return held

    def end(self) -> None:
        for each in self.started:
            each.kill()
            each.wait()
            for pipe in (each.stdin, each.stdout, each.stderr):
                if pipe is not None:
                    pipe.close()


GPUS = [(SIMULATED_GPU_MAJOR, 0), (SIMULATED_GPU_MAJOR, 1)]


@pytest.fixture
def fenced() -> Iterator[FencedMachine]:
    with ExitStack() as stack:
        sessions = stack.enter_context(group_in(_top(), "user.slice"))
        stack.callback(remove_group, _top() / "tranche-shares")  # what killed commands left
        folder = stack.enter_context(readable_folder())
        machine = stack.enter_context(machine_in(folder, "A100-40GB", "A100-40GB"))
        machine.cache = folder / "cache"
        shared = SharedMachine(machine)
        stack.callback(
            detach_filters, sessions, str(machine.state_dir.resolve())
        )  # once no service attaches them again
        stack.callback(shared.end)
        shared.serve()
        made = FencedMachine(shared, sessions)
        stack.callback(made.end)
        yield made


def test_users_open_gpus_only_in_shares_and_only_their_own(fenced: FencedMachine) -> None:
    assert fenced.in_session(*GPUS) == [True, True]
    assert fenced.fence()["on"] is False
    told = fenced.fence("--on", "--exempt", str(OTHER))
    assert (told["on"], told["exemptUids"]) == (True, [0, OTHER])
    assert fenced.confined()
    assert fenced.in_session(*GPUS, CONTROL) == [False, False, True]
    assert fenced.in_session(*GPUS, uid=OTHER) == [True, True]
    assert fenced.in_session(*GPUS, uid=0) == [True, True]
    whole = fenced.in_share(*GPUS, CONTROL, request=["--gpus", "1"])
    assert sorted(whole[:2]) == [False, True]
    assert whole[2]
    assert fenced.in_share(*GPUS, request=["--gpus", "2"]) == [True, True]
    assert fenced.fence("--off")["on"] is False
    assert fenced.in_session(*GPUS) == [True, True]
    assert fenced.in_share(*GPUS, request=["--gpus", "1"]) == [True, True]
    events = [each["data"] for each in fenced.shared.machine.json("events")["events"] if each["type"] == "FenceChanged"]
    assert events == [{"exemptUids": [0, OTHER]}, {"exemptUids": None}]


def test_people_read_how_far_the_fence_reaches(fenced: FencedMachine) -> None:
    def told() -> str:
        return fenced.shared.machine.tranche("policy", "fence").stdout

    assert told().splitlines() == ["The fence is off.", "Programs in user.slice can open all GPUs."]
    fenced.fence("--on", "--exempt", "0")
    assert told().splitlines() == ["The fence is on.", "Sessions cannot open GPUs."]
    fenced.fence("--off")
    attach_filter(fenced.sessions, FenceFilter((SIMULATED_GPU_MAJOR,), frozenset()), "/others")
    try:
        assert "The fence of another state folder also applies" in told()
        assert fenced.fence()["appliesFromElsewhere"] is True
    finally:
        detach_filters(fenced.sessions, "/others")  # the group stays where it was there before


def test_a_slice_opens_its_two_capabilities_and_no_neighbours(fenced: FencedMachine) -> None:
    fenced.fence("--on")
    minors = range(3, 3 + 2 * 135)
    found = fenced.in_share(
        *((SIMULATED_CAPABILITY_MAJOR, minor) for minor in minors), *GPUS, request=["--mig-profile", "1g.5gb"]
    )
    first, second = (minor for minor, opens in zip(minors, found, strict=False) if opens)
    # The capabilities of a GPU instance and of its first compute instance.
    assert ((first - 3) % 9, second - first) == (0, 1)
    assert found[-2:] == [first < 138, first >= 138]


def test_sessions_keep_their_gpus_until_the_last_share_from_before_has_ended(fenced: FencedMachine) -> None:
    before = fenced.hold_until_told()
    (share,) = fenced.shared.shares()
    assert fenced.fence("--on")["sharesBefore"] == [share["id"]]
    assert not fenced.confined()
    assert fenced.in_session(*GPUS) == [True, True]
    assert sorted(fenced.in_share(*GPUS, request=["--gpus", "1"], uid=OTHER)) == [False, True]
    out, _ = before.communicate("\n", timeout=60)
    assert answers(out) == [True, True]
    wait_until(fenced.confined)
    assert fenced.in_session(*GPUS) == [False, False]


def test_a_service_that_starts_again_restores_the_fence_and_ends_nobody(fenced: FencedMachine) -> None:
    fenced.fence("--on")
    held = fenced.hold_until_told()
    (share,) = fenced.shared.shares()
    assert fenced.shared.service is not None
    fenced.shared.service.kill()
    fenced.shared.service.wait()
    detach_filters(fenced.sessions, fenced.owner)  # as a reboot does
    assert fenced.in_session(*GPUS) == [True, True]
    fenced.shared.serve()
    wait_until(fenced.confined)
    out, _ = held.communicate("\n", timeout=60)
    assert sorted(answers(out)) == [False, True]
    wait_until(
        lambda: not fenced.shared.shares() and not (_top() / "tranche-shares" / f"tranche-{share['id']}").exists()
    )


_HIDDEN = """
echo $$
(setsid env -i sh -c 'for each in /proc/self/fd/*; do eval "exec ${each##*/}>&-"; done; exec sleep 600' &)
exec sleep 600
"""


def process_name(pid: int) -> str:
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def test_a_process_that_hides_everything_keeps_its_share(fenced: FencedMachine) -> None:
    """Without a group, nobody could find it once `tranche run` is killed, and the GPU would have two users."""
    fenced.fence("--on")
    client = fenced.start("run", "-q", "--gpus", "1", "--", "sh", "-c", _HIDDEN)
    assert client.stdout is not None
    command = int(client.stdout.readline())
    (share,) = fenced.shared.shares()
    group = _top() / "tranche-shares" / f"tranche-{share['id']}"
    wait_until(lambda: [process_name(pid) for pid in members(group)] == ["sleep", "sleep"])
    (hidden,) = set(members(group)) - {command}
    fenced.shared.held.append(hidden)
    for pid in (client.pid, command):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: members(group) == (hidden,))
    # The killed command counts as its keeper until the kernel has forgotten it.
    wait_until(lambda: [(each["id"], each["pid"]) for each in fenced.shared.shares()] == [(share["id"], hidden)])
    fenced.start("run", "-q", "--gpus", "2", "--no-wait", "--", "true").wait()
    assert fenced.started[-1].returncode == NoRoom.exit_code
    os.kill(hidden, signal.SIGKILL)
    wait_until(lambda: not fenced.shared.shares())


def test_the_fence_goes_up_when_a_process_ends_that_kept_a_share_from_before(fenced: FencedMachine) -> None:
    """Nobody runs a command of tranche then, so the service has to see it."""
    before = fenced.start("run", "-q", "--gpus", "1", "--", "sh", "-c", "(setsid sleep 600 &) ; echo $!", uid=NOBODY)
    before.wait(timeout=60)
    (share,) = fenced.shared.shares()
    assert fenced.fence("--on")["sharesBefore"] == [share["id"]]
    pid = share["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: fenced.in_session(*GPUS) == [False, False])


def test_a_share_whose_client_hides_its_command_still_counts_as_fenced(fenced: FencedMachine) -> None:
    """The client names another child than the one that keeps the share, which ends at once: the group is empty."""
    fenced.fence("--on")
    child = fenced.start("run", "-q", "--gpus", "1", "--", "sh", "-c", "(setsid sleep 600 &)")
    child.wait(timeout=60)
    (share,) = fenced.shared.shares()
    pid = share["pid"]
    assert isinstance(pid, int)
    fenced.shared.held.append(pid)
    move_into(fenced.sessions, pid)
    assert members(_top() / "tranche-shares" / f"tranche-{share['id']}") == ()
    assert fenced.fence("--on", "--exempt", str(OTHER))["sharesBefore"] == []
    assert fenced.in_session(*GPUS, uid=OTHER) == [True, True]
    assert fenced.fence("--on")["sharesBefore"] == []
    assert fenced.in_session(*GPUS, uid=OTHER) == [False, False]


def test_filters_that_a_killed_command_left_go_and_a_lost_ledger_keeps_its_fence(fenced: FencedMachine) -> None:
    fenced.fence("--on")
    with Ledger(fenced.shared.machine.state_dir / "ledger.db").write() as db:
        records.set_fence(db, None)
    wait_until(lambda: fenced.in_session(*GPUS) == [True, True])
    fenced.fence("--on")
    with Ledger(fenced.shared.machine.state_dir / "ledger.db").write() as db:
        db.execute("DELETE FROM fence")
        db.execute("DELETE FROM events")
    wait_until(lambda: fenced.fence()["on"] is True)
    assert fenced.in_session(*GPUS) == [False, False]


def test_the_first_command_after_a_deleted_ledger_is_behind_the_fence(fenced: FencedMachine) -> None:
    fenced.fence("--on", "--exempt", str(OTHER))
    for file in fenced.shared.machine.state_dir.glob("ledger.db*"):
        file.unlink()
    assert sorted(fenced.in_share(*GPUS, request=["--gpus", "1"])) == [False, True]
    assert (fenced.fence()["on"], fenced.fence()["exemptUids"]) == (True, [0])
    assert fenced.in_session(*GPUS) == [False, False]


def test_a_fence_that_the_kernel_refuses_leaves_everything_as_it_was(fenced: FencedMachine) -> None:
    with exclusive_filter(fenced.sessions, uid=0):
        refused = fenced.shared.machine.tranche("policy", "fence", "--on", code=FenceUnavailable.exit_code)
        assert "bpftool cgroup tree" in refused.stderr
        assert fenced.fence()["on"] is False
    assert fenced.in_session(*GPUS) == [True, True]


def test_behind_the_fence_users_see_the_machine_through_the_service(fenced: FencedMachine) -> None:
    """The simulated driver ignores filters; so it hides the GPUs here."""
    fenced.fence("--on")
    out, err = fenced.start("gpus", "-o", "json", NVIDIA_VISIBLE_DEVICES="none").communicate(timeout=60)
    assert [each["index"] for each in json.loads(out)["gpus"]] == [0, 1], err


def test_a_process_in_a_share_gets_no_other_share_whatever_its_environment(fenced: FencedMachine) -> None:
    fenced.fence("--on")
    client = fenced.start("run", "-q", "--gpus", "1", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert client.stdout is not None
    fenced.shared.held.append(int(client.stdout.readline()))
    (share,) = fenced.shared.shares()
    with inside(_top() / "tranche-shares" / f"tranche-{share['id']}"):
        nested = in_process.start(
            ("run", "-q", "--gpus", "1", "--", "true"), fenced.shared.machine.environment, user=NOBODY
        )
    _, err = nested.communicate(timeout=60)
    assert nested.returncode == UsageError.exit_code
    assert f"inside share {share['id']}" in err


def test_a_hold_is_refused_because_its_session_opens_no_gpu(
    fenced: FencedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced.fence("--on")
    monkeypatch.setattr(sys, "executable", "/bin/sh")  # users may not be able to run the tests' interpreter
    hold = fenced.start("hold", "--gpus", "1")
    _, err = hold.communicate(timeout=60)
    assert hold.returncode == FenceUnavailable.exit_code, err
    assert "tranche run REQUEST -- bash" in err
    assert fenced.shared.shares() == []


def test_a_command_is_refused_if_the_kernel_takes_no_filter(fenced: FencedMachine) -> None:
    fenced.fence("--on")
    with exclusive_filter(_top() / "tranche-shares"):
        refused = fenced.start("run", "-q", "--gpus", "1", "--", "echo", "started")
        out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (FenceUnavailable.exit_code, ""), err
    assert fenced.shared.shares() == fenced.shared.waiters() == []


@pytest.mark.parametrize(
    "arguments",
    [["--on", "--off"], ["--exempt", "root"], ["--on", "--exempt", "no-such-user"], ["--off", "--exempt", "0"]],
)
def test_bad_input_changes_nothing(fenced: FencedMachine, arguments: list[str]) -> None:
    fenced.shared.machine.tranche("policy", "fence", *arguments, code=UsageError.exit_code)
    assert fenced.fence()["on"] is False


def test_without_the_service_there_is_no_fence(fenced: FencedMachine) -> None:
    assert fenced.shared.service is not None
    fenced.shared.service.terminate()
    fenced.shared.service.wait()
    fenced.shared.machine.tranche("policy", "fence", "--on", code=ServiceUnavailable.exit_code)
    assert fenced.fence()["on"] is False
