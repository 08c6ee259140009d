"""The encoder writes the test vectors in docs/, and the decoder reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gatewise_edge.link import wire
from tests.support.wire_vectors import make_vectors, request_values, response_values

VECTORS_FILE = Path(__file__).parents[3] / "docs/wire-vectors.json"
VECTORS = json.loads(VECTORS_FILE.read_text())


def test_vectors_in_the_docs_are_those_of_the_encoder():
    """They include invalid messages with the reason for which each is refused."""
    assert make_vectors() == VECTORS


@pytest.mark.parametrize("vector", VECTORS["requests"], ids=lambda vector: vector["name"])
def test_request_vectors_decode_to_their_fields(vector):
    request = wire.decode_request(bytes.fromhex(vector["hex"]))
    assert request_values(request) == vector["says"]
    assert wire.encode_request(request).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["responses"], ids=lambda vector: vector["name"])
def test_response_vectors_decode_to_their_fields(vector):
    response = wire.decode_response(bytes.fromhex(vector["hex"]))
    assert response_values(response) == vector["says"]
    assert wire.encode_response(response).hex() == vector["hex"]


def test_json_response_vectors_decode_to_their_fields():
    for vector in VECTORS["json_responses"]:
        entries = json.loads(vector["text"])
        expected_entries = vector["says"]
        for key, entry in entries.items():
            expected_entry = expected_entries.get(key)
            if key == "p":  # probabilities, of which the decimal digits may differ
                assert np.array_equal(np.array(entry, "f4"), np.array(expected_entry, "f4"))
            elif key != "v":  # the version of the protocol, which is no field of a response
                assert entry == expected_entry
