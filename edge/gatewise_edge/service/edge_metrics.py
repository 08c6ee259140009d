"""Prometheus metrics of a running device. Needs prometheus-client.

:class:`EdgeMetrics` counts answers itself. At each scrape it reads the other values from
:attr:`.Device.counters`, :attr:`.Device.gauges`, ``Sensors.counts`` and ``Updater.counters``.
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

#: Upper bounds of the latency histogram, in seconds. A stage takes tens of microseconds, and a
#: round trip by satellite half a second.
_LATENCY_BUCKETS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_ROUTES: Final = ("edge", "cloud", "fallback")
#: Largest number of fallback reasons with a label of their own. Further reasons are counted as
#: ``other``. The bound is needed, because workers choose their error codes freely.
_MAX_REASONS: Final = 100

#: The label values of a sample, and its value.
LabelledValue = tuple[Sequence[str], Any]


class MeasuredDevice(Protocol):
    """The part of :class:`gatewise_edge.Device` that metrics and status reports read.

    Importing the device itself would make the chain of imports too long.
    """

    deadline_ms: float

    @property
    def bundle(self) -> Bundle: ...
    @property
    def counters(self) -> dict[str, int]: ...
    @property
    def gauges(self) -> dict[str, float]: ...


def counter(name: str, help_text: str, samples: Iterable[LabelledValue], *labels: str) -> Metric:
    """Make a counter from values that another object counts."""
    return _add_samples(CounterMetricFamily(name, help_text, labels=labels), samples)


def gauge(name: str, help_text: str, samples: Iterable[LabelledValue], *labels: str) -> Metric:
    """Make a gauge from values that another object holds."""
    return _add_samples(GaugeMetricFamily(name, help_text, labels=labels), samples)


def _add_samples(
    family: CounterMetricFamily | GaugeMetricFamily, samples: Iterable[LabelledValue]
) -> Metric:
    """Add the samples to a metric, except those without a value."""
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, float(value))
    return family


class EdgeMetrics(Collector):
    """Metrics of one device.

    `instances` is the source of the device's instances. `troubles` returns a mapping from the name
    of each part of the service to the description of its current problem, or None if it works.
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

        def new_counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"gatewise_{name}", help_text, labels, registry=registry)

        self._answers = new_counter("answers", "Answers by route.", "route")
        self._errors = new_counter("errors", "Instances that ended in an error.")
        self._fallbacks = new_counter("fallbacks", "Fallbacks by reason.", "reason")
        help_text = (
            "Answers of the edge or the cloud to instances with an implausible value, by its "
            "column or channel."
        )
        self._implausible = new_counter("implausible", help_text, "name")
        self._late_answers = new_counter("late_answers", "Answers after their deadline.")
        self._feature_cost = new_counter("feature_cost", "Cost of the acquired features.")
        self._cost = new_counter("cost", "Cost of the answers, offloads included.")
        self._latency = Histogram(
            "gatewise_answer_latency_seconds",
            "Time from the call to the answer.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._reasons: set[str] = set()
        for route in _ROUTES:
            self._answers.labels(route)
        registry.register(self)

    def observe(self, outcome: Answer | Exception) -> None:
        """Count an answer or an error."""
        if isinstance(outcome, Exception):
            self._errors.inc()
            return
        self._answers.labels(outcome.route).inc()
        reason_kind, _, name = outcome.reason.partition(":")
        if reason_kind == "implausible":
            self._implausible.labels(name).inc()
        if outcome.route == "fallback":
            is_listed = outcome.reason in self._reasons or len(self._reasons) < _MAX_REASONS
            reason = outcome.reason if is_listed else "other"
            self._reasons.add(reason)
            self._fallbacks.labels(reason).inc()
        self._latency.observe(outcome.latency_ms / 1000.0)
        if outcome.latency_ms > self._device.deadline_ms:
            self._late_answers.inc()
        self._feature_cost.inc(outcome.feature_cost)
        self._cost.inc(outcome.cost)

    def text(self) -> bytes:
        """Write all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Read the values that other objects count; prometheus-client calls this at each scrape."""
        link = self._link
        manifest = self._device.bundle.manifest
        # answers
        (answers,) = self._answers.collect()
        n_answers = {
            sample.labels["route"]: sample.value
            for sample in answers.samples
            if sample.name.endswith("_total")
        }
        offload_ratio = n_answers["cloud"] / (sum(n_answers.values()) or 1)
        yield gauge(
            "gatewise_offload_ratio", "Share of answers by the cloud.", [((), offload_ratio)]
        )
        help_text = "Offload rate of the active operating point, on validation data."
        expected_ratio = manifest.active_point.offload_rate
        yield gauge("gatewise_offload_expected", help_text, [((), expected_ratio)])
        # the link
        is_ready = link is not None and link.is_ready
        yield gauge("gatewise_link_ready", "Whether requests can be sent.", [((), is_ready)])
        n_takeovers = getattr(link, "n_takeovers", 0)
        help_text = "Connections that another device with this id took over."
        yield counter("gatewise_takeovers", help_text, [((), n_takeovers)])
        n_oversized = getattr(link, "n_oversized", 0)
        help_text = "Connections that ended because a message was too large."
        yield counter("gatewise_oversized", help_text, [((), n_oversized)])
        expiry = getattr(link, "certificate_expires", None)
        help_text = "Expiry time of the device's certificate, in Unix seconds."
        yield gauge("gatewise_certificate_expires", help_text, [((), expiry)])
        # the bundle and the device
        model = (manifest.name, manifest.version)
        yield gauge("gatewise_model_info", "The active bundle.", [(model, 1)], "model", "version")
        counts = self._device.counters.items()
        n_bytes = [
            ([name.removeprefix("bytes_")], count)
            for name, count in counts
            if name.startswith("bytes_")
        ]
        yield counter("gatewise_bytes", "Payload bytes, up and down.", n_bytes, "direction")
        answer_counts = (*_ROUTES, "errors")
        device_events = [
            ([name], count)
            for name, count in counts
            if name not in answer_counts and not name.startswith("bytes_")
        ]
        yield counter("gatewise_device", "Requests and responses.", device_events, "event")
        device_state = [([name], value) for name, value in self._device.gauges.items()]
        yield gauge("gatewise_device_state", "Current state.", device_state, "what")
        # other parts of the service
        if self._instances is not None:
            yield from self._collect_instances(self._instances)
        if self._updater is not None:
            update_events = [([event], count) for event, count in self._updater.counters.items()]
            yield counter("gatewise_update", "Checks and releases.", update_events, "event")
        part_troubles = [
            ([part], trouble is not None) for part, trouble in self._troubles().items()
        ]
        yield gauge("gatewise_trouble", "Parts that do not work.", part_troubles, "what")

    def _collect_instances(self, instances: InstanceSource) -> Iterator[Metric]:
        """Read the counts of the stream of samples and of the sensors."""
        if instances.counts:
            signal_events = [([event], count) for event, count in instances.counts.items()]
            yield counter(
                "gatewise_signal", "Samples, windows, gaps and losses.", signal_events, "event"
            )
        if instances.sensors is not None:
            reads = [
                ((sensor, event), count)
                for sensor, counts in instances.sensors.counts.items()
                for event, count in asdict(counts).items()
            ]
            yield counter("gatewise_sensor", "Reads of the sensors.", reads, "sensor", "event")
            hung_sensors = [([sensor], 1) for sensor in instances.sensors.hung_sensors]
            yield gauge("gatewise_sensor_hung", "Sensors that are stuck.", hung_sensors, "sensor")
