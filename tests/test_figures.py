"""The page of figures: a benchmark rewrites its own section, and no other."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from bench import __main__ as bench
from bench.report import Report

PAGE = "# Figures\n\nIntroduction.\n\n<!-- first -->\n## Old first\n\n<!-- second -->\n## Old second\n\n<!-- gone -->\n## Gone\n"


def measure(report: Report) -> None:
    report.section("Cutting", "A note.", "Another.")
    report.table(["from", "s"], [["none", 1.5]])
    report.section("More")
    report.verdict("It is fast.", met=False)


def fail(report: Report) -> None:
    report.section("Half a section")
    raise ValueError("the machine is gone")


def test_a_benchmark_rewrites_its_section_alone_and_one_that_fails_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "figures.md"
    page.write_text(PAGE)
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(bench, "BENCHMARKS", {"first": fail, "new": measure, "second": measure})
    monkeypatch.setattr(sys, "argv", ["bench", "--write", "first", "new"])

    with pytest.raises(SystemExit, match=r"not measured.*: first$"):
        bench.main()

    conditions = r"\d{4}-\d\d-\d\d, .+, \d+ cores, load \d+: `make figures BENCH=new`\."
    section = (
        "\n\nA note.\nAnother.\n\n| from | s |\n|---|---:|\n| none | 1.5 |\n\n### More\n\nGoal not met: It is fast.\n"
    )
    assert "the machine is gone" in capsys.readouterr().err
    parts = page.read_text().split("<!-- ")
    assert parts[:2] == ["# Figures\n\nIntroduction.\n\n", "first -->\n## Old first\n\n"]
    assert re.fullmatch(rf"new -->\n## Cutting\n\n{conditions}{re.escape(section)}\n", parts[2])
    assert parts[3:] == ["second -->\n## Old second\n"]
    assert list(tmp_path.iterdir()) == [page]


def test_what_does_not_write_leaves_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "figures.md"
    page.write_text(PAGE)
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(bench, "BENCHMARKS", {"first": measure})
    monkeypatch.setattr(sys, "argv", ["bench"])

    bench.main()

    assert page.read_text() == PAGE
