"""Requests to the server of a worker without a broker."""

from __future__ import annotations

from typing import Any

import numpy as np

from gatewise_cloud.worker.batcher import Batcher
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_cloud.worker.serving import BatchServer
from gatewise_edge.link import wire
from tests.support import tiny_bundle as tiny


class RecordingSession:
    """A session that keeps the payloads of responses."""

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


def test_answers_are_the_only_responses_if_the_archive_fails(bundle, caplog):
    models = ServedModels()
    models.load(bundle)
    session: Any = RecordingSession()
    archive: Any = FailingArchive()
    server = BatchServer(models, Batcher(), session, Counters(), archive)
    request_ids = []
    for _ in range(3):
        request = wire.Request(
            id=wire.new_id(), model="tiny", version="1", ttl_ms=60_000, X=tiny.random_rows(1)
        )
        request_ids.append(request.id)
        server.receive("gw/v1/pi/req", wire.encode_request(request), False)
    server.start()
    server.drain_and_stop(30.0)
    assert [response.id for response in session.responses] == request_ids
    assert [response.error for response in session.responses] == [None] * 3
    assert "no space" in caplog.text
    assert np.isfinite(session.responses[0].probabilities).all()
