"""A witness of who has which device: processes and their environment, and what nvidia-smi lists. No part of Tranche is asked."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MARK = "TRANCHE_COMPETITOR"
"""The variable by which a competitor and all that comes of it are known."""

_GPU = re.compile(r"GPU \d+: .* \(UUID: (GPU-\S+)\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-\S+)\)")
_PERIOD_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Holding:
    """A living process of a competitor, with the devices that it was given. `started` is in clock ticks since boot."""

    competitor: str
    pid: int
    started: int
    devices: tuple[str, ...]
    allocation: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What nvidia-smi lists: the GPUs, and for each slice its profile and its GPU."""

    gpus: tuple[str, ...]
    slices: Mapping[str, tuple[str, str]]

    @classmethod
    def parse(cls, listed: str) -> Hardware:
        """The output of `nvidia-smi -L`."""
        gpus: list[str] = []
        slices: dict[str, tuple[str, str]] = {}
        for line in listed.splitlines():
            if found := _GPU.match(line):
                gpus.append(found[1])
            elif found := _SLICE.match(line):
                slices[found[2]] = (found[1], gpus[-1])
        return cls(tuple(gpus), slices)


@dataclass(slots=True)
class Witness:
    """Looks all the time, on a thread of its own; `breaches` are what must never be seen."""

    token: str
    environment: Mapping[str, str]
    breaches: list[str] = field(default_factory=list)
    looks: int = 0
    most_held: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _places: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Witness:
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def mark(self, competitor: str) -> str:
        """The value of the variable for a competitor of this name."""
        return f"{self.token}/{competitor}"

    def holdings(self) -> tuple[Holding, ...]:
        """The processes that have devices now."""
        return tuple(holding for holding in holdings(self.token) if holding.devices)

    def hardware(self) -> Hardware:
        """The GPUs and slices now."""
        done = subprocess.run(
            ["nvidia-smi", "-L"], env=dict(self.environment), capture_output=True, text=True, check=True
        )
        return Hardware.parse(done.stdout)

    def look(self) -> None:
        """One look, which adds to the breaches.

        A holding counts only if its process lives before and after the look at the hardware: then it held it all along.
        """
        before = self.holdings()
        hardware = self.hardware()
        held = [each for each in before if start_of(each.pid) == each.started]
        self._places.update({uuid: gpu for uuid, (_, gpu) in hardware.slices.items()})
        self.breaches += breaches(held, hardware, self._places)
        self.looks += 1
        self.most_held = max(self.most_held, len({uuid for each in held for uuid in each.devices}))

    def _watch(self) -> None:
        while not self._over.wait(_PERIOD_SECONDS):
            try:
                self.look()
            except Exception as error:  # a witness that has gone blind must not pass for one that saw nothing
                self.breaches.append(f"the witness cannot look: {error!r}")
                return


def breaches(held: Iterable[Holding], hardware: Hardware, places: Mapping[str, str]) -> list[str]:
    """What is wrong: devices with two holders, and devices that are gone though they are held.

    `places` has the GPU of every slice that was ever seen.
    """
    holders: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    on_gpu: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in held:
        for uuid in each.devices:
            holders[uuid][each.competitor].append(each.pid)
            if uuid in places:
                on_gpu[places[uuid]][each.competitor].append(each.pid)
    found = []
    for uuid, who in holders.items():
        if len(who) > 1:
            found.append(f"{uuid} has {len(who)} holders: {_named(who)}")
        if uuid.startswith("MIG-") and uuid not in hardware.slices:
            found.append(f"{uuid} is gone, though {_named(who)} holds it")
        if uuid.startswith("GPU-") and (others := {k: v for k, v in on_gpu[uuid].items() if k not in who}):
            found.append(f"{uuid} is held by {_named(who)}, and slices of it by {_named(others)}")
        if uuid in {gpu for _, gpu in hardware.slices.values()}:
            found.append(f"{uuid} was cut, though {_named(who)} holds it")
    return [f"{time.strftime('%H:%M:%S')} {each}" for each in found]


def holdings(token: str) -> list[Holding]:
    """The living processes of competitors; `devices` is empty where a process has none."""
    wanted = f"{MARK}={token}/".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            content = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if wanted not in content or not (started := start_of(int(name))):
            continue
        values = dict(each.partition("=")[::2] for each in content.decode(errors="replace").split("\0"))
        listed = [value for name, value in values.items() if name.startswith("TRANCHE_DEVICE_")]
        listed = listed or values.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
        devices = tuple(each for each in listed if each.startswith(("GPU-", "MIG-")))
        competitor = values[MARK].partition("/")[2]
        found.append(Holding(competitor, int(name), started, devices, values.get("TRANCHE_ALLOCATION", "")))
    return found


def start_of(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when it has ended, also while nobody has reaped it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _named(who: Mapping[str, Sequence[int]]) -> str:
    return " and ".join(f"{name} (pids {', '.join(map(str, sorted(pids)))})" for name, pids in sorted(who.items()))
