"""The agent's log: one JSON object per line for machines, or plain lines for a terminal."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from io import TextIOBase
from typing import TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger and a constant message; each `extra` field appears beside them under its own name."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_details(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class PlainFormatter(logging.Formatter):
    """The same for a terminal: `12:00:00 warning cannot watch object='node n1'`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the traceback, if any."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        details = "".join(f" {key}={value!r}" for key, value in _details(record).items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()}{details}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(stream: TextIO | TextIOBase, *, as_json: bool, verbose: bool) -> None:
    """Send every log record of the process to the stream; libraries log warnings and errors only."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tranche").setLevel(logging.DEBUG if verbose else logging.INFO)


def _details(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}
