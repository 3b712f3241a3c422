"""Layout files through the command line: what is refused, with which code and words, and that nothing is changed by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.layout.conftest import Bench
from tranche.core.errors import HooksInvalid, LayoutInvalid, TrancheError
from tranche.node.files.files import read_document, write_text, yaml_text
from tranche_simulator import SimulatedMachine

ENTRY = "devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}"


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One H100 that no test of this file may change."""
    folder = tmp_path_factory.mktemp("files")
    machine = SimulatedMachine.create("m", boards=("H100-80GB-SXM",), root=folder / "machines", time_scale=0.0)
    return Bench(machine, folder)


def entry(text: str) -> str:
    return f"version: v1\nmig-configs:\n  custom:\n  - {{{text}}}\n"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("mig-configs: {}", 10, "unable to parse with missing 'version' field"),
        ("version: v2", 10, "unknown version: v2"),
        ("version: 1", 10, "'version' must be a string"),
        ("version: v1\nmig-configs: {}", 10, "at least one entry in 'mig-configs' is required"),
        ("version: v1\nmig-configs: {a: []}", 10, "at least one entry in 'a' is required"),
        (entry("mig-enabled: false"), 10, "missing required field: devices"),
        (entry("devices: all"), 10, "missing required field: mig-enabled"),
        (entry(f"{ENTRY}, color: red"), 10, "unexpected field: color"),
        (entry('devices: "0", mig-enabled: false'), 10, "'devices' must be \"all\" or a list of integers, not the string '0'"),
        (entry("devices: 7, mig-enabled: false"), 10, "'devices' must be"),
        (entry('devices: ["7"], mig-enabled: false'), 10, "an entry of 'devices' must be an integer"),
        (entry(f"device-filter: 0x20B210DE, {ENTRY}"), 10, "'device-filter' must be a string"),
        (entry('devices: all, mig-enabled: "true", mig-devices: {}'), 10, "'mig-enabled' must be true or false"),
        (entry("devices: all, mig-enabled: true"), 10, "missing required field 'mig-devices' when 'mig-enabled' is true"),
        (entry("devices: all, mig-enabled: no, mig-devices: {1g.10gb: 0}"), 10, "MIG devices included when"),
        (entry("devices: all, mig-enabled: yes, mig-devices: {nonsense: 1}"), 10, "error validating values in 'mig-devices'"),
        (entry("devices: all, mig-enabled: yes, mig-devices: {1g.10gb: -1}"), 10, "error validating values in 'mig-devices'"),
        (entry("devices: all, mig-enabled: yes, mig-devices: {1g.10gb: 0}"), 10, "all counts for all MigProfiles are 0"),
        (entry('devices: all, mig-enabled: yes, mig-devices: {1g.10gb: "7"}'), 10, "must be an integer"),
        ("version: v1\nmig-configs: [", 10, "stdin is neither YAML nor JSON"),
        ('{"version": "v1",', 10, "stdin is neither YAML nor JSON"),
        ("version: v1", 11, "stdin has no layouts"),
        ("", 11, "stdin has no layouts"),
        (f"version: v1\nmig-configs: {{a: [{{{ENTRY}}}], b: [{{{ENTRY}}}]}}", 11, "missing required flag 'selected-config'"),
        (entry("devices: all, mig-enabled: yes, mig-devices: {9g.99gb: 1}"), 30, "no GPU on this machine offers the profile"),
        (entry("devices: all, mig-enabled: yes, mig-devices: {1g.10gb: 8}"), 12, "it has room for at most 7x 1g.10gb"),
        (entry("devices: all, mig-enabled: yes, mig-devices: {7g.80gb: 1, 1g.10gb: 1}"), 12, "GPU 0 (NVIDIA H100"),
    ],
)  # fmt: skip
def test_a_bad_layout_has_its_own_code_and_words_and_changes_nothing(
    b: Bench, text: str, code: int, message: str
) -> None:
    outcome = b.layout("apply", "-f", "-", stdin=text)
    assert outcome.code == code
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
    assert b.machine.total_change_calls() == 0


def test_an_unknown_layout_name(b: Bench) -> None:
    outcome = b.layout("apply", "-c", "all-1g.5gb")
    assert outcome.code == 11
    assert "selected mig-config not present: all-1g.5gb" in outcome.stderr
    assert "all-1g.10gb" in outcome.stderr, "the hint says which there are"


def test_a_file_that_is_not_there(b: Bench) -> None:
    outcome = b.layout("assert", "-f", "/dev/null/layouts.yaml")
    assert outcome.code == 10
    assert "cannot read /dev/null/layouts.yaml: Not a directory" in outcome.stderr


def test_an_error_as_json(b: Bench) -> None:
    outcome = b.layout("apply", "-f", "-", "-o", "json", stdin="version: v2")
    error = json.loads(outcome.stderr)
    assert (error["kind"], error["reason"], error["exitCode"]) == ("Error", "LayoutInvalid", 10)


def test_warnings_for_what_matches_nothing(b: Bench) -> None:
    text = entry('device-filter: ["0x20B210DE", "0xFFFF10DE", A100, "0x233010DE"], devices: [0, 4], mig-enabled: false')
    outcome = b.layout("apply", "-f", "-", stdin=text)
    assert outcome.code == 0
    for words in (
        "device-filter '0xFFFF10DE' matches no GPU on this machine",
        "device-filter 'A100' is not a PCI id and matches no GPU",
        "device index 4 matches no GPU: this machine has 1",
    ):
        assert outcome.stderr.count(words) == 1
    assert "0x20B210DE" not in outcome.stderr, "a board that the catalogue knows, in a file for several"


def test_valid_config_looks_at_the_file_only(b: Bench) -> None:
    impossible = entry("devices: all, mig-enabled: yes, mig-devices: {9g.99gb: 1}")
    outcome = b.layout("assert", "-a", "-f", "-", stdin=impossible)
    assert (outcome.code, outcome.stderr) == (0, "Selected MIG configuration is valid\n")
    assert b.layout("assert", "-a", "-f", "-", stdin="version: v2").code == 10


def test_assert_says_what_is_different(b: Bench) -> None:
    outcome = b.layout("assert", "-c", "all-enabled", "-o", "json")
    assert outcome.code == 50
    assert outcome.data["applied"] is False
    assert outcome.data["mismatches"][0]["difference"] == "MIG mode is disabled, not enabled"
    assert "Assertion failure: selected configuration not currently applied" in outcome.stderr
    fine = b.layout("assert", "-c", "all-disabled")
    assert (fine.code, fine.stdout, fine.stderr) == (0, "", "Selected MIG configuration currently applied\n")


def test_options_come_from_mig_parteds_variables_too(b: Bench) -> None:
    path = b.file(f"version: v1\nmig-configs: {{a: [{{{ENTRY}}}], none: [{{devices: all, mig-enabled: false}}]}}\n")
    both = {"MIG_PARTED_CONFIG_FILE": path, "MIG_PARTED_SELECTED_CONFIG": "a"}
    assert b.layout("assert", **both).code == 50
    assert b.layout("assert", "-c", "none", **both).code == 0
    assert b.layout("assert", **both, MIG_PARTED_VALID_CONFIG="true").code == 0
    exported = b.layout("export", MIG_PARTED_CONFIG_LABEL="mine", MIG_PARTED_OUTPUT_FORMAT="json")
    assert list(exported.data["mig-configs"]) == ["mine"]


def test_generate_writes_a_file_that_is_read_back(b: Bench) -> None:
    path = str(b.folder / "generated.yaml")
    assert b.layout("generate", "-f", path).code == 0
    assert b.layout("assert", "-f", path, "-c", "all-disabled").code == 0
    assert "mig-devices:\n      1g.10gb: 7\n" in Path(path).read_text(), "profile names stand without quotes"
    as_json = b.layout("generate", "-o", "json")
    assert set(as_json.data["mig-configs"]) >= {"all-disabled", "all-enabled", "all-balanced", "all-1g.10gb.me"}


def test_checkpoint_needs_a_file(b: Bench) -> None:
    for command in ("checkpoint", "restore"):
        outcome = b.layout(command)
        assert outcome.code == 2
        assert "missing required flags 'checkpoint-file'" in outcome.stderr
    assert b.layout("restore", "-f", "-", stdin="{}").code == 16
    assert b.layout("checkpoint", "-f", "/dev/null/folder/file").code == 2


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: yes\nb: no\n", {"a": True, "b": False}),
        ("a: 1\na: 2\n", {"a": 2}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{\n\t"a": 1\n}', {"a": 1}),
        ("{a: 1, b: [2.0]}", {"a": 1, "b": [2.0]}),
        ("2026-01-01: x\n", {"2026-01-01": "x"}),
        ("a: 0x10\n", {"a": 16}),
        ("", None),
        ("# only a comment\n", None),
        ("\ufeffa: 1\n", {"a": 1}),
    ],
)
def test_documents_are_yaml_or_json(tmp_path: Path, text: str, data: object) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    assert read_document(str(path), LayoutInvalid) == data


@pytest.mark.parametrize(
    "content", [b"a: [", b"\xff\xfe\x00", b"{'a", b"a: b: c", b"- " * 3 + b"!!python/name:os.system x"]
)
@pytest.mark.parametrize("error", [LayoutInvalid, HooksInvalid])
def test_what_is_neither_is_the_callers_error(tmp_path: Path, content: bytes, error: type[TrancheError]) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(error, match="file"):
        read_document(str(path), error)


def test_yaml_is_written_for_people() -> None:
    data = {"version": "v1", "x": [{"devices": [0, 1], "device-filter": "0x20B010DE", "mig-devices": {"1g.5gb": 7}}]}
    assert yaml_text(data) == (
        "version: v1\n"
        "x:\n"
        "- devices: [0, 1]\n"
        "  device-filter: '0x20B010DE'\n"
        "  mig-devices:\n"
        "    1g.5gb: 7\n"
    )  # fmt: skip


def test_a_file_is_replaced_as_a_whole_and_a_device_is_written_to(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    write_text(str(target), "new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]
    write_text("/dev/null", "gone")
