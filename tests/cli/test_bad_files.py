"""Every file that a person can hand to Tranche, wrong in every way: the error names the file, and says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_malformed import HOOKS, KUBECONFIG, LAYOUT, PLUGIN, Examiner
from tests.machines import TestMachine, machine_in
from tests.support.in_process import PYTHON_WORDS
from tranche.core.errors import PluginConfigInvalid, TrancheError
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.device_plugin.config_source import StartSettings
from tranche.node.files.files import read_text

POLICY = {
    "apiVersion": "tranche.dev/v1",
    "kind": "Policy",
    "sharing": "auto",
    "timeslice": "short",
    "gpus": [],
    "quotas": [{"gpus": 2}],
    "fair": True,
    "idle": {"after": "45m"},
    "fence": False,
}

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "layout": ("layout", "plan", "-c", "one", "-f"),
    "hooks": ("layout", "apply", "--dry-run", "-c", "all-1g.6gb", "-k"),
    "plan": ("layout", "apply", "--dry-run", "--plan"),
    "checkpoint": ("layout", "restore", "--dry-run", "-f"),
    "policy": ("policy", "apply", "-f"),
    "decisions": ("replay",),
}
"""What reads a file, by what the file holds; the file's name comes last."""

TOLERANT = {
    ("hooks", "empty"),
    ("hooks", "no version"),
    ("hooks", "another version"),
    ("hooks", "nothing but its version"),
    ("decisions", "empty"),
    ("decisions", "time is a number"),
}
"""What is no error: no hooks, mig-parted's hooks of any version, no decisions, and a time that is one."""


def spoilt(valid: Any) -> Iterator[tuple[str, bytes]]:
    """The ways in which a file can be wrong, each with its content."""
    text = json.dumps(valid)
    yield "empty", b""
    yield "truncated", text[: len(text) // 2].encode()
    yield "binary", b"\xff\xfe\x00\x01" * 64
    yield "a list", b"[1, 2]"
    yield "a word", b'"word"'
    version = next((key for key in valid if key.lower() in ("version", "apiversion")), None)
    if version is not None:
        yield "no version", json.dumps({key: value for key, value in valid.items() if key != version}).encode()
        yield "another version", json.dumps({**valid, version: "v99"}).encode()
        yield "nothing but its version", json.dumps({version: valid[version]}).encode()
    for key in valid:
        if key not in (version, "purpose"):
            yield f"{key} is a number", json.dumps({**valid, key: 7}).encode()


@pytest.fixture
def examiner(tmp_path: Path) -> Iterator[Examiner]:
    with machine_in(tmp_path, "A30-24GB") as machine:
        machine.cut_by_hand(0, "14")
        machine.tranche("run", "--mig-profile", "1g.6gb", "-q", "--", "true")
        yield Examiner(machine)


def documents(machine: TestMachine, folder: Path) -> Mapping[str, Any]:
    """A valid document of each kind."""
    record = folder / "decisions"
    machine.tranche("run", "--mig-profile", "1g.6gb", "-q", "--record", str(record), "--", "true")
    return {
        "layout": LAYOUT,
        "hooks": HOOKS,
        "plan": json.loads(machine.tranche("layout", "plan", "-c", "all-1g.6gb", "-o", "json").stdout),
        "checkpoint": json.loads(machine.tranche("layout", "checkpoint", "-f", "-").stdout),
        "policy": POLICY,
        "decisions": json.loads(record.read_text().splitlines()[0]),
    }


def test_what_a_command_says_of_a_file_that_is_wrong(examiner: Examiner, tmp_path: Path) -> None:
    valid = documents(examiner.machine, examiner.folder)
    wrong = []
    for kind, document in valid.items():
        for how, content in (*spoilt(document), ("without an end", b"")):
            path = tmp_path / "files" / "given"
            path.write_bytes(content)
            name = "/dev/zero" if how == "without an end" else str(path)
            outcome = examiner.run(*COMMANDS[kind], name)
            if (kind, how) not in TOLERANT and (outcome.code == 0 or name not in outcome.stderr):
                wrong.append(f"{kind}, {how}: {outcome.code}: {outcome.stderr[:300]}")
    assert not (wrong + examiner.faults), "\n".join(wrong + examiner.faults)


def kubeconfig(path: str) -> None:
    find_api_server(path, {})


def plugin_config(path: str) -> None:
    StartSettings(file=read_text(path, PluginConfigInvalid)).check()


@pytest.mark.parametrize(("read", "valid"), [(kubeconfig, KUBECONFIG), (plugin_config, PLUGIN)])
def test_what_the_agent_says_of_a_file_that_is_wrong(
    tmp_path: Path, read: Callable[[str], None], valid: Mapping[str, Any]
) -> None:
    path = tmp_path / "given"
    for how, content in spoilt(valid):
        path.write_bytes(content)
        said = refusal(lambda: read(str(path)))
        assert not PYTHON_WORDS.search(said), (how, said)
        assert read is plugin_config or not said or "given" in said, (how, said)


def refusal(read: Callable[[], None]) -> str:
    """What is said against the file; "" when nothing is."""
    try:
        read()
    except TrancheError as error:
        return error.message
    return ""
