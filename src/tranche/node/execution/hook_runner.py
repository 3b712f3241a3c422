"""Runs hooks as mig-parted does: one after the other, the first failure ends the list, nothing of our environment passed on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.core.errors import HookFailed
from tranche.core.hooks import Hook, HooksFile

_STDERR = 2


@dataclass(frozen=True, slots=True)
class HookRunner:
    """Hooks with what the running command adds to their environment: its options, as MIG_PARTED_* variables.

    A hook's environment is its own `envs` overlaid with those; PATH and the rest of this process's are not inherited. Output
    is discarded, or goes to stderr with `show_output`.
    """

    hooks: HooksFile = field(default_factory=HooksFile)
    environment: Mapping[str, str] = field(default_factory=dict)
    show_output: bool = False

    def run(self, moment: str) -> None:
        """Run the hooks of that moment; HookFailed at the first that cannot start or returns non-zero."""
        for hook in self.hooks.at(moment):
            self._run(moment, hook)

    def _run(self, moment: str, hook: Hook) -> None:
        # A bare name is looked up in this process's PATH, since the hook's own environment has none.
        program = hook.command if os.sep in hook.command else shutil.which(hook.command)
        if program is None:
            raise HookFailed(f"error running {moment} hook: '{hook.command}' is not a command here")
        output = _STDERR if self.show_output else subprocess.DEVNULL
        try:
            code = subprocess.run(
                [program, *hook.arguments],
                env={**hook.environment, **self.environment},
                cwd=hook.folder or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            ).returncode
        except (OSError, ValueError) as error:
            raise HookFailed(f"error running {moment} hook: '{hook}' cannot start: {error}") from error
        if code != 0:
            ended = f"ended by signal {-code}" if code < 0 else f"exited with {code}"
            raise HookFailed(f"error running {moment} hook: '{hook}' {ended}", hint="see its output with --debug")
