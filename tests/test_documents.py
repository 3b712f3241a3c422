"""The documents say what is true: links lead somewhere, names exist, command lines parse, shown output is what is printed."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from tests.strategies import gpu_on, view_of
from tests.support.page_commands import PAGES as NAMES
from tests.support.page_commands import PYTHON, REPOSITORY, commands
from tranche.cli.main import root
from tranche.core.board import board_by_key
from tranche.core.errors import TrancheError
from tranche.core.request import parse_request
from tranche.core.state import MigMode
from tranche.node.state.session import StateFolder
from tranche.node.store import schema
from tranche.planning.decide.allocate import Granted, decide

PAGES = tuple(REPOSITORY / name for name in NAMES)
ALL_PAGES = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
OUTSIDE = re.compile(r"^[a-z]+:")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@ALL_PAGES
def test_relative_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if OUTSIDE.match(target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


@ALL_PAGES
def test_modules_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for name in set(re.findall(r"`(tranche(?:_simulator)?(?:\.[a-z_]+)+)`", text)) - {"tranche.dev"}:
        importlib.import_module(name)
    for path in set(re.findall(r"`((?:src|simulator|tests|docs|bench)/[\w./-]+)`", text)):
        assert (REPOSITORY / path).exists(), path


@ALL_PAGES
def test_make_targets_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets


@ALL_PAGES
def test_every_row_of_a_table_is_below_its_heading(page: Path) -> None:
    """A blank line ends a table: a page shows the rows after it as text."""
    for table in re.findall(r"(?:^ *\|[^\n]*\n)+", without_code(page.read_text()), re.MULTILINE):
        assert re.match(r" *\|[^\n]*\n *\|(?: *:?-+:? *\|)+\n *\|", table), table


def test_nobody_is_told_to_install_by_a_name_that_is_not_ours() -> None:
    """The public index has another project called tranche, and ours is not there: name a wheel by its file, with / before it."""
    name = r"(?<![-/_.\w])tranche(?:[-_]gpu)?(?:[-_]simulator)?"
    by_name = re.compile(rf"{name}(?:==|~=|>=|\[[a-z,]+\])|\b(?:pipx?|uv)\b.*\binstall\b.*{name}(?![-_.\w])")
    folders = ("deploy", "docs", "src")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    found = []
    for path in (*files, *REPOSITORY.glob("*.md")):
        if path.suffix in (".pyc", ".png", ".svg"):
            continue
        lines = path.read_text().splitlines()
        found += [f"{path.relative_to(REPOSITORY)}: {line.strip()}" for line in lines if by_name.search(line)]
    assert found == []


def test_the_documents_stay_short_enough_to_read() -> None:
    """The README and docs/, without the three pages that are made from the code."""
    generated = {REPOSITORY / "docs/reference" / f"{name}.md" for name in ("cli", "errors", "metrics")}
    pages = {REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")} - generated
    assert sum(len(page.read_text().split()) for page in pages) <= 45_000


@ALL_PAGES
def test_a_line_for_cron_names_its_program_by_the_whole_path(page: Path) -> None:
    for line in re.findall(r"^(?:[*/\d]+ ){5}\w+ (\S+)", page.read_text(), re.MULTILINE):
        assert line.startswith("/"), "cron looks in /usr/bin and /bin only"


def picture_under(heading: str) -> str:
    section = re.split(r"\n##+ ", (REPOSITORY / "docs/architecture.md").read_text().split(f"# {heading}\n")[1])[0]
    (picture,) = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(picture)


@pytest.mark.parametrize(
    ("heading", "container", "prefix"),
    [
        ("The layers", (), "tranche."),
        ("The packages of the Kubernetes agent", ("tranche.kubernetes",), ""),
        ("tranche.node", ("tranche.node",), ""),
        ("tranche.planning", ("tranche.planning",), ""),
    ],
)
def test_a_picture_of_layers_is_the_contract(heading: str, container: tuple[str, ...], prefix: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (layers,) = [
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and tuple(contract.get("containers", ())) == container
    ]
    name = rf"{re.escape(prefix)}\w+"
    found = re.findall(rf"^({name}(?: \| {name})*)(?=  |$)", picture_under(heading), re.MULTILINE)
    assert found == layers


def tranche_calls(command: str) -> list[list[str]]:
    """The arguments of each call of tranche in a line for the shell."""
    without_redirections = re.sub(r"\s\d?>{1,2} ?(&\d|[\w./~-]+|\"[^\"]*\")", "", command.replace("\\\n", " "))
    lexer = shlex.shlex(without_redirections, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    calls: list[list[str]] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&()"):
            while words and (words[0] == "sudo" or re.match(r"\w+=", words[0])):
                words.pop(0)
            if words and words[0] == "tranche":
                calls.append(words[1:])
            words = []
        else:
            words.append(word)
    return calls


def parse(arguments: list[str]) -> None:
    """Parse a command line as tranche does, without doing anything; click's or Tranche's error otherwise."""
    command: click.Command = root
    context: click.Context | None = None
    while True:
        context = command.make_context(command.name or "tranche", list(arguments), parent=context)
        if not isinstance(command, click.Group):
            return
        rest = context._protected_args + context.args
        if command.invoke_without_command and not rest:
            return
        name, found, arguments = command.resolve_command(context, rest)
        assert found is not None, name
        command = found


@ALL_PAGES
def test_command_lines_parse(page: Path) -> None:
    """Those of the blocks that are programs in Python hold no lines for the shell."""
    for command in commands(str(page.relative_to(REPOSITORY))):
        if command.first_line != PYTHON:
            for call in tranche_calls(command.text.split("  #")[0]):
                if not {"--help", "-h", "--version"} & set(call):
                    parse(call)


@ALL_PAGES
def test_commands_and_options_that_a_sentence_names_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for mentioned in re.findall(r"`tranche ([^`]+)`", prose):
        command: click.Command = root
        words = mentioned.split(" -- ")[0].split()
        while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, mentioned
            command = found
        options = {name for parameter in [*command.params, *root.params] for name in parameter.opts}
        for option in re.findall(r"--[\w-]+", " ".join(words)):
            assert option in options | {"--help"}, mentioned


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["gpus", "--no-such-option"], ["layout", "no-such-command"]]
)
def test_a_command_line_that_does_not_parse_is_noticed(arguments: list[str]) -> None:
    with pytest.raises((click.UsageError, TrancheError)):
        parse(arguments)


def test_calls_are_found_in_lines_for_the_shell() -> None:
    assert tranche_calls("A=1 tranche gpus -o json 2>&1 | head -3 && sudo tranche ps; echo tranche top") == [
        ["gpus", "-o", "json"],
        ["ps"],
    ]


def test_the_requests_that_are_explained_get_what_is_said() -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    rows = re.findall(
        r"^\| `(--[\w-]+) (\S+)` \| (.+?) \|", (REPOSITORY / "docs/concepts/requests.md").read_text(), re.MULTILINE
    )
    examples = [(option, value, given) for option, value, given in rows if re.match(r"[\d.]+(Gi|G)?$", value)]
    assert len(examples) == 6
    for option, value, given in examples:
        request = parse_request(**{option.removeprefix("--").replace("-", "_"): value})
        decision = decide(view_of(gpu_on(board, mode=MigMode.DISABLED)), request)
        assert isinstance(decision, Granted)
        (grant,) = decision.grants
        assert given == ("whole GPU" if grant.slot is None else f"`{grant.slot.profile}`"), f"{option} {value}"


def test_the_page_of_the_state_folder_names_everything_in_it() -> None:
    page = (REPOSITORY / "docs/reference/state-folder.md").read_text()
    places = StateFolder(Path())
    for path in (places.ledger, places.decision_lock, places.gpu_locks / "UUID.lock"):
        assert f"`{path}`" in page
    for path in (places.session("NAME"), places.allocation("ID"), places.waiter("ID"), places.wakeup_pipe("ID")):
        assert f"`{path}`" in page
    assert f"format {schema.SCHEMA_VERSION}" in page
