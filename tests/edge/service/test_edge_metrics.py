"""The metrics of a device equal its counts, and slow clients of the metrics cannot block it."""

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
from gatewise_edge.service.status_server import StatusServer
from tests.support.small_bundle import HARD_ROW, SURE_ROW, cloud_answers
from tests.support.waiting import wait_until

#: Largest number of threads of a status server.
MAX_THREADS = 8


def read_samples(metrics_text: bytes | str) -> dict[tuple[str, ...], float]:
    """Read a page of metrics; return values by the name and the labels of a sample."""
    metrics_text = metrics_text.decode() if isinstance(metrics_text, bytes) else metrics_text
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics_text)
        for sample in family.samples
    }


def fetch_page(url: str) -> tuple[int, str]:
    """Fetch a page; return its status and its text."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class SampleSource(InstanceSource):
    """A source that has refused one of its windows."""

    @property
    def counts(self) -> dict[str, int]:
        return {"samples": 640, "refused_windows": 1}


def test_metrics_have_the_counts_of_the_signal(bundle):
    with Device(bundle) as device:
        metric_values = read_samples(EdgeMetrics(device, instances=SampleSource([])).text())
    assert metric_values["gatewise_signal_total", "samples"] == 640
    assert metric_values["gatewise_signal_total", "refused_windows"] == 1


def test_metrics_equal_the_counts_of_the_device(bundle):
    link = InProcessLink(cloud_answers)
    with Device(bundle, link=link) as device:
        metrics = EdgeMetrics(device, link=link)
        for row in (SURE_ROW, SURE_ROW, HARD_ROW):
            metrics.observe(device.answer(row))
        with pytest.raises(SensorError) as error_info:
            device.answer([float("nan"), 0, 0, 0, 0, 0])
        metrics.observe(error_info.value)
        link.close()
        fallback = device.answer(HARD_ROW)
        metrics.observe(fallback)
        device.deadline_ms = fallback.latency_ms / 2  # so that it counts as late
        metrics.observe(fallback)
        metric_values = read_samples(metrics.text())
        counters = device.counters
    assert metric_values["gatewise_answers_total", "edge"] == 2
    assert metric_values["gatewise_answers_total", "cloud"] == 1
    assert metric_values["gatewise_answers_total", "fallback"] == 2
    assert metric_values["gatewise_fallbacks_total", "link-down"] == 2
    assert metric_values["gatewise_errors_total",] == 1
    assert metric_values["gatewise_offload_ratio",] == 0.2  # one of five answers
    assert metric_values["gatewise_answer_latency_seconds_count",] == 5
    assert metric_values["gatewise_late_answers_total",] == 1
    # Features a and b cost 1.5, with c and its group 13.5, and with e 17.5.
    assert metric_values["gatewise_feature_cost_total",] == 1.5 * 2 + 17.5 + 2 * 13.5
    assert metric_values["gatewise_device_total", "sent"] == counters["sent"] == 1
    assert metric_values["gatewise_device_total", "late"] == counters["late"] == 0
    assert metric_values["gatewise_device_total", "duplicates"] == 0
    assert metric_values["gatewise_bytes_total", "up"] == counters["bytes_up"] > 0
    assert metric_values["gatewise_model_info", "7", "small"] == 1
    assert metric_values["gatewise_link_ready",] == 0
    assert ("gatewise_certificate_expires",) not in metric_values
    sensors = Sensors({"a": lambda: 1.0, "b": lambda: 0.0, "c": lambda: 0.0})
    with Device(bundle, sensors=sensors) as device:
        device.answer()
        metric_values = read_samples(
            EdgeMetrics(device, instances=InstanceSource([], sensors)).text()
        )
    assert metric_values["gatewise_sensor_total", "a", "reads"] == 1
    assert metric_values["gatewise_sensor_total", "c", "reads"] == 0


def test_number_of_fallback_reasons_is_bounded(bundle):
    with Device(bundle) as device:
        metrics, answer = EdgeMetrics(device), device.answer(HARD_ROW)
        for code_number in range(300):  # error codes that a worker chooses
            metrics.observe(msgspec.structs.replace(answer, reason=f"cloud:{code_number}"))
        metrics.observe(answer)
        metrics.observe(msgspec.structs.replace(answer, route="edge", reason="implausible:a"))
        metric_values = read_samples(metrics.text())
    assert metric_values["gatewise_implausible_total", "a"] == 1
    count_of_reason = {
        name_and_label[1]: count
        for name_and_label, count in metric_values.items()
        if name_and_label[0] == "gatewise_fallbacks_total"
    }
    # The first 100 of the 301 reasons are counted, all others as "other".
    assert len(count_of_reason) == 101
    assert (count_of_reason["cloud:7"], count_of_reason["other"]) == (1, 201)


def test_metrics_and_health_are_served():
    troubles: list[str | None] = [None]
    with StatusServer(
        0, read_metrics=lambda: b"x 1\n", read_trouble=lambda: troubles[0]
    ) as status_server:
        url = f"http://127.0.0.1:{status_server.port}"
        assert fetch_page(url + "/healthz") == (200, "ok\n")
        assert fetch_page(url + "/metrics?x=1") == (200, "x 1\n")
        assert fetch_page(url + "/etc/passwd")[0] == 404
        troubles[0] = "stuck"
        assert fetch_page(url + "/healthz") == (503, "stuck\n")
        with pytest.raises(
            InputError, match=f"metrics-port {status_server.port} on 127.0.0.1 cannot be"
        ):
            StatusServer(status_server.port, read_metrics=bytes, read_trouble=lambda: None)


def test_status_server_can_listen_on_ipv6():
    with StatusServer(
        0, read_metrics=bytes, read_trouble=lambda: None, host="::1"
    ) as status_server:
        assert fetch_page(f"http://[::1]:{status_server.port}/healthz") == (200, "ok\n")


@pytest.mark.slow  # clients wait for each other
@pytest.mark.parametrize("request_start", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
def test_slow_clients_start_a_bounded_number_of_threads(request_start, monkeypatch):
    """Once, a device with TasksMax=64 could start no thread for its answers."""
    monkeypatch.setattr("gatewise_edge.service.status_server._MAX_CONNECTION_SECONDS", 0.1)
    with StatusServer(0, read_metrics=lambda: b"x 1\n", read_trouble=lambda: None) as status_server:
        n_threads_before = threading.active_count()
        clients = [socket.create_connection(("127.0.0.1", status_server.port)) for _ in range(20)]
        try:
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(request_start)
            assert threading.active_count() <= n_threads_before + MAX_THREADS

            def is_served():
                url = f"http://127.0.0.1:{status_server.port}/metrics"
                try:
                    return fetch_page(url) == (200, "x 1\n")
                except OSError:
                    return False

            wait_until(is_served, "a page despite slow clients", 30.0)
            assert threading.active_count() <= n_threads_before + MAX_THREADS
        finally:
            for client in clients:
                client.close()
