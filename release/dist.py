"""Makes the packages: wheels, sources, the self-contained archive, bill of materials and checksums, and tries them."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from release.archive import make_archive
from release.bill import write_bill, write_checksums
from release.cross import PROCESSORS, cross_build, platform_tag, problems
from release.dist_tools import dist_tools
from release.errors import ReleaseError
from release.image_sources import version
from release.progress import Say
from release.revision import commit
from release.shared_files import write_shared_files
from release.trial import try_archive, try_pipx, try_uv
from release.wheels import sdist, wheel


def make_dist(target: Path, say: Say) -> None:
    """Make everything anew in `target`, telling what is done; only a complete set of files that were tried is there then.

    Raises:
        ReleaseError: something cannot be made, or does not work.
        tranche_simulator.SimulatorError: the simulator cannot be compiled.
    """
    tools = dist_tools(say)
    revision = commit()
    with tempfile.TemporaryDirectory(prefix="tranche-dist-") as name:
        made, share = Path(name) / "dist", Path(name) / "share"
        say("man pages and completions")
        write_shared_files(share, version())
        say("the source archive")
        sdist(made, share, revision)
        wheels = {}
        for processor in PROCESSORS:
            say(f"the wheel for {processor}, half a minute")
            build = _simulator(processor, Path(name), tools)
            wheels[processor] = wheel(made, share, revision, build, platform_tag(processor))
        own = wheels.get(platform.machine())
        if own is None:
            raise ReleaseError(f"no wheel can be tried on this machine's {platform.machine()}")
        say("the self-contained archive, with the dependencies for every processor and Python")
        archive = made / f"tranche_gpu-{version()}.pyz"
        make_archive(archive, tools, wheels)
        say("an installation from it, without an index")
        try_archive(archive)
        say("pipx install, without a compiler")
        try_pipx(tools, own)
        say("uv tool install, without a compiler")
        try_uv(tools, own)
        say("the bill of materials, and the checksums")
        write_bill(made / f"tranche_gpu-{version()}.cdx.json", tools, own)
        write_checksums(made)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    untried = sorted(set(PROCESSORS) - {platform.machine()})
    say(f"in {target}; only the wheel for {platform.machine()} was run, that for {', '.join(untried)} was looked at")


def _simulator(processor: str, folder: Path, tools: Path) -> Path:
    build = folder / processor
    cross_build(processor, build, tools / "python")
    wrong = list(problems(build, processor))
    if wrong:
        raise ReleaseError(f"the simulator for {processor} is not as it must be: {'; '.join(wrong)}")
    return build
