"""Requests and responses that no wire may carry cannot be made."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_edge.errors import WireError
from gatewise_edge.link.wire import Request, Response

ID = bytes(range(16))


def test_request_refuses_what_cannot_travel():
    good = {"id": ID, "model": "m", "version": "1", "ttl_ms": 1}
    for X in (np.zeros(3), np.zeros((0, 3)), np.zeros((1, 0)), np.full((1, 1), np.inf)):
        with pytest.raises(WireError):
            Request(**good, X=X)
    assert Request(**good, X=[[1, 2]]).X.dtype == np.float32


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": [2]},
        {"labels": [-1]},
        {"labels": [0, 1]},
        {"labels": [[0]]},
        {"probabilities": [[np.nan, 1]]},
        {"probabilities": [[5.0, 0.0]]},
        {"probabilities": [[-1.0, 1.0]]},
        {"probabilities": [[1.0]]},
        {"probabilities": [0.5, 0.5]},
        {"worker_us": -1},
    ],
)
def test_response_refuses_nonsense(changes):
    good = {"labels": np.array([1]), "probabilities": np.array([[0.25, 0.75]])}
    Response(id=ID, model="m", version="1", **good)
    # as sums in half precision come out
    Response(id=ID, model="m", version="1", labels=[1], probabilities=[[-0.0005, 1.0005]])
    with pytest.raises(WireError):
        Response(id=ID, model="m", version="1", **(good | changes))
