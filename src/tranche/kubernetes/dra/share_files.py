"""The CDI files of claims, one each: there before the kubelet is told of the devices, and gone after the share is free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tranche.core.errors import CdiUnavailable
from tranche.core.keeper import ClaimKeeper
from tranche.hardware.cdi import CdiSpec, spec_file_name, write_spec
from tranche.kubernetes.claims.vocabulary import CDI_KIND
from tranche.node.processes.pod_processes import claim_mark

_FIRST, _LAST = spec_file_name(CDI_KIND, "|").split("|")


class ShareFiles:
    """The files in one CDI folder, by the claims' uids. Everything blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, spec: CdiSpec) -> None:
        """Put a claim's specification there; CdiUnavailable when that fails.

        Nobody waits for the disk: a power loss takes instances and containers too, and the kubelet has each claim prepared anew.
        """
        try:
            write_spec(spec, self._folder, outlasts_power=False)
        except OSError as error:
            raise CdiUnavailable(
                f"cannot write the CDI specification to {self._folder}: {error.strerror or error}",
                hint="see whether the folder may be written",
            ) from error

    def remove(self, uid: str) -> None:
        """Take a claim's specification away, if there is one; CdiUnavailable when that fails."""
        path = self._folder / spec_file_name(CDI_KIND, uid)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CdiUnavailable(f"cannot remove {path}: {error.strerror or error}") from error

    def keepers(self) -> Mapping[str, ClaimKeeper]:
        """The claims that have a file, by uid. Namespace and name are empty where the file does not say them."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return {}
        uids = [name[len(_FIRST) : -len(_LAST)] for name in names if name.startswith(_FIRST) and name.endswith(_LAST)]
        return {uid: self._keeper(uid) for uid in uids}

    def _keeper(self, uid: str) -> ClaimKeeper:
        mark = f"{claim_mark(uid)}="
        try:
            data = json.loads((self._folder / spec_file_name(CDI_KIND, uid)).read_text())
            words = [word for device in data["devices"] for word in device["containerEdits"]["env"]]
        except (OSError, ValueError, KeyError, TypeError):
            words = []
        named = next((word[len(mark) :] for word in words if str(word).startswith(mark)), "")
        namespace, _, name = named.partition("/")
        return ClaimKeeper(namespace, name, uid)
