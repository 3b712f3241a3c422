"""The images that every node has: the pods' sandbox, and busybox for whatever a pod is to run."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.errors import ClusterError
from cluster.oci_image import Image
from tranche_simulator.build import cache_directory
from tranche_simulator.compiling import run_compiler
from tranche_simulator.errors import SimulatorError

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
_PAUSE_SOURCE = Path(__file__).parent / "pause.c"


def write_images(folder: Path) -> list[Path]:
    """Write the archives of all images; where they are.

    Raises:
        ClusterError: no C compiler, or no statically linked busybox.
    """
    archives = []
    for name, image in {"pause": _pause(), "busybox": busybox(BUSYBOX)}.items():
        archive = folder / f"{name}.tar"
        archive.write_bytes(image.archive())
        archives.append(archive)
    return archives


def _pause() -> Image:
    return Image(PAUSE, files={"/pause": _compiled_pause()}, entrypoint=["/pause"])


def _compiled_pause() -> bytes:
    source = _PAUSE_SOURCE.read_bytes()
    program = cache_directory() / "cluster" / f"pause-{hashlib.sha256(source).hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            built = Path(folder) / "pause"
            try:
                run_compiler(["-Os", "-static", "-s", "-o", str(built), str(_PAUSE_SOURCE)], "the pods' sandbox")
            except SimulatorError as error:
                raise ClusterError(error.message, hint=error.hint) from error
            built.replace(program)
    return program.read_bytes()


def busybox(name: str, note: str = "") -> Image:
    """An image of busybox under this name. With a note in it, it is another image than the one that every node has.

    A kubelet that has pulled an image wants to see for each other name of it that one may have it.
    """
    program = shutil.which("busybox")
    if program is None:
        raise ClusterError("there is no busybox to make an image of", hint="install busybox-static")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return Image(
        name,
        files={"/bin/busybox": Path(program).read_bytes()},
        texts={"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/group": "root:x:0:\n", "/etc/issue": note},
        links={f"/bin/{applet}": "busybox" for applet in applets if applet != "busybox"},
        folders=["/tmp", "/root", "/proc", "/sys", "/dev", "/var/run"],
        command=["/bin/sh"],
    )
