"""Requests to the server of a worker without a broker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatewise_cloud.worker.batcher import Batcher
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_cloud.worker.serving import BatchServer
from gatewise_edge.link import wire
from gatewise_edge.link.messages import AuditMark
from tests.support import tiny_bundle as tiny
from tests.support.waiting import wait_until


class RecordingSession:
    """A session that keeps the responses."""

    has_unread = False

    def __init__(self) -> None:
        self.responses: list[wire.Response] = []

    def send(self, device: str, payload: bytes, form: Any) -> None:
        self.responses.append(wire.decode_response(payload))

    def respond(self, device: str, response: wire.Response, form: Any) -> None:
        self.responses.append(response)


class FailingArchive:
    """An archive that cannot store anything."""

    def archive(self, *_: Any) -> None:
        raise OSError("no space")


@pytest.fixture
def session() -> Any:
    return RecordingSession()


@pytest.fixture
def make_server(bundle, session):
    """Function that makes the server of the tiny bundle's model."""
    models = ServedModels()
    models.load(bundle)
    return lambda counters, *options: BatchServer(models, Batcher(), session, counters, *options)


def receive_request(server: BatchServer, ttl_ms: int = 60_000, **fields: Any) -> wire.Request:
    """Let a server receive a request of one row; return the request."""
    request = wire.Request(
        **({"id": wire.new_id(), "X": tiny.random_rows(1)} | fields),
        model="tiny", version="1", ttl_ms=ttl_ms,
    )  # fmt: skip
    server.receive("gw/v1/pi/req", wire.encode_request(request), False)
    return request


def test_answers_are_the_only_responses_if_the_archive_fails(make_server, session, caplog):
    archive: Any = FailingArchive()
    server = make_server(Counters(), archive)
    request_ids = [receive_request(server).id for _ in range(3)]
    server.start()
    server.drain_and_stop(30.0)
    assert [response.id for response in session.responses] == request_ids
    assert [response.error for response in session.responses] == [None] * 3
    assert "no space" in caplog.text
    assert np.isfinite(session.responses[0].probabilities).all()


def test_a_repeated_request_gets_the_same_answer_and_an_expired_one_none(make_server, session):
    counters = Counters()
    server = make_server(counters)
    request = receive_request(server)
    fields = {"id": request.id, "X": request.X}
    receive_request(server, **fields)
    receive_request(server, ttl_ms=0)
    server.start()
    wait_until(lambda: session.responses, "the answer")
    wait_until(lambda: counters.snapshot()["answered"] == 1)
    receive_request(server, **fields)
    server.drain_and_stop(30.0)
    first_answer, second_answer = session.responses
    assert first_answer.id == second_answer.id == request.id
    np.testing.assert_array_equal(first_answer.probabilities, second_answer.probabilities)
    counts = counters.snapshot()
    names = ("answered", "duplicates", "repeated", "expired")
    assert [counts[name] for name in names] == [1, 1, 1, 1]


@pytest.mark.parametrize(("class_index", "n_rows"), [(tiny.N_CLASSES, 1), (0, 2)])
def test_an_audit_of_an_unknown_class_or_of_several_rows_is_refused(
    make_server, session, class_index, n_rows
):
    server = make_server(Counters())
    audit = AuditMark(class_index, probability=0.5)
    receive_request(server, X=tiny.random_rows(n_rows), audit=audit)
    assert [response.error for response in session.responses] == [wire.BAD_REQUEST]
    assert server.n_queued == 0
