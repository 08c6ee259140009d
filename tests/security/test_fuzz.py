"""Malformed messages are counted, and cause no crash and no growth of memory."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable

import pytest

from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_edge.device.device import Device
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import MqttLink
from tests.security.fuzzing import mutated_messages, requests, resident_mb, responses
from tests.support.mqtt_clients import MqttClient
from tests.support.small_bundle import HARD_ROW, answer_to

REASONS = {
    "size", "cbor", "version", "id", "name", "range", "type", "shape", "infinite", "missing",
    "checksum",
}  # fmt: skip
#: Largest growth of resident memory in MB, below a leak of 100 bytes per message.
MAX_GROWTH = 10.0


def memory_growth_mb(feed_message: Callable[[bytes], None], messages: list[bytes]) -> float:
    """Feed all messages; return the growth of resident memory over the last three quarters."""
    n_warm_up = len(messages) // 4
    for message in messages[:n_warm_up]:
        feed_message(message)
    gc.collect()
    mb_before = resident_mb()
    for message in messages[n_warm_up:]:
        feed_message(message)
    gc.collect()
    return resident_mb() - mb_before


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("request", 5000),
        ("response", 5000),  # a device gets 100,000 of them below
        pytest.param("request", 100_000, marks=pytest.mark.slow),
    ],
)
def test_a_decoder_gives_a_message_or_a_reason(kind, count):
    decode_message, encode_message, valid_messages = {
        "request": (wire.decode_request, wire.encode_request, requests("small", "7", 3)),
        "response": (
            wire.decode_response,
            wire.encode_response,
            [
                *responses("small", "7", 2, [wire.new_id() for _ in range(2)]),
                wire.encode_response(
                    wire.Response(id=wire.new_id(), model="", version="", error="busy", detail="x")
                ),
            ],
        ),
    }[kind]
    outcomes: Counter[str] = Counter()
    message_ids: set[int | None] = set()

    def feed_message(payload: bytes) -> None:
        try:
            message = decode_message(payload)
        except WireError as error:
            outcomes[error.reason] += 1
            message_ids.add(None if error.id is None else len(error.id))
        else:
            # an accepted message can be encoded and decoded again
            assert decode_message(encode_message(message)).id == message.id
            outcomes["taken"] += 1

    growth_mb = memory_growth_mb(
        feed_message, list(mutated_messages(valid_messages, count, seed=20261))
    )
    assert outcomes.total() == count
    assert set(outcomes) <= REASONS | {"taken"}
    assert message_ids == {None, 16}
    # The mutations reach every check, and some messages stay valid.
    rare_reasons = {"name", "infinite", "missing"}
    assert set(outcomes) >= {"taken"} | REASONS - rare_reasons
    assert growth_mb < MAX_GROWTH


class NoisyLink:
    """A link that delivers many malformed messages before each response."""

    ready = True

    def __init__(self, answer: Callable[[bytes], bytes], n_messages: int) -> None:
        self._respond = answer
        self._n_messages = n_messages
        self.n_delivered = 0
        self.n_requests = 0

    def open(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive

    def send(self, payload: bytes) -> bool:
        self.n_requests += 1
        request = wire.decode_request(payload)
        valid_responses = responses(request.model, request.version, 2, [request.id, wire.new_id()])
        for message in mutated_messages(valid_responses, self._n_messages, seed=self.n_requests):
            self._deliver(message)
        self._deliver(self._respond(payload))
        return True

    def _deliver(self, message: bytes) -> None:
        self.n_delivered += 1
        self._receive(message)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("count", [5000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_device_counts_each_message_and_answers_each_instance(bundle, count):
    def answer(payload: bytes) -> bytes:
        return wire.encode_response(answer_to(wire.decode_request(payload)))

    link = NoisyLink(answer, n_messages=100)
    routes: Counter[str] = Counter()
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        mb_before = None
        while link.n_delivered < count:
            routes[device.answer(HARD_ROW).route] += 1
            if mb_before is None and link.n_delivered >= count // 4:
                gc.collect()
                mb_before = resident_mb()
        gc.collect()
        assert mb_before is not None
        assert resident_mb() - mb_before < MAX_GROWTH
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
    n_messages = 12_000  # the worker remembers 4096 responses
    with MosquittoBroker() as broker:
        worker = command("cloud", bundle.path, "--broker", broker.url, "--json")
        assert json.loads(worker.line())["ready"]
        flooding_client = MqttClient(broker.url, "gw/v1/mad/rsp", "gw/v1/dead/+", name="flood")
        seeds = requests("small", "7", 3)
        messages = [
            m for m in mutated_messages(seeds, n_messages, seed=7) if len(m) <= wire.MAX_PAYLOAD
        ]
        link = MqttLink(broker.url, device="pi-1")
        with Device(bundle, link=link, deadline_ms=60_000) as device:
            link.connect(60)
            mb_before = None
            stray_responses = iter(
                mutated_messages(responses("small", "7", 2, [wire.new_id()]), n_messages, seed=8)
            )
            n_sent = 0
            for index, message in enumerate(messages):
                flooding_client.publish("gw/v1/mad/req", message)
                if index % 10 == 0:
                    flooding_client.publish("gw/v1/pi-1/rsp", next(stray_responses))
                    n_sent += 1
                if index % 100 == 0:
                    assert device.answer(HARD_ROW).route == "cloud"
                if index == len(messages) // 4:
                    mb_before = resident_mb(worker.process.pid)
            assert device.answer(HARD_ROW).route == "cloud"
            counters = device.counters
        assert mb_before is not None
        growth_mb = resident_mb(worker.process.pid) - mb_before
        n_requests = counters["sent"] + counters["retries"]
        worker.process.terminate()
        status, stdout, stderr = worker.finish()
        assert (status, stderr) == (0, "")
        summary = json.loads(stdout)
        flooding_client.close()
    assert summary["received"] == len(messages) + n_requests
    counter_names = ("answered", "repeated", "duplicates", "expired", "abandoned")
    n_refused = sum(summary["errors"].values()) + sum(summary["dead"].values())
    assert sum(summary[name] for name in counter_names) + n_refused == summary["received"]
    assert summary["unsent"] == 0
    # the worker remembers at most 4096 responses of some hundred bytes for duplicates
    assert growth_mb < MAX_GROWTH
    n_strays = sum(counters[name] for name in ("invalid", "unknown", "mismatched", "late"))
    assert n_strays == n_sent
