"""Which pods have processes on this machine, by the cgroups of all processes.

A kubelet puts the containers of a pod below a cgroup that is named for the pod's uid: `pod<uid>`, with underscores for dashes
where systemd makes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from tranche.node.processes import PROC

_POD = re.compile(r"[/-]pod([0-9a-zA-Z_-]+?)(?:\.slice)?(?:/|$)", re.MULTILINE)


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Those of the uids of which a process lives, a zombie aside: the kernel has taken its files and its driver from it.

    A process that cannot be looked at belongs to none of them.
    """
    wanted = {uid.replace("-", "_"): uid for uid in uids}
    found: set[str] = set()
    for entry in os.scandir(proc):
        if not entry.name.isdecimal():
            continue
        try:
            cgroups = Path(entry.path, "cgroup").read_text()
            named = {uid for name in _POD.findall(cgroups) if (uid := wanted.get(name.replace("-", "_")))}
            if named - found and Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found |= named
        except OSError:
            continue
    return frozenset(found)
