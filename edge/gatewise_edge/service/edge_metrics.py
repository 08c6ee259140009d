"""Prometheus metrics of a running device. Needs prometheus-client.

======================================== ========= =================================================
name                                     kind      meaning
======================================== ========= =================================================
gatewise_answers_total{route}            counter   answers: edge, cloud, fallback
gatewise_errors_total                    counter   instances that ended in an error
gatewise_fallbacks_total{reason}         counter   fallbacks by their reason
gatewise_answer_latency_seconds          histogram from the call to the answer
gatewise_late_answers_total              counter   answers after their deadline
gatewise_offload_ratio                   gauge     answers by the cloud, of all answers so far
gatewise_feature_cost_total              counter   cost of the acquired features
gatewise_cost_total                      counter   the same with the price of offloads
gatewise_device_total{event}             counter   ``Device.counters``: requests and responses
                                                   (sent, retries, timeouts, late, ...)
gatewise_bytes_total{direction}          counter   payload bytes, up and down
gatewise_device_state{what}              gauge     ``Device.gauges``: outstanding, breaker_open, ...
gatewise_sensor_total{sensor,event}      counter   ``Sensors.counts``: reads, retries, ...
gatewise_update_total{event}             counter   ``Updater.counters``: announced, taken, ...
gatewise_trouble{what}                   gauge     1: the link, store or update does not work now
gatewise_link_ready                      gauge     1 while requests can be sent
gatewise_takeovers_total                 counter   connections taken over by another device with
                                                   this id
gatewise_model_info{model,version}       gauge     1: the active bundle
gatewise_certificate_expires             gauge     when its own certificate does, in Unix seconds
======================================== ========= =================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gatewise_edge.device.answer import Answer
from gatewise_edge.service.release_status import MeasuredDevice

if TYPE_CHECKING:
    from gatewise_edge.link.link import Link
    from gatewise_edge.sensors.sensors import Sensors
    from gatewise_edge.update import Updater

#: Seconds; a stage takes tens of microseconds, a satellite half a second.
_BUCKETS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_ROUTES: Final = ("edge", "cloud", "fallback")


class EdgeMetrics(Collector):
    """Metrics of one device.

    `troubles` gives what is wrong with each part of the service, or None, by the part's name.
    """

    def __init__(
        self,
        device: MeasuredDevice,
        *,
        link: Link | None = None,
        sensors: Sensors | None = None,
        updater: Updater | None = None,
        troubles: Callable[[], Mapping[str, str | None]] = dict,
    ) -> None:
        self._registry = CollectorRegistry()
        self._device, self._link, self._sensors = device, link, sensors
        self._updater, self._troubles = updater, troubles

        def count(name: str, help_: str, *labels: str) -> Counter:
            return Counter(f"gatewise_{name}", help_, labels, registry=self._registry)

        self._answers = count("answers", "Answers.", "route")
        self._errors = count("errors", "Instances that ended in an error.")
        self._fallbacks = count("fallbacks", "Fallbacks by their reason.", "reason")
        self._late = count("late_answers", "Answers after their deadline.")
        self._feature_cost = count("feature_cost", "Cost of the acquired features.")
        self._cost = count("cost", "Cost of the answers, offloads included.")
        self._latency = Histogram(
            "gatewise_answer_latency_seconds",
            "From the call to the answer.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._counts: dict[str, int] = dict.fromkeys(_ROUTES, 0)
        for route in _ROUTES:
            self._answers.labels(route)
        self._registry.register(self)

    def observe(self, end: Answer | Exception) -> None:
        """Add an answer, or the error in its place."""
        if isinstance(end, Exception):
            self._errors.inc()
            return
        self._answers.labels(end.route).inc()
        self._counts[end.route] += 1
        if end.route == "fallback":
            self._fallbacks.labels(end.reason).inc()
        self._latency.observe(end.latency_ms / 1000.0)
        if end.latency_ms > self._device.deadline_ms:
            self._late.inc()
        self._feature_cost.inc(end.feature_cost)
        self._cost.inc(end.cost)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Read from the device what is not counted here."""
        n = sum(self._counts.values())
        ratio = self._counts["cloud"] / n if n else 0.0
        yield GaugeMetricFamily("gatewise_offload_ratio", "Answers by the cloud.", ratio)
        ready = float(self._link is not None and self._link.ready)
        yield GaugeMetricFamily("gatewise_link_ready", "Whether requests can be sent.", ready)
        taken = getattr(self._link, "takeovers", 0)
        text = "Connections taken over by another device with this id."
        yield CounterMetricFamily("gatewise_takeovers", text, taken)
        expires = getattr(self._link, "certificate_expires", None)
        text = "When its certificate expires, in Unix seconds."
        yield GaugeMetricFamily("gatewise_certificate_expires", text, expires)
        manifest = self._device.bundle.manifest
        info = GaugeMetricFamily(
            "gatewise_model_info", "The active bundle.", labels=["model", "version"]
        )
        info.add_metric([manifest.name, manifest.version], 1.0)
        yield info
        counters = self._device.counters
        moved = CounterMetricFamily("gatewise_bytes", "Payload bytes.", labels=["direction"])
        events = CounterMetricFamily("gatewise_device", "Requests and responses.", labels=["event"])
        for name, value in counters.items():
            if name.startswith("bytes_"):
                moved.add_metric([name.removeprefix("bytes_")], value)
            elif name not in (*_ROUTES, "errors"):
                events.add_metric([name], value)
        yield moved
        yield events
        gauges = GaugeMetricFamily("gatewise_device_state", "Current state.", labels=["what"])
        for name, now in self._device.gauges.items():
            gauges.add_metric([name], now)
        yield gauges
        if self._sensors is not None:
            sensed = CounterMetricFamily(
                "gatewise_sensor", "Reads of the sensors.", labels=["sensor", "event"]
            )
            for sensor, counts in self._sensors.counts.items():
                for event, value in asdict(counts).items():
                    sensed.add_metric([sensor, event], value)
            yield sensed
        if self._updater is not None:
            updates = CounterMetricFamily(
                "gatewise_update", "Checks and releases.", labels=["event"]
            )
            for event, value in self._updater.counters.items():
                updates.add_metric([event], value)
            yield updates
        troubles = GaugeMetricFamily("gatewise_trouble", "What does not work.", labels=["what"])
        for what, why in self._troubles().items():
            troubles.add_metric([what], float(why is not None))
        yield troubles
