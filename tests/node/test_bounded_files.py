"""Files that have no end, and YAML that stands for more than it says: refused in words, before they fill the memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.kubernetes.mig_manager.mig_world import a100s
from tranche.core.errors import KubeconfigInvalid, LayoutInvalid, PluginConfigInvalid, PolicyInvalid
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.device_plugin.config_source import StartSettings
from tranche.kubernetes.mig_manager.layout_source import read_layouts
from tranche.node.files import files
from tranche.node.files.files import (
    DEPTH_LIMIT,
    LIMIT,
    NODE_LIMIT,
    YamlError,
    load_yaml,
    read_bounded,
    read_document,
)

MERGES = "a0: &a0 {k1: 1, k2: 2}\n" + "".join(
    f"a{level + 1}: &a{level + 1} {{<<: [{', '.join([f'*a{level}'] * 9)}]}}\n" for level in range(9)
)
ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 9)}]\n" for level in range(9)
)


@pytest.mark.parametrize("text", [MERGES, ALIASES], ids=["merges", "aliases"])
def test_a_few_hundred_bytes_do_not_become_gigabytes_anywhere(tmp_path: Path, text: str) -> None:
    assert len(text) < 600
    file = tmp_path / "file"
    file.write_text(text)

    with pytest.raises(LayoutInvalid, match="more than 50000 values"):
        read_document(str(file), LayoutInvalid)
    with pytest.raises(LayoutInvalid, match="more than 50000 values"):
        read_layouts("ns/l", {"config.yaml": text}).select("x", a100s().node)
    with pytest.raises(PluginConfigInvalid, match="more than 50000 values"):
        StartSettings(file=text).check()
    with pytest.raises(KubeconfigInvalid, match="more than 50000 values"):
        find_api_server(str(file), {})


def test_anchors_aliases_and_merges_of_a_usual_size_mean_what_they_say() -> None:
    text = "base: &base {devices: all, mig-enabled: true}\na: [{<<: *base, mig-devices: {1g.5gb: 7}}]\nb: *base\n"
    base = {"devices": "all", "mig-enabled": True}

    assert load_yaml(text) == {"base": base, "a": [{**base, "mig-devices": {"1g.5gb": 7}}], "b": base}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * (DEPTH_LIMIT + 1), "nested more than 50 levels deep"),
        ("? " * 10_000, "nested more than 50 levels deep"),
        ("{a: " * 10_000, "nested more than 50 levels deep"),
        ("- a\n" * (NODE_LIMIT + 1), "more than 50000 values"),
        ("a: &a [*a]", "an alias of itself"),
        ("&a {<<: *a}", "an alias of itself"),
        ("x: " + "1" * 600_001, "a number has 600001 digits"),
        ("x: 0x" + "f" * 101, "a number has 103 digits"),
        ("x: 1." + "0" * 101, "a number has 103 digits"),
        ("a" * (LIMIT + 1), "longer than 1048576"),
        ('!!int ""', "does not match its type tag"),
        ("!!bool perhaps", "does not match its type tag"),
        ("!!timestamp never", "does not match its type tag"),
        ("!!python/object/apply:os.getpid []", "could not determine a constructor"),
        ("{[a]: b}", "unhashable"),
        ("--- a\n--- b", "single document"),
        ("a\0b", "special characters"),
    ],
    ids=lambda value: value[:12].strip() if isinstance(value, str) else None,
)
def test_what_is_not_read_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(YamlError) as refused:
        load_yaml(text)

    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_dates_are_text_and_the_last_of_two_keys_counts() -> None:
    assert load_yaml("{2026-01-01: 1, a: 2026-01-01 10:00:00, b: 1, b: 2}") == {
        "2026-01-01": 1, "a": "2026-01-01 10:00:00", "b": 2,
    }  # fmt: skip
    assert load_yaml("") is None


def test_times_octal_numbers_and_underscores_are_text() -> None:
    assert load_yaml("[-.5]") == ["-.5"]
    assert load_yaml("[7, -3, 0, 1.5, 24:00, 010, 0x7, 1_0, 12:30.5]") == [
        7, -3, 0, 1.5, "24:00", "010", 7, "1_0", "12:30.5",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["{b: 1, b: 2}", '{"b": 1, "b": 2}', "a: [{b: 1, c: 1, b: 1}]", '\t{"a": 1, "a": 2}'])
def test_a_key_that_is_there_twice_is_refused_where_that_matters(tmp_path: Path, text: str) -> None:
    path = tmp_path / "twice"
    path.write_text(text)
    with pytest.raises(PolicyInvalid, match=r"twice: the key [ab] appears twice$"):
        read_document(str(path), PolicyInvalid, unique_keys=True)
    path.write_text('{"a": {"b": 1}, "c": {"b": 1}}')
    assert read_document(str(path), PolicyInvalid, unique_keys=True) == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_device_without_end_is_too_long() -> None:
    with pytest.raises(ValueError, match="longer than 1048576 bytes"):
        read_bounded("/dev/zero")
    assert read_bounded("/dev/null") == b""


def test_a_file_of_the_longest_length_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * LIMIT)
    assert len(read_bounded(file)) == LIMIT
    file.write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(ValueError, match="longer"):
        read_bounded(file)


def test_a_pipe_is_read_to_its_end_by_whoever_opens_it_first(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"version: v1\n" * 20_000,))
    reader = threading.Timer(0, writer.start)
    reader.start()

    assert len(read_bounded(pipe)) == 240_000
    writer.join()


@pytest.mark.parametrize("opened", [False, True])
def test_a_pipe_that_stays_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool) -> None:
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR) if opened else None

    with pytest.raises(LayoutInvalid, match=r"cannot read .*pipe: nothing was written to it for 0\.05 s"):
        read_document(str(pipe), LayoutInvalid)
    if descriptor is not None:
        os.close(descriptor)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", bytes(range(256))])
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(LayoutInvalid, match="is not UTF-8 text"):
        read_document(str(file), LayoutInvalid)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    for name in (tmp_path, tmp_path / "dangling", tmp_path / "loop", tmp_path / "missing" / "file", "a\0b", "x" * 5000):
        with pytest.raises(LayoutInvalid, match="cannot read "):
            read_document(str(name), LayoutInvalid)
