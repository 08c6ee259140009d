"""Client in C: its messages and its exchange with real workers."""

from __future__ import annotations

import queue
import re
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator

import cbor2
import numpy as np
import pytest

from benchmarks.c99.compiled import compiler_command
from gatewise_cloud import MosquittoBroker, Worker
from gatewise_edge.link.message_forms import decode_json_request, encode_json_response
from gatewise_edge.link.wire import Response, decode_request, decode_response, encode_response
from gatewise_export.c99.board_libraries import write_library
from tests.support import small_bundle
from tests.support.c_wire_client import (
    ANSWERED,
    ID,
    TIMEOUT,
    TTL_MS,
    WAITING,
    Client,
    make_answer,
    make_client,
)
from tests.support.mqtt_clients import MqttClient
from tests.support.needs import needs_compiler
from tests.support.relay import Relay

pytestmark = needs_compiler


# -- messages ------------------------------------------------------------------------------


def make_hard_floats(n_per_kind: int) -> np.ndarray:
    """Make floats of all sizes, with extremes, neighbours of powers of ten, and a missing value."""
    rng = np.random.default_rng(0)
    random_bits = rng.integers(0, 1 << 32, n_per_kind, dtype=np.uint32).view(np.float32)
    # All powers of ten that are normal float32 numbers.
    powers = np.float32(10.0) ** rng.integers(-37, 38, n_per_kind).astype(np.float32)
    sides = rng.choice([-np.inf, np.inf], n_per_kind).astype(np.float32)
    neighbours = np.nextafter(powers, sides)
    decimals = (rng.integers(-(10**6), 10**6, n_per_kind) / 1000).astype(np.float32)
    limits = np.finfo(np.float32)
    # 2^24 + 1 is the smallest whole number that is no float32.
    extremes = [
        0.0, -0.0, 1.0, limits.smallest_subnormal, limits.tiny, limits.max, 2**24 + 1, np.nan
    ]  # fmt: skip
    numbers = np.concatenate(
        [random_bits, powers, neighbours, decimals, np.array(extremes, np.float32)]
    )
    return numbers[~np.isinf(numbers)]


@pytest.mark.slow
def test_requests_keep_the_exact_floats(client):
    rows = np.resize(make_hard_floats(2500), (3400, 3))
    largest_bytes = {"cbor": 0, "json": 0}
    decoders = {"cbor": decode_request, "json": decode_json_request}
    for row in rows:
        for form, decode in decoders.items():
            message = client.encode(form, row)
            request = decode(message)
            expected_row = np.where(np.isnan(row), np.float32("nan"), row)
            np.testing.assert_array_equal(request.X[0], expected_row)
            assert (request.id, request.model, request.version) == (ID, "small", "7")
            assert request.ttl_ms == TTL_MS
            largest_bytes[form] = max(largest_bytes[form], len(message))
    # Three floats take 12 bytes in CBOR, and up to 15 characters each in JSON.
    assert largest_bytes["cbor"] < 100
    assert largest_bytes["json"] < 160


@pytest.mark.slow
def test_requests_have_at_most_the_bytes_of_the_header(library_folder, client):
    header = (library_folder / "include/m_wire.h").read_text()
    stated_sizes = re.findall(r"M_WIRE_(CBOR|JSON)_BYTES (\d+)", header)
    sizes = {form: int(size) for form, size in stated_sizes}
    # The longest numbers have a sign, nine digits and a signed exponent of two digits.
    longest_row = [-1.17549435e-38, -3.40282347e38, -1.40129846e-45]
    assert len(client.encode("cbor", longest_row)) == sizes["CBOR"]
    assert 0 < len(client.encode("json", longest_row)) <= sizes["JSON"]
    for form in ("cbor", "json"):
        message = client.encode(form, longest_row)
        assert client.encode(form, longest_row, capacity=len(message) - 1) == b""
        assert client.encode(form, [0, np.inf, 0]) == b""
    assert len(client.encode("json", [1, 2.5, 0.1])) < 110


def test_the_largest_refusal_has_at_most_the_bytes_of_the_header(tmp_path):
    name = "x" * 64
    bundle = small_bundle.write_bundle(tmp_path / "bundle", name=name, version=name)
    write_library(bundle, tmp_path / "c", "cmake", name="m")
    header = (tmp_path / "c/include/m_wire.h").read_text()
    sizes = dict(re.findall(r"M_WIRE_(CBOR|JSON)_RESPONSE_BYTES (\d+)", header))
    refusal = Response(
        id=ID, model=name, version=name, error="e" * 32, detail='"' * 200, wait_ms=86_400_000
    )
    assert len(encode_response(refusal)) <= int(sizes["CBOR"])
    assert len(encode_json_response(refusal)) <= int(sizes["JSON"])


def test_responses_keep_the_exact_floats(client):
    rng = np.random.default_rng(1)
    # Powers of uniform numbers, so that some are tiny.
    for probability in rng.uniform(size=2000).astype(np.float32) ** rng.integers(1, 12, 2000):
        probabilities = np.array([[probability, 1 - probability]], np.float32)
        full_response = Response(
            id=ID, model="small", version="7", labels=[1], probabilities=probabilities, worker_us=7
        )
        for form, encode in (("cbor", encode_response), ("json", encode_json_response)):
            response = client.decode(form, encode(full_response))
            assert response is not None
            np.testing.assert_array_equal(np.float32(response.probability), probabilities[0])
            assert (response.label, response.worker_us) == (1, 7)


def test_error_responses_are_decoded(client):
    detail = 'a "detail", {['
    refusal = Response(id=ID, model="", version="", error="busy", detail=detail, wait_ms=250)
    for form, encode in (("cbor", encode_response), ("json", encode_json_response)):
        response = client.decode(form, encode(refusal))
        assert (response.label, response.error, response.wait_ms) == (-1, b"busy", 250)


def test_unknown_keys_of_all_scalar_types_are_ignored(client):
    entries = cbor2.loads(encode_response(make_answer(client.encode("cbor", [1, 2, 3]))))
    del entries["crc"]
    for value in (-1, -(2**40), 2**40, 0.5, True, None, b"bytes", "text"):
        message = cbor2.dumps({**entries, "new": value, "crc": bytes(4)})[:-4]
        message += zlib.crc32(message).to_bytes(4, "big")
        assert decode_response(message).labels == [1]
        assert client.decode("cbor", message).label == 1, value


def test_a_class_that_the_model_does_not_have_is_no_answer(client):
    answer = encode_json_response(make_answer(client.encode("cbor", [1, 2, 3])))
    assert client.decode("json", answer).label == 1
    for label in (b"2", b"3000000000"):
        assert client.decode("json", answer.replace(b'"y":[1]', b'"y":[%b]' % label)) is None


@pytest.mark.parametrize(
    "changes",
    [{"id": bytes(16)}, {"model": "other"}, {"version": "8"}, {"labels": [1, 1],
     "probabilities": [[0.5, 0.5]] * 2}, {"probabilities": [[0.2, 0.3, 0.5]]}],
)  # fmt: skip
def test_foreign_responses_are_ignored(client, changes):
    fields = {"id": ID, "model": "small", "version": "7", "labels": [1], "worker_us": 1}
    response = Response(**(fields | {"probabilities": [[0.5, 0.5]]} | changes))
    assert client.decode("cbor", encode_response(response)) is None
    assert client.decode("json", encode_json_response(response)) is None


# Decodes messages, each after its length in two bytes; prints the number of valid ones.
FUZZ_PROGRAM = """\
#include "m_wire.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    unsigned char head[2];
    int n_valid = 0;
    static unsigned char id[16];
    int i;
    for (i = 0; i < 16; i++)
        id[i] = (unsigned char)i;
    while (fread(head, 1, 2, stdin) == 2) {
        size_t size = (size_t)head[0] | (size_t)head[1] << 8;
        unsigned char *message = (unsigned char *)malloc(size + !size); /* its end is guarded */
        m_wire_response response;
        if (fread(message, 1, size, stdin) != size)
            return 2;
        n_valid += m_wire_decode_cbor(message, size, id, &response);
        n_valid += m_wire_decode_json(message, size, id, &response);
        free(message);
    }
    printf("%d\\n", n_valid);
    return 0;
}
"""


@pytest.mark.slow
def test_damaged_messages_cause_no_memory_error(library_folder, tmp_path):
    (tmp_path / "fuzz.c").write_text(FUZZ_PROGRAM)
    sources = (tmp_path / "fuzz.c", *sorted((library_folder / "src").glob("*.c")))
    sanitizers = "-fsanitize=address,undefined"
    flags = ["-std=c99", "-g", "-O1", sanitizers, "-fno-sanitize-recover"]
    command = [*(compiler_command() or ()), *flags]
    command += ["-I", library_folder / "include", *sources, "-lm", "-o", tmp_path / "fuzz"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    rng = np.random.default_rng(0)
    valid_response = Response(
        id=ID, model="small", version="7", labels=[1], probabilities=[[0.25, 0.75]], worker_us=40
    )
    valid_messages = [encode_response(valid_response), encode_json_response(valid_response)]
    refusal = Response(id=ID, model="", version="", error="busy", detail="d", wait_ms=1)
    valid_messages.append(encode_json_response(refusal))
    messages = [b"", *valid_messages]
    for _ in range(6000):
        # Replace one to three bytes; one copy is also cut off.
        message = bytearray(valid_messages[rng.integers(3)])
        for position in rng.integers(0, len(message), rng.integers(1, 4)):
            message[position] = rng.integers(256)
        messages.append(bytes(message[: rng.integers(len(message) + 1)]))
        messages.append(bytes(message))
    stream = b"".join(len(message).to_bytes(2, "little") + message for message in messages)
    process = subprocess.run([tmp_path / "fuzz"], input=stream, capture_output=True)
    assert process.returncode == 0, process.stderr.decode()[-2000:]
    # JSON has no checksum, so a message with a damaged number may be valid.
    assert 3 <= int(process.stdout) < len(messages)


def test_a_client_of_the_other_form_does_not_link(library_folder, tmp_path):
    """The struct has another size in JSON."""
    (tmp_path / "main.c").write_text(
        '#include "m_wire.h"\n'
        "static m_wire wire;\n"
        "int main(void) { m_wire_begin(&wire, 0, 0, 0); return wire.state; }\n"
    )
    command = [*(compiler_command() or ()), "-I", library_folder / "include", tmp_path / "main.c"]
    for form, returncode in ((0, 0), (1, 1)):
        library = library_folder / f"client{form}.so"
        process = subprocess.run(
            [*command, library, "-o", tmp_path / "main"], capture_output=True, text=True
        )
        assert process.returncode == returncode, process.stderr
    assert "m_wire_begin" in process.stderr


# -- a real broker and worker --------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(wire_bundle) -> Iterator[MosquittoBroker]:
    with MosquittoBroker() as broker, Worker(wire_bundle.path, broker.url):
        yield broker


def read_clock_ms() -> int:
    """Read the time as a C client does, which overflows after 49 days."""
    return time.monotonic_ns() // 1_000_000 % 2**32


def offload_and_wait(
    client: Client, mqtt: MqttClient, topic: str, row: np.ndarray, ttl_ms: int
) -> int:
    """Offload a row and exchange messages until the request ends; return the final state."""
    client.offload(row, read_clock_ms(), ttl_ms)
    n_published = 0
    while client.poll(read_clock_ms()) == WAITING:
        for message in client.sent_messages[n_published:]:
            mqtt.client.publish(topic, message, qos=1)
        n_published = len(client.sent_messages)
        try:
            _, payload = mqtt.get(timeout_s=0.01)
        except queue.Empty:
            continue
        client.receive(payload, read_clock_ms())
    client.sent_messages.clear()
    return client.poll(read_clock_ms())


@pytest.mark.parametrize("json", [False, True])
def test_a_worker_answers_the_c_client_as_in_python(library_folder, broker, json):
    client = make_client(library_folder, json=json)
    suffix = "/json" if json else ""
    mqtt = MqttClient(broker.url, f"gw/v1/c-{json}/rsp{suffix}")
    rows = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    topic = f"gw/v1/c-{json}/req{suffix}"
    for row, label, probabilities in zip(rows, *small_bundle.cloud_answers(rows), strict=True):
        assert offload_and_wait(client, mqtt, topic, row, 10_000) == ANSWERED
        assert client.response.label == label
        # The worker computes in float32, the reference in float64.
        np.testing.assert_allclose(list(client.response.probability), probabilities, atol=1e-6)
    mqtt.close()


@pytest.mark.slow
def test_each_row_has_one_outcome_while_the_link_is_cut(library_folder, broker):
    client = make_client(library_folder)
    port = int(broker.url.rpartition(":")[2])
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels, _ = small_bundle.cloud_answers(rows)
    outcomes = []
    with Relay(port) as relay:
        mqtt = MqttClient(relay.url, "gw/v1/c-cut/rsp", name="gw-c-cut")
        is_over = threading.Event()

        def cut_link() -> None:
            while not is_over.wait(0.15):  # as often as a request times out
                relay.break_connections()

        thread = threading.Thread(target=cut_link)
        thread.start()
        for row, label in zip(rows, labels, strict=True):
            outcome = offload_and_wait(client, mqtt, "gw/v1/c-cut/req", row, 150)
            outcomes.append(outcome)
            assert outcome != ANSWERED or client.response.label == label
        is_over.set()
        thread.join()
        mqtt.close()
    assert len(outcomes) == len(rows)
    assert set(outcomes) <= {ANSWERED, TIMEOUT}
    assert outcomes.count(ANSWERED) > 0  # their number depends on the speed of the machine
