"""What Prometheus scrapes is what the device did, and clients cannot hold it up."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.instance_source import InstanceSource
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.service.edge_metrics import EdgeMetrics
from gatewise_edge.service.endpoints import Endpoints
from tests.support.small_bundle import cloud_says
from tests.support.waiting import wait_until

EASY, HARD = [1.0, 0, 0, 0, 0, 0], [0.1, 0, 0.1, 0, -1.0, 0]


def samples(text: bytes | str) -> dict[tuple[str, ...], float]:
    text = text.decode() if isinstance(text, bytes) else text
    return {
        (s.name, *sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Samples(InstanceSource):
    """A source of windows, one of which was lost."""

    @property
    def counts(self) -> dict[str, int]:
        return {"samples": 640, "refused_windows": 1}


def test_samples_are_counted(bundle):
    with Device(bundle) as device:
        found = samples(EdgeMetrics(device, instances=Samples([])).text())
    assert found["gatewise_signal_total", "samples"] == 640
    assert found["gatewise_signal_total", "refused_windows"] == 1


def test_metrics_are_what_the_device_did(bundle):
    link = InProcessLink(cloud_says)
    with Device(bundle, link=link) as device:
        metrics = EdgeMetrics(device, link=link)
        for row in (EASY, EASY, HARD):
            metrics.observe(device.answer(row))
        with pytest.raises(SensorError) as caught:
            device.answer([float("nan"), 0, 0, 0, 0, 0])
        metrics.observe(caught.value)
        link.close()
        late = device.answer(HARD)
        metrics.observe(late)
        device.deadline_ms = late.latency_ms / 2
        metrics.observe(late)
        found = samples(metrics.text())
        counters = device.counters
    assert found["gatewise_answers_total", "edge"] == 2
    assert found["gatewise_answers_total", "cloud"] == 1
    assert found["gatewise_answers_total", "fallback"] == 2
    assert found["gatewise_fallbacks_total", "link-down"] == 2
    assert found["gatewise_errors_total",] == 1
    assert found["gatewise_offload_ratio",] == 0.2
    assert found["gatewise_answer_latency_seconds_count",] == 5
    assert found["gatewise_late_answers_total",] == 1
    assert found["gatewise_feature_cost_total",] == 1.5 * 2 + 17.5 + 2 * 13.5
    assert found["gatewise_device_total", "sent"] == counters["sent"] == 1
    assert found["gatewise_device_total", "late"] == counters["late"] == 0
    assert found["gatewise_device_total", "duplicates"] == 0
    assert found["gatewise_bytes_total", "up"] == counters["bytes_up"] > 0
    assert found["gatewise_model_info", "7", "small"] == 1
    assert found["gatewise_link_ready",] == 0
    assert ("gatewise_certificate_expires",) not in found
    sensors = Sensors({"a": lambda: 1.0, "b": lambda: 0.0, "c": lambda: 0.0})
    with Device(bundle, sensors=sensors) as device:
        device.answer()
        found = samples(EdgeMetrics(device, instances=InstanceSource([], sensors)).text())
    assert found["gatewise_sensor_total", "a", "reads"] == 1
    assert found["gatewise_sensor_total", "c", "reads"] == 0


def test_reasons_of_fallbacks_are_bounded(bundle):
    with Device(bundle) as device:
        metrics, answer = EdgeMetrics(device), device.answer(HARD)
        for i in range(300):  # a worker's error codes
            metrics.observe(msgspec.structs.replace(answer, reason=f"cloud:{i}"))
        metrics.observe(answer)
        metrics.observe(msgspec.structs.replace(answer, route="edge", reason="implausible:a"))
        found = samples(metrics.text())
    assert found["gatewise_implausible_total", "a"] == 1
    reasons = {name[1]: n for name, n in found.items() if name[0] == "gatewise_fallbacks_total"}
    assert len(reasons) == 101
    assert (reasons["cloud:7"], reasons["other"]) == (1, 201)


def test_metrics_and_health_are_served():
    trouble: list[str | None] = [None]
    with Endpoints(0, metrics=lambda: b"x 1\n", trouble=lambda: trouble[0]) as pages:
        url = f"http://127.0.0.1:{pages.port}"
        assert fetch(url + "/healthz") == (200, "ok\n")
        assert fetch(url + "/metrics?x=1") == (200, "x 1\n")
        assert fetch(url + "/etc/passwd")[0] == 404
        trouble[0] = "stuck"
        assert fetch(url + "/healthz") == (503, "stuck\n")
        with pytest.raises(InputError, match=f"metrics-port {pages.port} on 127.0.0.1 cannot be"):
            Endpoints(pages.port, metrics=bytes, trouble=lambda: None)


def test_pages_on_ipv6():
    with Endpoints(0, metrics=bytes, trouble=lambda: None, host="::1") as pages:
        assert fetch(f"http://[::1]:{pages.port}/healthz") == (200, "ok\n")


@pytest.mark.slow  # clients wait for each other
@pytest.mark.parametrize("request_", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
def test_slow_clients_make_no_threads_without_bound(request_, monkeypatch):
    """With TasksMax=64 a device died with its answer."""
    monkeypatch.setattr("gatewise_edge.service.endpoints._MAX_SECONDS", 0.1)
    with Endpoints(0, metrics=lambda: b"x 1\n", trouble=lambda: None) as pages:
        before = threading.active_count()
        clients = [socket.create_connection(("127.0.0.1", pages.port)) for _ in range(20)]
        try:
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(request_)
            assert threading.active_count() <= before + 8

            def served():
                try:
                    return fetch(f"http://127.0.0.1:{pages.port}/metrics") == (200, "x 1\n")
                except OSError:
                    return False

            wait_until(served, "a page beside slow clients", 30.0)
            assert threading.active_count() <= before + 8
        finally:
            for client in clients:
                client.close()
