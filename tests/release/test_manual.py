"""Man pages: one for each command and group, which man's own formatter renders without a word of complaint."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from release.manual import pages

from tests.cli.reference_pages import all_commands
from tranche.cli.main import root

_GROFF = ("groff", "-man", "-Tutf8", "-ww", "-rLL=100n")


@pytest.fixture(scope="module")
def manual() -> Mapping[str, str]:
    return pages(root, "1.2.3")


def rendered(text: str) -> str:
    """The page as a terminal shows it, without its typefaces; no warning may be said."""
    if shutil.which("groff") is None:
        pytest.skip("there is no groff to render a page with")
    done = subprocess.run([*_GROFF, "-P-c", "-P-b", "-P-u"], input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_every_command_and_every_group_has_a_page(manual: Mapping[str, str]) -> None:
    names = [name for name, _ in all_commands()]
    groups = {name.rpartition(" ")[0] for name in names}
    assert {f"{name.replace(' ', '-')}.1" for name in {*names, *groups}} == set(manual)


def test_every_page_renders_without_a_warning(manual: Mapping[str, str]) -> None:
    shown = rendered("\n".join(manual.values()))
    assert shown.count("SYNOPSIS") == len(manual)


def test_every_option_that_help_shows_is_on_the_page(manual: Mapping[str, str]) -> None:
    for name, context in all_commands():
        page = manual[f"{name.replace(' ', '-')}.1"]
        for each in context.command.get_params(context):
            if isinstance(each, click.Option) and not each.hidden:
                assert all(option.replace("-", "\\-") in page for option in each.opts), (name, each.opts)


def test_a_page_says_what_help_says(manual: Mapping[str, str]) -> None:
    shown = rendered(manual["tranche-run.1"])
    assert "tranche run [OPTIONS] -- COMMAND..." in shown
    assert "    $ tranche run --gpu-memory 4Gi -- python train.py\n" in shown
    assert "--mig-profile NAME" in shown
    assert "Tranche 1.2.3" in shown


def test_the_first_page_lists_the_commands_and_the_exit_codes(manual: Mapping[str, str]) -> None:
    shown = rendered(manual["tranche.1"])
    assert all(f"tranche-{name}(1)" in shown for name in root.list_commands(click.Context(root)))
    assert "A layout file does not follow the v1 format." in shown


@given(st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" .'\\-"), min_size=1))
def test_no_text_is_taken_for_a_command_of_roff(text: str) -> None:
    group = click.Group("tranche", help=f"Says: {text}")
    group.add_command(click.Command("one", help=text, params=[click.Option(["--it"], help=text)]))
    for page in pages(group, "1").values():
        commands = {line.split(" ")[0] for line in page.splitlines() if line.startswith((".", "'"))}
        assert commands <= {".TH", ".SH", ".B", ".BR", ".TP", ".PP", ".EX", ".EE"}
        assert page.isascii()
        backslashes = page.replace("\\e", "").replace("\\-", "").replace("\\&", "").replace("\\[u", "")
        assert "\\" not in backslashes
