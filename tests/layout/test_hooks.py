"""Hooks: when they run, with which environment, and what their failure does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.layout.conftest import Bench
from tests.layout.test_apply import MakeBench
from tranche.core.errors import HookFailed, HooksInvalid
from tranche.core.hooks import Hook, parse_hooks
from tranche.node.execution.hook_runner import HookRunner

RECORD = (
    "import json, os, sys; "
    "open(sys.argv[1], 'a').write(json.dumps([sys.argv[2], dict(os.environ), os.getcwd()]) + chr(10)); "
    "sys.exit(int(sys.argv[3]))"
)
MOMENTS = ("apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit")


class Recorder:
    """A hooks file whose hooks write down when and how they were run."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.folder = folder

    def file(self, **codes: int) -> str:
        """The hooks file; `codes` gives exit codes by moment, underscores for dashes."""
        hooks = {
            moment: [
                {
                    "command": sys.executable,
                    "args": ["-c", RECORD, str(self.log), moment, str(codes.get(moment.replace("-", "_"), 0))],
                    "envs": {"MINE": "1", "MIG_PARTED_SELECTED_CONFIG": "overlaid"},
                    "workdir": str(self.folder),
                }
            ]
            for moment in MOMENTS
        }
        path = self.folder / "hooks.json"
        path.write_text(json.dumps({"version": "v1", "hooks": hooks}))
        return str(path)

    def runs(self) -> list[tuple[str, dict[str, str], str]]:
        """What was written down since the last look: moment, environment, folder."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return [tuple(json.loads(line)) for line in lines]

    def moments(self) -> list[str]:
        """The moments alone."""
        return [moment for moment, _, _ in self.runs()]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


@pytest.fixture
def b(bench: MakeBench) -> Bench:
    return bench(boards=("H100-80GB-SXM",))


def test_the_order_and_that_nothing_to_change_runs_no_pre_apply_hook(b: Bench, recorder: Recorder) -> None:
    hooks = recorder.file()
    b.apply("-c", "all-balanced", "-k", hooks)
    assert recorder.moments() == ["apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit"]
    b.apply("-c", "all-balanced", "-k", hooks)
    assert recorder.moments() == ["apply-start", "apply-exit"]
    b.apply("-c", "all-1g.10gb", "-k", hooks)
    assert recorder.moments() == ["apply-start", "pre-apply-config", "apply-exit"]
    b.apply("-c", "all-disabled", "-k", hooks)
    assert recorder.moments() == ["apply-start", "pre-apply-mode", "apply-exit"]
    b.apply("-c", "all-balanced", "-m", "-k", hooks)
    assert recorder.moments() == ["apply-start", "pre-apply-mode", "apply-exit"]


def test_a_hooks_environment_is_its_own_and_the_commands_options(b: Bench, recorder: Recorder) -> None:
    hooks = recorder.file()
    path = b.file("version: v1\nmig-configs: {x: [{devices: all, mig-enabled: false}]}\n")
    b.apply("-f", path, "-c", "x", "-s", MIG_PARTED_HOOKS_FILE=hooks)
    _, environment, folder = recorder.runs()[0]
    # Python itself may set LC_CTYPE when the environment has no locale.
    environment.pop("LC_CTYPE", None)
    assert environment == {
        "MINE": "1",
        "MIG_PARTED_CONFIG_FILE": path,
        "MIG_PARTED_SELECTED_CONFIG": "x",
        "MIG_PARTED_HOOKS_FILE": hooks,
        "MIG_PARTED_SKIP_RESET": "true",
        "MIG_PARTED_MODE_CHANGE_ONLY": "false",
    }
    assert folder == str(recorder.folder)


def test_a_failing_start_hook_ends_everything_before_it_begins(b: Bench, recorder: Recorder) -> None:
    outcome = b.layout("apply", "-c", "all-balanced", "-k", recorder.file(apply_start=3))
    assert outcome.code == 14
    assert "error running apply-start hook" in outcome.stderr
    assert "exited with 3" in outcome.stderr
    assert recorder.moments() == ["apply-start"]
    assert b.machine.total_change_calls() == 0


@pytest.mark.parametrize("moment", ["pre_apply_mode", "pre_apply_config"])
def test_a_failing_pre_apply_hook_leaves_the_gpus_as_they_were(b: Bench, recorder: Recorder, moment: str) -> None:
    outcome = b.layout("apply", "-c", "all-balanced", "-k", recorder.file(**{moment: 1}))
    assert outcome.code == 14
    assert recorder.moments()[-1] == "apply-exit"
    assert b.machine.total_change_calls() == 0


def test_a_failing_exit_hook_fails_the_command_after_the_work(b: Bench, recorder: Recorder) -> None:
    outcome = b.layout("apply", "-c", "all-balanced", "-k", recorder.file(apply_exit=1))
    assert outcome.code == 14
    assert "error running apply-exit hook" in outcome.stderr
    assert len(b.observe().gpus[0].instances) == 4


def test_the_exit_hook_runs_after_a_failure_and_its_own_does_not_hide_it(b: Bench, recorder: Recorder) -> None:
    b.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1)
    outcome = b.layout("apply", "-c", "all-balanced", "-k", recorder.file(apply_exit=1))
    assert outcome.code == 21
    assert "apply-exit hook" in outcome.stderr
    assert recorder.moments()[-1] == "apply-exit"


def test_what_is_impossible_is_refused_before_any_hook(b: Bench, recorder: Recorder) -> None:
    text = "version: v1\nmig-configs: {x: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 8}}]}\n"
    assert b.layout("apply", "-f", "-", "-k", recorder.file(), stdin=text).code == 12
    assert recorder.moments() == []


def test_a_hook_may_stop_what_stands_in_the_way(b: Bench, recorder: Recorder) -> None:
    b.apply("-c", "all-7g.80gb")
    (uuid,) = (ci.uuid for i in b.observe().gpus[0].instances for ci in i.compute_instances)
    b.machine.inject_busy(uuid, pid=5004711, name="exporter")
    clear = "import sys; from tranche_simulator import SimulatedMachine as M; "
    clear += "from pathlib import Path; M.open('m', root=Path(sys.argv[1])).clear_injections()"
    hook = {"command": sys.executable, "args": ["-c", clear, str(b.machine.directory.parent)], "envs": b.environment()}
    hooks = b.file(json.dumps({"version": "v1", "hooks": {"pre-apply-config": [hook]}}), "stop.json")
    assert b.layout("apply", "-c", "all-balanced").code == 80
    b.apply("-c", "all-balanced", "-k", hooks)
    assert len(b.observe().gpus[0].instances) == 4


def test_output_is_shown_on_stderr_only_when_asked_for(b: Bench) -> None:
    hook = {"command": "sh", "args": ["-c", "echo spoken; echo aloud >&2"]}
    hooks = b.file(json.dumps({"version": "v1", "hooks": {"apply-start": [hook]}}), "talk.json")
    quiet = b.apply("-c", "all-disabled", "-k", hooks)
    assert "spoken" not in quiet.stdout + quiet.stderr
    loud = b.apply("-c", "all-disabled", "-k", hooks, "--debug")
    assert loud.stdout == ""
    assert "spoken\naloud\n" in loud.stderr


def test_the_first_failing_hook_ends_the_list(tmp_path: Path) -> None:
    touch = tmp_path / "touched"
    hooks = {"apply-start": (Hook("false"), Hook("touch", (str(touch),)))}
    with pytest.raises(HookFailed, match="'false' exited with 1"):
        HookRunner(hooks).run("apply-start")
    assert not touch.exists()


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (Hook("no-such-command-here"), "'no-such-command-here' was not found in PATH"),
        (Hook("/dev/null/command"), "cannot start"),
        (Hook("true", folder="/dev/null/folder"), "cannot start"),
        (Hook("sh", ("-c", "kill -9 $$")), "ended by signal 9"),
    ],
)
def test_a_hook_that_does_not_work(hook: Hook, message: str) -> None:
    with pytest.raises(HookFailed, match=message):
        HookRunner({"apply-start": (hook,)}).run("apply-start")


def test_hooks_files_are_read_as_mig_parted_reads_them() -> None:
    assert parse_hooks(None) == {}
    assert parse_hooks({"version": "v9"}) == {}
    assert parse_hooks({"hooks": {"unheard-of": None}}) == {"unheard-of": ()}
    entry = {"command": "c", "args": ["a", 1, True], "envs": {"N": 1}, "workdir": "/"}
    assert parse_hooks({"hooks": {"apply-start": [entry]}})["apply-start"] == (
        Hook("c", ("a", "1", "true"), {"N": "1"}, "/"),
    )


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"hooks": []},
        {"hooks": {"apply-start": {}}},
        {"hooks": {"apply-start": ["x"]}},
        {"hooks": {"apply-start": [{}]}},
        {"hooks": {"apply-start": [{"command": ["x"]}]}},
        {"hooks": {"apply-start": [{"command": "x", "args": "y"}]}},
        {"hooks": {"apply-start": [{"command": "x", "args": [[]]}]}},
        {"hooks": {"apply-start": [{"command": "x", "envs": ["A=1"]}]}},
        {"hooks": {"apply-start": [{"command": "x", "envs": {"A": []}}]}},
        {"hooks": {1: []}},
    ],
)
def test_malformed_hooks(data: Any) -> None:
    with pytest.raises(HooksInvalid):
        parse_hooks(data)


def test_a_malformed_hooks_file_ends_the_command_before_anything(b: Bench) -> None:
    hooks = b.file("hooks: [", "broken.yaml")
    outcome = b.layout("apply", "-c", "all-balanced", "-k", hooks)
    assert outcome.code == 13
    assert b.machine.total_change_calls() == 0
