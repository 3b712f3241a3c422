"""Whose processes on a GPU are the servers of Tranche's own daemons, and whose are people's."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from tests.strategies import uncuttable_gpu
from tranche.core.state import ComputeMode, GpuProcess
from tranche.node.mps.mps_records import DaemonRecordList, record_of, with_daemons_of
from tranche.node.state.session import boot_id, process_start_time


@pytest.mark.parametrize(
    ("boot", "delay", "users"),
    [(boot_id(), 0, 0), (boot_id(), 1, 1), ("another", 0, 1)],
    ids=["lives", "died", "booted"],
)
def test_the_children_of_a_daemon_are_its_servers_only_while_it_lives(boot: str, delay: int, users: int) -> None:
    started = process_start_time(os.getpid()) + delay
    gpu = uncuttable_gpu()
    daemon = record_of(gpu.uuid, None, gpu.uuid, ComputeMode.DEFAULT)
    daemon = daemon._replace(ready=True, pid=os.getpid(), started=started, boot=boot)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        used = replace(gpu, processes=(GpuProcess(child.pid, "train"),))
        assert len(with_daemons_of(used, DaemonRecordList((daemon,))).processes) == users
