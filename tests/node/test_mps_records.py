"""Records of MPS daemons that cannot be read: the daemon counts as there, nobody is let in, and it is ended by its folder."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.node.machines import Node, change
from tests.node.processes import isolated
from tests.node.test_hand_over import of_pod
from tests.node.test_mps_daemons import nothing_left, only, share, short, start, t4
from tranche.core.allocation import FractionalShare, WholeGpu
from tranche.core.errors import GpuBusy, LedgerUnavailable, TrancheError
from tranche.core.state import ComputeMode, DaemonState
from tranche.node.host import Host
from tranche.node.look import look
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore, name_of, record_of
from tranche.node.store import register

__all__ = ["short", "t4"]  # fixtures
RECORD = record_of("GPU-0", None, "GPU-0", ComputeMode.PROHIBITED)


@pytest.fixture
def known(tmp_path: Path) -> DaemonRecordStore:
    """A folder with one record."""
    records = DaemonRecordStore(tmp_path / "mps")
    records.write(RECORD)
    return records


def file_of(records: DaemonRecordStore, device_uuid: str = "GPU-0") -> Path:
    return records.pipes(device_uuid).with_suffix(".json")


def test_a_record_of_a_later_release_is_read(known: DaemonRecordStore) -> None:
    file_of(known).write_text(json.dumps({**RECORD._asdict(), "partitions": [1, 2]}))
    assert known.look() == ((RECORD,), frozenset())


def test_a_record_that_was_cut_off_anywhere_is_damaged(known: DaemonRecordStore) -> None:
    whole = file_of(known).read_text()
    for length in range(len(whole)):
        file_of(known).write_text(whole[:length])
        assert known.look() == ((), frozenset({name_of("GPU-0")}))


@pytest.mark.parametrize(
    "changed",
    [
        {"profile": "no profile"},
        {"mode": "open"},
        {"pid": "12"},
        {"start": None},
        {"ready": 1},
        {"device_uuid": ""},
        {"profile": "1g.5gb", "start": -1, "size": 0.5},
    ],
)
def test_a_record_with_a_value_that_is_none_is_damaged(known: DaemonRecordStore, changed: dict[str, object]) -> None:
    file_of(known).write_text(json.dumps({**RECORD._asdict(), **changed}))
    assert known.look() == ((), frozenset({name_of("GPU-0")}))


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_a_file_that_holds_no_record_is_damaged(known: DaemonRecordStore, content: bytes) -> None:
    file_of(known).write_bytes(content)
    assert known.look().damaged == {name_of("GPU-0")}


def test_a_folder_that_is_not_there_holds_no_daemon_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert not DaemonRecordStore(tmp_path / "mps").look()
    (tmp_path / "mps").touch()
    with pytest.raises(LedgerUnavailable, match="MPS daemons"):
        DaemonRecordStore(tmp_path / "mps").look()


def test_a_record_is_on_the_disk_before_it_takes_the_place_of_another(
    known: DaemonRecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: list[DaemonRecord] = []
    later = RECORD._replace(ready=True)

    def synchronised(descriptor: int) -> None:
        assert known.all() == (RECORD,)
        on_disk.append(DaemonRecord(**json.loads(Path(f"/proc/self/fd/{descriptor}").read_text())))

    monkeypatch.setattr(os, "fsync", synchronised)
    known.write(later)
    assert on_disk == [later]
    assert known.all() == (later,)


def test_a_write_that_fails_keeps_the_record_that_is_there(known: DaemonRecordStore) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(LedgerUnavailable, match="cannot write"):
            known.write(RECORD._replace(suspect=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert known.all() == (RECORD,)
    assert os.listdir(known.folder) == [file_of(known).name]


# On a machine


def damage(host: Host) -> None:
    file_of(host.daemons.records, only(host).uuid).write_text('{"gpu_uuid": "GPU')


@isolated
def test_a_daemon_whose_record_is_damaged_ends_and_the_driver_s_own_mode_comes_back(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        damage(host)
        nothing_left(t4, host)


@isolated
def test_who_shares_stays_and_nobody_is_let_in_while_the_record_is_damaged(t4: Node) -> None:
    with t4.host() as host:
        gpu = only(host)
        change(host, start(gpu))
        share(host, WholeGpu(gpu.uuid))
        damage(host)
        (daemon,) = only(host).daemons
        assert (daemon.slot, daemon.device_uuid, daemon.state) == (None, gpu.uuid, DaemonState.DAMAGED)
        with pytest.raises(GpuBusy, match="cannot be read"):
            host.hand_over(of_pod(host))
        (held,) = host.view().allocations
        (part,) = held.grants
        assert isinstance(part, FractionalShare)
        assert not part.unlimited
        with host.ledger.write() as db:
            register.remove_allocation(db, "held")
        nothing_left(t4, host)


@isolated
def test_nothing_is_given_while_the_folder_cannot_be_read_and_whoever_looks_gets_an_answer(t4: Node) -> None:
    with t4.host() as host:
        gpu = only(host)
        change(host, start(gpu))
        given = of_pod(host)
        folder = host.places.mps
        folder.rename(folder.with_name("aside"))
        folder.touch()
        whole = given._replace(grants=(WholeGpu(gpu.uuid),))
        with pytest.raises(LedgerUnavailable, match="MPS daemons"):
            host.hand_over(whole)
        told: list[TrancheError] = []
        for view in (host.look(told.append), look(host.driver, host.places, told.append)):
            (seen,) = view.node.gpus
            assert [each.state for each in seen.daemons] == [DaemonState.DAMAGED]
        assert [type(each) for each in told] == [LedgerUnavailable, LedgerUnavailable]
        folder.unlink()
        folder.with_name("aside").rename(folder)


@isolated
def test_a_daemon_of_a_device_that_is_gone_ends_by_its_folder(t4: Node) -> None:
    with t4.host() as host:
        folder = host.places.mps / "0123456789ab"
        folder.mkdir(parents=True)
        folder.with_suffix(".json").touch()
        command = ["/opt/nvidia-cuda-mps-control", "-c", "read -r line", "-d"]
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(folder)}
        with subprocess.Popen(command, executable="/bin/bash", env=environment, stdin=subprocess.PIPE) as process:
            host.view()
            assert process.poll() is not None
        nothing_left(t4, host)
