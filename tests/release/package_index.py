"""A package index on the loopback interface that notes what it is asked for, and has empty packages under real names."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import HeaderParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path


def empty_dependencies(wheel: Path, folder: Path) -> list[Path]:
    """Wheels without a module, under the names of what the wheel needs, in the versions that are installed here."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        needed = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    names = [re.split(r"[<>=!~ ;\[]", each)[0] for each in needed if "extra ==" not in each]
    assert names
    return [_empty_wheel(folder, name, version(name)) for name in names]


def _empty_wheel(folder: Path, name: str, of_version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{of_version}"
    files = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {of_version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    sums = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in files.items()
    }
    record = "".join(f"{path},sha256={sums[path]},{len(text)}\n" for path, text in files.items())
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n"
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """`asked` are the names in the order of the requests."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def package_index(wheels: Sequence[Path]) -> Iterator[PackageIndex]:
    """An index of these wheels; any other name is not found."""
    files = {each.name: each.read_bytes() for each in wheels}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            folder, _, name = self.path.strip("/").partition("/")
            if folder == "simple":
                asked.append(name)
                links = [each for each in files if each.startswith(f"{name.replace('-', '_')}-")]
                page = "".join(f'<a href="/files/{each}">{each}</a>\n' for each in links)
                self._answer(
                    f"<!DOCTYPE html><html><body>{page}</body></html>".encode() if links else None, "text/html"
                )
            else:
                self._answer(files.get(name), "application/octet-stream")

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, content: bytes | None, kind: str) -> None:
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield PackageIndex(f"http://127.0.0.1:{server.server_address[1]}/simple/", asked)
        finally:
            server.shutdown()
            thread.join()
