"""Makes text from outside, such as names, commands and requests, safe to show."""

from __future__ import annotations

LONGEST_MESSAGE = 1024
"""Kubernetes' limit for the message of an event."""


def one_line(text: str) -> str:
    """The text on one line, with a space for each character that a terminal would act on."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def shortened(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text with its middle cut out if it is longer than `most`: the ends of a foreign text carry its meaning."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"
