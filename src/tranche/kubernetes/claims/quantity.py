"""Kubernetes' quantities, as whole numbers: `4Gi`, `128974848`, `1e3`, `100m`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache

from tranche.core.errors import UsageError
from tranche.kubernetes.claims.vocabulary import is_gpu_resource

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:(?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<power>[+-]?\d{1,2}))?",
    re.ASCII,
)
_UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def parse_quantity(text: str) -> int:
    """The quantity, rounded up to a whole number as the API server rounds; UsageError for anything else."""
    return _rounded_up(_amount(text))


def read_quantity(text: object) -> int | None:
    """As `parse_quantity`, for values that the API server has accepted; None for anything but a quantity."""
    return None if text is None else _read(str(text))


@lru_cache(maxsize=4096)  # thousands of devices have a dozen amounts
def _read(text: str) -> int | None:
    try:
        return parse_quantity(text)
    except UsageError:
        return None


def parse_whole(text: str) -> int:
    """The quantity, which must be a whole number; UsageError otherwise."""
    amount = _amount(text)
    if amount.denominator != 1:
        raise UsageError(f"'{text}' is not a whole number")
    return amount.numerator


def resource_amounts(quantities: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    """The amounts by resource: processors in thousandths, everything else as whole numbers."""
    for name, text in quantities.items():
        try:
            yield str(name), _rounded_up(_amount(str(text)) * (1000 if name == "cpu" else 1))
        except UsageError:
            continue  # the API server accepts none


def gpu_counts(quantities: Mapping[str, object]) -> dict[str, int]:
    """The count of each GPU resource."""
    return {name: count for name, count in resource_amounts(quantities) if is_gpu_resource(name)}


def _amount(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is not a quantity", hint="write it as 4Gi, 500M or a plain number")
    factor = _UNITS[match["unit"]] if match["unit"] else Fraction(10) ** int(match["power"] or 0)
    return Fraction(match["number"]) * factor


def _rounded_up(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)


def format_bytes(amount: int) -> str:
    """An amount of memory as the API server writes it: in the largest binary unit that leaves a whole number."""
    for power, unit in reversed(tuple(enumerate("KMGTPE", start=1))):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{unit}i"
    return str(amount)
