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
from gatewise_edge.link.mqtt_link import MqttLink
from tests.security.fuzzing import make_requests, make_responses, mutate_messages
from tests.support.mqtt_clients import MqttClient
from tests.support.small_bundle import HARD_ROW, FakeLink, respond

#: Reasons of a refusal.
REASONS = {
    "size", "cbor", "version", "id", "name", "range", "type", "shape", "infinite", "checksum",
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


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_messages"), [("request", 50_000), ("response", 10_000)])
def test_a_decoder_gives_a_message_or_a_reason(kind, n_messages):
    """A device gets 50,000 responses below."""
    if kind == "request":
        decode_message, encode_message = wire.decode_request, wire.encode_request
        valid_messages = make_requests("small", "7", 3)
    else:
        decode_message, encode_message = wire.decode_response, wire.encode_response
        refusal = wire.Response(id=wire.new_id(), model="", version="", error="busy", detail="x")
        ids = [wire.new_id(), wire.new_id()]
        valid_messages = [*make_responses("small", "7", 2, ids), wire.encode_response(refusal)]
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
    # The mutations reach every check, and some messages stay valid. 10,000 messages may miss a few.
    rare_reasons = {"name", "infinite"}
    assert set(outcomes) >= {"taken"} | REASONS - rare_reasons
    assert growth_mb < MAX_GROWTH


@pytest.mark.slow
def test_a_device_counts_each_message_and_answers_each_instance(bundle):
    n_messages = 50_000
    n_delivered = 0

    def respond_after_noise(payload: bytes, receive: Callable[[bytes], None]) -> None:
        nonlocal n_delivered
        request = wire.decode_request(payload)
        ids = [request.id, wire.new_id()]
        valid_responses = make_responses(request.model, request.version, 2, ids)
        for message in mutate_messages(valid_responses, 100, seed=len(link.sent_payloads)):
            receive(message)
        respond(payload, receive)
        n_delivered += 101

    link = FakeLink(respond_after_noise)
    routes: Counter[str] = Counter()
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        mb_before = None  # measured after a quarter, when all caches are full
        while n_delivered < n_messages:
            routes[device.answer(HARD_ROW).route] += 1
            if mb_before is None and n_delivered >= n_messages // 4:
                gc.collect()
                mb_before = read_resident_mb()
        gc.collect()
        assert mb_before is not None
        link.sent_payloads.clear()
        assert read_resident_mb() - mb_before < MAX_GROWTH
        counters = device.counters
    # A mutation may be a valid response. In production the access list prevents it.
    assert routes["cloud"] > 0.9 * routes.total()
    unused = ("invalid", "unknown", "mismatched", "duplicates")
    names = (*unused, "late", "answered", "refused")
    assert sum(counters[name] for name in names) == n_delivered
    assert min(counters[name] for name in unused) > 0


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
                flooding_client.client.publish("gw/v1/mad/req", message, qos=1)
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
