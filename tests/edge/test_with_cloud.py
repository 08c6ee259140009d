"""Tests of devices with real workers that freeze, die and test audits, over a real broker."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import pytest

from gatewise_cloud.service.metrics import metrics_text
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.device import Device
from gatewise_edge.link.mqtt_link import MqttLink
from tests.support.small_bundle import HARD_ROW, SURE_ROW
from tests.support.waiting import wait_until

#: Deadline that is met also on a loaded machine.
LONG_DEADLINE_MS = 20_000
#: Seconds to wait for the first connection on a loaded machine.
CONNECT_TIMEOUT_S = 60

pytestmark = pytest.mark.slow  # processes and brokers start


@pytest.fixture
def start_worker(bundle, broker, command) -> Callable[[], subprocess.Popen[str]]:
    def start_process() -> subprocess.Popen[str]:
        worker = command("cloud", bundle.path, "--broker", broker.url)
        assert worker.read_line().startswith("ready:"), worker.finish()[2]
        return worker.process

    return start_process


def test_frozen_worker_costs_a_retry_and_dead_worker_does_not(bundle, broker, start_worker):
    frozen_worker = start_worker()
    start_worker()
    link = MqttLink(broker.url)
    deadline_ms = 2000.0
    with Device(bundle, link=link, deadline_ms=deadline_ms) as device:
        link.connect(CONNECT_TIMEOUT_S)
        routes = Counter(device.answer(HARD_ROW).route for _ in range(10))
        frozen_worker.send_signal(signal.SIGSTOP)
        started_at = time.monotonic()
        routes += Counter(device.answer(HARD_ROW).route for _ in range(10))
        assert time.monotonic() - started_at < 10 * deadline_ms / 1000
        # The broker sends every other request, five of ten, to the frozen worker, where it is lost
        # and retried. One of the five is tolerated to go to the other worker.
        assert device.counters["retries"] >= 4
        frozen_worker.kill()
        frozen_worker.wait()
        routes += Counter(device.answer(HARD_ROW).route for _ in range(10))
        # A retry may be lost in the same way, so that two fallbacks are tolerated.
        assert routes["cloud"] >= 28
        assert routes.total() == 30


def test_devices_answer_when_all_workers_are_gone(bundle, broker, start_worker):
    worker = start_worker()
    link = MqttLink(broker.url)
    with Device(bundle, link=link, deadline_ms=100) as device:
        link.connect(CONNECT_TIMEOUT_S)
        wait_until(lambda: device.answer(HARD_ROW).route == "cloud", "an answer in time")
        worker.kill()
        worker.wait()
        answers = [device.answer(HARD_ROW) for _ in range(8)]
        assert {answer.route for answer in answers} == {"fallback"}
        # Five requests in a row without a reply open the breaker. Then no request is sent, and its
        # features are not acquired.
        assert [answer.reason for answer in answers[:6]] == ["timeout"] * 5 + ["breaker-open"]
        # Prices of the small bundle: a 1, b 0.5, c 2 and its group 10.
        assert answers[5].cost == 13.5
        # A loaded machine may wake the device up to 150 ms late.
        assert max(answer.latency_ms for answer in answers) < 100 + 150
        start_worker()
        wait_until(lambda: device.answer(HARD_ROW).route == "cloud", "the cloud", timeout_s=60)


def test_worker_tests_the_audits_of_all_devices(bundle, broker):
    with Worker(bundle, broker.url) as worker:
        for device_id in ("a", "b"):
            link = MqttLink(broker.url, device=device_id)
            audit_share = 1.0  # each answer of the edge is audited
            with Device(
                bundle, link=link, deadline_ms=LONG_DEADLINE_MS, audit=audit_share
            ) as device:
                link.connect(CONNECT_TIMEOUT_S)
                for _ in range(30):
                    device.answer(SURE_ROW)
                    n_sent = device.counters["sent"]
                    wait_until(lambda n_sent=n_sent: device.counters["answered"] == n_sent)
                assert device.counters["audits"] == 30
        # a worker tests an audit after its response
        wait_until(lambda: worker.counters["audits"]["small/7"]["audits"] == 60)
        worker_metrics = metrics_text(worker).decode()
    assert 'gatewise_worker_audits_total{model="small",version="7"} 60.0' in worker_metrics
