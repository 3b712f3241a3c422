"""What is inside an image, as a CycloneDX document: its Python distributions and its Debian packages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from email.parser import Parser
from typing import Any
from urllib.parse import quote

from release.oci_archive import OciArchive

_DISTRIBUTION, _PACKAGES, _SYSTEM = ".dist-info/METADATA", "var/lib/dpkg/status", "usr/lib/os-release"


def bill_of_materials(archive: OciArchive, name: str, version: str) -> str:
    """The document, as CycloneDX 1.6 JSON. The same image gives the same text.

    It is read from the image's own files: every `METADATA` of a Python distribution, and the list of Debian packages.
    """
    files = archive.files((_DISTRIBUTION, _PACKAGES, _SYSTEM))
    components = [_distribution(text) for path, text in files.items() if path.endswith(_DISTRIBUTION)]
    system = _system(files.get(_SYSTEM, b"").decode())
    components += _debian_packages(files.get(_PACKAGES, b"").decode(), system)
    subject = f"pkg:oci/{name}@{quote(archive.digest(), safe='')}?tag={version}"
    return (
        json.dumps(
            {
                "bomFormat": "CycloneDX",
                "specVersion": "1.6",
                "version": 1,
                "metadata": {
                    "component": {
                        "type": "container",
                        "bom-ref": subject,
                        "name": name,
                        "version": version,
                        "purl": subject,
                        "hashes": [{"alg": "SHA-256", "content": archive.digest().removeprefix("sha256:")}],
                    }
                },
                "components": sorted(components, key=lambda each: str(each["bom-ref"])),
                "dependencies": [{"ref": subject, "dependsOn": sorted({str(each["bom-ref"]) for each in components})}],
            },
            indent=1,
        )
        + "\n"
    )


def _distribution(metadata: bytes) -> dict[str, Any]:
    fields = Parser().parsestr(metadata.decode(), headersonly=True)
    name = str(fields["Name"]).lower().replace("_", "-").replace(".", "-")
    component = _component(str(fields["Name"]), str(fields["Version"]), f"pkg:pypi/{name}@{fields['Version']}")
    if expression := fields["License-Expression"]:
        component["licenses"] = [{"expression": str(expression)}]
    return component


def _debian_packages(status: str, system: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    distro = f"{system.get('ID', 'debian')}-{system.get('VERSION_ID', 'unknown')}"
    for paragraph in filter(None, status.split("\n\n")):
        fields = Parser().parsestr(paragraph.strip(), headersonly=True)
        if str(fields["Status"]).endswith(" installed"):
            version = quote(str(fields["Version"]), safe=".+~-")
            yield _component(
                str(fields["Package"]),
                str(fields["Version"]),
                f"pkg:deb/debian/{fields['Package']}@{version}?arch={fields['Architecture']}&distro={distro}",
            )


def _component(name: str, version: str, url: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _system(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value.strip('"') for key, _, value in pairs}
