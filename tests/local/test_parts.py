"""Programs in parts of a device: an unmodified CUDA program gets what its part has and not a byte more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.node.machines import Node, change, enable, node_of, start_share
from tests.node.processes import isolated
from tests.node.test_mps_daemons import cut, end, only, place_of, processes_of, short, t4
from tests.simulator.cuda_programs import PREAMBLE, CudaProgram
from tranche.core.allocation import Allocation, FractionalShare, Phase, Slice, WholeGpu
from tranche.core.errors import MpsFailed, MpsUserRefused, SharingUnavailable, VerificationFailed
from tranche.core.request import GpuMemory, Request
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState
from tranche.hardware.mps_control import MpsControlClient
from tranche.local.watches import watching_limits
from tranche.local.workload import part_environment, share_environment
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.mps.mps_daemons import drain
from tranche.node.processes.processes import heeds_sigterm
from tranche.planning.decide.allocate import Granted
from tranche.planning.steps import StartMps
from tranche.planning.steps.plan import Plan

__all__ = ["cut", "short", "t4"]  # fixtures
MIB, GIB = 2**20, 2**30
GREEDY = """
context()
sizes = []
while True:
    result, pointer = cu.cuMemAlloc(256 << 20)
    if int(result):
        tell([len(sizes) * 256, int(result)])
        break
    sizes.append(pointer)
wait()
tell(code(cu.cuCtxSynchronize()))
"""


def admit(host: Host, part: FractionalShare) -> HeldAllocation:
    """A part, given as a decision gives it: promised, its daemon started, active."""
    ticket = host.enqueue(Request(GpuMemory(part.memory)), command="train.py", pid=os.getpid())
    held = start_share(host, ticket, lambda view: Granted((part,), Plan("a part"), part.mechanism, "a part"))
    assert isinstance(held, HeldAllocation)
    host.set_holder(held, os.getpid())
    return held


@contextmanager
def program(node: Node, host: Host, held: HeldAllocation, code: str = GREEDY) -> Iterator[CudaProgram]:
    """A program in its share, killed at the end of the block."""
    share = share_environment(held, host.observe_gpu, host.places)
    command = [sys.executable, "-c", PREAMBLE + code]
    environment = {**os.environ, **node.machine.environment(), **share}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield CudaProgram(process)
        finally:
            process.kill()


def part_of(host: Host, memory: int = 3 * GIB, **more: Any) -> FractionalShare:
    return FractionalShare(WholeGpu(only(host).uuid), memory, Sharing.MPS, **more)


@isolated
def test_each_program_gets_its_part_and_no_more(t4: Node) -> None:
    with t4.host() as host:
        first, second = admit(host, part_of(host)), admit(host, part_of(host, 5 * GIB))
        with program(t4, host, first) as small, program(t4, host, second) as large:
            assert 2560 <= small.told()[0] < 3072
            assert 4608 <= large.told()[0] < 5120
            assert {p.pid for p in only(host).all_processes} == {small.pid, large.pid}
            for each in (small, large):
                each.go_on()
                assert each.told() == 0


@isolated
def test_a_part_of_a_slice_is_limited_too(cut: Node) -> None:
    with cut.host() as host:
        gpu = only(host)
        part = FractionalShare(Slice(gpu.uuid, place_of(gpu).profile, place_of(gpu).placement), 4 * GIB, Sharing.MPS)
        held = admit(host, part)
        with program(cut, host, held) as greedy:
            got, code = greedy.told()
        assert (3584 <= got < 4096, code) == (True, 2)


@isolated
def test_a_program_learns_its_limits_from_its_environment(t4: Node) -> None:
    with t4.host() as host:
        held = admit(host, part_of(host, compute=25))
        share = share_environment(held, host.observe_gpu, host.places)
        (record,) = host.daemons.records.all()
        assert {name: value for name, value in share.items() if "MPS" in name or "LIMIT" in name} == {
            "CUDA_MPS_PIPE_DIRECTORY": str(host.daemons.records.pipes(record.device_uuid)),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "TRANCHE_GPU_MEMORY_LIMIT": str(3 * GIB),
        }
        assert share["CUDA_VISIBLE_DEVICES"] == only(host).uuid
        assert share["TRANCHE_PARTS"] == f"{only(host).uuid}:mps:{3 * GIB}:25:"


@isolated
def test_turns_need_no_daemon_and_promise_no_memory(t4: Node) -> None:
    with t4.host() as host:
        held = admit(host, part_of(host)._replace(sharing=Sharing.TIME_SLICING))
        share = share_environment(held, host.observe_gpu, host.places)
        assert not [name for name in share if "MPS" in name or "LIMIT" in name]
        assert share["TRANCHE_PARTS"] == f"{only(host).uuid}:time-slicing:{3 * GIB}::"
        assert processes_of(t4) == []
        with program(t4, host, held) as greedy:
            assert greedy.told()[0] > 12 * 1024


@isolated
def test_who_passes_the_daemon_by_is_refused_on_a_whole_gpu(t4: Node) -> None:
    with t4.host() as host:
        held, other = admit(host, part_of(host)), admit(host, part_of(host))
        with program(t4, host, held) as greedy:
            greedy.told()
            escape = "import os\ndel os.environ['CUDA_MPS_PIPE_DIRECTORY']\n"
            escape += "check(cu.cuInit(0))\ntell(code(cu.cuCtxCreate(None, 0, check(cu.cuDeviceGet(0)))))\n"
            with program(t4, host, other, escape) as outside:
                assert outside.told() == 46


# Nobody is let in without limits


def allocation_of(*parts: FractionalShare) -> Allocation:
    return Allocation("a", Request(GpuMemory(3 * GIB)), parts, Phase.ACTIVE, 1.0)


@isolated
def test_nobody_is_let_in_while_no_daemon_keeps_the_limit(t4: Node) -> None:
    with t4.host() as host:
        part, gpu = part_of(host), only(host)
        with pytest.raises(VerificationFailed, match="is not running"):
            part_environment(allocation_of(part), {gpu.uuid: gpu}, host.daemons.records)
        change(host, StartMps(gpu.uuid, None, 2 * GIB))
        with pytest.raises(VerificationFailed):
            part_environment(allocation_of(part), {gpu.uuid: only(host)}, host.daemons.records)
        change(host, StartMps(gpu.uuid, None, 3 * GIB))
        there = only(host)
        assert part_environment(allocation_of(part), {gpu.uuid: there}, host.daemons.records)
        assert part_environment(allocation_of(part), {gpu.uuid: there}, host.daemons.records, uid=1000)
        (record,) = host.daemons.records.all()
        host.daemons.records.write(record._replace(every_user=False))
        with pytest.raises(MpsUserRefused, match="serves user 0: user 1000's program"):
            part_environment(allocation_of(part), {gpu.uuid: there}, host.daemons.records, uid=1000)
        with pytest.raises(SharingUnavailable, match="one MPS daemon"):
            part_environment(allocation_of(part, part), {gpu.uuid: there}, host.daemons.records)
        end(processes_of(t4)[0])
        lost = host.observe_gpu(gpu.uuid)
        with pytest.raises(VerificationFailed, match="lost"):
            part_environment(allocation_of(part), {gpu.uuid: lost}, host.daemons.records)


@isolated
@pytest.mark.parametrize("sharing", Sharing)
def test_nobody_is_let_into_a_part_of_an_uncut_gpu_on_which_somebody_turned_mig_mode_on(
    short: Path, sharing: Sharing
) -> None:
    with node_of(short, "H100-80GB-SXM").host() as host:
        part, gpu = part_of(host)._replace(sharing=sharing), only(host)
        change(host, *enable(gpu))
        with pytest.raises(VerificationFailed, match="MIG mode is now on"):
            part_environment(allocation_of(part), {gpu.uuid: only(host)}, host.daemons.records)


@isolated
def test_a_watch_tells_at_once_that_the_daemon_has_died(t4: Node) -> None:
    with t4.host() as host:
        held = admit(host, part_of(host))
        lost = threading.Event()
        said: list[str] = []

        def told(why: str) -> None:
            said.append(why)
            lost.set()

        with watching_limits(held.allocation, host.daemons.records, told):
            pid = host.daemons.records.all()[0].pid
            os.kill(pid, signal.SIGKILL)
            assert lost.wait(60)
        assert said == ["the MPS daemon of this share has died, so nothing limits its memory"]


@isolated
def test_nothing_begins_without_the_daemon_that_keeps_its_limits(t4: Node) -> None:
    with t4.host() as host:
        held = admit(host, part_of(host))
        (record,) = host.daemons.records.all()

        def begin() -> None:
            with watching_limits(held.allocation, host.daemons.records, lambda why: None):
                pytest.fail("the command began")

        # The pid is another process's now.
        host.daemons.records.write(record._replace(pid=os.getpid()))
        with pytest.raises(VerificationFailed, match="has just died"):
            begin()
        host.daemons.records.write(record._replace(ready=False))
        with pytest.raises(VerificationFailed, match="no MPS daemon enforces"):
            begin()
        host.daemons.records.write(record)
        end(record.pid)
        with pytest.raises(VerificationFailed, match="has just died"):
            begin()
        host.daemons.records.remove(record)
        with pytest.raises(VerificationFailed, match="no MPS daemon enforces"):
            begin()


@isolated
def test_a_watch_ends_with_its_block_and_says_nothing(t4: Node) -> None:
    with t4.host() as host:
        held = admit(host, part_of(host))
        threads = threading.active_count()
        with watching_limits(held.allocation, host.daemons.records, pytest.fail):
            assert threading.active_count() == threads + 1
        assert threading.active_count() == threads
        with watching_limits(allocation_of(), host.daemons.records, pytest.fail):
            assert threading.active_count() == threads


# They are drained before they are killed


@isolated
def test_a_client_is_drained_and_its_neighbour_is_not(t4: Node) -> None:
    with t4.host() as host:
        first, second = admit(host, part_of(host)), admit(host, part_of(host))
        with program(t4, host, first) as one, program(t4, host, second) as other:
            for each in (one, other):
                each.told()
            assert drain(host.daemons, first.allocation, {one.pid}) == ()
            for each in (one, other):
                each.go_on()
            assert one.told() != 0
            assert other.told() == 0


@isolated
def test_a_server_that_does_not_let_go_is_unavailable(t4: Node) -> None:
    with t4.host() as host:
        held = admit(host, part_of(host))
        with program(t4, host, held) as one:
            one.told()
            (record,) = host.daemons.records.all()
            ((server, client),) = host.daemons.clients(record.device_uuid) or ()
            assert client == one.pid
            # A daemon that is stopped answers nobody, like one whose server hangs.
            assert host.daemons.terminate(record, server, 1) == ""
            host.daemons.records.write(record._replace(fault="wedged", wedged=True))
            assert only(host).daemons[0].state is DaemonState.FAULT
            host.view()
            assert only(host).daemons[0].state is DaemonState.FAULT
        host.release(held.allocation.id, why="it ended")
        assert host.view().node.gpus[0].daemons == ()


@isolated
@pytest.mark.parametrize("silent", ["at once", "while it ends a client"])
def test_a_daemon_that_does_not_answer_is_unavailable(t4: Node, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: MpsControlClient, command: str, **more: Any) -> str:
        if silent == "at once" or command.startswith("terminate"):
            unanswered.append(command)
        if unanswered:
            raise MpsFailed("it does not answer")
        return really(self, command, **more)

    unanswered: list[str] = []
    really = MpsControlClient.ask
    with t4.host() as host:
        held = admit(host, part_of(host))
        (record,) = host.daemons.records.all()
        with program(t4, host, held) as one:
            one.told()
            monkeypatch.setattr(MpsControlClient, "ask", ask)
            assert drain(host.daemons, held.allocation, {one.pid})
            assert host.daemons.records.all()[0].wedged
            # One that has died lets nobody in anyway, and is not said to be wedged.
            host.daemons.records.write(record)
            end(record.pid)
            assert drain(host.daemons, held.allocation, {one.pid})
            assert host.daemons.records.all() == (record,)


def test_a_process_that_has_a_handler_for_sigterm_is_known() -> None:
    handler = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: None); print(1, flush=True); sys.stdin.read()"
    )
    for code, expected in ((handler, True), (handler.replace("SIGTERM", "SIGUSR1"), False)):
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert heeds_sigterm(process.pid) is expected
    assert not heeds_sigterm(process.pid)
