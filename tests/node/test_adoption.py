"""A state folder that is lost while commands run: a new ledger finds them again, and nobody is given what they have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.node.machines import Node, change, create, enable, node_of
from tranche.core.allocation import FractionalShare, Slice, WholeGpu
from tranche.core.errors import LedgerUnavailable, NoRoom
from tranche.core.grid import Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import GpuMemory, Request, parse_request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.core.wire import request_to_dict
from tranche.local.queue import Queue
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.recovery.adoption import part_word
from tranche.node.state.session import pid_namespace, process_start_time

LOITER = "import sys; sys.stdin.read()"


@contextmanager
def loiterer(node: Node, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with that environment, for the length of the block."""
    own = {**os.environ, "TRANCHE_REGISTER": str(node.state_dir.resolve()), **environment}
    with subprocess.Popen([sys.executable, "-c", LOITER], env=own, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def own_id(number: int) -> str:
    """The id of an allocation that tests in other processes do not have: a share's processes are found on the whole machine."""
    return f"{os.getpid() & 0xFFFF:04x}{number:04d}"


def a100_in_slices(folder: Path) -> tuple[Node, GpuState]:
    node = node_of(folder, "A100-40GB", "A30-24GB")
    with node.host() as host:
        gpu = host.driver.observe().gpus[0]
        change(host, *enable(gpu), create(gpu, "1g.5gb", 0), create(gpu, "1g.5gb", 1))
        return node, host.driver.observe().gpus[0]


def lose(node: Node) -> None:
    shutil.rmtree(node.state_dir)


def test_a_new_ledger_takes_the_shares_of_running_commands_over(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    uuid = gpu.instances[0].compute_instances[0].uuid
    place = Slice(gpu.uuid, parse_profile("1g.5gb"), gpu.instances[0].placement)
    with loiterer(node, TRANCHE_ALLOCATION=own_id(1), CUDA_VISIBLE_DEVICES=uuid) as first:
        lose(node)
        with node.host() as host:
            (found,) = host.view().allocations
            assert found.id == own_id(1)
            assert found.grants == (place,)
            began = process_start_time(first.pid)
            keeper = ProcessKeeper(first.pid, began, pid_namespace(), uid=os.getuid(), begun=began)
            assert found.keeper == keeper
            assert LOITER in found.command
            queue = Queue(host)
            request = parse_request(mig_profile="1g.5gb")
            other = queue.acquire(request, command="x", pid=1, patience=WaitLimit(False, None))
            assert other.allocation.grants[0] != place
            first.kill()
            first.wait()
            assert [each.id for each in host.view().allocations] == [other.allocation.id]


def test_a_share_that_is_taken_over_is_as_old_as_its_process(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    uuid = gpu.instances[0].compute_instances[0].uuid
    with loiterer(node, TRANCHE_ALLOCATION=own_id(1), CUDA_VISIBLE_DEVICES=uuid):
        lose(node)
        with node.host(clock=lambda: 1e9) as host:
            (found,) = host.view().allocations
    assert found.created < 1e9


def test_a_whole_gpu_is_taken_over_as_well_and_every_command_that_names_it_is_one_share(tmp_path: Path) -> None:
    node, _ = a100_in_slices(tmp_path)
    with node.host() as host:
        whole = host.driver.observe().gpus[1].uuid
    mark = {"TRANCHE_ALLOCATION": own_id(2), "CUDA_VISIBLE_DEVICES": whole}
    with loiterer(node, **mark) as first, loiterer(node, **mark) as second:
        lose(node)
        with node.host() as host:
            (found,) = host.view().allocations
            assert found.grants == (WholeGpu(whole),)
            assert isinstance(found.keeper, ProcessKeeper)
            assert found.keeper.pid in (first.pid, second.pid)
            with pytest.raises(NoRoom):
                Queue(host).acquire(
                    parse_request(gpus="1", gpu_model="A30"), command="x", pid=1, patience=WaitLimit(False, None)
                )


@pytest.mark.parametrize("devices", ["", "0", "MIG-somewhere-else", "GPU-gone,MIG-gone"])
def test_who_names_no_device_of_this_machine_holds_nothing(tmp_path: Path, devices: str) -> None:
    node, _ = a100_in_slices(tmp_path)
    with loiterer(node, TRANCHE_ALLOCATION=own_id(3), CUDA_VISIBLE_DEVICES=devices):
        lose(node)
        with node.host() as host:
            assert host.view().allocations == ()


@pytest.mark.parametrize("name", ["../../x", "", "aaaa", "AAAA0001", "aaaa00011"])
def test_what_is_no_id_is_nobodys_share(tmp_path: Path, name: str) -> None:
    node, gpu = a100_in_slices(tmp_path)
    uuid = gpu.instances[0].compute_instances[0].uuid
    with loiterer(node, TRANCHE_ALLOCATION=name, CUDA_VISIBLE_DEVICES=uuid):
        lose(node)
        with node.host() as host:
            assert host.view().allocations == ()


def test_who_names_another_register_holds_nothing_of_this_one(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    uuid = gpu.instances[0].compute_instances[0].uuid
    mark = {"TRANCHE_ALLOCATION": own_id(5), "CUDA_VISIBLE_DEVICES": uuid, "TRANCHE_REGISTER": str(tmp_path)}
    with loiterer(node, **mark):
        lose(node)
        with node.host() as host:
            assert host.view().allocations == ()


def test_a_ledger_that_is_there_takes_nobodys_word(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    uuid = gpu.instances[0].compute_instances[0].uuid
    with loiterer(node, TRANCHE_ALLOCATION=own_id(4), CUDA_VISIBLE_DEVICES=uuid), node.host() as host:
        assert host.view().allocations == ()


def test_who_still_has_the_lost_ledger_open_decides_nothing_by_it(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    with node.host() as host:
        ticket = Queue(host)
        shutil.rmtree(host.places.state_dir)
        with pytest.raises(LedgerUnavailable, match="was removed or replaced"):
            host.view()
        with node.host() as fresh:
            _take_all(fresh)
        with pytest.raises(LedgerUnavailable):
            ticket.acquire(parse_request(mig_profile="1g.5gb"), command="x", pid=1, patience=WaitLimit(False, None))
    assert gpu.instances[0].placement == Placement(0, 1)


def _take_all(host: Host) -> None:
    for _ in range(2):
        Queue(host).acquire(parse_request(mig_profile="1g.5gb"), command="x", pid=1, patience=WaitLimit(False, None))


def test_programs_in_parts_of_one_gpu_are_all_taken_over(tmp_path: Path) -> None:
    node, _ = a100_in_slices(tmp_path)
    with node.host() as host:
        gpu = host.driver.observe().gpus[1].uuid
    limits = {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_MPS_PIPE_DIRECTORY": "/m", "TRANCHE_GPU_MEMORY_LIMIT": str(4 << 30)}
    one, other = ({**limits, "TRANCHE_ALLOCATION": own_id(number)} for number in (5, 6))
    with loiterer(node, **one), loiterer(node, **other):
        lose(node)
        with node.host() as host:
            found = host.view().allocations
            assert [each.id for each in found] == [own_id(5), own_id(6)]
            # No daemon is known that keeps their limits.
            lost = FractionalShare(WholeGpu(gpu), 4 << 30, Sharing.MPS, unlimited=True)
            assert [each.grants for each in found] == [(lost,), (lost,)]


@pytest.mark.parametrize(
    ("sharing", "inside_container"), [*((each, False) for each in Sharing), (Sharing.TIME_SLICING, True)]
)
def test_parts_are_taken_over_as_they_were_given_by_whatever_mechanism(
    tmp_path: Path, sharing: Sharing, inside_container: bool
) -> None:
    node, cut = a100_in_slices(tmp_path)
    with node.host() as host:
        gpu = host.driver.observe().gpus[1].uuid
    inside = cut.instances[0]
    place = Slice(cut.uuid, inside.profile, inside.placement)
    ceiling = 30 if sharing is Sharing.MPS else None
    one = FractionalShare(
        WholeGpu(gpu), 4 << 30, sharing, ceiling, 5 << 30 if sharing is Sharing.MEMORY_LIMITS else None
    )
    other = FractionalShare(WholeGpu(gpu), 6 << 30, sharing, ceiling)
    sliced = FractionalShare(place, 1 << 30, sharing)
    words = {
        own_id(7): (gpu, part_word(gpu, one)),
        own_id(8): (gpu, part_word(gpu, other)),
        own_id(9): (inside.compute_instances[0].uuid, part_word(inside.compute_instances[0].uuid, sliced)),
    }
    with ExitStack() as running:
        for name, (device, word) in words.items():
            visible = {} if inside_container else {"CUDA_VISIBLE_DEVICES": device}
            running.enter_context(loiterer(node, TRANCHE_ALLOCATION=name, TRANCHE_PARTS=word, **visible))
        lose(node)
        with node.host() as host:
            found = {each.id: each.grants for each in host.view().allocations}
            # No daemon is known that keeps the limits of MPS.
            lost = sharing is Sharing.MPS
            assert found == {
                name: (part._replace(unlimited=lost),) for name, part in zip(words, (one, other, sliced), strict=True)
            }


ASKED = parse_request(gpu="0.2", compute="30")
PREEMPTIBLE = parse_request(gpu="0.5", time="3m", preemptible="true")
HALF = json.dumps({**request_to_dict(ASKED), "gpu": "%s"})


@pytest.mark.parametrize(
    ("text", "request_is"),
    [
        (json.dumps(request_to_dict(ASKED)), ASKED),
        (HALF % "1/2", parse_request(gpu="0.5", compute="30")),
        (json.dumps(request_to_dict(PREEMPTIBLE)), PREEMPTIBLE),
        *[
            (text, None)
            for text in ("", "x", "[]", "{}", '{"gpus": -1}', HALF % "7", HALF % "1/0", HALF % ("1" * 2000))
        ],
        (json.dumps({**request_to_dict(ASKED), "count": True}), None),
    ],
)
def test_a_share_is_taken_over_with_what_was_asked_for(tmp_path: Path, text: str, request_is: Request | None) -> None:
    node, _ = a100_in_slices(tmp_path)
    with node.host() as host:
        gpu = host.driver.observe().gpus[1].uuid
    part = FractionalShare(WholeGpu(gpu), 4 << 30, Sharing.MPS, 30)
    mark = {"TRANCHE_ALLOCATION": own_id(10), "CUDA_VISIBLE_DEVICES": gpu, "TRANCHE_PARTS": part_word(gpu, part)}
    with loiterer(node, **mark, TRANCHE_REQUEST=text):
        lose(node)
        with node.host() as host:
            (found,) = host.view().allocations
            assert found.grants == (part._replace(unlimited=True),)
            assert (found.request == request_is) is (request_is is not None)
            assert (found.memory, found.gpu_millionths) == (4 << 30, 300_000), "what it counts as in reports"
            assert request_is is not None or isinstance(found.request.demand, GpuMemory)


@pytest.mark.parametrize("word", ["", "x", "{}:turns:1073741824::", "{}:mps:0::", "{}:mps:1:101:", "GPU-other:mps:1::"])
def test_who_names_no_part_holds_the_device(tmp_path: Path, word: str) -> None:
    node, _ = a100_in_slices(tmp_path)
    with node.host() as host:
        gpu = host.driver.observe().gpus[1].uuid
    mark = {"TRANCHE_ALLOCATION": own_id(10), "CUDA_VISIBLE_DEVICES": gpu, "TRANCHE_PARTS": word.format(gpu)}
    with loiterer(node, **mark):
        lose(node)
        with node.host() as host:
            (found,) = host.view().allocations
            assert found.grants == (WholeGpu(gpu),)
