"""Fairness of a worker to two quiet devices while a noisy device overloads it."""

import threading
import time

import numpy as np
import pytest

from gatewise_cloud import Worker
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.link import wire
from tests.support import tiny_bundle as tiny

ROW_SECONDS = 40e-6  # a worker manages at most 50 messages of 500 rows per second
MESSAGES_PER_SECOND = 150  # three times the capacity of the worker
N_QUIET_REQUESTS = 15  # of each of the two quiet devices


@pytest.mark.slow
def test_quiet_devices_get_answers_while_a_noisy_device_overloads_the_worker(
    bundle, mosquitto, connect_caller, monkeypatch
):
    run_model = CloudModel.run

    def run_slowly(self, X):
        time.sleep(ROW_SECONDS * len(X))
        return run_model(self, X)

    monkeypatch.setattr(CloudModel, "run", run_slowly)
    noisy_device = connect_caller(mosquitto)
    quiet_devices = [connect_caller(mosquitto) for _ in range(2)]
    is_over = threading.Event()
    large_batch = np.tile(tiny.random_rows(100), (5, 1))

    def send_large_batches():
        while not is_over.wait(1 / MESSAGES_PER_SECOND):
            noisy_device.ask(large_batch, ttl_ms=60_000)

    thread = threading.Thread(target=send_large_batches)
    with Worker(bundle, mosquitto.url, drain_seconds=0.0) as worker:
        thread.start()
        try:
            noisy_responses = noisy_device.responses(60)  # the overload has begun
            quiet_responses = []
            for _ in range(N_QUIET_REQUESTS):
                for device in quiet_devices:
                    device.ask(tiny.random_rows(1), ttl_ms=1500)
                # The timeout exceeds the time to live, so that a late answer shows as an error.
                quiet_responses += [device.response(timeout_s=5.0) for device in quiet_devices]
        finally:
            is_over.set()
            thread.join()
    assert [answer.error for answer in quiet_responses] == [None] * 2 * N_QUIET_REQUESTS
    assert worker.counters["expired"] == 0
    refusals = [response for response in noisy_responses if response.error]
    assert {response.error for response in refusals} == {wire.BUSY}
    # The full queue, about eight messages, takes about 160 ms; the bounds are generous.
    # The last refusals come after the worker has measured its speed.
    assert all(20 <= response.wait_ms <= 2000 for response in refusals[-10:])
