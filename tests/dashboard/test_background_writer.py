"""What a server writes, and what strangers make it write. A writer's thread ends with its process, so some have their own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

from tests.node.processes import isolated
from tranche.dashboard.server import BackgroundWriter, only_our_own


@isolated
def test_nobody_waits_for_a_reader_who_reads_nothing() -> None:
    reader, writer = os.pipe()
    aside = BackgroundWriter(writer)
    line = f"{'x' * 1000}\n"
    for _ in range(5_000):
        assert aside.write(line) == len(line)
    read = os.read(reader, 1_000_000)
    assert read.startswith(line.encode())
    for _ in range(1_000):
        read += os.read(reader, 1_000_000)
        if len(read) >= 500 * len(line):
            break
    assert set(read.splitlines()[:-1]) == {line.strip().encode()}


def test_a_process_ends_whatever_nobody_has_read() -> None:
    script = """
import logging, sys
from tests.node.processes import isolated
from tranche.dashboard.server import BackgroundWriter
logging.basicConfig(handlers=[logging.StreamHandler(BackgroundWriter(1))])
for _ in range(500):
    logging.error("x" * 1000)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.wait(60) == 0


@isolated
def test_what_is_written_is_read_in_its_order() -> None:
    reader, writer = os.pipe()
    aside = BackgroundWriter(writer)
    for word in ("one\n", "", "zwei \udcff\n"):
        aside.write(word)
    expected = b"one\nzwei ?\n"
    read = b""
    while len(read) < len(expected):
        read += os.read(reader, 100)
    assert read == expected


@isolated
def test_a_reader_who_has_gone_is_nobodys_trouble() -> None:
    gone, writer = os.pipe()
    os.close(gone)
    aside = BackgroundWriter(writer)
    aside.write("one\n")
    reader, other = os.pipe()
    os.dup2(other, writer)
    aside.write("two\n")
    read = b""
    while not read.endswith(b"two\n"):
        read += os.read(reader, 100)


def test_of_uvicorn_only_what_is_of_the_server_is_said() -> None:
    def said(level: int, file: str) -> bool:
        return only_our_own(logging.LogRecord("uvicorn.error", level, file, 1, "", (), None))

    assert said(logging.ERROR, "/x/uvicorn/lifespan/on.py")
    assert not said(logging.ERROR, "/x/uvicorn/protocols/http/h11_impl.py")
    assert not said(logging.WARNING, "/x/uvicorn/server.py")
