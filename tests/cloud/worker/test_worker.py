"""Workers on real brokers: load sharing, duplicates, expiry, full queues and stops."""

import json
import socket
import threading
from collections import Counter

import cbor2
import numpy as np
import pytest

from gatewise.errors import GatewiseError, InputError
from gatewise_cloud import MosquittoBroker, Worker
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.errors import LinkError
from gatewise_edge.link import wire
from tests.support import tiny_bundle as tiny
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.wire_vectors import change_message

pytestmark = pytest.mark.slow  # starts workers and brokers


def encode_request(X, **fields):
    default_fields = {"id": wire.new_id(), "model": "tiny", "version": "1", "ttl_ms": 5000, "X": X}
    return wire.encode_request(wire.Request(**default_fields | fields))


def test_a_worker_answers_rows_of_float32_and_float16(tmp_path, any_broker, connect_caller):
    path = tiny.write_bundle(tmp_path / "b", kind="classifier")
    with Worker(path, any_broker.url) as worker:
        client = connect_caller(any_broker)
        for dtype in (np.float32, np.float16):
            X = tiny.random_rows(5).astype(dtype)
            sent_request = client.ask(X)
            answer = client.response()
            labels, probabilities = tiny.cloud_answers(X)
            assert (answer.id, answer.model, answer.version) == (sent_request.id, "tiny", "1")
            assert answer.labels.tolist() == labels.tolist()
            # The model computes in float32, the reference in float64.
            np.testing.assert_allclose(answer.probabilities, probabilities, atol=1e-6)
            assert answer.worker_us > 0
    counters = worker.counters
    assert (counters["received"], counters["answered"], counters["instances"]) == (2, 2, 10)
    assert counters["models"] == [{"name": "tiny", "version": "1"}]


# Without a shared subscription, each of several connections would receive all requests.
@pytest.mark.parametrize(("shared", "n_connections"), [(True, 3), (False, 1)])
def test_a_worker_with_several_connections_answers_each_request_once(
    bundle, mosquitto, connect_caller, shared, n_connections
):
    with Worker(bundle, mosquitto.url, connections=3, shared=shared) as worker:
        client = connect_caller(mosquitto)
        request_ids = {client.ask(tiny.random_rows(1)).id for _ in range(30)}
        assert {answer.id for answer in client.responses(30)} == request_ids
        counters = worker.counters
        assert (counters["connects"], counters["received"]) == (n_connections, 30)
        assert counters["answered"] == 30
        assert worker.trouble is None


def test_two_workers_share_the_load_and_answer_each_request_once(bundle, mosquitto, connect_caller):
    with (
        Worker(bundle, mosquitto.url) as first_worker,
        Worker(bundle, mosquitto.url) as second_worker,
    ):
        callers = [connect_caller(mosquitto), connect_caller(mosquitto)]
        request_ids = [callers[i % 2].ask(tiny.random_rows(1)).id for i in range(80)]
        answers = [answer for client in callers for answer in client.responses(40)]
    assert {answer.id for answer in answers} == set(request_ids)
    n_answered = [worker.counters["answered"] for worker in (first_worker, second_worker)]
    assert sum(n_answered) == 80
    assert min(n_answered) > 0


def test_each_pool_and_plain_subscription_answers(bundle, mosquitto, connect_caller):
    with (
        Worker(bundle, mosquitto.url, pool="a"),
        Worker(bundle, mosquitto.url, pool="b"),
        Worker(bundle, mosquitto.url, shared=False) as plain_worker,
    ):
        assert plain_worker.subscription == "gw/v1/+/req"
        client = connect_caller(mosquitto)
        sent_request = client.ask(tiny.random_rows(1))
        assert {answer.id for answer in client.responses(3)} == {sent_request.id}


def test_a_worker_without_shared_subscriptions_warns_and_subscribes_plainly(
    bundle, embedded_broker, caplog
):
    with Worker(bundle, embedded_broker.url) as worker:
        assert worker.subscription == "gw/v1/+/req"
    assert "run only one worker" in caplog.text


def test_a_worker_serves_several_models_and_refuses_unknown_ones(
    tmp_path, mosquitto, connect_caller
):
    served_models = [("digits", "1"), ("digits", "2"), ("wine", "1")]
    paths = [
        tiny.write_bundle(tmp_path / f"{name}{version}", name=name, version=version)
        for name, version in served_models
    ]
    with Worker(paths, mosquitto.url) as worker:
        client = connect_caller(mosquitto)
        for model, version in [*served_models, ("other", "1"), ("wine", "2")]:
            sent_request = client.ask(tiny.random_rows(1), model=model, version=version)
            answer = client.response()
            assert (answer.id, answer.model, answer.version) == (sent_request.id, model, version)
            if (model, version) in served_models:
                assert answer.error is None
            else:
                assert (answer.error, answer.is_retryable) == ("no-model", True)
                assert f"{model} {version}" in answer.detail
    assert worker.counters["errors"] == {"no-model": 2}


def test_plain_json_is_answered_in_plain_json(bundle, any_broker, connect_caller):
    """Answers, checks, duplicates and dead letters are the same as with CBOR."""
    with Worker(bundle, any_broker.url) as worker:
        client = connect_caller(any_broker)
        topic, response_topic = (
            f"gw/v1/{client.device}/{direction}/json" for direction in ("req", "rsp")
        )
        client.subscribe(response_topic)
        X = tiny.random_rows(3)
        message = {"id": wire.new_id().hex(), "m": "tiny", "mv": "1", "ttl": 5000, "x": X.tolist()}

        def exchange(**changes):
            client.send(json.dumps(message | changes).encode(), topic=topic)
            received_topic, payload = client.get()
            assert received_topic == response_topic
            return json.loads(payload)

        first_answer = exchange()
        labels, probabilities = tiny.cloud_answers(X)
        assert (first_answer["id"], first_answer["y"]) == (message["id"], labels.tolist())
        np.testing.assert_allclose(first_answer["p"], probabilities, atol=1e-6)
        client.ask(X)
        np.testing.assert_array_equal(
            np.array(first_answer["p"], np.float32), client.response().probabilities
        )
        assert exchange() == first_answer
        assert exchange(mv="9", id="0" * 32)["e"] == "no-model"
        assert "takes 4 columns" in exchange(x=[1, 2])["d"]
        assert "x[0]" in exchange(x=["a"])["d"]
        client.send(b"{", topic=topic)
        assert client.get() == ("gw/v1/dead/json", b"{")
    assert (worker.counters["answered"], worker.counters["repeated"]) == (2, 1)


# -- duplicates, expiry, full queues ----------------------------------------------------------


def test_a_full_queue_responds_busy_immediately_and_accepts_the_retry(
    slow_bundle, mosquitto, connect_caller
):
    payloads = [encode_request(tiny.random_rows(1), model="slow", ttl_ms=20_000) for _ in range(8)]
    with Worker(slow_bundle, mosquitto.url, queue=1, max_batch=1) as worker:
        client = connect_caller(mosquitto)
        for payload in payloads:
            client.send(payload)
        answers = client.responses(8)
        refusals = [answer for answer in answers if answer.error]
        assert {answer.error for answer in refusals} == {"busy"}
        assert all(answer.is_retryable for answer in refusals)
        # One request runs and one is queued; the others are refused before any answer. If the first
        # one does not run yet when the second comes, one more is refused.
        assert len(refusals) in (6, 7)
        assert [answer.error for answer in answers[: len(refusals)]] == ["busy"] * len(refusals)
        retried_payload = next(
            payload for payload in payloads if wire.decode_request(payload).id == refusals[0].id
        )
        client.send(retried_payload)
        answer = client.response()
        assert (answer.id, answer.error) == (refusals[0].id, None)
    assert worker.counters["errors"] == {"busy": len(refusals)}


# -- bad messages ------------------------------------------------------------------------------


def encode_changed_request(**entries):
    """Payload of a request with replaced entries and a new checksum."""
    message = cbor2.loads(encode_request(np.zeros((1, 4), np.float32))) | entries
    return change_message(cbor2.dumps(message), {})


def encode_damaged_request():
    """Payload of a request whose last byte, of the checksum, has a flipped bit."""
    payload = encode_request(np.zeros((1, 4), np.float32))
    return payload[:-1] + bytes([payload[-1] ^ 1])


#: Messages without a readable request id, and the reason in their dead-letter topic.
UNANSWERABLE_MESSAGES = [
    (b"", "cbor"),
    (encode_damaged_request(), "checksum"),
    (encode_changed_request(id=b"short"), "id"),
    (b"x" * (wire.MAX_PAYLOAD + 1), "size"),
]
#: Changed entries of a request, and a word of the error response.
REFUSED_CHANGES = [
    ({"v": 2}, "layout"),
    ({"x": cbor2.CBORTag(85, np.full(4, np.nan, "<f4").tobytes())}, "missing values"),
    ({"k": 3, "x": cbor2.CBORTag(85, np.zeros(3, "<f4").tobytes())}, "takes 4 columns"),
]


def test_bad_messages_get_an_error_or_go_to_a_dead_letter_topic(bundle, any_broker, connect_caller):
    with Worker(bundle, any_broker.url) as worker:
        client = connect_caller(any_broker)
        for payload, reason in UNANSWERABLE_MESSAGES:
            client.send(payload)
            assert client.get() == (f"gw/v1/dead/{reason}", payload[: wire.MAX_PAYLOAD])
        for entries, word in REFUSED_CHANGES:
            payload = encode_changed_request(**entries)
            client.send(payload)
            answer = client.response()
            assert answer.id == cbor2.loads(payload)["id"]
            assert (answer.error, answer.is_retryable) == ("bad-request", False)
            assert word in answer.detail
        client.ask(tiny.random_rows(1))
        assert client.response().error is None
    assert worker.counters["dead"] == Counter(reason for _, reason in UNANSWERABLE_MESSAGES)
    assert worker.counters["errors"] == {"bad-request": len(REFUSED_CHANGES)}


def test_a_request_whose_response_would_be_too_large_is_refused(
    tmp_path, mosquitto, connect_caller
):
    """A response to 4,096 rows of 8 classes would have 139 kB."""
    path = tiny.write_bundle(tmp_path / "b", n_classes=8)
    with Worker(path, mosquitto.url) as worker:
        client = connect_caller(mosquitto)
        client.ask(tiny.random_rows(4096))
        answer = client.response()
        assert (answer.error, answer.is_retryable) == ("bad-request", False)
        assert "at most 3847 instances per request" in answer.detail
        assert worker.counters["batches"] == 0
        n_rows = 3633  # of which the response almost fills a message
        client.ask(tiny.random_rows(n_rows))
        assert client.response().n_rows == n_rows


def test_retained_requests_and_reserved_device_names_are_dead_letters(
    bundle, any_broker, connect_caller
):
    client = connect_caller(any_broker)
    payload = encode_request(tiny.random_rows(1))
    client.send(payload, retain=True)
    with Worker(bundle, any_broker.url, shared=False) as worker:
        assert client.get() == ("gw/v1/dead/retained", payload)
        client.send(payload, topic="gw/v1/model/req")
        # The embedded broker may deliver a retained message twice.
        while (message := client.get())[0] == "gw/v1/dead/retained":
            pass
        assert message == ("gw/v1/dead/name", payload)
        assert client.is_silent(0.1)
    dead_letters = worker.counters["dead"]
    assert dead_letters.pop("retained") >= 1
    assert dead_letters == {"name": 1}
    assert worker.counters["answered"] == 0
    client.send(b"", retain=True)


def test_a_worker_ignores_messages_of_other_topics(bundle, embedded_broker, connect_caller):
    """The embedded broker sends retained messages of topics without a subscription."""
    client, other_client = connect_caller(embedded_broker), connect_caller(embedded_broker)
    other_client.send(b"retained", topic=wire.response_topic(other_client.device), retain=True)
    other_client.get()
    with Worker(bundle, embedded_broker.url) as worker:
        client.ask(tiny.random_rows(1))
        assert client.response().error is None
    assert worker.counters["received"] == 1
    other_client.send(b"", topic=wire.response_topic(other_client.device), retain=True)


def test_a_failing_request_does_not_affect_the_others_of_its_batch(
    tmp_path, mosquitto, connect_caller, caplog
):
    """The graph fails at run time for rows with a large value."""
    path = tiny.write_bundle(tmp_path / "b", name="slow", graph=tiny.slow_graph(limit=100))
    rows = [tiny.random_rows(1, seed=i) for i in range(8)]
    rows[3] = rows[7] = np.full((1, 4), 1000.0, np.float32)
    with Worker(path, mosquitto.url) as worker:
        client = connect_caller(mosquitto)
        requests = [client.ask(X, model="slow", ttl_ms=20_000) for X in rows]
        error_of_request = {answer.id: answer.error for answer in client.responses(8)}
    assert [error_of_request[request.id] for request in requests] == ([None] * 3 + ["failed"]) * 2
    assert worker.counters["answered"] == 6
    assert worker.counters["errors"] == {"failed": 2}
    # The operator reads the cause, but not once for each request.
    assert caplog.text.count("model slow 1 failed: ") == 1


def test_an_unexpected_error_is_answered_with_a_failure(
    bundle, mosquitto, connect_caller, monkeypatch
):
    with Worker(bundle, mosquitto.url) as worker:
        client = connect_caller(mosquitto)
        with monkeypatch.context() as patch:
            patch.setattr(CloudModel, "run", lambda *_: 1 / 0)
            sent_request = client.ask(tiny.random_rows(1))
            answer = client.response()
            assert (answer.id, answer.error) == (sent_request.id, "failed")
            assert "ZeroDivisionError" in answer.detail
        client.ask(tiny.random_rows(1))
        assert client.response().error is None
    assert worker.counters["answered"] == 1


# -- start and stop --------------------------------------------------------------------------


def test_draining_ends_after_the_time_limit(slow_bundle, mosquitto, connect_caller):
    worker = Worker(slow_bundle, mosquitto.url, max_batch=1, drain_seconds=0.01).start()
    client = connect_caller(mosquitto)
    for _ in range(20):
        client.ask(tiny.random_rows(1), model="slow", ttl_ms=20_000)
    wait_until(lambda: worker.counters["received"] == 20)
    worker.stop()
    counters = worker.counters
    assert counters["abandoned"] > 0
    # The request that ran at the time limit counts as neither answered nor abandoned.
    assert counters["abandoned"] + counters["answered"] in (19, 20)


def test_run_ends_when_another_thread_stops_it(bundle, mosquitto):
    worker = Worker(bundle, mosquitto.url)
    worker.run(on_ready=lambda worker: threading.Thread(target=worker.stop).start())
    assert not worker.counters["connected"]
    worker.stop()
    with pytest.raises(GatewiseError, match="started before"):
        worker.start()


@pytest.mark.usefixtures("quick_reconnects")
def test_a_worker_reconnects_after_its_broker_restarts(bundle, connect_caller):
    with MosquittoBroker() as broker:
        worker = Worker(bundle, broker.url).start()
    wait_until(lambda: not worker.counters["connected"])
    with MosquittoBroker(broker.port) as restarted_broker:
        wait_until(lambda: worker.counters["connects"] == 2)
        client = connect_caller(restarted_broker)
        # A connected worker may not have subscribed yet, so that requests are repeated.
        for _ in range(50):  # for five seconds
            client.ask(tiny.random_rows(1))
            if not client.is_silent(0.1):
                break
        assert worker.counters["answered"] > 0
        worker.stop()


def test_an_unreachable_broker_is_an_error(bundle):
    port = free_port()
    for shared in (True, False):
        with pytest.raises(LinkError, match=f"127.0.0.1:{port} cannot be reached"):
            Worker(bundle, f"mqtt://127.0.0.1:{port}", shared=shared).start()


def test_a_broker_that_does_not_respond_is_an_error(bundle, monkeypatch):
    monkeypatch.setattr("gatewise_cloud.worker.session._CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        port = silent_server.getsockname()[1]
        with pytest.raises(LinkError, match="no answer within"):
            Worker(bundle, f"mqtt://127.0.0.1:{port}", shared=False).start()


def test_a_broker_that_refuses_the_worker_is_an_error(bundle, locked_mosquitto):
    for shared in (True, False):
        with pytest.raises(LinkError, match="refuses this client"):
            Worker(bundle, locked_mosquitto, shared=shared).start()


def test_a_failed_start_ends_the_serving_threads(bundle, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")

    def fail(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("gatewise_cloud.archive.label_intake.LabelIntake.start", fail)
    worker = Worker(bundle, "mqtt://127.0.0.1:1", keep=tmp_path / "kept", shared=False)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.start()
    assert not worker._server.is_alive


def test_a_worker_that_cannot_start_leaves_no_thread(tmp_path):
    pytest.importorskip("pyarrow")

    def archive_threads():
        return [thread for thread in threading.enumerate() if thread.name == "gatewise-archive"]

    broker_url = f"mqtt://127.0.0.1:{free_port()}"
    worker = Worker([], broker_url, watch=tmp_path, keep=tmp_path / "kept")
    assert archive_threads()
    with pytest.raises(LinkError):
        worker.start()
    assert not archive_threads()
    with pytest.raises(InputError, match="folder to watch"):
        Worker([], broker_url, watch=tmp_path / "none", keep=tmp_path / "kept")
    assert not archive_threads()
    Worker([], broker_url, watch=tmp_path, keep=tmp_path / "kept").stop()
    assert not archive_threads()


def test_invalid_bundles_and_settings_are_refused(bundle, mosquitto):
    with pytest.raises(InputError, match="at least one bundle"):
        Worker([], mosquitto.url)
    with pytest.raises(InputError, match=r"tiny 1 is served already: give bundle .* another name"):
        Worker([bundle, bundle], mosquitto.url)
    with pytest.raises(InputError, match="mqtt://"):
        Worker(bundle, "http://x")
    with pytest.raises(InputError, match="at least 1"):
        Worker(bundle, mosquitto.url, queue=0)
    with pytest.raises(GatewiseError, match="pool"):
        Worker(bundle, mosquitto.url, pool="a/b")
