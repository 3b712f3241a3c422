"""The program that builds the image: docker, podman or buildah, whichever works here. They differ in their words only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.debian_packages import install_packages
from release.errors import ImageBroken, ReleaseError
from release.progress import Say, run_with_progress

_CERTIFICATES = Path("/etc/ssl/certs")
# Each build leaves about eight steps with 20 MB for the next.
_STEPS_MAX = 150


@dataclass(frozen=True, slots=True)
class Builder:
    """One of them. `start` is the beginning of its command lines: the program, and where it keeps its images."""

    name: str
    start: tuple[str, ...]

    def has(self, image: str) -> bool:
        """Whether an image of this name is there already."""
        inspect = ("inspect", "--type=image") if self.name == "buildah" else ("image", "inspect")
        return subprocess.run([*self.start, *inspect, image], capture_output=True, check=False).returncode == 0

    def pull(self, image: str, say: Say) -> str:
        """Fetch an image from its registry; what stands in the way, empty when it is there."""
        done = run_with_progress([*self.start, "pull", image], f"fetching {image}", say)
        return "" if done.returncode == 0 else (done.stdout.strip().splitlines() or ["it failed"])[-1]

    def take(self, root: Path, names: Sequence[str], environment: Mapping[str, str], command: str) -> None:
        """Make an image of one layer out of a tar archive of a root file system."""
        if self.name != "buildah":
            words = [f"--change=ENV {name}={value}" for name, value in environment.items()]
            self._do("import", *words, f"--change=CMD {command}", str(root), names[0])
        else:
            container = self._do("from", "scratch")
            self._do("add", "--quiet", container, str(root), "/")
            words = [f"--env={name}={value}" for name, value in environment.items()]
            self._do("config", *words, f"--cmd={command}", container)
            self._do("commit", "--quiet", "--rm", container, names[0])
        for name in names[1:]:
            self._do("tag", names[0], name)

    def build(self, folder: Path, image: str, arguments: Mapping[str, str], say: Say) -> None:
        """Build the Dockerfile of a folder. Layers that did not change come from the last build.

        Raises:
            ImageBroken: a step fails; the message ends as its output does.
        """
        words = ["build", f"--tag={image}", *(f"--build-arg={name}={value}" for name, value in arguments.items())]
        if self.name != "docker":
            # Nothing is fetched in the middle of it. This isolation works inside a container, too. Without a time in it, the same
            # files give the same image.
            words += ["--pull-never" if self.name == "buildah" else "--pull=never", "--layers"]
            words += ["--isolation=chroot", "--timestamp=0"]
            if (_CERTIFICATES / "ca-certificates.crt").is_file():
                # pip trusts whom this machine trusts.
                words.append(f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro")
        done = run_with_progress([*self.start, *words, str(folder)], "building the image", say, summary=_last_step)
        if done.returncode != 0:
            raise ImageBroken(f"{self.name} build failed:\n{done.stdout.strip()[-2000:]}")

    def save(self, image: str, archive: Path) -> None:
        """Write an image as an OCI archive. docker and podman keep it; what buildah keeps is ours, and only sped up the build."""
        if self.name == "buildah":
            self._do("push", "--quiet", image, f"oci-archive:{archive}")
            self._do("rmi", image)
            if len(self._do("images", "--all", "--quiet").splitlines()) > _STEPS_MAX:
                self._do("rmi", "--prune", "--force")
        else:
            form = ["--format=oci-archive"] if self.name == "podman" else []
            self._do("save", *form, f"--output={archive}", image)

    def _do(self, *words: str) -> str:
        done = subprocess.run([*self.start, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ReleaseError(f"{self.name} {words[0]} failed: {done.stderr.strip()[-1000:]}")
        return done.stdout.strip()


def find_builder(storage: Path, say: Say) -> Builder:
    """A builder that works; buildah is installed on Debian where there is none, and keeps its images in `storage`.

    Raises:
        ReleaseError: there is none, and none can be installed.
    """
    for name, probe in (("docker", ("version",)), ("podman", ("info",))):
        program = shutil.which(name)
        if program and subprocess.run([program, *probe], capture_output=True, check=False).returncode == 0:
            return Builder(name, (program,))
    if shutil.which("buildah") is None:
        install_packages(["buildah"], "making an image", say)
    buildah = shutil.which("buildah")
    if buildah is None:
        raise ReleaseError("buildah was installed, but is not on PATH")
    storage.mkdir(parents=True, exist_ok=True)
    return Builder("buildah", (buildah, f"--root={storage}", f"--runroot={_run_folder(storage)}"))


def _run_folder(storage: Path) -> str:
    """Where buildah keeps what does not outlive a boot."""
    base = Path("/run") if os.geteuid() == 0 else Path(os.environ.get("XDG_RUNTIME_DIR") or storage)
    return str(base / "tranche-image")


def _last_step(lines: Sequence[str]) -> str:
    return next((line.strip()[:100] for line in reversed(lines) if "STEP" in line or line.startswith("#")), "")
