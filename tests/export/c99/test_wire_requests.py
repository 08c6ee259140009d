"""Requests of the client in C: their deadlines, retries, pauses and measured round trips."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from benchmarks.c99.compiled import compiler_command
from gatewise_edge.link.wire import decode_request, encode_response
from gatewise_export.bundle.manifest_records import MissingSpec
from gatewise_export.c99.board_libraries import write_library
from tests.support import small_bundle
from tests.support.c_wire_client import (
    ANSWERED,
    IDLE,
    REFUSED,
    STRICT_FLAGS,
    TIMEOUT,
    UNSENT,
    WAITING,
    Client,
    make_answer,
    make_refusal,
)
from tests.support.needs import needs_compiler

pytestmark = needs_compiler


def test_a_response_ends_a_request(client):
    assert client.poll(0) == IDLE
    assert client.offload([1, 2, 3], 1000, 500) == WAITING
    (message,) = client.sent_messages
    assert decode_request(message).X.tolist() == [[1, 2, 3]]
    assert client.receive(b"noise", 1005) == WAITING
    assert client.receive(encode_response(make_answer(message)), 1010) == ANSWERED
    assert client.response.label == 1
    assert list(client.response.probability) == [0.25, 0.75]


def test_a_request_is_sent_again_once_and_then_times_out(client):
    client.offload([1, 2, 3], 0, 400)
    # Before the first round trip the client retries after half of the time to live.
    assert client.poll(199) == WAITING
    assert len(client.sent_messages) == 1
    assert client.poll(200) == WAITING
    assert client.sent_messages[0] == client.sent_messages[1]
    assert client.poll(399) == WAITING
    assert client.poll(400) == TIMEOUT
    assert len(client.sent_messages) == 2
    late_response = encode_response(make_answer(client.sent_messages[0]))
    assert client.receive(late_response, 401) == TIMEOUT


def test_deadlines_hold_when_the_clock_overflows(client):
    client.offload([1, 2, 3], 2**32 - 100, 400)  # the deadline is at 300
    assert client.poll(2**32 - 1) == WAITING
    assert client.poll(100) == WAITING
    assert len(client.sent_messages) == 2
    assert client.poll(300) == TIMEOUT


def test_a_busy_response_is_followed_by_one_retry_after_its_wait_time(client):
    client.offload([1, 2, 3], 0, 1000)
    busy = encode_response(make_refusal(client.sent_messages[0], "busy", wait_ms=300))
    assert client.receive(busy, 10) == WAITING
    client.poll(309)
    assert len(client.sent_messages) == 1
    client.poll(310)
    assert len(client.sent_messages) == 2
    assert client.receive(busy, 400) == REFUSED
    assert client.response.error == b"busy"
    # The second refusal, at 400, asks for another 300 ms.
    assert client.offload([1, 2, 3], 500, 1000) == UNSENT
    assert client.offload([1, 2, 3], 700, 1000) == WAITING


def test_a_failure_ends_a_request_but_an_unknown_model_does_not(client):
    client.offload([1, 2, 3], 0, 1000)
    failed = encode_response(make_refusal(client.sent_messages[0], "failed"))
    assert client.receive(failed, 10) == REFUSED
    client.offload([1, 2, 3], 100, 1000)
    unknown = encode_response(make_refusal(client.sent_messages[1], "no-model"))
    assert client.receive(unknown, 110) == WAITING
    assert client.receive(encode_response(make_answer(client.sent_messages[1])), 120) == ANSWERED


def measure_round_trip(client: Client, round_trip_ms: int) -> None:
    """Let 40 requests be answered after `round_trip_ms`, so that the deviation falls to zero."""
    for start in range(0, 40_000, 1000):
        client.offload([1, 2, 3], start, 900)
        answer = encode_response(make_answer(client.sent_messages[-1]))
        assert client.receive(answer, start + round_trip_ms) == ANSWERED
    client.sent_messages.clear()


def retry_delay_ms(client: Client, start: int) -> int:
    """Begin a request at `start` and return the ms after which it is sent again."""
    client.sent_messages.clear()
    client.offload([1, 2, 3], start, 900)
    for now in range(start, start + 900):
        client.poll(now)
        if len(client.sent_messages) == 2:
            return now - start
    pytest.fail("the request was not sent again")


def test_the_retry_waits_for_twice_the_round_trip(client):
    measure_round_trip(client, 40)
    # The client smooths in whole milliseconds.
    assert 78 < retry_delay_ms(client, 50_000) <= 84


def test_receiving_sends_nothing(client):
    """The message may lie in the buffer in which the MQTT client writes the next one."""
    client.offload([1, 2, 3], 0, 400)
    answer = encode_response(make_answer(client.sent_messages[0]))
    assert client.receive(b"noise", 250) == WAITING  # the retry was due at 200
    assert client.receive(answer, 300) == ANSWERED
    assert len(client.sent_messages) == 1


def test_an_answer_at_the_deadline_is_late(client):
    client.offload([1, 2, 3], 0, 400)
    assert client.receive(encode_response(make_answer(client.sent_messages[0])), 400) == TIMEOUT


def test_a_late_answer_measures_the_round_trip(client):
    measure_round_trip(client, 40)
    client.offload([1, 2, 3], 50_000, 300)
    assert client.poll(50_100) == WAITING  # the retry
    assert client.poll(50_300) == TIMEOUT
    late_answer = encode_response(make_answer(client.sent_messages[0]))
    assert client.receive(late_answer, 50_360) == TIMEOUT
    # 320 ms more than usual: a quarter of them is the deviation, and an eighth adds to 40 ms.
    assert retry_delay_ms(client, 60_000) == pytest.approx(80 + 4 * 80, abs=8)


def test_a_refused_second_copy_does_not_measure_the_answer_to_the_first(client):
    measure_round_trip(client, 100)
    delay_ms = retry_delay_ms(client, 50_000)
    refusal = encode_response(make_refusal(client.sent_messages[0], "no-model"))
    assert client.receive(refusal, 50_002 + delay_ms) == WAITING
    answer = encode_response(make_answer(client.sent_messages[0]))
    assert client.receive(answer, 50_003 + delay_ms) == ANSWERED
    # The answer took longer than usual, so the next retry waits longer.
    assert retry_delay_ms(client, 60_000) > delay_ms


def test_each_pool_may_refuse_a_request_before_its_retry(client):
    client.offload([1, 2, 3], 0, 1000)
    refusal = encode_response(make_refusal(client.sent_messages[0], "no-model"))
    assert client.receive(refusal, 10) == WAITING
    assert client.receive(refusal, 20) == WAITING
    assert client.poll(260) == WAITING  # the retry, a round trip after the first refusal
    assert len(client.sent_messages) == 2
    assert client.receive(refusal, 270) == REFUSED


def test_a_retry_that_is_not_sent_ends_a_refused_request(client):
    client.offload([1, 2, 3], 0, 1000)
    busy = encode_response(make_refusal(client.sent_messages[0], "busy", wait_ms=300))
    assert client.receive(busy, 10) == WAITING
    client.is_connected = False
    assert client.poll(310) == REFUSED
    assert client.response.error == b"busy"


def test_a_retry_that_is_not_sent_leaves_the_first_copy_out(client):
    measure_round_trip(client, 40)
    client.offload([1, 2, 3], 50_000, 900)
    client.is_connected = False
    assert client.poll(50_100) == WAITING
    client.is_connected = True
    answer = encode_response(make_answer(client.sent_messages[0]))
    assert client.receive(answer, 50_500) == ANSWERED
    # The answer took 460 ms more than usual, not 400 ms since a second copy.
    assert retry_delay_ms(client, 60_000) == pytest.approx(97 + 4 * 115, abs=8)


def test_a_pause_ends_although_the_clock_wrapped_around(client):
    client.offload([1, 2, 3], 0, 1000)
    busy = encode_response(make_refusal(client.sent_messages[0], "busy", wait_ms=900))
    assert client.receive(busy, 10) == REFUSED
    assert client.offload([1, 2, 3], 909, 1000) == UNSENT
    days_25 = 25 * 86_400_000
    assert client.offload([1, 2, 3], days_25, 1000) == WAITING


def test_nothing_is_sent_without_a_connection_or_with_infinite_values(client):
    client.is_connected = False
    assert client.offload([1, 2, 3], 0, 1000) == UNSENT
    client.is_connected = True
    assert client.offload([1, np.inf, 3], 0, 1000) == UNSENT
    assert client.sent_messages == []


#: Sensor in C that fails once, and the row of a request after a decision.
ROW_PROGRAM = """\
#include "m_wire.h"
#include <math.h>
static float acquire(int feature, void *n_reads)
{
    ++((int *)n_reads)[feature];
    return feature == M_FEATURE_C ? NAN : 0.1f;
}
int collect_row(float *row, int *n_reads)
{
    m_instance instance;
    m_answer answer;
    m_decide(&instance, acquire, n_reads, &answer);
    return answer.outcome == M_OFFLOAD && m_wire_row(&instance, acquire, n_reads, row);
}
"""


def test_a_request_holds_the_missing_value_that_a_stage_refused(tmp_path):
    missing = MissingSpec(stages="refused", cloud="allowed")
    bundle = small_bundle.write_bundle(tmp_path / "bundle", missing=missing)
    write_library(bundle, tmp_path / "c", "cmake", name="m")
    (tmp_path / "row.c").write_text(ROW_PROGRAM)
    sources = [tmp_path / "row.c", *sorted((tmp_path / "c/src").glob("*.c"))]
    command = [*(compiler_command() or ()), *STRICT_FLAGS, "-std=c99", "-shared", "-fPIC"]
    command += ["-I", tmp_path / "c/include", *sources, "-lm", "-o", tmp_path / "row.so"]
    subprocess.run(command, check=True)
    row, n_reads = (ctypes.c_float * 3)(), (ctypes.c_int * 6)()
    assert ctypes.CDLL(str(tmp_path / "row.so")).collect_row(row, n_reads) == 1
    np.testing.assert_array_equal(row, np.array([0.1, np.nan, 0.1], np.float32))
    assert list(n_reads) == [1, 1, 1, 0, 1, 0]  # the stages read a, b and c, the cloud a, c and e
