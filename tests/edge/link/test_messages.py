"""Requests and responses check their fields, so that no invalid message can be made."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_edge.errors import WireError
from gatewise_edge.link.messages import (
    BAD_REQUEST,
    MAX_CLASSES,
    MAX_VALUE_BYTES,
    AuditMark,
    max_rows,
)
from gatewise_edge.link.wire import Request, Response, encode_request

#: Any id of a request; it has 16 bytes.
REQUEST_ID = bytes(range(16))
#: An answer with two classes.
ANSWER_FIELDS = {"labels": np.array([1]), "probabilities": np.array([[0.25, 0.75]])}


def make_request(**changes):
    """Make a valid request of one instance with some changes."""
    fields = {"id": REQUEST_ID, "model": "m", "version": "1", "ttl_ms": 1, "X": [[1.0]]}
    return Request(**(fields | changes))


def make_response(**fields):
    """Make a response; by default it has a model and its version, and neither answers nor error."""
    return Response(**({"id": REQUEST_ID, "model": "m", "version": "1"} | fields))


def test_request_refuses_instances_of_a_wrong_shape_or_value():
    for X in (np.zeros(3), np.zeros((0, 3)), np.zeros((1, 0)), np.full((1, 1), np.inf)):
        with pytest.raises(WireError):
            make_request(X=X)
    assert make_request(X=[[1, 2]]).X.dtype == np.float32


@pytest.mark.parametrize(
    "changes",
    [
        *({"labels": [2]}, {"labels": [-1]}),  # the classes are 0 and 1
        *({"labels": [0, 1]}, {"labels": [[0]]}),  # for one row of probabilities
        {"labels": [], "probabilities": np.empty((0, 2))},
        *({"probabilities": [[np.nan, 1]]}, {"probabilities": [[5.0, 0.0]]}),
        *({"probabilities": [[-1.0, 1.0]]}, {"probabilities": [0.5, 0.5]}),
        {"probabilities": [[1.0]]},  # at least two classes
        *({"worker_us": -1}, {"worker_us": 2**40 + 1}),  # the bound in docs/wire.md
    ],
)
def test_response_refuses_labels_and_probabilities_that_do_not_match(changes):
    make_response(**ANSWER_FIELDS, worker_us=2**40)
    # A softmax in half precision gives such values, which are within the tolerance of 0.001.
    make_response(labels=[1], probabilities=[[-0.0005, 1.0005]])
    with pytest.raises(WireError):
        make_response(**(ANSWER_FIELDS | changes))


@pytest.mark.parametrize(("code", "is_valid"), [("", False), ("x" * 32, True), ("x" * 33, False)])
def test_an_error_code_has_1_to_32_bytes(code, is_valid):
    if is_valid:
        assert make_response(error=code).error == code
    else:
        with pytest.raises(WireError, match="error code"):
            make_response(error=code)


def test_error_names_the_probability_farthest_outside_of_0_to_1():
    for outlier, other_probability in ((-1.0, 1.0), (2.0, 0.0)):
        with pytest.raises(WireError, match=f"a probability of {outlier:g}"):
            make_response(labels=[0], probabilities=[[other_probability, outlier]])


@pytest.mark.parametrize(
    "changes",
    [
        *({"class_index": -1}, {"class_index": MAX_CLASSES + 1}),
        # An estimate from audits divides by the probability.
        *({"probability": 0.0}, {"probability": 1.01}, {"probability": -0.5}),
        *({"confidence": -0.1}, {"confidence": 1.1}),
    ],
)
def test_audit_mark_refuses_fields_out_of_bounds(changes):
    fields = {"class_index": MAX_CLASSES, "probability": 1.0}
    assert AuditMark(**fields, confidence=0.0).confidence == 0.0
    with pytest.raises(WireError):
        AuditMark(**(fields | changes))


@pytest.mark.parametrize(
    ("n_columns", "n_classes", "n_rows"),
    [
        (0, 2, 256),  # more rows would make the worker's other devices wait
        # An answer has 4 bytes per probability and 2 for the label, and the other fields of a
        # response 256 bytes: (128 KiB - 256) / (4 * 255 + 2) = 128 answers exactly.
        (1, 255, 128),
        (1, 256, 127),
        (500, 2, 65),  # (128 KiB - 256) / (4 * 500) with 4 bytes per value of a request
        (1 << 20, 2, 1),  # too many columns even for one row, which the encoder refuses
    ],
)
def test_max_rows_is_the_largest_number_that_fits_request_and_response(
    n_columns, n_classes, n_rows
):
    assert max_rows(n_columns, n_classes) == n_rows


@pytest.mark.parametrize(
    ("name", "largest"),
    [("ttl_ms", 86_400_000), ("late_s", 31_622_400)],  # 24 * 60 * 60 s, 366 days
)
def test_times_of_a_request_lie_within_their_bounds(name, largest):
    for value in (0, largest):
        assert getattr(make_request(**{name: value}), name) == value
    for value in (-1, largest + 1):
        with pytest.raises(WireError):
            make_request(**{name: value})


def test_answer_needs_its_model_and_an_error_may_lack_it():
    # A worker may be unable to read them from a malformed request.
    assert make_response(model="", version="", error=BAD_REQUEST).n_rows == 0
    for model, version in (("", ""), ("m", ""), ("", "1")):
        with pytest.raises(WireError):
            make_response(model=model, version=version, **ANSWER_FIELDS)


def test_values_and_the_other_fields_fit_one_message():
    # All other fields have their largest size.
    request = Request(
        id=REQUEST_ID,
        model="m" * 64,
        version="v" * 64,
        ttl_ms=86_400_000,
        X=np.ones((1, MAX_VALUE_BYTES // 4), np.float32),
        audit=AuditMark(MAX_CLASSES, 1.0, 1.0),
        is_private=True,
        late_s=31_622_400,
    )
    assert len(encode_request(request)) <= 131_072  # 128 KiB
