"""Under which names metrics are given out: ours, DCGM's, or both."""

from __future__ import annotations

from enum import StrEnum

from tranche.metrics import catalogue, dcgm
from tranche.metrics.facts import NodeFacts
from tranche.metrics.family import MetricFamily, MetricSample
from tranche.metrics.samples import node_samples


class MetricNameSet(StrEnum):
    """DCGM: only what dcgm-exporter has a name for."""

    TRANCHE = "tranche"
    DCGM = "dcgm"
    BOTH = "both"


def named_samples(
    facts: NodeFacts, names: MetricNameSet, hostname: str
) -> tuple[tuple[MetricFamily, ...], tuple[MetricSample, ...]]:
    """The families in their order, and every sample; `hostname` is a label of DCGM's."""
    families: tuple[MetricFamily, ...] = ()
    samples: tuple[MetricSample, ...] = ()
    if names is not MetricNameSet.DCGM:
        families, samples = catalogue.FAMILIES, node_samples(facts)
    if names is not MetricNameSet.TRANCHE:
        families, samples = (*families, *dcgm.FAMILIES), (*samples, *dcgm.dcgm_samples(facts, hostname))
    return families, samples
