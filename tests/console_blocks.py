"""Runs the ```console blocks of a page in one shell and compares what they print with what the page says.

A line that begins with `$ ` is a command, with `> ` its continuation; what follows is its output, stdout and stderr together.
`…` stands for anything within a line; a line that is nothing but `…` stands for any number of lines. UUIDs, short ids, times,
ages, pids and the widths of table columns may differ.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
_CHANGING = (
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), r"\1-UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b(?=[0-9a-f]{8}\b)(?![a-f]{8}\b)[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\bpid \d+\b"), "pid PID"),
    (re.compile(r"\b\d+s +\d+\b"), "AGE PID"),
    (re.compile(r" +"), " "),
)


@dataclass(frozen=True, slots=True)
class Session:
    """One command of a page and the output that the page shows for it."""

    command: str
    output: tuple[str, ...]


def console_sessions(page: str) -> Iterator[Session]:
    """Every command of the page's console blocks, in order."""
    for block in _FENCE.findall(page):
        command = ""
        output: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    yield Session(command, tuple(output))
                command, output = line.removeprefix("$ "), []
            elif line.startswith("> ") and not output:
                command += "\n" + line.removeprefix("> ")
            else:
                assert command, f"a console block begins with output: {line!r}"
                output.append(line)
        if command:
            yield Session(command, tuple(output))


def run_sessions(sessions: Sequence[Session], *, folder: Path, environment: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Run the commands one after the other in one shell; the lines that each printed."""
    script = "".join(
        f"{session.command}\n{{ tranche_code=$?; printf '{_MARK}'; (exit $tranche_code); }}\n" for session in sessions
    )
    done = subprocess.run(
        ["sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=dict(environment),
        check=False,
    )
    outputs = done.stdout.split(_MARK)[:-1]
    assert len(outputs) == len(sessions), f"the shell stopped early:\n{done.stdout}"
    return [tuple(output.splitlines()) for output in outputs]


def matches(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the lines printed are the lines expected, but for what may differ."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(_steady(line)).replace("…", ".*") + r"\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(_steady(line) + "\n" for line in printed)) is not None


def _steady(line: str) -> str:
    for changing, word in _CHANGING:
        line = changing.sub(word, line)
    return line.rstrip()
