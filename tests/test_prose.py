"""Documents, help texts and what is deployed read as engineers speak: short sentences, an actor in each, no house words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
import yaml

from tranche.cli.main import root

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGES = sorted(page for pages in ("*.md", "docs/**/*.md", "simulator/*.md") for page in ROOT.glob(pages))
DEPLOYED = sorted(DEPLOY / path for kind in ("yaml", "json", "mime", "txt") for path in DEPLOY.glob(f"**/*.{kind}"))
LONGEST = 35
"""Words in any sentence."""
MEAN = 20
"""Words in the mean sentence of a page."""
AVOIDED = re.compile(
    r"\b(whoever|whatever|whomever|whose|anew|so long as|of which|that which|in the place of|somebody|nobody|hereby|thereof"
    r"|he or she|(?:is|are) (?:said|told)|says so|says of|what is more|be had)\b"
    r"|(?:^|(?<=[.:] ))Of (?:a|an|the|each|all|every|these|those) "
    r"|\b(?:he|his|him)\b"
    r"|\b(?:un|re)?cut(?:s|ting)?\b(?! \(into slices\))",
    re.IGNORECASE,
)

FIRST_WORDS_AVOIDED = re.compile(r"(?:how|where|what|which|who|why|whether|so many|the|an?) ", re.IGNORECASE)
"""A help text starts with a noun or a verb."""
HELP_AVOIDED = re.compile(r"; else\b|\bor else\b|\bsuch an?\b|\bso many\b|\w[.!?] [a-z]")
"""A default is called one, and a sentence starts with a capital."""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a Markdown text, without code blocks, tables, headings and pictures; code counts as one word."""
    text = re.sub(r"^ *```.*?^ *```$|^ *\|[^\n]*$|^#+ [^\n]*$|<!--.*?-->", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[((?:[^\]`]|`[^`]*`)*)\]\([^)]*\)", r"\1", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text))
    text = re.sub(r"CODE(?:,\s+CODE)+", "CODE", re.sub(r"`[^`]*`", "CODE", text))
    for paragraph in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
        words = " ".join(re.sub(r"^ *(?:[-*]|\d+\.) ", "", paragraph.strip()).split())
        yield from (
            each for each in re.split(r"(?<=[.!?]) (?=[A-Z])|(?<=:) (?=[A-Z])", words.replace("**", "")) if each
        )


def cells(text: str) -> Iterator[str]:
    """The cells of the tables of a Markdown text; code counts as one word."""
    text = re.sub(r"`[^`]*`", "CODE", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))
    for row in re.findall(r"^ *\|([^\n]*)", text, re.MULTILINE):
        yield from filter(None, map(str.strip, re.sub(r"\]\([^)]*\)", "]", row).split("|")))


def comments(text: str) -> str:
    """The comments of a YAML file, a paragraph each."""
    found = re.findall(r"(?:^ *#.*\n)+|  #.*$", text, re.MULTILINE)
    return "\n\n".join(re.sub(r"^ *# ?", "", each, flags=re.MULTILINE) for each in found)


def deployed_texts(path: Path) -> str:
    """What people read of a file under deploy/: comments, and what alerts and dashboards show."""
    text = path.read_text()
    if path.suffix == ".json":
        return "\n\n".join(re.findall(r'"(?:title|description)": "(.*)"', text))
    if path.name == "rules.yaml":
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        return "\n\n".join([comments(text), *(each for rule in rules for each in rule.get("annotations", {}).values())])
    return comments(text) if path.suffix == ".yaml" else text


def avoided(texts: Iterable[str]) -> list[str]:
    """The words that engineers do not write, with their sentences, a line each."""
    return [f"{match[0].strip()}: {each}" for each in texts if (match := AVOIDED.search(each))]


def faults(text: str) -> list[str]:
    """What a native reader would stumble over, a line each."""
    found = list(sentences(text))
    lengths = [len(sentence.split()) for sentence in found]
    long = [f"{length} words: {each}" for each, length in zip(found, lengths, strict=True) if length > LONGEST]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    return [
        *long,
        *avoided([*found, *cells(text)]),
        *([f"{mean:.1f} words in the mean sentence"] if mean > MEAN else []),
    ]


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, by full name."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from commands(found, f"{name} {word}")


def help_faults(command: click.Command) -> list[str]:
    """What a native reader would stumble over in a command's help, a line each."""
    paragraphs = [each for each in inspect.cleandoc(command.help or "").split("\n\n") if not each.startswith("\b")]
    options = {
        each.opts[0]: each.help or ""
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and "--version" not in each.opts
    }
    found = (
        [] if re.match(r"[A-Z][a-z]+(?<!s)\b.*\.$", paragraphs[0], re.DOTALL) else [f"no imperative: {paragraphs[0]}"]
    )
    found += [f"{name} has no help" for name, text in options.items() if not text]
    starts = [paragraphs[0], *options.values()]
    found += [
        f"starts with {match[0].strip()}: {each}" for each in starts if (match := FIRST_WORDS_AVOIDED.match(each))
    ]
    found += [f"no end: {each}" for each in options.values() if each and not each.endswith((".", "]"))]
    texts = [" ".join(each.split()) for each in (*paragraphs, *options.values(), *filter(None, [command.short_help]))]
    found += [f"{match[0]}: {each}" for each in texts if (match := HELP_AVOIDED.search(each))]
    return [*found, *faults("\n\n".join(texts))]


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in commands(root, "tranche")])
def test_help_reads_as_engineers_speak(name: str, command: click.Command) -> None:
    assert help_faults(command) == [], name


@pytest.mark.parametrize(
    ("help_", "option", "fault"),
    [
        ("Lists the GPUs.", "Output format.", "no imperative"),
        ("List the GPUs", "Output format.", "no imperative"),
        ("List the GPUs.", "", "--it has no help"),
        ("List the GPUs.", "Where the ledger is kept.", "starts with Where"),
        ("List the GPUs.", "Kubeconfig file; else $KUBECONFIG.", "; else"),
        ("List the GPUs.", "Output format", "no end"),
        ("List the GPUs. gpus looks at each.", "Output format.", "s. g"),
        ("List the GPUs.\n\nIt ends for whoever asks.", "Output format.", "whoever"),
        ("List the GPUs.", " ".join(["Word", *["word"] * 35]) + ".", "36 words"),
    ],
)
def test_help_that_engineers_do_not_write_is_noticed(help_: str, option: str, fault: str) -> None:
    command = click.Command("gpus", help=help_, params=[click.Option(["--it"], help=option)])
    assert [each for each in help_faults(command) if each.startswith(fault)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_reads_as_engineers_speak(page: Path) -> None:
    assert faults(page.read_text()) == []


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_what_is_deployed_reads_as_engineers_speak(path: Path) -> None:
    assert avoided(sentences(deployed_texts(path))) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("values.yaml", "# Cuts GPUs.\nenabled: true\n"),
        ("values.yaml", "enabled: true  # for whoever asks\n"),
        ("rules.yaml", "groups: [{rules: [{annotations: {summary: Nobody waits.}}]}]\n"),
        ("fleet.json", '{"title": "Uncut GPUs"}\n'),
        ("NOTES.txt", "Label the nodes\nanew.\n"),
    ],
)
def test_what_engineers_do_not_deploy_is_noticed(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(avoided(sentences(deployed_texts(tmp_path / name)))) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Of a cluster there is one snapshot as well.", "Of a"),
        ("A line. Of each node the page says what it has.", "Of each"),
        ("The page shows each viewer what he may see.", "he"),
        ("It ends for whoever asks.", "whoever"),
        ("The kubelet is told of each device.", "is told"),
        ("It shows a share whose holder has ended.", "whose"),
        ("| a share | whose holder has ended |", "whose"),
        ("It cuts the GPUs.", "cuts"),
        (" ".join(["word"] * 36) + ".", "36 words"),
        ("- " + " ".join(["word"] * 21) + ".", "21.0 words in the mean sentence"),
    ],
)
def test_what_engineers_do_not_say_is_noticed(text: str, fault: str) -> None:
    assert [each for each in faults(text) if each.startswith(fault)]


def test_code_tables_and_links_are_no_sentences() -> None:
    text = "# Of a title\n\n| `he` | [a share](whoever.md) |\n\n```sh\nwhoever\n```\n\nRun `whoever` [and go on](whoever.md).\n"
    assert list(sentences(text)) == ["Run CODE and go on."]
    assert faults(text) == []
