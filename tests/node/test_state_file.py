"""Where a file of the state folder should be may be anything: nobody waits for it, and the error names it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.processes import Child
from tranche.core.errors import LedgerUnavailable
from tranche.kubernetes.mig_manager.manager import manager_name
from tranche.node.locks.locks import FileLock, is_held, remove_if_free
from tranche.node.state.register_place import POINTER, register_folder
from tranche.node.state.state_file import open_state_file, read_state_file
from tranche.node.store.ledger import Ledger


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


NO_FILE: dict[str, Callable[[Path], None]] = {
    "is a pipe": os.mkfifo,
    "is a socket": _socket,
    "is a folder": Path.mkdir,
    "is a device": lambda path: path.symlink_to("/dev/zero"),
    "is a dangling symbolic link": lambda path: path.symlink_to("nowhere"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "read": read_state_file,
    "lock": lambda path: FileLock(path, wait=False),
    "ledger": Ledger,
    "ledger's copy": lambda path: Ledger(path, read_only=True),
    "manager's name": manager_name,
    "ledger's log": lambda path: Ledger(path.with_name(path.name.removesuffix("-wal"))),
}


@pytest.mark.parametrize("what", NO_FILE)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, what: str, reader: str) -> None:
    path = tmp_path / "ledger.db-wal"
    NO_FILE[what](path)

    def read() -> str:
        try:
            READERS[reader](path)
        except (LedgerUnavailable, FileNotFoundError) as error:
            return str(error)
        return ""

    said = Child(read).result()
    if what == "is a dangling symbolic link" and reader == "lock":
        assert not said  # the file that the link leads to is made
    else:
        assert f"{path} {what}, not a file" in said


@pytest.mark.parametrize("ask", [is_held, remove_if_free])
def test_a_pipe_is_no_lock_that_somebody_holds(tmp_path: Path, ask: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(LedgerUnavailable, match="is a pipe"):
        ask(tmp_path / "lock")


def test_where_the_register_is_is_not_asked_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / POINTER)
    with pytest.raises(LedgerUnavailable, match=f"{POINTER} is a pipe") as caught:
        register_folder(tmp_path)
    assert caught.value.hint


def test_a_small_file_is_small(tmp_path: Path) -> None:
    path = tmp_path / "name"
    path.write_bytes(b"x" * 100)
    assert read_state_file(path) == b"x" * 100
    with pytest.raises(LedgerUnavailable, match="longer than 99 bytes"):
        read_state_file(path, limit=99)
    with pytest.raises(FileNotFoundError):
        open_state_file(tmp_path / "none")
