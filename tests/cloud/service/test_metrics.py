"""The pages /metrics and /healthz of a worker on a real broker."""

from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from gatewise_cloud import MosquittoBroker, Worker
from gatewise_cloud.service.metrics import metrics_text, worker_endpoints
from gatewise_cloud.worker.counters import COUNTS, MAX_LABELS, Counters
from tests.support import tiny_bundle as tiny
from tests.support.ports import get_page
from tests.support.waiting import wait_until


def read_samples(metrics_page):
    """Read a page of metrics; return the sample values, keyed by name and labels."""
    return {
        (sample.name.removeprefix("gatewise_worker_"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_page)
        for sample in family.samples
    }


def test_metrics_equal_the_counters_of_the_worker(bundle, mosquitto, connect_caller):
    with Worker(bundle, mosquitto.url) as worker, worker_endpoints(worker, 0) as endpoints:
        client = connect_caller(mosquitto)
        for n_rows in (1, 3, 3):
            client.ask(tiny.random_rows(n_rows))
            client.response()
        client.ask(tiny.random_rows(1), model="other")
        client.response()
        client.send(b"noise")
        client.get()
        status, metrics_page = get_page(endpoints.port, "/metrics")
    assert status == 200
    metrics = read_samples(metrics_page)
    # Five messages: three answered requests of 1, 3 and 3 instances, one refused, and the noise.
    assert metrics["received_total",] == 5
    assert metrics["answered_total",] == 3
    assert metrics["instances_total",] == 7
    assert metrics["errors_total", ("code", "no-model")] == 1
    assert metrics["dead_total", ("reason", "cbor")] == 1
    # Prometheus computes no increase for a series that begins with its first count
    assert metrics["dead_total", ("reason", "retained")] == 0
    assert metrics["errors_total", ("code", "busy")] == 0
    assert metrics["model_instances_total", ("model", "tiny"), ("version", "1")] == 7
    assert metrics["model_info", ("model", "tiny"), ("version", "1")] == 1
    assert metrics["latency_seconds_count",] == 3
    assert metrics["latency_seconds_bucket", ("le", "+Inf")] == 3
    assert metrics["batch_instances_bucket", ("le", "1")] == 1
    assert metrics["batch_instances_bucket", ("le", "4")] == 3
    assert metrics["batch_instances_sum",] == 7
    assert (metrics["queue_depth",], metrics["connected",], metrics["serving",]) == (0, 1, 1)
    names = {name for name, *_ in metrics}
    # counts in microseconds have names in seconds
    assert {f"{count}_total" for count in COUNTS if not count.endswith("_us")} <= names
    # read_samples() also accepts names without the prefix
    assert all(f"gatewise_worker_{name}" in metrics_page for name in names)


def test_health_follows_the_connection(bundle):
    broker = MosquittoBroker()
    with broker:
        worker = Worker(bundle, broker.url)
        with worker_endpoints(worker, 0) as endpoints:
            status, reason = get_page(endpoints.port, "/healthz")
            assert (status, reason) == (503, f"it is not connected to {broker.url}\n")
            worker.start()
            assert get_page(endpoints.port, "/healthz") == (200, "ok\n")
            assert get_page(endpoints.port, "/healthz", "HEAD") == (200, "")
            broker.close()
            wait_until(lambda: get_page(endpoints.port, "/healthz")[0] == 503)
            assert "not connected" in get_page(endpoints.port, "/healthz")[1]
            worker.stop()
            assert get_page(endpoints.port, "/healthz") == (503, "it is ending\n")
            assert get_page(endpoints.port, "/else")[0] == 404


def test_a_version_with_a_space_is_one_label():
    counters = Counters()
    counters.add_answer("my pump/1 beta", 3, queue_seconds=0.0, latency_seconds=0.1)
    counters.add_answer("old/2", 1, queue_seconds=0.0, latency_seconds=0.1)
    models = [{"name": "my pump", "version": "1 beta"}]
    worker = SimpleNamespace(
        counters=counters.snapshot() | {"models": models, "audits": {}},
        histograms=counters.histograms(),
        trouble=None,
    )
    metrics = read_samples(metrics_text(worker).decode())
    labels = ("model", "my pump"), ("version", "1 beta")
    assert (metrics["model_info", *labels], metrics["model_instances_total", *labels]) == (1, 3)
    assert metrics["model_instances_total", ("model", "old"), ("version", "2")] == 1


def test_models_beyond_the_bound_have_the_label_other():
    counters = Counters()
    for model_number in range(3 * MAX_LABELS):
        counters.add("model_instances", label=f"model/{model_number}")
    assert len(counters.snapshot()["model_instances"]) == MAX_LABELS + 1
    worker = SimpleNamespace(
        counters=counters.snapshot() | {"models": [], "audits": {}},
        histograms=counters.histograms(),
        trouble=None,
    )
    metrics = read_samples(metrics_text(worker).decode())
    labels = ("model", "other"), ("version", "other")
    assert metrics["model_instances_total", *labels] == 2 * MAX_LABELS
