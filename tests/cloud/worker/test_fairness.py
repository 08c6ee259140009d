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
N_QUIET_REQUESTS = 15


@pytest.mark.slow
def test_quiet_devices_get_answers_while_a_noisy_device_overloads_the_worker(
    bundle, mosquitto, connect_caller, monkeypatch
):
    run = CloudModel.run

    def run_slowly(self, X):
        time.sleep(ROW_SECONDS * len(X))
        return run(self, X)

    monkeypatch.setattr(CloudModel, "run", run_slowly)
    noisy, quiet, second_quiet = (
        connect_caller(mosquitto),
        connect_caller(mosquitto),
        connect_caller(mosquitto),
    )
    stop_noise = threading.Event()
    large_batch = np.tile(tiny.random_rows(100), (5, 1))

    def make_noise():
        while not stop_noise.wait(1 / MESSAGES_PER_SECOND):
            noisy.ask(large_batch, ttl_ms=60_000)

    thread = threading.Thread(target=make_noise)
    with Worker(bundle, mosquitto.url, drain_seconds=0.0) as worker:
        thread.start()
        try:
            noisy_responses = [noisy.response() for _ in range(60)]  # the overload has begun
            quiet_responses = []
            for _ in range(N_QUIET_REQUESTS):
                for client in (quiet, second_quiet):
                    client.ask(tiny.random_rows(1), ttl_ms=1500)
                quiet_responses += [quiet.response(5.0), second_quiet.response(5.0)]
        finally:
            stop_noise.set()
            thread.join()
    assert [answer.error for answer in quiet_responses] == [None] * 2 * N_QUIET_REQUESTS
    assert worker.counters["expired"] == 0
    refusals = [response for response in noisy_responses if response.error]
    assert {response.error for response in refusals} == {wire.BUSY}
    # The full queue, about eight messages, takes about 160 ms; the bounds are generous.
    assert all(20 <= response.wait_ms <= 2000 for response in refusals[-10:])
