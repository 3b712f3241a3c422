"""Runs hooks as mig-parted does: one after the other, stopping at the first failure, without passing on our environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.core.errors import HookFailed
from tranche.core.hooks import Hook

_STDERR = 2


@dataclass(frozen=True, slots=True)
class HookRunner:
    """Hooks by the moment at which they run, with the running command's options as MIG_PARTED_* variables in `environment`.

    These variables override a hook's own `envs`. Hooks do not inherit PATH or the rest of this process's environment. Discards
    output, or sends it to stderr with `show_output`.
    """

    hooks: Mapping[str, tuple[Hook, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    show_output: bool = False

    def run(self, moment: str) -> None:
        """Run the hooks of that moment. Raises HookFailed at the first that cannot start or returns non-zero."""
        for hook in self.hooks.get(moment, ()):
            self._run(moment, hook)

    def _run(self, moment: str, hook: Hook) -> None:
        # Look up bare names in this process's PATH, since the hook's own environment has none.
        program = hook.command if os.sep in hook.command else shutil.which(hook.command)
        if program is None:
            raise HookFailed(f"error running {moment} hook: '{hook.command}' was not found in PATH")
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
