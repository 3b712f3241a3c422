"""The agent's log without quoted text: keeps only the fields of each JSON line known to be Tranche's own words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tranche.core.redaction import LOG_LINE, reduced

# The kubelet writes each line of a container as: time, stream, whether it is complete, and the line.
_KUBELET = re.compile(r"^\S+ (?:stdout|stderr) [FP] ")


def log_extract(lines: Iterable[str]) -> str:
    """The reduced lines, and at the end a count of those dropped, such as the lines of a traceback."""
    found, dropped = [], 0
    for line in lines:
        try:
            record = json.loads(_KUBELET.sub("", line, count=1))
        except ValueError:
            record = None
        if isinstance(record, dict) and "message" in record and str(record.get("logger")).startswith("tranche"):
            found.append(json.dumps(reduced(record, LOG_LINE)))
        elif line.strip():
            dropped += 1
    if dropped:
        found.append(json.dumps({"message": "lines left out", "count": dropped}))
    return "".join(f"{each}\n" for each in found)
