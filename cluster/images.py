"""The images that every node has: the pods' sandbox, and busybox for whatever a pod is to run."""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.oci_archive import add_file, one_layer, write_archive

from cluster.errors import ClusterError
from tranche_simulator.build import cache_directory
from tranche_simulator.compiling import run_compiler
from tranche_simulator.errors import SimulatorError

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
_PAUSE_SOURCE = Path(__file__).parent / "pause.c"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_image(
    target: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    links: Mapping[str, str] | None = None,
    folders: Sequence[str] = (),
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
) -> None:
    """Write an image of one layer as an archive, which containerd imports without a registry.

    `files` maps a path in the image to its content, `links` to what a symbolic link names. Name a folder before what is in it.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in folders:
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
            tar.addfile(folder)
        for path, content in files.items():
            add_file(tar, path, content, 0o755)
        for path, destination in (links or {}).items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, destination, 0o777
            tar.addfile(link)
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    runs = {"Env": [_PATH], "Entrypoint": list(entrypoint), "Cmd": list(command), "WorkingDir": "/"}
    write_archive(target, name, *one_layer(layer.getvalue(), architecture, runs))


def write_images(folder: Path) -> None:
    """Write the archives of all images.

    Raises:
        ClusterError: no C compiler, or no statically linked busybox.
    """
    write_image(folder / "pause.tar", PAUSE, {"pause": _compiled_pause()}, entrypoint=["/pause"])
    write_busybox(folder / "busybox.tar", BUSYBOX)


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


def write_busybox(target: Path, name: str, note: str = "") -> None:
    """Write an image of busybox under this name. With a note in it, it is another image than the one that every node has.

    A kubelet that has pulled an image wants to see for each other name of it that one may have it.
    """
    program = shutil.which("busybox")
    if program is None:
        raise ClusterError("there is no busybox to make an image of", hint="install busybox-static")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files = {
        "bin/busybox": Path(program).read_bytes(),
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
        "etc/group": b"root:x:0:\n",
        "etc/issue": note.encode(),
    }
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    folders = ("bin", "etc", "tmp", "root", "proc", "sys", "dev", "var", "var/run")
    write_image(target, name, files, links=links, folders=folders, command=["/bin/sh"])
