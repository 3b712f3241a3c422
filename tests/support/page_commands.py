"""The commands of the pages: every line of their ```console and ```sh blocks, and every program in a ```python block.

A console block shows what its commands print: a line that begins with `$ ` is a command, with `> ` its continuation; what
follows is its output, stdout and stderr together. `…` stands for anything within a line; a line that is nothing but `…` stands
for any number of lines. UUIDs, short ids, times, ages, pids and the widths of table columns may differ. Of the other blocks'
commands, a page shows no output: they need only succeed.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.support.unexecuted import reason

REPOSITORY = Path(__file__).parents[2]
PAGES = tuple(
    sorted(
        str(page.relative_to(REPOSITORY))
        for pages in ("*.md", "docs/**/*.md", "simulator/*.md")
        for page in REPOSITORY.glob(pages)
    )
)
PYTHON = "python - <<'END'"
"""How a program of a page in Python begins as a command."""
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_WITH_COMMANDS = ("console", "sh", "python")
_LINE = re.compile(r"(?:[^\n]*\\\n)*[^\n]+")
_CLUSTER = re.compile(
    r"\b(?:kubectl|helm|tranche (?:nodes|submit|job exec)|python -m cluster|make (?:-s )?(?:cluster|image))\b|--cluster|pod/"
)
_SYSTEMD = re.compile(r"\bsystemctl\b|\btranche (?:boot|serve)\b.*\b(?:install|status|remove)\b")
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
class Command:
    """One command of a page. `output` is what the page shows for it, None where the page shows none."""

    page: str
    section: str
    text: str
    output: tuple[str, ...] | None

    @property
    def place(self) -> str:
        """Where it belongs: "cluster", "systemd" or "machine"."""
        if _CLUSTER.search(self.text):
            return "cluster"
        return "systemd" if _SYSTEMD.search(self.text) else "machine"

    @property
    def first_line(self) -> str:
        """What names the command in a list."""
        return self.text.split("\n")[0]


def commands(page: str, text: str = "") -> list[Command]:
    """Every command of the page, in order, or of another text for it."""
    text = text or (REPOSITORY / page).read_text()
    found = []
    for block in _FENCE.finditer(text):
        body = textwrap.dedent(block[3])
        section = re.findall(r"^##+ (.+)$", text[: block.start()], re.MULTILINE)
        found += [
            Command(page, section[-1] if section else "", command, output)
            for command, output in _commands_of(block[2], body)
        ]
    return found


def other_lines(page: str) -> list[str]:
    """The lines of the page's other blocks."""
    blocks = _FENCE.findall((REPOSITORY / page).read_text())
    return [line for _, language, body in blocks if language not in _WITH_COMMANDS for line in body.splitlines()]


def executed(page: str, place: str = "") -> tuple[Command, ...]:
    """The commands of the page that are not excepted, or those of them that belong in a place."""
    return tuple(
        command
        for command in commands(page)
        if reason(command.page, command.first_line) is None and place in ("", command.place)
    )


def _commands_of(language: str, body: str) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    match language:
        case "console":
            yield from _shown(body)
        case "sh":
            yield from ((line, None) for line in _LINE.findall(body))
        case "python":
            yield f"{PYTHON}\n{body}END", None
        case _:
            return


def _shown(block: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    command = ""
    output: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, tuple(output)
            command, output = line.removeprefix("$ "), []
        elif line.startswith("> ") and not output:
            command += "\n" + line.removeprefix("> ")
        else:
            assert command, f"a console block begins with output: {line!r}"
            output.append(line)
    if command:
        yield command, tuple(output)


@dataclass(frozen=True, slots=True)
class Walk:
    """Commands that run one after the other in one shell.

    `replacing` fills in what the pages leave to their readers, such as a node's name; `before` prepares what they speak of.
    """

    commands: tuple[Command, ...]
    replacing: Mapping[str, str] = field(default_factory=dict)
    before: str = "true"

    def steps(self) -> list[Command]:
        """What runs: the preparation, then the commands with everything filled in."""
        unused = set(self.replacing)

        def fill(text: str) -> str:
            for old, new in self.replacing.items():
                if old in text:
                    unused.discard(old)
                    text = text.replace(old, new)
            return text

        filled = [
            replace(each, text=fill(each.text), output=None if each.output is None else tuple(map(fill, each.output)))
            for each in self.commands
        ]
        assert not unused, f"no page says {unused}"
        return [Command("", "", self.before, None), *filled]


def problems(steps: Sequence[Command], folder: Path, environment: Mapping[str, str], **how: Any) -> list[str]:
    """Run the commands; those that print anything but what their page shows, or that fail where it shows nothing."""
    return problems_in(steps, _run(steps, folder, environment, **how))


def script(steps: Sequence[Command]) -> str:
    """A script for bash that runs the commands one after the other, and tells their output and exit codes apart."""
    return "".join(
        f"{command.text}\n{{ tranche_code=$?; printf '{_MARK}%s{_MARK}' $tranche_code; (exit $tranche_code); }}\n"
        for command in steps
    )


def problems_in(steps: Sequence[Command], said: str) -> list[str]:
    """The same of a run of the script that said this."""
    parts = said.split(_MARK)[:-1]
    assert len(parts) == 2 * len(steps), f"$ {steps[len(parts) // 2].text}\ndoes not end:\n{said.split(_MARK)[-1]}"
    found = []
    for command, output, code in zip(steps, parts[::2], parts[1::2], strict=True):
        printed = output.splitlines()
        if command.output is None:
            if code != "0":
                found.append(f"$ {command.text}\nexit code {code}:\n{_indented(printed)}")
        elif not matches(command.output, printed):
            found.append(f"$ {command.text}\nexpected:\n{_indented(command.output)}\nprinted:\n{_indented(printed)}")
    return found


def _run(
    steps: Sequence[Command],
    folder: Path,
    environment: Mapping[str, str],
    *,
    under: Sequence[str] = (),
    seconds: float | None = None,
) -> str:
    with TemporaryFile("w+") as said:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*under, "bash", "-c", script(steps)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                check=False,
                timeout=seconds,
            )
        said.seek(0)
        return said.read()


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


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
