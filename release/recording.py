"""The picture of a terminal in the README: a session of the product on a simulated machine, as it was printed."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.errors import ReleaseError
from release.image_sources import ROOT

RECORDING = ROOT / "docs" / "recording.svg"
_FIRST, _SECOND = (
    "tranche run --gpu-memory 16Gi --isolation hard -- python train.py",
    "tranche run --gpu-memory 30Gi -- python eval.py",
)
_PROGRAMS = {
    "train.py": "import os, time\nwhile not os.path.exists('trained'): time.sleep(0.01)\nprint('train.py: done')\n",
    "eval.py": "print('eval.py: done')\n",
}
_PATIENCE = 60.0
_COLUMNS, _SIZE, _LINE, _EDGE = 124, 13, 19, 18
_STYLE = """\
.box { fill: #f6f8fa; stroke: #d0d7de }
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328 }
.typed { font-weight: 600 } .said { fill: #59636e } .waits { fill: #8a4600 }
@media (prefers-color-scheme: dark) {
  .box { fill: #0d1117; stroke: #3d444d } text { fill: #e6edf3 } .said { fill: #9198a1 } .waits { fill: #e3b341 }
}"""


def record_session() -> list[str]:
    """Run two requests for one GPU with 40 GiB, of which the second waits for the first. The lines of the terminal.

    Raises:
        ReleaseError: the product does not make the second request wait, or does not start it.
    """
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name:
        folder = Path(name)
        for program, text in _PROGRAMS.items():
            (folder / program).write_text(text)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TRANCHE_SIM_ROOT": str(folder / "machines"),
            "TRANCHE_SIMULATE": "server",
            "TRANCHE_SIM_TIME_SCALE": "0",
        }
        create = ["tranche", "sim", "create", "server", "--gpu", "A100-40GB", "--time-scale", "0"]
        subprocess.run(create, env=environment, check=True, capture_output=True)
        first = _start(_FIRST, folder, environment, "first")
        running = [first]
        try:
            _wait_for(folder / "first", "tranche: allocation ")
            second = _start(_SECOND, folder, environment, "second")
            running.append(second)
            _wait_for(folder / "second", "tranche: waiting")
            (folder / "trained").touch()
            for process in (first, second):
                if process.wait(_PATIENCE) != 0:
                    raise ReleaseError(f"{process.args!r} ended with exit code {process.returncode}")
        finally:
            for process in running:
                process.kill()
                process.wait()
        (granted, ended), after = _parted(folder / "first"), (folder / "second").read_text().splitlines()
        waits = 1 + max(number for number, line in enumerate(after) if line.startswith("tranche: waiting"))
        return [f"$ {_FIRST} &", *granted, f"$ {_SECOND}", *after[:waits], *ended, *after[waits:]]


def write_recording(path: Path = RECORDING) -> None:
    """Draw a session. Errors as for `record_session`."""
    path.write_text(draw(record_session()))


def draw(lines: Sequence[str]) -> str:
    """The lines as an SVG that suits light and dark pages and loads nothing."""
    shown = [(_kind(line), part) for line in lines for part in _wrapped(line)]
    width, height = round(_COLUMNS * 0.603 * _SIZE) + 2 * _EDGE, len(shown) * _LINE + 2 * _EDGE
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    texts = (
        f'<text class="{kind}" x="{_EDGE}" y="{_EDGE + _SIZE + number * _LINE}" xml:space="preserve">'
        f"{html.escape(part, quote=False)}</text>"
        for number, (kind, part) in enumerate(shown)
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            "<title>A terminal: a request gets a slice, a second one waits for it, then starts</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="box" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
            *texts,
            "</svg>\n",
        )
    )


def text_of(picture: str) -> str:
    """What the terminal of a picture shows, without its line breaks."""
    return "".join(html.unescape(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", picture))


def _start(command: str, folder: Path, environment: Mapping[str, str], output: str) -> subprocess.Popen[bytes]:
    with (folder / output).open("w") as file:
        return subprocess.Popen(command.split(), cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)


def _wait_for(file: Path, beginning: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not re.search(rf"^{beginning}.*\n", file.read_text(), re.MULTILINE):
        if time.monotonic() > end:
            raise ReleaseError(f"no line begins with {beginning!r}: {file.read_text()}")
        time.sleep(0.01)


def _parted(file: Path) -> tuple[list[str], list[str]]:
    """The lines until the share is given, and those after."""
    lines = file.read_text().splitlines()
    given = 1 + next(number for number, line in enumerate(lines) if line.startswith("tranche: allocation "))
    return lines[:given], lines[given:]


def _kind(line: str) -> str:
    if line.startswith("$ "):
        return "typed"
    return "waits" if line.startswith("tranche: waiting") else "said" if line.startswith("tranche: ") else "printed"


def _wrapped(line: str) -> list[str]:
    """The line as a terminal breaks it."""
    return [line[start : start + _COLUMNS] for start in range(0, len(line), _COLUMNS)] or [""]
