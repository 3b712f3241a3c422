"""Installs Tranche from the archive that this file is in: `python3 tranche_gpu-VERSION.pyz`. It needs no network and no pip."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

PROGRAMS = ("tranche", "kubectl-tranche")


class InstallError(Exception):
    """Tranche cannot be installed here; the second argument says what to do."""


def main() -> None:
    """Install, or say on stderr why not, with exit code 1."""
    root = os.geteuid() == 0
    home = Path.home()
    if root:
        os.umask(0o022)  # everyone may run what root installs
    options = argparse.ArgumentParser(
        prog=Path(sys.argv[0]).name, description="Install Tranche from this file, without a network."
    )
    options.add_argument(
        "--to",
        type=Path,
        default=Path("/opt/tranche") if root else home / ".local/share/tranche",
        help="virtual environment to make or to upgrade; default: %(default)s",
    )
    options.add_argument(
        "--bin",
        type=Path,
        default=Path("/usr/local/bin") if root else home / ".local/bin",
        help="folder for the links to the commands; default: %(default)s",
    )
    chosen = options.parse_args()
    archive, to, links = Path(sys.argv[0]).resolve(), chosen.to.absolute(), chosen.bin.absolute()
    try:
        install(archive, to, links)
    except InstallError as error:
        sys.exit(f"error: {error.args[0]}\n  hint: {error.args[1]}")
    except OSError as error:
        sys.exit(f"error: {error}\n  hint: choose other folders with --to and --bin")
    print(f"installed in {to}, command in {links / 'tranche'}")
    print(f"next: {'tranche' if shutil.which('tranche') == str(links / 'tranche') else links / 'tranche'} doctor")


def install(archive: Path, to: Path, links: Path) -> None:
    """Make or upgrade the environment, and link the commands; a failed first installation leaves nothing."""
    with zipfile.ZipFile(archive) as content:
        supported = content.read("supported").decode().split()
        _check_machine(supported)
        new = _check_folders(to, links)
        with tempfile.TemporaryDirectory(prefix="tranche-install-") as name:
            content.extractall(name)
            try:
                venv.EnvBuilder(with_pip=False, symlinks=True).create(to)
                _run_pip(to, Path(name))
            except BaseException:
                if new:
                    shutil.rmtree(to, ignore_errors=True)
                raise
    links.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        link = links / program
        if not link.is_symlink():
            link.symlink_to(to / "bin" / program)


def _check_machine(supported: list[str]) -> None:
    processors = [each for each in supported if not each[0].isdigit()]
    if sys.platform != "linux" or platform.machine() not in processors:
        here = f"{sys.platform} on {platform.machine()}"
        raise InstallError(f"this is {here}", f"Tranche runs on Linux on {' and '.join(processors)}")
    versions = [each for each in supported if each[0].isdigit()]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in versions:
        hint = f"run this file with another Python, such as python{versions[-1]}"
        raise InstallError(f"this is Python {version}; the file serves {versions[0]} to {versions[-1]}", hint)


def _check_folders(to: Path, links: Path) -> bool:
    """Whether the environment is new; InstallError where a folder or a link belongs to something else."""
    new = not to.exists() or not any(to.iterdir())
    if not new and not (to / "pyvenv.cfg").is_file():
        raise InstallError(f"{to} has files that are no virtual environment", "choose another folder with --to")
    for program in PROGRAMS:
        link = links / program
        if os.path.lexists(link) and os.path.realpath(link) != os.path.realpath(to / "bin" / program):
            raise InstallError(f"{link} is not a link into {to}", "remove it, or choose another folder with --bin")
    return new


def _run_pip(to: Path, unpacked: Path) -> None:
    (pip,) = unpacked.glob("pip-*.whl")
    options = ["--isolated", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-index"]
    what = ["--find-links", str(unpacked / "wheels"), "--require-hashes", "-r", str(unpacked / "requirements.txt")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(to / "bin" / "python"), str(pip / "pip"), *options, *what],
        env={**environment, "PIP_ROOT_USER_ACTION": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InstallError(f"pip failed:\n{done.stdout.strip()[-2000:]}", "check the file against SHA256SUMS")
