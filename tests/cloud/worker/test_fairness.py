"""A noisy device beside two quiet ones, on a real broker and worker."""

import threading
import time

import numpy as np

from gatewise_cloud import Worker
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.link import wire
from tests.support import tiny_bundle as tiny

ROW_SECONDS = 40e-6  # a worker manages at most 50 messages of 500 rows per second
MESSAGES = 150  # per second, three times what the worker manages
QUIET = 15


def test_a_noisy_device_takes_its_share_and_no_more(bundle, mosquitto, caller, monkeypatch):
    run = CloudModel.run

    def slow(self, X):
        time.sleep(ROW_SECONDS * len(X))
        return run(self, X)

    monkeypatch.setattr(CloudModel, "run", slow)
    noisy, quiet, other = caller(mosquitto), caller(mosquitto), caller(mosquitto)
    ended = threading.Event()
    many = np.tile(tiny.rows(100), (5, 1))

    def make_noise():
        while not ended.wait(1 / MESSAGES):
            noisy.ask(many, ttl_ms=60_000)

    thread = threading.Thread(target=make_noise)
    with Worker(bundle, mosquitto.url, drain_seconds=0.0) as worker:
        thread.start()
        try:
            busy = [noisy.response() for _ in range(60)]  # the overload has begun
            answers = []
            for _ in range(QUIET):
                for one in (quiet, other):
                    one.ask(tiny.rows(1), ttl_ms=1500)
                answers += [quiet.response(5.0), other.response(5.0)]
        finally:
            ended.set()
            thread.join()
    assert [answer.error for answer in answers] == [None] * 2 * QUIET
    assert worker.counters["expired"] == 0
    refused = [response for response in busy if response.error]
    assert {response.error for response in refused} == {wire.BUSY}
    # The full queue, about eight messages, takes about 160 ms; the bounds are generous.
    assert all(20 <= response.wait_ms <= 2000 for response in refused[-10:])
