"""A home that the user may not look into, as after `sudo -u`: every command says so, or needs nothing of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tranche
import tranche_simulator
from tests.machines import needs_root
from tests.node.processes import isolated
from tests.support.in_process import NOBODY, run

SIMULATED = ("--simulate", "p4d.24xlarge")
COMMANDS = (
    *(
        ("dashboard",),
        ("demo",),
        ("doctor",),
        ("events",),
        ("explain", "--gpu", "0.2"),
        ("gpus",),
        ("ps",),
        ("report",),
    ),
    *(
        ("hold", "--gpu", "0.2"),
        ("run", "--detach", "--gpu", "0.2", "--", "true"),
        ("run", "--gpu", "0.2", "--", "true"),
    ),
    *(("job", "list"), ("job", "describe", "a"), ("job", "logs", "a"), ("job", "wait", "a"), ("job", "delete", "a")),
    *(("gpus", "--cluster"), ("nodes",), ("explain", "pod/a"), ("submit", "--gpus", "1", "--image", "a", "--", "true")),
    *(("sim", "list"), ("sim", "create", "a"), (*SIMULATED, "gpus"), (*SIMULATED, "run", "--gpus", "1", "--", "true")),
)
HIDDEN = {
    "the home": {},
    "the state": {"XDG_STATE_HOME": "state"},
    "the cache": {"XDG_CACHE_HOME": "cache"},
    "the kubeconfig": {"KUBECONFIG": ".kube/config"},
}


@needs_root
@isolated
@pytest.mark.parametrize("what", HIDDEN)
def test_no_command_stumbles_over_what_it_may_not_see(what: str, tmp_path: Path) -> None:
    _import_everything()
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube/config").write_text("{}")
    home.chmod(0o700)
    places = {name: str(home / inside) for name, inside in HIDDEN[what].items()}
    outside = "/nonexistent" if places else str(home)
    found = {
        command: run(command, {"PATH": "/usr/bin:/bin", "HOME": outside, **places}, user=NOBODY) for command in COMMANDS
    }
    assert {command: each.fault for command, each in found.items() if each.fault} == {}
    if what == "the kubeconfig":
        assert f"{home}/.kube/config: Permission denied" in found["nodes",].stderr


def _import_everything() -> None:
    """The user may not be able to read the interpreter's files either."""
    for name in ("concurrent.futures.thread", "difflib", "fractions", "importlib.readers"):
        importlib.import_module(name)
    for name in _modules():
        importlib.import_module(name)


def _modules() -> Iterator[str]:
    for package in (tranche, tranche_simulator):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield found.name
