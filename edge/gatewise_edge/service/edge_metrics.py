"""Prometheus metrics of a running device. Needs prometheus-client.

The metrics of answers are counted here; the others are read from :attr:`.Device.counters`
(``gatewise_device_total{event}``, ``gatewise_bytes_total{direction}``) and :attr:`.Device.gauges`
(``gatewise_device_state{what}``), ``Sensors.counts`` and ``Updater.counters``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gatewise_edge.device.answer import Answer

if TYPE_CHECKING:
    from gatewise_edge.link.link import Link
    from gatewise_edge.sensors.instance_source import InstanceSource
    from gatewise_edge.update import Updater
    from gatewise_export.bundle.bundle import Bundle

#: Seconds; a stage takes tens of microseconds, a satellite half a second.
_BUCKETS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_ROUTES: Final = ("edge", "cloud", "fallback")
#: Reasons with a label of their own, others are ``other``: workers choose their error codes.
_MOST_REASONS: Final = 100

#: Values of a metric's labels, and the metric's.
Sample = tuple[Sequence[str], Any]


class MeasuredDevice(Protocol):
    """What reports and metrics need of a :class:`gatewise_edge.Device`."""

    deadline_ms: float

    @property
    def bundle(self) -> Bundle: ...
    @property
    def counters(self) -> dict[str, int]: ...
    @property
    def gauges(self) -> dict[str, float]: ...


def counter(name: str, text: str, samples: Iterable[Sample], *labels: str) -> Metric:
    """Make a counter of values that are kept elsewhere."""
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def gauge(name: str, text: str, samples: Iterable[Sample], *labels: str) -> Metric:
    """Make a gauge of values that are kept elsewhere."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Iterable[Sample]) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, float(value))
    return family


class EdgeMetrics(Collector):
    """Metrics of one device.

    `instances` are where the device's instances come from: their sensors, or the samples that
    windows are cut from. `troubles` gives the trouble of each part of the service, or None, by the
    part's name.
    """

    def __init__(
        self,
        device: MeasuredDevice,
        *,
        link: Link | None = None,
        instances: InstanceSource | None = None,
        updater: Updater | None = None,
        troubles: Callable[[], Mapping[str, str | None]] = dict,
    ) -> None:
        registry = self._registry = CollectorRegistry()
        self._device = device
        self._link = link
        self._instances = instances
        self._updater = updater
        self._troubles = troubles

        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gatewise_{name}", text, labels, registry=registry)

        self._answers = count("answers", "Answers: edge, cloud, fallback.", "route")
        self._errors = count("errors", "Instances that ended in an error.")
        self._fallbacks = count("fallbacks", "Fallbacks by their reason.", "reason")
        text = "Answers to instances with an implausible value, by its column or channel."
        self._implausible = count("implausible", text, "name")
        self._late = count("late_answers", "Answers after their deadline.")
        self._feature_cost = count("feature_cost", "Cost of the acquired features.")
        self._cost = count("cost", "Cost of the answers, offloads included.")
        self._latency = Histogram(
            "gatewise_answer_latency_seconds",
            "From the call to the answer.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._reasons: set[str] = set()
        for route in _ROUTES:
            self._answers.labels(route)
        registry.register(self)

    def observe(self, end: Answer | Exception) -> None:
        """Add an answer, or the error in its place."""
        if isinstance(end, Exception):
            self._errors.inc()
            return
        self._answers.labels(end.route).inc()
        kind, _, name = end.reason.partition(":")
        if kind == "implausible":
            self._implausible.labels(name).inc()
        if end.route == "fallback":
            is_listed = end.reason in self._reasons or len(self._reasons) < _MOST_REASONS
            reason = end.reason if is_listed else "other"
            self._reasons.add(reason)
            self._fallbacks.labels(reason).inc()
        self._latency.observe(end.latency_ms / 1000.0)
        if end.latency_ms > self._device.deadline_ms:
            self._late.inc()
        self._feature_cost.inc(end.feature_cost)
        self._cost.inc(end.cost)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Read the values that the device counts itself."""
        link = self._link
        manifest = self._device.bundle.manifest
        # answers
        (answers,) = self._answers.collect()
        routes = {s.labels["route"]: s.value for s in answers.samples if s.name.endswith("_total")}
        ratio = routes["cloud"] / (sum(routes.values()) or 1)
        yield gauge("gatewise_offload_ratio", "Answers by the cloud, of all.", [((), ratio)])
        text = "Offload rate of the active operating point, on validation data."
        expected = manifest.active_point.offload_rate
        yield gauge("gatewise_offload_expected", text, [((), expected)])
        # the link
        ready = link is not None and link.ready
        yield gauge("gatewise_link_ready", "Whether requests can be sent.", [((), ready)])
        takeovers = getattr(link, "takeovers", 0)
        text = "Connections taken over by another device with this id."
        yield counter("gatewise_takeovers", text, [((), takeovers)])
        oversized = getattr(link, "n_oversized", 0)
        text = "Connections that ended because a message was too large."
        yield counter("gatewise_oversized", text, [((), oversized)])
        expires = getattr(link, "certificate_expires", None)
        text = "When its certificate expires, in Unix seconds."
        yield gauge("gatewise_certificate_expires", text, [((), expires)])
        # the bundle and the device
        model = (manifest.name, manifest.version)
        yield gauge("gatewise_model_info", "The active bundle.", [(model, 1)], "model", "version")
        counts = self._device.counters.items()
        moved = [([k[6:]], n) for k, n in counts if k.startswith("bytes_")]
        yield counter("gatewise_bytes", "Payload bytes, up and down.", moved, "direction")
        route_counts = (*_ROUTES, "errors")
        events = [
            ([k], n) for k, n in counts if k not in route_counts and not k.startswith("bytes_")
        ]
        yield counter("gatewise_device", "Requests and responses.", events, "event")
        state = [([k], value) for k, value in self._device.gauges.items()]
        yield gauge("gatewise_device_state", "Current state.", state, "what")
        # other parts of the service
        if self._instances is not None:
            yield from self._of_instances(self._instances)
        if self._updater is not None:
            updates = [([event], n) for event, n in self._updater.counters.items()]
            yield counter("gatewise_update", "Checks and releases.", updates, "event")
        troubles = [([what], why is not None) for what, why in self._troubles().items()]
        yield gauge("gatewise_trouble", "What does not work.", troubles, "what")

    def _of_instances(self, instances: InstanceSource) -> Iterator[Metric]:
        """Read from the source of instances what its sensors or samples were."""
        if instances.counts:
            samples = [([event], n) for event, n in instances.counts.items()]
            yield counter("gatewise_signal", "Samples, windows, gaps and losses.", samples, "event")
        if instances.sensors is not None:
            reads = [
                ((sensor, event), n)
                for sensor, counts in instances.sensors.counts.items()
                for event, n in asdict(counts).items()
            ]
            yield counter("gatewise_sensor", "Reads of the sensors.", reads, "sensor", "event")
            hung = [([sensor], 1) for sensor in instances.sensors.hung]
            yield gauge("gatewise_sensor_hung", "Sensors that do not return.", hung, "sensor")
