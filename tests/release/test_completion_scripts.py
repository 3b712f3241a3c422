"""The scripts for completion, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from release.shared_files import write_shared_files

_ASKING = {
    "bash": (
        "source {share}/bash-completion/completions/tranche; COMP_WORDS=(tranche layout ch); COMP_CWORD=2; "
        '_tranche_completion tranche; echo "${{COMPREPLY[@]}}"'
    ),
    # Outside an interactive line zsh's own functions for lists do not work: these say what they are given.
    "zsh": (
        'compadd() {{ print -l -- "$@" }}; _describe() {{ print -l -- ${{(P)3}} }}; compdef() {{ }}; '
        "source {share}/zsh/site-functions/_tranche; words=(tranche layout ch); CURRENT=3; _tranche_completion"
    ),
    "fish": 'source {share}/fish/vendor_completions.d/tranche.fish; complete --do-complete "tranche layout ch"',
}


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    write_shared_files(folder, "1.2.3")
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", _ASKING)
def test_a_shell_completes(shell: str, share: Path, environment: Mapping[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    code = _ASKING[shell].format(share=share)
    done = subprocess.run([shell, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "checkpoint" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", _ASKING)
def test_the_command_prints_the_same_script(shell: str, share: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        ["tranche", "completion", shell], env={**environment, "SHELL": ""}, capture_output=True, text=True, check=True
    )
    (shipped,) = [each for each in share.rglob("*tranche*") if each.is_file() and each.read_text() == done.stdout]
    assert done.stderr == ""
    assert {"bash": "bash-completion", "zsh": "zsh", "fish": "fish"}[shell] in shipped.parts
