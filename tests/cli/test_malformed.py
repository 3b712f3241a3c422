"""More than 1,000 malformed inputs, and 150 broken outputs and files: one error of its own code, and nothing is changed.

Every case but those of the agent runs the real command. None may end in a traceback, hang, take 300 MiB, or change the
machine, its ledger or a file. Broken state folders are in test_broken_state.
"""

from __future__ import annotations

import copy
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bad_input import ledger_rows
from tests.machines import TestMachine, machine_in
from tests.support import in_process
from tests.support.in_process import Outcome, unwritable
from tranche.core.errors import KubeconfigInvalid, PluginConfigInvalid
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.device_plugin.config_source import StartSettings
from tranche.node.files import files
from tranche.node.files.files import read_text

Record = Callable[[str, object], None]

_MUTANTS = 60
_WORDS = 10
"""How many cases are taken of each list, so that all together take less than a minute on two idle cores."""

LAYOUT = {
    "version": "v1",
    "mig-configs": {
        "one": [
            {
                "device-filter": "0x20B710DE",
                "devices": [0],
                "mig-enabled": True,
                "mig-devices": {"1g.6gb": 2, "2g.12gb": 1},
            },
            {"devices": "all", "mig-enabled": False},
        ]
    },
}
HOOKS = {
    "version": "v1",
    "hooks": {
        "pre-apply-mode": [{"workdir": "/", "command": "/bin/sh", "args": ["-c", "exit 0"], "envs": {"A": "b"}}],
        "apply-exit": None,
    },
}
PLUGIN = {
    "version": "v1",
    "flags": {"migStrategy": "mixed", "failOnInitError": True, "plugin": {"deviceListStrategy": ["envvar"]}},
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 1}]}},
}
KUBECONFIG = {
    "apiVersion": "v1",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://localhost:1", "certificate-authority-data": "bm9uZQ=="}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}
ODD: tuple[Any, ...] = (
    None, True, -1, 0.5, 10**40, float("inf"), "", "x", "\x1b[31m", "a\0b", "9" * 5000, [], ["x"], [[[]]], {},
    {"x": 1}, {"": None},
)  # fmt: skip
MERGES = "a0: &a0 {k1: 1, k2: 2}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{<<: [{', '.join([f'*a{n}'] * 9)}]}}\n" for n in range(9)
)
TEXTS: tuple[bytes, ...] = (
    b"\xff\xfe\x00\x01", bytes(range(256)), b"\0" * 4096, b"{", b"[", b'{"version": "v1",', b"}{", b'"', b"'",
    b"&a", b"*a", b"&a [*a]",
    b"!!python/object/apply:os.system ['true']", b'!!int ""', b"!!bool x", b"!!timestamp x", b"!!binary x",
    b"!unknown x", b"%YAML 9.9",
    b"--- a\n--- b", b"\t- a", b"- a\n b: c", b"a: b: c", b"? ? ? ?", b"version: v1\nversion: v2",
    b"x: " + b"1:" * 3000 + b"1",
    b"0x" + b"f" * 9000, b"9" * 9000, b"[" * 100_000, b"{a: " * 100_000, b"- " * 100_000, b"a" * (2**20 + 1),
    b"- a\n" * 60_000,
    MERGES.encode(), b'{"a":' * 100_000, b"[1e999, -1e999, NaN]", b"\xef\xbb\xbf[", "\u2028\u202e: ½".encode(),
    b"<xml/>",
    b"#" * 5000, b"null", b"true", b"7", b"[]", b"text",
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "", " ", "-1", "--", "-", "NaN", "inf", "1e999", "0x10", "1_0", "9" * 5000, "0." + "0" * 5000, "½", "٣",
    "\udcff", "a\nb", "\x1b[31m",
    "%s%n", "../../../etc/passwd", "null", "x" * 20_000, "1,2", "1g.5gb;true", "+", "5G5", "🙂", "\u202e",
)  # fmt: skip


def mutants(document: Any) -> Iterator[Any]:
    """The document with each of its parts left out, renamed, or replaced by each odd value."""
    for path in list(_paths(document)):
        for odd in ODD:
            yield _changed(document, path, lambda holder, key, odd=odd: holder.__setitem__(key, odd))  # type: ignore[misc]
        yield _changed(document, path, lambda holder, key: holder.__delitem__(key))
        if isinstance(path[-1], str):
            yield _changed(document, path, lambda holder, key: holder.__setitem__(f"{key}x", holder.pop(key)))


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _paths(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from _paths(value, (*path, index))


def _changed(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    made = copy.deepcopy(document)
    holder = made
    for step in path[:-1]:
        holder = holder[step]
    change(holder, path[-1])
    return made


class Examiner:
    """Runs cases on one machine, and tells at the end whether anything was changed by any of them."""

    def __init__(self, machine: TestMachine) -> None:
        self.machine = machine
        self.folder = machine.folder / "files"
        self.folder.mkdir()
        left_out = ("LD_LIBRARY_PATH", "TRANCHE_SIM_STATE")
        self.environment: Mapping[str, str] = {
            **{name: value for name, value in machine.environment.items() if name not in left_out},
            "TRANCHE_SIM_ROOT": str(machine.folder),
            "TRANCHE_SIMULATE": "machine",
            "NODE_NAME": "node",
        }
        self._before = self._state()
        self.refused = 0
        self.faults: list[str] = []

    def _state(self) -> object:
        files = sorted(path for path in self.machine.folder.rglob("*") if self.folder not in path.parents)
        names = [str(path) for path in files if path.suffix not in (".db-wal", ".db-shm")]
        return self.machine.changes(), ledger_rows(self.machine.ledger), names

    def run(self, *arguments: str, stdin: bytes = b"", stdout: int | None = None) -> Outcome:
        """One case; what must not be is noted."""
        outcome = in_process.run(arguments, self.environment, stdin=stdin, stdout=stdout)
        self.refused += outcome.code not in (0, None)
        fault = outcome.fault
        if not fault and outcome.code not in (0, 1, 141) and "rror" not in outcome.stderr:
            fault = f"exit code {outcome.code} without a word"
        if fault:
            told = outcome.stderr[-600:]
            self.faults.append(f"{fault}: tranche {' '.join(arguments)[:200]} < {stdin[:120]!r}\n{told}")
        return outcome

    def finish(self, record: Record, least: int, what: str) -> None:
        """All is as it was, nothing was noted, and so many cases were refused."""
        assert not self.faults, f"{len(self.faults)} faults\n" + "\n".join(self.faults[:20])
        assert self._state() == self._before
        assert self.refused >= least, f"only {self.refused} were refused"
        record("figure", f"{self.refused} {what} were refused")


@pytest.fixture
def examiner(tmp_path: Path) -> Iterator[Examiner]:
    with machine_in(tmp_path, "A30-24GB") as machine:
        machine.cut_by_hand(0, "14")
        machine.tranche("run", "--mig-profile", "1g.6gb", "-q", "--", "true")
        yield Examiner(machine)


def valid_documents(examiner: Examiner) -> dict[tuple[str, ...], Any]:
    """A valid document for each command that reads one from stdin and changes nothing."""
    machine = examiner.machine
    plan = json.loads(machine.tranche("layout", "plan", "-c", "all-1g.6gb", "-o", "json").stdout)
    checkpoint = json.loads(machine.tranche("layout", "checkpoint", "-f", "-").stdout)
    return {
        ("layout", "plan", "-c", "one", "-f", "-"): LAYOUT,
        ("layout", "apply", "--dry-run", "-c", "all-1g.6gb", "-k", "-"): HOOKS,
        ("layout", "apply", "--dry-run", "--plan", "-"): plan,
        ("layout", "restore", "--dry-run", "-f", "-"): checkpoint,
    }


KINDS = ("layout", "hooks", "plan", "checkpoint")
KIND_BY_KIND = [
    pytest.param(number, id=kind, marks=pytest.mark.long if number else ()) for number, kind in enumerate(KINDS)
]


@pytest.mark.parametrize("kind", KIND_BY_KIND)
def test_documents_with_parts_that_are_odd(examiner: Examiner, kind: int, record_property: Record) -> None:
    (command, valid) = list(valid_documents(examiner).items())[kind]
    made = list(mutants(valid))
    # Prime steps through the list, so that each part and each odd value has its turn.
    for number in range(min(_MUTANTS, len(made))):
        document = made[number * 7919 % len(made)]
        examiner.run(*command, stdin=json.dumps(document).encode())
    examiner.finish(record_property, _MUTANTS // 2, f"odd {KINDS[kind]} documents")


@pytest.mark.parametrize("kind", KIND_BY_KIND)
def test_texts_that_are_no_document(examiner: Examiner, kind: int, record_property: Record) -> None:
    command = list(valid_documents(examiner))[kind]
    for text in TEXTS:
        examiner.run(*command, stdin=text)
    examiner.finish(record_property, 30, f"texts in the place of a {KINDS[kind]} document")


@pytest.mark.parametrize("kind", ["kubeconfig", "plugin"])
def test_what_the_agent_reads(tmp_path: Path, kind: str, record_property: Record) -> None:
    valid, error = (KUBECONFIG, KubeconfigInvalid) if kind == "kubeconfig" else (PLUGIN, PluginConfigInvalid)
    texts = [*TEXTS, *(json.dumps(document).encode() for document in mutants(valid))]
    file = tmp_path / "file"
    refused = 0
    for text in texts:
        file.write_bytes(text)
        try:
            if kind == "kubeconfig":
                find_api_server(str(file), {})
            else:
                StartSettings(file=read_text(str(file), PluginConfigInvalid)).check()
        except error:
            refused += 1
    assert refused >= 100
    record_property("figure", f"{refused} odd {kind} files were refused")


OPTIONS: tuple[tuple[str, ...], ...] = (
    ("run", "--gpus", "?", "--", "true"), ("run", "--gpu", "?", "--", "true"),
    ("run", "--gpu-memory", "?", "--", "true"), ("run", "--gpu", "0.5", "--compute", "?", "--", "true"),
    ("run", "--gpu", "0.5", "--count", "?", "--", "true"),
    ("run", "--mig-profile", "?", "--", "true"), ("run", "--gpus", "1", "--timeout", "?", "--", "true"),
    ("run", "--gpus", "1", "--isolation", "?", "--", "true"), ("run", "--gpus", "1", "--gpu-model", "q?", "--", "true"),
    ("explain", "--gpu-memory", "?"), ("release", "q?"), ("release", "--grace", "?", "00000000"),
    ("events", "--last", "q?"),
    ("profiles", "--gpu", "q?"), ("profiles", "--board", "?"), ("top", "--interval", "?"), ("ps", "-o", "?"),
    ("layout", "plan", "-c", "?"),
    ("layout", "plan", "-f", "/no/such/?"), ("layout", "apply", "--wait", "--timeout", "?", "-c", "all-1g.6gb"),
    ("--simulate", "q?", "ps"),
    ("sim", "create", "--machine", "q?"), ("sim", "create", "new", "--gpu", "q?"), ("sim", "destroy", "q?"),
    ("sim", "inject", "q?", "clear"),
    ("policy", "set", "--gpu", "?", "sharing=off"), ("policy", "set", "sharing=?"), ("policy", "set", "-f", "/no/such/?"),
    ("q?",), ("layout", "q?"), ("gpus", "--q?"),
)  # fmt: skip


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 4))])
def test_words_that_are_no_values(examiner: Examiner, part: int, record_property: Record) -> None:
    for number, template in enumerate(OPTIONS[part::4]):
        for turn in range(_WORDS):
            word = WORDS[(number * 5 + turn * 7) % len(WORDS)]
            examiner.run(*(each.replace("?", word) for each in template))
    examiner.finish(record_property, 50, "words in the place of a value")


FILES = (
    "folder", "dangling", "loop", "silent pipe", "socket", "/dev/zero", "/dev/full", "/dev/urandom",
    "/proc/self/mem", "/proc/1/mem", "file/below",
    "x" * 300, "x/" * 3000, "empty name",
)  # fmt: skip


def make(folder: Path, kind: str) -> str:
    """The name of a file of that kind."""
    path = folder / "input"
    match kind:
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to("nowhere")
        case "loop":
            path.symlink_to("input")
        case "silent pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        case "file/below":
            path.write_text("a file")
            return str(path / "below")
        case "empty name":
            return ""
        case _:
            return kind
    return str(path)


def test_files_that_are_none(
    examiner: Examiner, record_property: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.1)
    monkeypatch.chdir(examiner.folder)  # a socket's path has 107 bytes at the most
    for number, kind in enumerate(FILES):
        folder = examiner.folder / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        name = make(Path(), kind)
        for command in valid_documents(examiner):
            examiner.run(*(name if each == "-" else each for each in command))
        examiner.run("layout", "assert", "-c", "one", "-f", name)
        examiner.run("layout", "plan", "-c", "one", "-f", name, "-o", "json")
        examiner.run("replay", name)
    examiner.finish(record_property, 80, "files that are none")


UNWRITABLE = ("folder", "dangling", "loop", "socket", "/dev/full", "/proc/version", "file/below", "x" * 300)


def test_files_that_cannot_be_written(
    examiner: Examiner, record_property: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, kind in enumerate(UNWRITABLE):
        folder = examiner.folder / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        name = make(Path(), kind)
        if kind not in ("dangling", "loop"):  # a link is replaced by the file
            examiner.run("layout", "generate", "-f", name)
            examiner.run("layout", "checkpoint", "-f", name)
        assert not any(entry.startswith(".input") for entry in os.listdir(folder)), "an unfinished file was left"
    examiner.finish(record_property, 10, "files that cannot be written")


READERS: Sequence[tuple[str, ...]] = (
    ("--help",), ("--version",), ("run", "--help"), ("gpus",), ("gpus", "-o", "wide"), ("gpus", "-o", "json"),
    ("ps",), ("ps", "-o", "json"),
    ("top",), ("top", "-o", "json"), ("events",), ("events", "-o", "json"), ("doctor",), ("doctor", "-o", "json"),
    ("profiles",),
    ("profiles", "--boards"), ("explain", "--gpus", "1"), ("explain", "--gpus", "1", "-o", "json"),
    ("layout", "plan", "-c", "all-1g.6gb"),
    ("layout", "export"), ("layout", "generate"), ("layout", "checkpoint", "-f", "-"), ("sim", "list"),
)  # fmt: skip


@pytest.mark.parametrize("how", ["full", "closed", "reader"])
def test_outputs_that_cannot_be_written(examiner: Examiner, how: str, record_property: Record) -> None:
    for arguments in READERS:
        with unwritable(how) as descriptor:
            outcome = examiner.run(*arguments, stdout=descriptor)
        if outcome.code != (141 if how == "reader" else 3):
            examiner.faults.append(f"exit code {outcome.code}: {' '.join(arguments)}\n{outcome.stderr}")
    examiner.finish(record_property, len(READERS), "outputs that cannot be written")
