"""A process that does not see a share's processes, in a container say, does not take them for gone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.machines import TRANCHE, machine_in, wait_until

_UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def test_a_share_of_a_namespace_that_is_not_seen_is_kept(tmp_path: Path) -> None:
    if subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespace can be made here: that needs root")
    with machine_in(tmp_path, "A100-40GB") as machine:
        # The command closes what it inherits, so that only its process and its environment show that it lives.
        closing = "import os, time; os.closerange(3, 64); print(flush=True); time.sleep(600)"
        with subprocess.Popen(
            [*TRANCHE, "run", "--mig-profile", "1g.5gb", "-q", "--", "python3", "-c", closing],
            env=machine.environment,
            stdout=subprocess.PIPE,
        ) as run:
            assert run.stdout is not None
            run.stdout.readline()
            workload = machine.one_running()["pid"]
            run.kill()
            run.wait()
        try:
            hidden = subprocess.run(
                [*_UNSHARE, *TRANCHE, "ps", "-o", "json"], env=machine.environment, capture_output=True, check=True
            )
            assert b'"active"' in hidden.stdout, "who does not see the process took it for gone"
            assert machine.json("ps")["allocations"]
        finally:
            os.kill(workload, signal.SIGKILL)
        wait_until(lambda: not machine.json("ps")["allocations"])


@pytest.mark.parametrize("mounted", [True, False], ids=["its own /proc", "the machine's /proc"])
def test_a_share_is_not_taken_back_by_who_does_not_see_its_processes(tmp_path: Path, mounted: bool) -> None:
    unshare = _UNSHARE if mounted else [each for each in _UNSHARE if each != "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespace can be made here: that needs root")
    with machine_in(tmp_path, "A100-40GB") as machine:
        work = machine.hold("--mig-profile", "1g.5gb")
        (allocation,) = machine.json("ps")["allocations"]
        for options in ((), ("--terminate",)):
            done = subprocess.run(
                [*unshare, *TRANCHE, "release", allocation["id"], *options],
                env=machine.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 80
            assert "processes in another PID namespace" in done.stderr
            assert "as root" not in done.stderr
        assert machine.json("ps")["allocations"] == [allocation]
        assert work.process.poll() is None
