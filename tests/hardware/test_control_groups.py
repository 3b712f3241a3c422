"""The control group in which daemons outlive who started them: found wherever it has to be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.control_groups import group, hierarchy
from tranche.hardware.control_groups import NAME, move_out, remove_daemon_group, why_tied

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope"
MACHINES = "cgroup:[4026531835]"


def process(folder: Path, groups: dict[str, str], tops: dict[str, str], namespace: str = MACHINES) -> Path:
    """What the kernel says of a process in these groups, where these hierarchies are mounted; a path stands for a folder."""
    proc = folder / "proc"
    (proc / "ns").mkdir(parents=True)
    (proc / "ns" / "cgroup").symlink_to(namespace)
    (proc / "cgroup").write_text("".join(f"{i}:{each}:{path}\n" for i, (each, path) in enumerate(groups.items())))
    lines = ["23 1 0:20 / /proc rw shared:1 - proc proc rw", "25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755"]
    for options, root in tops.items():
        place = folder / (options or "unified")
        for path in groups.values():
            (place / path.strip("/")).mkdir(parents=True, exist_ok=True)
        kind = "cgroup" if options else "cgroup2"
        lines.append(f"31 25 0:29 {root} {place} rw,nosuid shared:9 - {kind} cgroup rw,{options or 'nsdelegate'}")
    (proc / "mountinfo").write_text("\n".join(lines))
    return proc


def members(folder: Path) -> list[str]:
    """The groups that the daemon was put into: in a folder that is no control group, the file says who was written last."""
    found = [path.parent for path in folder.rglob("cgroup.procs") if path.read_text() == "77"]
    return sorted(str(path.relative_to(folder)) for path in found)


@pytest.mark.parametrize(
    ("groups", "tops", "expected"),
    [
        ({"": f"/{POD}"}, {"": "/"}, [f"unified/{NAME}"]),
        ({"": f"/kubelet.slice/kubelet-{POD}"}, {"": "/"}, [f"unified/kubelet.slice/{NAME}"]),
        ({"": "/system.slice/train.service"}, {"": "/"}, [f"unified/{NAME}"]),
        # Nobody ends the top.
        ({"": "/"}, {"": "/"}, []),
        # Version 1. The pod is not ended by the group that it shares with its runtime.
        (
            {"pids": "/dev/node/kubepods/pod1/2", "name=systemd": "/dev/node/kubepods/pod1/2", "": "/dev/node/system"},
            {"pids": "/", "xattr,name=systemd": "/", "": "/"},
            [f"pids/dev/node/{NAME}", f"xattr,name=systemd/dev/node/{NAME}"],
        ),
        ({"cpu,cpuacct": "/train", "pids": "/"}, {"cpu,cpuacct": "/", "pids": "/"}, [f"cpu,cpuacct/{NAME}"]),
    ],
    ids=["pod", "nested pod", "unit", "top", "version 1", "version 1 unit"],
)
def test_a_daemon_goes_beside_what_may_be_ended(
    tmp_path: Path, groups: dict[str, str], tops: dict[str, str], expected: list[str]
) -> None:
    proc = process(tmp_path, groups, tops)
    assert why_tied(proc) == ""
    assert move_out(77, proc)
    assert members(tmp_path) == expected
    for path in expected:
        (tmp_path / path / "cgroup.procs").unlink()
    remove_daemon_group(proc)
    assert not list(tmp_path.rglob(NAME))


@pytest.mark.parametrize(
    ("groups", "tops", "namespace"),
    [
        ({"": "/"}, {"": "/"}, "cgroup:[4026532201]"),
        ({"": f"/{POD}"}, {"": f"/{POD}"}, MACHINES),
        ({"pids": "/docker/1", "memory": "/docker/1"}, {"pids": "/"}, MACHINES),
    ],
    ids=["own namespace", "only its own group", "one hierarchy missing"],
)
def test_a_daemon_stays_where_the_machines_groups_are_not_in_sight(
    tmp_path: Path, groups: dict[str, str], tops: dict[str, str], namespace: str
) -> None:
    proc = process(tmp_path, groups, tops, namespace)
    assert why_tied(proc) == "the machine's control groups are not mounted here"
    assert not move_out(77, proc)
    assert members(tmp_path) == []


def test_a_group_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    proc = process(tmp_path, {"": f"/{POD}"}, {"": "/"})
    (tmp_path / "unified" / NAME).write_text("no folder")
    assert not move_out(77, proc)


def test_a_cpuset_of_version_1_is_given_what_its_parent_has(tmp_path: Path) -> None:
    proc = process(tmp_path, {"cpuset": "/kubepods/pod1"}, {"cpuset": "/"})
    above = tmp_path / "cpuset"
    (above / NAME).mkdir()
    for name, allowed in (("cpuset.cpus", "0-3\n"), ("cpuset.mems", "0\n")):
        (above / name).write_text(allowed)
        (above / NAME / name).write_text("\n")
    assert move_out(77, proc)
    assert [(above / NAME / name).read_text() for name in ("cpuset.cpus", "cpuset.mems")] == ["0-3\n", "0\n"]


def test_what_was_moved_out_outlives_the_end_of_the_group(tmp_path: Path) -> None:
    moving = (
        "import sys; from tranche.hardware.control_groups import move_out; sys.exit(not move_out(int(sys.argv[1])))"
    )
    daemon = subprocess.Popen(["sleep", "600"])
    try:
        with hierarchy(tmp_path) as top, group(top) as unit:
            (unit / "cgroup.procs").write_text(str(daemon.pid))
            script = f'echo 0 > {unit}/cgroup.procs; exec "$@"'
            subprocess.run(["sh", "-c", script, "sh", sys.executable, "-c", moving, str(daemon.pid)], check=True)
            assert (unit / "cgroup.procs").read_text() == ""
            (unit / "cgroup.kill").write_text("1")
            assert daemon.poll() is None
            assert f"/{NAME}\n" in Path(f"/proc/{daemon.pid}/cgroup").read_text()
    finally:
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait()
        remove_daemon_group()
