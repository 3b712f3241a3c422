"""The commands of the pages are executed: on simulated machines by this module, on clusters and in packages by others."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest

from tests.local.sessions import READABLE_PYTHON, dropped
from tests.machines import kill_all_with, needs_root, readable_folder
from tests.support.page_commands import PAGES, REPOSITORY, Command, Walk, commands, executed, other_lines, problems
from tests.support.unexecuted import UNEXECUTED
from tranche.hardware.mps_process import MpsProcess

ANN = 4_100
_SECONDS = 240.0
_GROUPS = "".join(
    f"{name}:x:{ANN + number}:\n" for number, name in enumerate(("ann", "students", "phd", "msc", "staff"))
)
_OWN_FILES = """for file in passwd shadow group; do mount --bind $file /etc/$file || exit; done
mount -t tmpfs tmpfs /srv && exec "$@\""""
_WITH_ACCOUNTS = ("unshare", "--mount", "sh", "-c", _OWN_FILES, "sh")
_FIRST_LINE = """import subprocess, sys
process = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, text=True)
print(process.stderr.readline(), end="", flush=True)
process.terminate()
process.wait()
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which the commands of a machine's pages find what they need, and the environment that they run in."""

    folder: Path
    environment: dict[str, str]

    def program(self, name: str, text: str) -> None:
        """A program on the PATH."""
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def place() -> Iterator[Place]:
    """A folder that every user may read. What the commands leave running is ended."""
    with readable_folder() as folder:
        (folder / "bin").mkdir()
        (folder / "deploy").symlink_to(REPOSITORY / "deploy")
        for program in ("train.py", "sweep.py"):
            (folder / program).write_text("")
        path = (folder / "bin", Path(sys.executable).parent, os.environ["PATH"])
        environment = {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "160",
            "NO_COLOR": "1",
            "TRANCHE_SIM_ROOT": str(folder / "machines"),
            "TRANCHE_SIM_TIME_SCALE": "0",
            "TRANCHE_CACHE_DIR": str(folder / "cache"),
            "TRANCHE_WALK": str(folder),
        }
        made = Place(folder, environment)
        made.program("sudo", '#!/bin/sh\nexec "$@"\n')
        made.program("first-line", f"#!{sys.executable}\n{_FIRST_LINE}")
        for script in (folder / "benchmark",):
            script.write_text("#!/bin/sh\n")
            script.chmod(0o755)
        yield made
        kill_all_with(f"TRANCHE_WALK={folder}")
        for daemon in folder.glob("machines/*/tranche/mps/*/"):
            MpsProcess(daemon, os.environ).stop()


def on_machine(*pages: str, before: str = "true", replacing: Mapping[str, str] | None = None) -> Walk:
    """A walk through what pages run on a machine, one after the other."""
    found = [command for page in pages for command in executed(page, "machine")]
    return Walk(tuple(found), replacing or {}, before)


_RUNBOOKS = tuple(page for page in PAGES if page.startswith("docs/runbooks/"))
_A_P4D = "export TRANCHE_SIMULATE=p4d.24xlarge"
_ITS_PROGRAMS = 'tranche sim create p4d.24xlarge && eval "$(tranche sim env p4d.24xlarge)"'
_LAYOUT = """tranche sim create two --gpu A100-40GB --gpu A100-40GB && eval "$(tranche sim env two)"
tranche layout apply -c all-balanced
cat > layouts.yaml <<'END'
version: v1
mig-configs:
  nightly:
  - {devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1}}
  - {devices: [1], mig-enabled: false}
END"""
_A_SHARE = """tranche run --quiet --detach --name runs --mig-profile 1g.5gb --time 4h -- sleep 600
until SHARE=$(tranche ps | awk '/ active / { print $1; found = 1 } END { exit !found }'); do sleep 0.1; done"""
_A_RUN = "tranche run --quiet --detach --name exp7 --gpu-memory 4G -- python train.py && tranche job wait exp7"
_A_WAITER = """tranche run --quiet --detach --name waits --gpus 8 -- true
of_waiter() { tranche ps | awk '/^WAITING/ { below = 1; next } below && NF { print $1; found = 1 } END { exit !found }'; }
until WAITING=$(of_waiter); do sleep 0.1; done"""
WALKS = {
    "README": on_machine("README.md", before="export TRANCHE_SIMULATE=g4dn.xlarge"),
    "getting started": on_machine("docs/guides/getting-started.md"),
    "fractions": on_machine("docs/guides/fractions.md"),
    # A hold within a hold is refused.
    "requests": on_machine(
        "docs/concepts/requests.md",
        before=_A_P4D,
        replacing={'eval "$(tranche hold --gpu-memory 8G)"': '(eval "$(tranche hold --gpu-memory 8G)")'},
    ),
    "layouts": on_machine("docs/reference/layouts.md", before=_LAYOUT),
    "simulator": on_machine("docs/reference/simulator.md"),
    "monitoring": on_machine("docs/guides/monitoring.md"),
    "dashboard": on_machine(
        "docs/guides/dashboard.md",
        before=_A_P4D,
        replacing={"tranche dashboard": "first-line tranche dashboard --port 0", "8899": "…", "TOKEN": "…"},
    ),
    "runbooks": on_machine(
        *_RUNBOOKS,
        before="\n".join((_ITS_PROGRAMS, "tranche layout apply -c all-1g.5gb", _A_SHARE, _A_WAITER)),
        replacing={"LAYOUT": "all-1g.5gb", "explain ID": "explain $WAITING"},
    ),
    "troubleshooting": on_machine("docs/troubleshooting.md", before=_A_P4D),
}
_SERVER = "docs/guides/lab-server.md"
_ON_SERVER = executed(_SERVER, "machine")
_SET_UP = [command for command in _ON_SERVER if command.section == "A server for several people"]
_FILES = """mkdir -p ~/.local/share/bash-completion/completions ~/.config/fish/completions ~/zsh
fpath=(- ~/zsh)
tranche policy export -f policy.yaml"""
_NEXT_WEEK = "next_week() { date --date='7 days' '+%F 09:00'; }"
_SHARE_OF_ANN = """a_share() {
  tranche run --quiet --gpu-memory 4G -- sleep 600 > /dev/null &
  until tranche ps | awk '/sleep 600/ { print $1; found = 1 } END { exit !found }'; do sleep 0.1; done
}"""
ADMINISTRATORS = {
    "a GPU server": Walk(
        (*_SET_UP, *(command for command in _ON_SERVER if command not in _SET_UP)),
        {
            "TRANCHE_SIM_ROOT=/srv/tranche tranche serve": (
                "TRANCHE_SIM_ROOT=/srv/tranche tranche serve 2> log & until grep -q serving log; do sleep 0.1; done"
            ),
            "release 5d8fb96b": 'release "$(a_share)"',
            "'2026-12-01 09:00'": '"$(next_week)"',
        },
        f"{_NEXT_WEEK}\n{_SHARE_OF_ANN}",
    ),
    "the reference": on_machine(
        "docs/reference/cli.md",
        before="\n".join((_A_P4D, _FILES, _NEXT_WEEK, _A_RUN, _A_SHARE, _A_WAITER)),
        replacing={
            "extend 5d8fb96b": "extend $SHARE",
            "explain 4f0c2a1b": "explain $WAITING && tranche job delete waits",
            "reserve remove 4f0c2a1b": """reserve remove "$(tranche reserve list | awk 'NR == 2 { print $1 }')\"""",
            'release "$TRANCHE_ALLOCATION"': (
                'release "$TRANCHE_ALLOCATION"; unset CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TRANCHE_ALLOCATION TRANCHE_KEY'
            ),
            "'2026-12-01 09:00'": '"$(next_week)"',
        },
    ),
}
EXECUTED = tuple(command for walk in (*WALKS.values(), *ADMINISTRATORS.values()) for command in walk.commands)
EXECUTING = (
    "boot.test_page_commands",
    "cluster.test_guides",
    "cluster.test_switch_over",
    "local.test_jupyterhub",
    "release.test_packages",
)
"""The other modules with tests that execute commands of pages: each runs what it has as EXECUTED."""
_PROGRAM = re.compile(r"(?:\$ )?(?:sudo |eval |tranche |kubectl |helm |make |nvidia-smi|podman |python |pip |\w+=\$\()")


def test_every_command_of_the_pages_is_executed_or_has_a_reason() -> None:
    ran = {*EXECUTED, *(each for name in EXECUTING for each in import_module(f"tests.{name}").EXECUTED)}
    left = [command for page in PAGES for command in commands(page) if command not in ran]
    known = {(pages, line): reason for reason, lines in UNEXECUTED.items() for pages, line in lines}
    found = {
        (command.page, command.first_line): {
            key for key in known if fnmatch(command.page, key[0]) and command.first_line == key[1]
        }
        for command in left
    }
    assert [command for command, reasons in found.items() if not reasons] == [], "no test executes these"
    assert set(known) - set().union(*found.values()) == set(), "these are executed, or on no page"


def test_no_block_of_another_kind_has_commands() -> None:
    lines = [line for page in PAGES for line in other_lines(page)]
    assert [line for line in lines if _PROGRAM.match(line.strip())] == []


def test_what_a_page_does_not_print_and_what_fails_are_noticed(tmp_path: Path) -> None:
    steps = [
        Command("", "", "echo 0123abcd; false", ("deadbee1",)),
        Command("", "", "echo $?", ("…", "1")),
        Command("", "", "echo a", ("b",)),
        Command("", "", "true", None),
        Command("", "", "exit_with() { return 3; }; exit_with", None),
    ]
    assert [each.splitlines()[:2] for each in problems(steps, tmp_path, {"PATH": os.environ["PATH"]})] == [
        ["$ echo a", "expected:"],
        ["$ exit_with() { return 3; }; exit_with", "exit code 3:"],
    ]


def test_a_command_that_does_not_end_is_named(tmp_path: Path) -> None:
    steps = [Command("", "", "echo a", ("a",)), Command("", "", "read -r line < pipe", None)]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AssertionError, match="read -r line < pipe\ndoes not end"):
        problems(steps, tmp_path, {"PATH": os.environ["PATH"]}, seconds=0.5)


@pytest.mark.parametrize("name", WALKS)
def test_a_machine_does_what_the_pages_say(name: str, place: Place) -> None:
    wrong = problems(WALKS[name].steps(), place.folder, place.environment, seconds=_SECONDS)
    assert not wrong, "\n\n".join(wrong)


@needs_root
@pytest.mark.skipif(READABLE_PYTHON is None, reason="there is no Python that every user may execute")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "the reference" else name for name in ADMINISTRATORS]
)
def test_a_server_does_what_the_pages_say_to_its_administrator_and_to_ann(name: str, place: Place) -> None:
    """In a namespace where the machine has the accounts of the pages. `tranche` is ann's, and root's after `sudo`."""
    assert READABLE_PYTHON is not None
    home = place.folder / "ann"
    home.mkdir()
    home.joinpath("train.py").write_text("")
    home.joinpath(".profile").write_text(f"PATH={place.folder / 'bin'}:$PATH\n")
    for path in home, *home.iterdir():
        os.chown(path, ANN, ANN)
    accounts = {"passwd": f"ann:x:{ANN}:{ANN}::{home}:/bin/bash\n", "shadow": "ann:*:1::::::\n", "group": _GROUPS}
    for file, added in accounts.items():
        place.folder.joinpath(file).write_text(Path("/etc", file).read_text() + added)
    (place.folder / "bin/python").symlink_to(READABLE_PYTHON)
    if name == "a GPU server":
        root = Path(sys.executable).with_name("tranche")
        python, option, program, uid = dropped(ANN)
        of_ann = f"HOME={home} exec {shlex.join((python, option, f'import tranche.cli.top{program}', uid))}"
        place.program("tranche", f'#!/bin/sh\n[ "$AS_ROOT" ] && exec {root} "$@"\n{of_ann} "$@"\n')
        place.program("sudo", '#!/bin/sh\nAS_ROOT=yes exec "$@"\n')
    steps = ADMINISTRATORS[name].steps()
    wrong = problems(steps, place.folder, place.environment, under=_WITH_ACCOUNTS, seconds=_SECONDS)
    assert not wrong, "\n\n".join(wrong)
