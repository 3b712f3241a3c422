"""Makes the packages: wheels, source archives, bill of materials and checksums, and tries the wheels."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from release.bill import write_bill, write_checksums
from release.cross import PROCESSORS, cross_build, platform_tag, problems
from release.dist_tools import dist_tools
from release.errors import ReleaseError
from release.image_sources import version
from release.progress import Say
from release.revision import commit
from release.shared_files import write_shared_files
from release.trial import try_pipx, try_uv
from release.wheels import simulator_sdist, simulator_wheel, tranche_sdist, tranche_wheel


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
        say("source archives, and the wheel of tranche")
        tranche = tranche_wheel(made, share, revision)
        tranche_sdist(made, share, revision)
        simulator_sdist(made)
        wheels = {}
        for processor in PROCESSORS:
            say(f"the simulator for {processor}, half a minute")
            wheels[processor] = _simulator(processor, Path(name), made, tools)
        own = wheels.get(platform.machine())
        if own is None:
            raise ReleaseError(f"no wheel of the simulator can be tried on this machine's {platform.machine()}")
        say("pipx install, without a compiler")
        try_pipx(tools, tranche, own)
        say("uv tool install, without a compiler")
        try_uv(tools, tranche, own)
        say("the bill of materials, and the checksums")
        write_bill(made / f"tranche-{version()}.cdx.json", tools, tranche, own)
        write_checksums(made)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    untried = sorted(set(PROCESSORS) - {platform.machine()})
    say(f"in {target}; only the wheel for {platform.machine()} was run, that for {', '.join(untried)} was looked at")


def _simulator(processor: str, folder: Path, made: Path, tools: Path) -> Path:
    build = folder / processor
    cross_build(processor, build, tools / "python")
    wrong = list(problems(build, processor))
    if wrong:
        raise ReleaseError(f"the simulator for {processor} is not as it must be: {'; '.join(wrong)}")
    return simulator_wheel(made, build, platform_tag(processor))
