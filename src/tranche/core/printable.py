"""Other people's text, made fit to be shown: names, commands and requests are written by whoever made them."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text on one line and without what a terminal would act on, a space in the place of each such character."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
