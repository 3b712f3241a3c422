"""Boots a machine with simulated GPUs: systemd as its first process, in a container, from power on to power off."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import click
import pynvml
import yaml

from tests.boot.debian_root import debian_root
from tests.machines import TestMachine
from tranche.node.locks.locks import FileLock
from tranche_simulator.build import cache_directory, ensure_built

REPOSITORY = Path(__file__).parents[2]
_LONGEST_SECONDS = 300.0
_TRANCHE = """#!/usr/bin/python3
from tranche.cli.main import main
main()
"""
_ENVIRONMENT = """Environment=LD_LIBRARY_PATH=/opt/simulator/lib TRANCHE_SIM_STATE=/sim/state
Environment=PATH=/opt/simulator/bin:/usr/bin:/bin TRANCHE_STATE_DIR=/sim/tranche
Environment=PYTHONPATH=/opt/src:/opt/simulator-src:/opt/packages PYTHONDONTWRITEBYTECODE=1
"""
# Units that use GPUs or drive them, as far as their place in the order goes: each notes its name, the kubelet what it finds.
_NOTES = """[Unit]
Description=Stand-in for {name}
{order}
[Service]
Type=oneshot
RemainAfterExit=yes
{environment}ExecStart=/bin/sh -c 'echo {name} >> /out/order; {command}'
[Install]
WantedBy=multi-user.target
"""
LIST_FOR_KUBELET = "/opt/simulator/bin/nvidia-smi -L > /out/kubelet 2>&1"
_LAST = """[Unit]
Description=Note how the boot went, and power off
DefaultDependencies=no
After={all}
[Service]
Type=oneshot
ExecStart=-/bin/sh -c 'systemctl status --no-pager --full tranche-boot > /out/status; \
systemctl show tranche-boot > /out/properties; journalctl -b --no-pager -o short -u tranche-boot > /out/journal; \
systemctl --failed --no-legend --plain > /out/failed; journalctl -b --no-pager > /out/everything'
ExecStart=systemctl poweroff --no-block
"""


@dataclass(frozen=True, slots=True)
class Booted:
    """What a boot left behind: what systemd says of the unit, who started in which order, and what the kubelet found."""

    status: str
    properties: dict[str, str]
    journal: str
    failed: str
    order: list[str]
    seen_by_kubelet: str

    @property
    def slices_for_kubelet(self) -> int:
        """How many slices there were when the kubelet started."""
        return self.seen_by_kubelet.count("  MIG ")


@dataclass(slots=True)
class BootableMachine:
    """A simulated machine with a system to boot: `system` is its /etc/systemd/system, `settings` its /etc/default/mig."""

    machine: TestMachine
    folder: Path
    units: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The image's files, as `tranche boot install --root` finds them."""
        return self.folder / "image"

    @property
    def system(self) -> Path:
        """The units."""
        return self.root / "etc/systemd/system"

    def prepare(self, partition: str | None, *, timeout: str = "20s") -> None:
        """Install the unit as anybody does, beside stand-ins for the other services of a GPU machine."""
        (self.root / "etc/default").mkdir(parents=True)
        self.system.mkdir(parents=True)
        if partition is not None:
            (self.root / "etc/default/mig").write_text(partition)
        self.machine.tranche(
            "boot", "--timeout", timeout, "install", "--root", str(self.root), "--program", "/opt/tranche/tranche"
        )
        self.drop_in("simulator", f"[Service]\n{_ENVIRONMENT}")
        self.stand_in("nvidia-persistenced")
        self.stand_in("nvidia-fabricmanager", order="After=nvidia-persistenced.service")
        self.stand_in("kubelet", command=LIST_FOR_KUBELET)
        self.stand_in("nodeadm-run")

    def drop_in(self, name: str, text: str) -> None:
        """A drop-in of the machine's owner for the unit."""
        folder = self.system / "tranche-boot.service.d"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.conf").write_text(text)

    def stand_in(self, name: str, *, order: str = "", command: str = "true") -> None:
        """A unit of that name that is started at boot."""
        self.units[name] = _NOTES.format(name=name, order=order, command=command, environment=_ENVIRONMENT)

    def boot(self) -> Booted:
        """Power on; return when the machine has powered itself off. An assertion fails when it does not in time."""
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        for old in out.iterdir():
            old.unlink()
        self._write_units()
        built = ensure_built().directory
        packages = self._packages()
        program = self.folder / "program"
        program.mkdir(exist_ok=True)
        (program / "tranche").write_text(_TRANCHE)
        (program / "tranche").chmod(0o755)
        binds = {
            self.root / "etc/default": "/etc/default",
            program: "/opt/tranche",
            packages: "/opt/packages",
            REPOSITORY / "src": "/opt/src",
            REPOSITORY / "simulator/src": "/opt/simulator-src",
            built: "/opt/simulator",
            **{path: f"/opt/packages/{path.name}" for path in _dependencies()},
        }
        command = ["systemd-nspawn", "--quiet", "--directory", str(debian_root()), "--volatile=overlay", "--boot"]
        command += ["--register=no", "--keep-unit", "--private-network", "--console=pipe"]
        command += [f"--bind-ro={source}:{target}" for source, target in binds.items()]
        written = {out: "/out", self.machine.machine.directory: "/sim", self.system: "/etc/systemd/system"}
        command += [f"--bind={source}:{target}" for source, target in written.items()]
        # Two at once would have one control group, /payload, and each would end services of the other.
        with FileLock(cache_directory() / "debian-roots" / ".boot.lock"):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_LONGEST_SECONDS
            )
        assert (out / "everything").exists(), f"the boot did not end as it should:\n{done.stdout}\n{done.stderr}"
        lines = (out / "properties").read_text().splitlines()
        return Booted(
            status=(out / "status").read_text(),
            properties=dict(line.split("=", 1) for line in lines if "=" in line),
            journal=(out / "journal").read_text(),
            failed=_with_journal((out / "failed").read_text(), (out / "everything").read_text()),
            order=(out / "order").read_text().split(),
            seen_by_kubelet=(out / "kubelet").read_text(),
        )

    def _packages(self) -> Path:
        """An empty place for each package that Tranche needs to be mounted at."""
        places = self.folder / "packages"
        for path in _dependencies():
            place = places / path.name
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                places.mkdir(exist_ok=True)
                place.touch()
        return places

    def _write_units(self) -> None:
        wants = self.system / "multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        everybody = " ".join(f"{name}.service" for name in (*self.units, "tranche-boot"))
        for name, text in {**self.units, "last": _LAST.format(all=everybody)}.items():
            (self.system / f"{name}.service").write_text(text)
            link = wants / f"{name}.service"
            link.unlink(missing_ok=True)
            link.symlink_to(f"../{name}.service")


def _with_journal(failed: str, journal: str) -> str:
    """The units that failed, and what the journal has of them: nobody can look it up after the test."""
    names = [line.split()[0].removesuffix(".service") for line in failed.splitlines()]
    return "\n".join([failed, *(line for line in journal.splitlines() if any(name in line for name in names))]).strip()


def _dependencies() -> list[Path]:
    """What Tranche imports beside itself and Python, for an interpreter that may be of another version."""
    return [Path(click.__file__).parent, Path(yaml.__file__).parent, Path(pynvml.__file__)]
