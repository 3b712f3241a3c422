"""The documents as a site that needs no other host: made by Sphinx from the pages that a forge shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from release.image_sources import ROOT
from release.progress import Say
from release.tool_environment import tool_environment
from tranche_simulator.build import cache_directory

_LOCK = ROOT / "requirements-docs.lock"
_START = '<!doctype html><title>Tranche</title><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
_OUTSIDE = r"""\s*["']?\s*(?:https?:)?//[^\s"')>]+"""
_LOADS = {
    ".html": re.compile(
        rf"<(?!a\b)[a-z]+\b[^>]*\s(?:src|srcset|data|poster)={_OUTSIDE}|<(?:link|use|image)\b[^>]*\shref={_OUTSIDE}"
    ),
    ".css": re.compile(rf"url\({_OUTSIDE}|@import{_OUTSIDE}"),
    ".svg": re.compile(rf"url\({_OUTSIDE}|@import{_OUTSIDE}|<(?!a\b)[a-z]+\b[^>]*\shref={_OUTSIDE}"),
}
"""What a browser fetches when it shows a file of that kind. A link that a reader may follow is none."""


def make_site(target: Path, say: Say, root: Path = ROOT) -> list[str]:
    """Write the site of the pages under `root`. Returns what is wrong, a line each; `target` is complete if nothing is.

    Raises:
        ReleaseError: Sphinx cannot be fetched.
    """
    programs = tool_environment(_LOCK, cache_directory() / "site-tools", "fetching Sphinx, 100 MB", say)
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as seen:
        command = [
            str(programs / "python"),
            "-m",
            "sphinx",
            "--fail-on-warning",
            "--fresh-env",
            "--quiet",
            "--no-color",
        ]
        command += [
            "--builder",
            "html",
            "--conf-dir",
            str(ROOT / "docs"),
            "--doctree-dir",
            seen,
            str(root),
            str(target),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    problems = [line.removeprefix(f"{root}/") for line in done.stdout.splitlines() if line] if done.returncode else []
    problems += loads_from_outside(target)
    if not problems:
        (target / "index.html").write_text(_START)
    return problems


def loads_from_outside(site: Path) -> Iterator[str]:
    """Each thing that a page of the site would fetch from another host."""
    for path in sorted(site.rglob("*")):
        pattern = _LOADS.get(path.suffix)
        if pattern is not None:
            yield from (f"{path.relative_to(site)}: loads {match[0]}" for match in pattern.finditer(path.read_text()))
