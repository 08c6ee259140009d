"""Tests that malformed messages are counted, cause no crash, and let no resource grow."""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable

import pytest

from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_edge.device.device import Device
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import MqttLink
from tests.security.fuzzing import make_requests, make_responses, mutate_messages
from tests.support.mqtt_clients import MqttClient
from tests.support.small_bundle import HARD_ROW, answer_to

#: Reasons of a refusal.
REASONS = {
    "size", "cbor", "version", "id", "name", "range", "type", "shape", "infinite", "missing",
    "checksum",
}  # fmt: skip
#: Largest growth of resident memory in MB: a leak of 100 bytes for each of 50,000 messages.
MAX_GROWTH = 5.0


def read_resident_mb(process: int | str = "self") -> float:
    """Read the resident memory of a process in MB (10^6 bytes)."""
    with open(f"/proc/{process}/smaps_rollup") as lines:
        rss_line = next(line for line in lines if line.startswith("Rss:"))
    return int(rss_line.split()[1]) * 1024 / 1e6


def count_threads_and_files(process: int) -> tuple[int, int]:
    """Count the threads and the open files of a process."""
    return len(os.listdir(f"/proc/{process}/task")), len(os.listdir(f"/proc/{process}/fd"))


def measure_growth_mb(feed_message: Callable[[bytes], None], messages: list[bytes]) -> float:
    """Feed all messages; return the growth of resident memory over the last three quarters."""
    n_warm_up = len(messages) // 4
    for message in messages[:n_warm_up]:
        feed_message(message)
    gc.collect()
    mb_before = read_resident_mb()
    for message in messages[n_warm_up:]:
        feed_message(message)
    gc.collect()
    return read_resident_mb() - mb_before


@pytest.mark.parametrize(
    ("kind", "n_messages"),
    [
        ("request", 2000),
        ("response", 2000),  # a device gets 50,000 of them below
        pytest.param("request", 50_000, marks=pytest.mark.slow),
    ],
)
def test_a_decoder_gives_a_message_or_a_reason(kind, n_messages):
    decode_message, encode_message, valid_messages = {
        "request": (wire.decode_request, wire.encode_request, make_requests("small", "7", 3)),
        "response": (
            wire.decode_response,
            wire.encode_response,
            [
                *make_responses("small", "7", 2, [wire.new_id() for _ in range(2)]),
                wire.encode_response(
                    wire.Response(id=wire.new_id(), model="", version="", error="busy", detail="x")
                ),
            ],
        ),
    }[kind]
    outcomes: Counter[str] = Counter()
    id_lengths: set[int | None] = set()

    def feed_message(payload: bytes) -> None:
        try:
            message = decode_message(payload)
        except WireError as error:
            outcomes[error.reason] += 1
            id_lengths.add(None if error.id is None else len(error.id))
        else:
            # an accepted message can be encoded and decoded again
            assert decode_message(encode_message(message)).id == message.id
            outcomes["taken"] += 1

    growth_mb = measure_growth_mb(
        feed_message, list(mutate_messages(valid_messages, n_messages, seed=20261))
    )
    assert outcomes.total() == n_messages
    assert set(outcomes) <= REASONS | {"taken"}
    assert id_lengths == {None, 16}  # an id is whole or unknown
    # The mutations reach every check, and some messages stay valid. 2000 messages may miss a few.
    rare_reasons = {"name", "infinite", "missing"}
    assert set(outcomes) >= {"taken"} | REASONS - rare_reasons
    assert growth_mb < MAX_GROWTH


class NoisyLink:
    """A link that delivers many malformed messages before each response."""

    ready = True

    def __init__(self, respond: Callable[[bytes], bytes], n_messages: int) -> None:
        self._respond = respond
        self._n_messages = n_messages
        self.n_delivered = 0
        self.n_requests = 0

    def open(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive

    def send(self, payload: bytes) -> bool:
        self.n_requests += 1
        request = wire.decode_request(payload)
        valid_responses = make_responses(
            request.model, request.version, 2, [request.id, wire.new_id()]
        )
        for message in mutate_messages(valid_responses, self._n_messages, seed=self.n_requests):
            self._deliver(message)
        self._deliver(self._respond(payload))
        return True

    def _deliver(self, message: bytes) -> None:
        self.n_delivered += 1
        self._receive(message)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("n_messages", [2000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_a_device_counts_each_message_and_answers_each_instance(bundle, n_messages):
    def respond(payload: bytes) -> bytes:
        return wire.encode_response(answer_to(wire.decode_request(payload)))

    link = NoisyLink(respond, n_messages=100)
    routes: Counter[str] = Counter()
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        mb_before = None  # measured after a quarter, when all caches are full
        while link.n_delivered < n_messages:
            routes[device.answer(HARD_ROW).route] += 1
            if mb_before is None and link.n_delivered >= n_messages // 4:
                gc.collect()
                mb_before = read_resident_mb()
        gc.collect()
        assert mb_before is not None
        assert read_resident_mb() - mb_before < MAX_GROWTH
        counters = device.counters
    assert routes.total() == link.n_requests
    # A mutation may be a valid response. In production the access list prevents it.
    assert routes["cloud"] > 0.9 * routes.total()
    counter_names = (
        "invalid",
        "unknown",
        "mismatched",
        "duplicates",
        "late",
        "answered",
        "refused",
    )
    assert sum(counters[name] for name in counter_names) == link.n_delivered
    assert min(counters[name] for name in ("invalid", "unknown", "mismatched", "duplicates")) > 0


@pytest.mark.slow
def test_a_running_worker_and_device_over_a_broker(bundle, command):
    n_messages = 8000  # the worker remembers 4096 responses
    with MosquittoBroker() as broker:
        worker = command("cloud", bundle.path, "--broker", broker.url, "--json")
        assert json.loads(worker.read_line())["ready"]
        flooding_client = MqttClient(broker.url, "gw/v1/mad/rsp", "gw/v1/dead/+", name="flood")
        messages = [
            message
            for message in mutate_messages(make_requests("small", "7", 3), n_messages, seed=7)
            if len(message) <= wire.MAX_PAYLOAD  # the broker drops others
        ]
        link = MqttLink(broker.url, device="pi-1")
        with Device(bundle, link=link, deadline_ms=60_000) as device:
            link.connect(60)  # seconds, for a busy machine
            mb_before = None
            stray_responses = iter(
                mutate_messages(
                    make_responses("small", "7", 2, [wire.new_id()]), n_messages, seed=8
                )
            )
            n_sent = 0
            # A tenth as many stray responses, and an instance now and then, which is slow.
            for index, message in enumerate(messages):
                flooding_client.publish("gw/v1/mad/req", message)
                if index % 10 == 0:
                    flooding_client.publish("gw/v1/pi-1/rsp", next(stray_responses))
                    n_sent += 1
                if index % 100 == 0:
                    assert device.answer(HARD_ROW).route == "cloud"
                if index == len(messages) // 4:
                    mb_before = read_resident_mb(worker.process.pid)
                    counts_before = count_threads_and_files(worker.process.pid)
            assert device.answer(HARD_ROW).route == "cloud"
            counters = device.counters
        assert mb_before is not None
        growth_mb = read_resident_mb(worker.process.pid) - mb_before
        assert count_threads_and_files(worker.process.pid) == counts_before
        n_requests = counters["sent"] + counters["retries"]
        worker.process.terminate()
        status, output, error_output = worker.finish()
        assert (status, error_output) == (0, "")
        summary = json.loads(output)
        flooding_client.close()
    assert summary["received"] == len(messages) + n_requests
    counter_names = ("answered", "repeated", "duplicates", "expired", "abandoned")
    n_refused = sum(summary["errors"].values()) + sum(summary["dead"].values())
    assert sum(summary[name] for name in counter_names) + n_refused == summary["received"]
    assert summary["unsent"] == 0
    # the worker remembers at most 4096 responses of some hundred bytes for duplicates
    assert growth_mb < 2 * MAX_GROWTH
    n_strays = sum(counters[name] for name in ("invalid", "unknown", "mismatched", "late"))
    assert n_strays == n_sent
