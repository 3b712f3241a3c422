"""Samples as text, by prometheus_client: OpenMetrics, or the older Prometheus format of node exporter's textfiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tranche.metrics.catalogue import HistogramValue, MetricFamily, MetricSample

_OPENMETRICS = "application/openmetrics-text"


class _Snapshot(Collector):
    """The samples of one scrape, by family, in the families' order."""

    def __init__(self, families: Iterable[MetricFamily], samples: Iterable[MetricSample]) -> None:
        self._samples: dict[MetricFamily, list[MetricSample]] = {family: [] for family in families}
        for sample in samples:
            self._samples[sample.family].append(sample)

    def collect(self) -> Iterator[Metric]:
        """Every family that has samples."""
        for family, samples in self._samples.items():
            if samples:
                yield _metric(family, samples)


def wants_openmetrics(accept: str) -> bool:
    """Whether a scrape with that Accept header gets OpenMetrics; otherwise the older format of Prometheus."""
    return choose_encoder(accept)[1].startswith(_OPENMETRICS)


def exposed(
    families: Iterable[MetricFamily], samples: Iterable[MetricSample], *, in_openmetrics: bool
) -> tuple[bytes, str]:
    """The text, as of a scrape's answer, and its content type. Node exporter's textfile collector reads only the older format."""
    encode, content_type = choose_encoder(_OPENMETRICS if in_openmetrics else "text/plain")
    return encode(_Snapshot(families, samples)), content_type


def _metric(family: MetricFamily, samples: Iterable[MetricSample]) -> Metric:
    metric = Metric(family.name, family.help, family.kind, family.unit)
    for sample in samples:
        labels = dict(sample.labels)
        if isinstance(sample.value, HistogramValue):
            _add_distribution(metric, labels, sample.value)
        else:
            metric.add_sample(family.series[0], labels, sample.value)
    return metric


def _add_distribution(metric: Metric, labels: dict[str, str], value: HistogramValue) -> None:
    so_far = list(accumulate(value.counts.get(bound, 0) for bound in value.bounds))
    for bound, count in zip(value.bounds, so_far, strict=True):
        text = "+Inf" if bound == float("inf") else str(bound)
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": text}, count)
    metric.add_sample(f"{metric.name}_count", labels, so_far[-1])
    metric.add_sample(f"{metric.name}_sum", labels, value.total)
