"""The site of the documents: a fault of a page fails, its navigation follows the folders, and no other host is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from release.site import loads_from_outside, make_site

GOOD = {
    "README.md": "# Overview\n\n[All](docs/index.md), [the file](LICENSE)\n",
    "LICENSE": "free\n",
    "docs/index.md": "# Documents\n\n[Two](guides/two.md), [one](guides/one.md#the-end), [there](https://example.org)\n",
    "docs/guides/one.md": "# One\n\n## The end\n\n1. First:\n\n   ```sh\n   tranche gpus\n   ```\n",
    "docs/guides/two.md": "# Two\n\n[Up](../../README.md) with two -- hyphens\n",
    "docs/guides/getting-started.md": "# Getting started\n",
}


def made(folder: Path, pages: Mapping[str, str]) -> list[str]:
    for name, text in pages.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(text)
    return make_site(folder / "site", lambda line: None, folder / "root")


def test_the_navigation_follows_the_folders_and_the_order_of_the_index(tmp_path: Path) -> None:
    assert made(tmp_path, GOOD) == []
    page = (tmp_path / "site/docs/index.html").read_text()
    navigation = re.search(r'<div class="sidebar-tree">(.*?)</div>', page, re.DOTALL)
    assert navigation
    words = re.findall(r'caption-text">([^<]+)<|internal" href="[^"#]+">([^<]+)<', navigation[1])
    assert ["".join(each) for each in words] == [
        *("Start", "Overview", "Tutorials", "Getting started", "How-to guides", "Two", "One")
    ]
    assert "docs/index.html" in (tmp_path / "site/index.html").read_text()
    assert "with two -- hyphens" in (tmp_path / "site/docs/guides/two.html").read_text()
    assert re.search(
        r"<li><p>First:</p>\s*<div class=\"highlight", (tmp_path / "site/docs/guides/one.html").read_text()
    )


def test_a_dead_link_a_dead_anchor_and_a_page_outside_the_navigation_are_named(tmp_path: Path) -> None:
    bad = {
        "docs/index.md": "# Documents\n\n[One](guides/one.md#the-start)\n\n[three](guides/three.md)\n\n![x](x.svg)\n",
        "docs/elsewhere/page.md": "# A page of no section\n",
    }
    problems = made(tmp_path, {**GOOD, **bad})
    assert not (tmp_path / "site/index.html").exists()
    for fault in (
        r"docs/index\.md:3: .*the-start",
        r"docs/index\.md:5: .*guides/three\.md",
        r"docs/index\.md:7: .*x\.svg",
        r"docs/elsewhere/page\.md: .*toctree",
    ):
        assert [line for line in problems if re.match(fault, line)], (fault, problems)
    assert len(problems) == 4, problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script async src="https://cdn.example/a.js"></script>'),
        ("a.html", "<img alt='x' src='//cdn.example/a.png'>"),
        ("a.html", '<link rel="stylesheet" href="https://cdn.example/a.css">'),
        ("a.css", "@font-face { src: url(https://cdn.example/a.woff2) }"),
        ("a.css", '@import "https://cdn.example/a.css";'),
        ("a.svg", '<svg xmlns="http://www.w3.org/2000/svg"><image href="https://cdn.example/a.png"/></svg>'),
    ],
)
def test_what_a_page_loads_from_another_host_is_noticed(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert [line for line in loads_from_outside(tmp_path) if line.startswith(f"{name}: loads ")]


def test_a_link_that_a_reader_may_follow_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a class="x" href="https://example.org">there</a><img src="a.png">')
    (tmp_path / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><a href="https://example.org"/></svg>')
    assert list(loads_from_outside(tmp_path)) == []
