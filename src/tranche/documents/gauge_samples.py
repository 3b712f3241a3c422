"""The gauges of GPUs at one moment, and the means of many such moments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from tranche.documents.blocks import Document

KEPT_GAUGES = ("memoryUsedBytes", "busy", "powerWatts", "temperatureCelsius")


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """Readings of KEPT_GAUGES by GPU UUID, measured at `taken`, in seconds since the epoch."""

    taken: float
    gpus: Mapping[str, Document]


def sample_of(taken: float, readings: Iterable[Document]) -> GaugeSample:
    """The readings of GPUs, as `reading_document` writes them, without their slices."""
    return GaugeSample(taken, {each["gpuUUID"]: {name: each[name] for name in KEPT_GAUGES} for each in readings})


def mean_of(samples: Iterable[GaugeSample], taken: float) -> GaugeSample:
    """The mean of each gauge of each GPU, over the moments that measured it."""
    found: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for uuid, said in sample.gpus.items():
            of_gpu = found.setdefault(uuid, {name: [] for name in KEPT_GAUGES})
            for name, values in of_gpu.items():
                if said[name] is not None:
                    values.append(said[name])
    return GaugeSample(
        taken,
        {
            uuid: {name: round(fmean(values), 3) if values else None for name, values in of_gpu.items()}
            for uuid, of_gpu in found.items()
        },
    )
