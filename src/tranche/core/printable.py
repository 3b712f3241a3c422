"""Other people's text, made fit to be shown: names, commands and requests are written by whoever made them."""

from __future__ import annotations

LONGEST_MESSAGE = 1024
"""As many characters as Kubernetes takes in the message of an event."""


def one_line(text: str) -> str:
    """The text on one line and without what a terminal would act on, a space in the place of each such character."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def shortened(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text without its middle where it has more than `most` characters: what is said of a foreign text stands at its ends."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"
