"""The CDI file of a share: it is there as long as the share, and what runs in a container keeps the share."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.local.sessions import HALF, Session, ended, shares
from tests.machines import needs_root, wait_until
from tests.node.machines import Node, node_of
from tests.node.processes import isolated
from tests.support.in_process import NOBODY
from tranche.core.errors import CdiUnavailable, SharingUnavailable
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.hardware.cdi import CdiDevice, CdiSpec, write_spec
from tranche.hardware.nodes import ContainerEdits, SimulatedDeviceFiles
from tranche.local.queue import Queue
from tranche.local.run import RunRequest, run
from tranche.local.run_report import RunReporter
from tranche.local.share_spec import refuse_unlimited, write_share_spec
from tranche.local.workload import OwnWorkload
from tranche.node.execution.host_context import CDI_FOLDER
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit


def spec_of(share: str) -> Path:
    return CDI_FOLDER / f"tranche.dev-allocation_{share}.json"


@needs_root
def test_what_runs_in_a_container_keeps_a_held_share(session: Session) -> None:
    machine = session.machine
    held = session.hold(f"--cdi {HALF}")
    assert session.do("echo $TRANCHE_CDI_DEVICE") == f"tranche.dev/share={held['id']}\n"
    found = spec_of(held["id"]).stat()
    assert (found.st_uid, found.st_mode & 0o7) == (0, 0)
    # Root's container runtimes run the hooks in this folder's files: no user may change one.
    tried = 'cat "$0" >&2; chmod 600 "$0"; : > "$0"; rm -f "$0"'
    for uid, reads in ((NOBODY, session.of_user), (NOBODY + 1, False)):
        become = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        done = subprocess.run(
            [*become, "sh", "-c", tried, str(spec_of(held["id"]))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ("containerEdits" in done.stderr) is reads, done.stderr
        assert spec_of(held["id"]).read_text().startswith("{"), done.stderr
    spec: dict[str, Any] = json.loads(spec_of(held["id"]).read_text())
    (device,) = spec["devices"]
    assert (spec["kind"], device["name"]) == ("tranche.dev/share", held["id"])
    uuid = session.do("echo $CUDA_VISIBLE_DEVICES").strip()
    assert any(each["containerPath"].endswith(f"/{uuid}") for each in device["containerEdits"]["mounts"])
    variables = [*spec["containerEdits"]["env"], *device["containerEdits"]["env"]]
    # A container's program has nothing of the session: not its user, its environment, its files or its parents.
    program = subprocess.Popen(
        ["setpriv", "--reuid", str(NOBODY + 77), "--clear-groups", "env", "-i", *variables, "/bin/sleep", "600"]
    )
    try:
        wait_until(lambda: Path(f"/proc/{program.pid}/comm").read_text() == "sleep\n")
        session.end()
        wait_until(lambda: [each["pid"] for each in shares(machine)] == [program.pid])
        assert spec_of(held["id"]).exists()
        for each in machine.state_dir.glob("ledger.db*"):
            each.unlink()
        (again,) = shares(machine)
        known = ("id", "grants", "request", "pid")
        assert [again[each] for each in known] == [held["id"], held["grants"], held["request"], program.pid]
        assert spec_of(held["id"]).exists()
    finally:
        program.kill()
        program.wait()
        if session.shell.poll() is None:
            session.end()
    wait_until(lambda: ended(machine))
    assert not spec_of(held["id"]).exists()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return node_of(tmp_path, "A100-40GB")


def written(host: Host, request: Request) -> HeldAllocation:
    """A new share with a CDI file."""
    held = Queue(host).acquire(request, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
    gpus = {each.gpu_uuid: host.observe_gpu(each.gpu_uuid) for each in held.allocation.grants}
    assert write_share_spec(host, held, gpus, os.getuid()) == f"tranche.dev/share={held.allocation.id}"
    return held


@isolated
def test_the_next_look_removes_what_a_kill_left_and_no_file_of_another(node: Node, tmp_path: Path) -> None:
    cdi, request = tmp_path / "cdi", Request(MigSlice(parse_profile("3g.20gb")))
    with node.host(cdi_folder=cdi) as host:
        ended = written(host, request)
        host.give_back(ended, why="test")
        assert not host.spec_file(ended.allocation.id).exists()
        first, second = written(host, request).allocation.id, written(host, request).allocation.id
        text = host.spec_file(first).read_text()
        others = [host.spec_file("0badcafe"), host.spec_file("00000000"), cdi / f"tranche.dev-share_{first}.json"]
        for each in others:
            each.write_text(text.replace(str(host.state_dir), "/elsewhere") if each == others[0] else "")
        others[2].write_text(text)
        host.release(first, why="test")
        assert not host.spec_file(first).exists()
        host.spec_file(first).write_text(text)  # as when the process was killed before it removed the file
        host.view()
        assert {*cdi.iterdir()} == {host.spec_file(second), *others}


@isolated
def test_the_next_look_removes_what_a_kill_left_half_written(node: Node, tmp_path: Path) -> None:
    with node.host(cdi_folder=tmp_path / "cdi") as host:
        share = written(host, Request(MigSlice(parse_profile("3g.20gb")))).allocation.id
        spec = CdiSpec(
            "tranche.dev/share",
            (CdiDevice(share, ContainerEdits()),),
            ContainerEdits(),
            file=host.spec_file(share).name,
        )
        killed = os.fork()
        if killed == 0:
            os.fchmod = lambda *file: os.kill(os.getpid(), signal.SIGKILL)
            write_spec(spec, host.cdi_folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
        (left,) = host.cdi_folder.glob("*.tmp")
        assert stat.S_IMODE(left.stat().st_mode) == 0o600, "no other user may read the share's key meanwhile"
        running = host.cdi_folder / f".{host.spec_file(share).name}.{os.getpid()}.tmp"
        running.write_text(host.spec_file(share).read_text())
        assert len(list(host.cdi_folder.iterdir())) == 3
        host.view()
        assert {*host.cdi_folder.iterdir()} == {host.spec_file(share), running}


@isolated
def test_only_the_shares_user_can_read_the_file_and_every_user_the_folder(node: Node, tmp_path: Path) -> None:
    os.umask(0o077)
    with node.host(cdi_folder=tmp_path / "run" / "cdi") as host:
        share = written(host, Request(MigSlice(parse_profile("3g.20gb")))).allocation
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (host.cdi_folder, host.spec_file(share.id))]
        assert modes == [0o755, 0o400]


@isolated
def test_a_machine_without_the_toolkit_is_told_before_the_request_waits(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDeviceFiles, "why_no_cdi", lambda self: "the host lacks nvidia-ctk")
    request = Request(MigSlice(parse_profile("3g.20gb")))
    with node.host() as host:
        asked = RunRequest(
            request=request, workload=OwnWorkload(["true"], os.environ), patience=WaitLimit(wait=True), cdi=True
        )
        with pytest.raises(CdiUnavailable, match="the host lacks nvidia-ctk"):
            run(host, asked, RunReporter(print, print))
        assert host.events() == ()


@isolated
def test_only_roots_containers_can_have_a_limit_of_the_driver(node: Node) -> None:
    with node.host() as host, pytest.raises(SharingUnavailable, match="only root can set the limit"):
        refuse_unlimited(host, NOBODY)
