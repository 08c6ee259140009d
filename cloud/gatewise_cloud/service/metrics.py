"""A worker's state as Prometheus sees it. Needs prometheus-client.

Every name begins with ``gatewise_worker_``. No metric has a label whose values others choose
without bound: devices never are labels, codes and reasons are this project's own, and of models
and versions the first hundred count under their names, the others as ``other``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from gatewise_cloud.worker.counters import COUNTS, HISTOGRAMS, LABELLED_COUNTS
from gatewise_edge.service.endpoints import Endpoints

_PREFIX = "gatewise_worker_"
_LABELS = {
    "errors": ("code",),
    "dead": ("reason",),
    "stood_in": ("why",),
    "model_instances": ("model", "version"),
    "watched": ("outcome",),
}


class MeasuredWorker(Protocol):
    """What is measured of a :class:`gatewise_cloud.worker.worker.Worker`."""

    @property
    def counters(self) -> dict[str, Any]: ...
    @property
    def histograms(self) -> dict[str, tuple[list[tuple[float, int]], float]]: ...
    @property
    def trouble(self) -> str | None: ...


class WorkerCollector(Collector):
    """Turns a worker's counters into metrics at the moment that they are asked for."""

    def __init__(self, worker: MeasuredWorker) -> None:
        self._worker = worker

    def collect(self) -> Iterable[Metric]:
        """Make the metrics."""
        counters = self._worker.counters
        for name, text in COUNTS.items():
            yield _counter(name, text, [((), counters[name])])
        for name, text in LABELLED_COUNTS.items():
            counts = counters[name].items()
            yield _counter(name, text, [(_values(name, label), n) for label, n in counts])
        for name, (text, _) in HISTOGRAMS.items():
            bins, total = self._worker.histograms[name]
            buckets = [("+Inf" if bound == float("inf") else f"{bound:g}", n) for bound, n in bins]
            yield HistogramMetricFamily(_PREFIX + name, text, buckets=buckets, sum_value=total)
        yield from self._state(counters)

    def _state(self, counters: dict[str, Any]) -> Iterable[Metric]:
        serving = self._worker.trouble is None
        gauges = {
            "queue_depth": ("requests queued", counters["queued"]),
            "connected": ("whether the connection to the broker stands", counters["connected"]),
            "connections": ("connections to the broker so far", counters["connects"]),
            "serving": ("whether it is connected and serves", serving),
        }
        if "uplink" in counters:
            gauges["uplink_connected"] = "whether the link to the cloud stands", counters["uplink"]
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value=float(value))
        text = "when its certificate expires, in Unix seconds"
        expires = counters["certificate_expires"]  # None: no sample
        yield GaugeMetricFamily(_PREFIX + "certificate_expires", text, value=expires)
        models = GaugeMetricFamily(
            _PREFIX + "model_info", "1 for each model served", labels=["model", "version"]
        )
        batch = GaugeMetricFamily(
            _PREFIX + "max_batch", "instances in one run at most", labels=["model", "version"]
        )
        for entry in counters["models"][:100]:
            names = [entry["name"], entry["version"]]
            models.add_metric(names, 1.0)
            batch.add_metric(names, float(counters["batching"][" ".join(names)]["max_batch"]))
        yield models
        yield batch
        yield from _audits(counters["audits"])


def _audits(audits: dict[str, dict[str, Any]]) -> Iterable[Metric]:
    """Audits of devices' answers by model and version, and the test of all of them."""
    for key, text in {
        "audits": "audits of devices' own answers",
        "disagreed": "audits in which the high-cost model gave another answer",
        "evidence": "evidence that devices' answers disagree too often; 20 raises the alarm",
        "alarm": "1 once devices' answers disagree more often than the model promises",
    }.items():
        name = _PREFIX + ("audits" if key == "audits" else f"audit_{key}")
        family = (CounterMetricFamily if key in ("audits", "disagreed") else GaugeMetricFamily)(
            name, text, labels=["model", "version"]
        )
        for model, found in [*audits.items()][:100]:
            if key in found:
                family.add_metric([*model.rpartition(" ")[::2]], float(found[key]))
        yield family


def _values(name: str, label: str) -> Sequence[str]:
    # Neither a model's name nor its version need be free of blanks, but most are.
    return [*label.rpartition(" ")[::2]] if name == "model_instances" else [label]


def _counter(name: str, text: str, samples: Iterable[tuple[Sequence[str], int]]) -> Metric:
    # Prometheus counts in seconds.
    factor = 1.0
    if name.endswith("_us"):
        name, factor, text = f"{name[:-3]}_seconds", 1e-6, text.replace("microseconds", "seconds")
    labels = _LABELS.get(name, ())
    family = CounterMetricFamily(_PREFIX + name, text, labels=list(labels))
    for values, count in samples:
        family.add_metric(list(values), factor * count)
    return family


def text_of(worker: MeasuredWorker) -> bytes:
    """Write a worker's metrics in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(worker))
    return generate_latest(registry)


def worker_endpoints(worker: MeasuredWorker, port: int, *, host: str = "127.0.0.1") -> Endpoints:
    """Make the pages ``/metrics`` and ``/healthz`` of one worker."""
    return Endpoints(
        port, metrics=lambda: text_of(worker), trouble=lambda: worker.trouble, host=host
    )


class _Fixed(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged(texts: dict[str, str], more: Iterable[Metric] = ()) -> bytes:
    """Put the metrics of several workers together, each sample labelled with its worker."""
    families: dict[str, Metric] = {}
    for worker, text in texts.items():
        for family in text_string_to_metric_families(text):
            empty = Metric(family.name, family.documentation, family.type)
            known = families.setdefault(family.name, empty)
            for sample in family.samples:
                known.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed([*families.values(), *more]))
    return generate_latest(registry)
