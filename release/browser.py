"""A browser for the tests of pages: Debian's Chromium, and what drives it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from release.debian_packages import install_packages
from release.errors import ReleaseError
from release.progress import say_beside
from release.tool_environment import tool_environment
from tranche_simulator.build import cache_directory

_LOCK = Path(__file__).parents[1] / "requirements-browser.lock"
_WITHOUT_NETLINK = Path(__file__).with_name("without_netlink.py")
_SHELL = "chromium-headless-shell"
"""Chromium without windows: it starts and draws pages with two thirds of the processor's time."""
_OTHERS = ("chromium", "chromium-browser", "google-chrome")

_ARGUMENTS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
)
"""For a browser that sees nothing but a test's own server, as root."""


def chromium() -> Path:
    """The browser on PATH, best the one without windows; as root on Debian that is installed.

    Raises:
        ReleaseError: there is none, and it cannot be installed.
    """
    if (shell := shutil.which(_SHELL)) is None:
        try:
            install_packages([_SHELL, "fonts-dejavu-core"], "a test of pages", say_beside)
        except ReleaseError:
            if (other := next(filter(None, map(shutil.which, _OTHERS)), None)) is None:
                raise
            return Path(other)
        shell = shutil.which(_SHELL)
    if shell is None:
        raise ReleaseError(f"the Debian package {_SHELL} has no program {_SHELL}")
    return Path(shell)


def driving_packages() -> Path:
    """The folder of Python packages in which Playwright and axe-core are.

    Raises:
        ReleaseError: they cannot be fetched.
    """
    programs = tool_environment(
        _LOCK,
        cache_directory() / "browser-tools",
        "fetching Playwright, 53 MB",
        say_beside,
    )
    return next((programs.parent / "lib").glob("python*/site-packages"))


@cache
def why_no_browser() -> str:
    """Why no browser can be had here; empty when one can."""
    try:
        chromium()
        driving_packages()
    except ReleaseError as error:
        return str(error)
    return ""


@contextmanager
def browser_running() -> Iterator[Any]:
    """Chromium, driven by Playwright. Errors as for `chromium` and `driving_packages`."""
    packages = str(driving_packages())
    if packages not in sys.path:
        sys.path.append(packages)
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        program = Path(folder, "browser")
        words = shlex.join([sys.executable, "-IS", str(_WITHOUT_NETLINK), str(chromium())])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o700)
        running = playwright.chromium.launch(executable_path=str(program), args=list(_ARGUMENTS))
        try:
            yield running
        finally:
            running.close()
