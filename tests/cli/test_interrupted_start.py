"""Ctrl-C while a command still imports what it needs: it ends at once, without a word."""

from __future__ import annotations

import subprocess
import sys

import pytest

_INTERRUPTED_IMPORT = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["tranche", "gpus"]
from tranche.cli.start import main
main()
"""


@pytest.mark.parametrize("module", ["tranche.cli.main", "click", "tranche.cli.runtime", "tranche.cli.gpus"])
def test_an_interrupt_during_the_imports_ends_the_command_silently(module: str) -> None:
    script = _INTERRUPTED_IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", ""), done.stderr
