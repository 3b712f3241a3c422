"""Amounts of GPU memory, shares of a GPU and spans of time: the product's only parser and printer.

Memory is accepted as `4G` and `4GB` (decimal), `4Gi` and `4GiB` (binary), `4000M`, `512Mi` or `1.5Gi`, never without a unit.
Internally it is always an int of bytes. A share is `0.5` or `50%`. A span of time is `90` (seconds), `30s`, `10m`, `1h30m` or
`1.5h`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tranche.core.errors import UsageError

if TYPE_CHECKING:
    from fractions import Fraction

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_UNITS = {
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": KIB,
    "Mi": MIB,
    "Gi": GIB,
    "Ti": 1024**4,
}
# Digits are bounded because int() itself refuses thousands of them, with its own message.
_MEMORY = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?)\s*(?P<unit>[KMGT]i?)?(?P<byte>B)?", re.ASCII)
_FRACTION = re.compile(
    r"(?P<number>\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})|(?P<percent>\d{1,16}(?:\.\d{1,16})?)\s*%", re.ASCII
)
_FEWEST_MIB = 512
"""A number without a unit probably means MiB from here on, GB below."""
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}
_PLAIN_SECONDS = re.compile(r"\d{1,18}(?:\.\d{0,18})?|\.\d{1,18}", re.ASCII)
_SPANS = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?)(?P<unit>ms|[dhms])", re.ASCII)
_LONGEST_SECONDS = 366 * 86_400


def parse_memory(text: str) -> int:
    """Parse a memory quantity to bytes, rounded up; raises UsageError if it is malformed, has no unit, or is zero."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None or (match["byte"] and not match["unit"]):
        raise UsageError(
            f"'{text}' is not an amount of memory",
            hint="write it as 4G, 4Gi or 4000M",
        )
    whole, _, decimals = match["number"].partition(".")
    number, unit = int(whole + decimals), match["unit"]
    if number == 0:
        raise UsageError("an amount of memory must be more than 0", hint="for example --gpu-memory 4Gi")
    if unit is None:
        meant = "G" if int(whole or 0) < _FEWEST_MIB else "Mi"
        raise UsageError(f"the amount of memory '{text}' has no unit", hint=f"write it as {match['number']}{meant}")
    divisor: int = 10 ** len(decimals)
    return -(-number * _UNITS[unit] // divisor)


def parse_fraction(text: str) -> Fraction:
    """Parse an exact share of one GPU, 0 < share <= 1; raises UsageError."""
    from fractions import Fraction  # a slow import, and most commands meet no fraction

    match = _FRACTION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not a share of a GPU", hint="write it as a decimal such as 0.5, or as 50%")
    share = Fraction(match["number"]) if match["number"] else Fraction(match["percent"]) / 100
    if share == 0:
        raise UsageError("a share of a GPU must be more than 0", hint="for example --gpu 0.5")
    if share > 1:
        raise UsageError(
            f"--gpu {text.strip()} asks for more than one GPU; a share is at most 1",
            hint="ask for whole GPUs with --gpus N",
        )
    return share


def parse_duration(text: str) -> float:
    """Parse a span of time to seconds, 0 included; raises UsageError if it is malformed or longer than a year."""
    words = text.strip()
    spans = list(_SPANS.finditer(words))
    units = [each["unit"] for each in spans]
    if _PLAIN_SECONDS.fullmatch(words):
        seconds = float(words)
    elif spans and "".join(each[0] for each in spans) == words and units == [u for u in _SECONDS if u in units]:
        seconds = sum(float(each["number"]) * _SECONDS[each["unit"]] for each in spans)
    else:
        raise UsageError(f"'{text}' is not a duration", hint="write it as 30s, 10m, 1h30m, or a number of seconds")
    if seconds > _LONGEST_SECONDS:
        raise UsageError(f"'{text}' is longer than a year", hint="write it as 30s, 10m, 1h30m, or a number of seconds")
    return seconds


def format_duration(seconds: int) -> str:
    """Seconds as a short text that parse_duration reads back: `45s`, `10m`, `1h30m`."""
    words = ""
    for unit in "dhms":
        count, seconds = divmod(seconds, int(_SECONDS[unit]))
        words += f"{count}{unit}" if count else ""
    return words or "0s"


def format_memory(amount: int) -> str:
    """Bytes as GiB with at most two decimals, or MiB below one GiB: `19.62 GiB`, `40 GiB`, `512 MiB`."""
    if amount >= GIB:
        return f"{_trim(amount / GIB)} GiB"
    return f"{_trim(amount / MIB)} MiB"


def memory_option(amount: int) -> str:
    """Bytes as a short text that parse_memory reads back exactly: `4Gi`, `4G`, `4864Mi`, and `14.4Gi`."""
    for unit in ("Ti", "T", "Gi", "G", "Mi", "M", "Ki", "K"):
        if amount % _UNITS[unit] == 0:
            return f"{amount // _UNITS[unit]}{unit}"
    for unit in ("Ti", "T", "Gi", "G", "Mi", "M"):
        for digits in (1, 2, 3):
            number = amount * 10**digits // _UNITS[unit]
            if -(-number * _UNITS[unit] // 10**digits) == amount:
                whole, part = divmod(number, 10**digits)
                return f"{whole}.{part:0{digits}}{unit}"
    return f"{amount // 1000}.{amount % 1000:03}K"


def format_fraction(share: Fraction) -> str:
    """A share as an exact decimal: `0.5`, `0.125`; rounded to three digits if it does not terminate: `0.333`."""
    for digits in range(19):
        scaled = share * 10**digits
        if scaled.denominator == 1:
            return f"{int(share)}.{scaled.numerator % 10**digits:0{digits}}" if digits else str(scaled.numerator)
    return _trim(float(share), digits=3)


def _trim(value: float, digits: int = 2) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".")
