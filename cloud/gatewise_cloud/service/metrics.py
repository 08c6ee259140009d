"""Prometheus metrics of a worker.

Every name begins with ``gatewise_worker_``. Prometheus stores a time series for each combination of
label values, so their number is limited. Devices have no labels, and only the first hundred models
and versions have their own labels.

The tables of this module refer to the counts of :class:`gatewise_cloud.worker.worker.Worker`. A new
count with labels needs their names in this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from gatewise_cloud.worker.counters import (
    COUNTS,
    HISTOGRAMS,
    LABELLED_COUNTS,
    MAX_LABELS,
    OTHER_LABEL,
)
from gatewise_edge.errors import WireReason
from gatewise_edge.link.wire import BAD_REQUEST, BUSY, FAILED, NO_MODEL
from gatewise_edge.service.edge_metrics import counter, gauge
from gatewise_edge.service.status_server import StatusServer

if TYPE_CHECKING:
    from gatewise_cloud.worker.worker import Worker

_PREFIX = "gatewise_worker_"
#: Label names of each count in LABELLED_COUNTS.
_LABEL_NAMES = {
    "errors": ("code",),
    "dead": ("reason",),
    "model_instances": ("model", "version"),
    "labels": ("outcome",),
    "watched": ("outcome",),
}
#: Labels that have a sample from the start, by count. Prometheus computes no increase for a series
#: that begins with its first count, so that an alert would miss it.
_FIRST_LABELS: dict[str, tuple[str, ...]] = {
    "errors": (BUSY, NO_MODEL, BAD_REQUEST, FAILED),
    "dead": (*get_args(WireReason), "retained"),
}
#: Key in the worker's counters, and help text, of each gauge by its name.
_STATE_GAUGES = {
    "queue_depth": ("queued", "requests queued"),
    "connected": ("connected", "whether the worker is connected to the broker"),
    "connections": ("connects", "connections to the broker so far"),
    "serving": ("serving", "whether the worker is connected and serves"),
    "certificate_expires": (
        "certificate_expires",
        "expiry of the worker's certificate in Unix seconds",
    ),
}


class WorkerCollector(Collector):
    """Collector that makes metrics from a worker's counters at each scrape."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Make the metrics of one scrape."""
        counters = self._worker.counters
        yield from _collect_counts(counters)
        yield from self._collect_histograms()
        yield from self._collect_state(counters)
        yield from _collect_models_and_audits(counters)

    def _collect_histograms(self) -> Iterator[Metric]:
        for name, (help_text, _) in HISTOGRAMS.items():
            cumulative_counts, value_sum = self._worker.histograms[name]
            buckets = [
                ("+Inf" if upper_bound == float("inf") else f"{upper_bound:g}", count)
                for upper_bound, count in cumulative_counts
            ]
            yield HistogramMetricFamily(
                _PREFIX + name, help_text, buckets=buckets, sum_value=value_sum
            )

    def _collect_state(self, counters: dict[str, Any]) -> Iterator[Metric]:
        """Make the gauges of the worker's state, and the counts of its archive."""
        state_values = counters | {"serving": self._worker.trouble is None}
        for name, (key, help_text) in _STATE_GAUGES.items():
            # None gives no sample: without TLS, a worker has no certificate that expires
            yield gauge(_PREFIX + name, help_text, [((), state_values.get(key))])
        # a worker without an archive has no counts
        for name, count in counters.get("archive", {}).items():
            yield counter(f"{_PREFIX}archive_{name}", _ARCHIVE_HELP[name], [((), count)])


def _collect_counts(counters: Mapping[str, Any]) -> Iterator[Metric]:
    for name, help_text in COUNTS.items():
        if name.endswith("_us"):  # times are in seconds by Prometheus's convention
            samples = [((), 1e-6 * counters[name])]
            help_text = help_text.replace("microseconds", "seconds")
            yield counter(f"{_PREFIX}{name.removesuffix('_us')}_seconds", help_text, samples)
        else:
            yield counter(_PREFIX + name, help_text, [((), counters[name])])
    for name, help_text in LABELLED_COUNTS.items():
        first_counts = dict.fromkeys(_FIRST_LABELS.get(name, ()), 0)
        labelled_samples = [
            (_split_release(label) if name == "model_instances" else [label], count)
            for label, count in (first_counts | counters[name]).items()
        ]
        yield counter(_PREFIX + name, help_text, labelled_samples, *_LABEL_NAMES[name])


def _collect_models_and_audits(counters: Mapping[str, Any]) -> Iterator[Metric]:
    models = counters["models"][:MAX_LABELS]
    model_samples = [((model["name"], model["version"]), 1) for model in models]
    yield gauge(
        f"{_PREFIX}model_info", "1 for each model served", model_samples, "model", "version"
    )
    audits = [*counters["audits"].items()][:MAX_LABELS]
    for make_metric, key, name, help_text in _AUDIT_METRICS:
        # a model without a promise has no evidence and no alarm: None gives no sample
        samples = [(_split_release(release), counts.get(key)) for release, counts in audits]
        yield make_metric(_PREFIX + name, help_text, samples, "model", "version")


#: Help texts for the counts of the archive of instances.
_ARCHIVE_HELP = {
    "kept": "instances kept",
    "thinned": "instances left out at random before a shard was written",
    "lost": "instances that could not be written to disk",
    "shards": "shards written",
}
#: Metrics of the audits by model and version: kind, key in the counters, name and help text.
_AUDIT_METRICS = (
    (counter, "audits", "audits", "audits of devices' own answers"),
    (
        counter,
        "disagreed",
        "audit_disagreed",
        "audits in which the high-cost model gave another answer",
    ),
    (
        gauge,
        "evidence",
        "audit_evidence",
        "evidence that devices' answers disagree too often; the alarm is raised at 20",
    ),
    (
        gauge,
        "alarm",
        "audit_alarm",
        "1 once devices' answers have disagreed more often than the bundle promises",
    ),
)


def _split_release(release: str) -> Sequence[str]:
    """Split ``NAME/VERSION``, which have no slash; the label of further models is both."""
    return [release, release] if release == OTHER_LABEL else release.split("/")


def metrics_text(worker: Worker) -> bytes:
    """Write a worker's metrics in Prometheus's text format.

    A registry of its own leaves out the metrics of the Python process, which are not the worker's.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(worker))
    return generate_latest(registry)


def worker_endpoints(worker: Worker, port: int, *, host: str = "127.0.0.1") -> StatusServer:
    """Make the pages ``/metrics`` and ``/healthz`` of a worker."""
    return StatusServer(
        port,
        read_metrics=lambda: metrics_text(worker),
        read_trouble=lambda: worker.trouble,
        host=host,
    )
