"""Requests and responses check their fields, so that no invalid message can be made."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_edge.errors import WireError
from gatewise_edge.link.messages import (
    MAX_CLASSES,
    MAX_SKIPPED,
    MAX_VALUE_BYTES,
    AuditMark,
    max_rows,
)
from gatewise_edge.link.wire import Request, Response

#: Any id of a request; it has 16 bytes.
ID = bytes(range(16))


def test_request_refuses_instances_of_a_wrong_shape_or_value():
    fields = {"id": ID, "model": "m", "version": "1", "ttl_ms": 1}
    for X in (np.zeros(3), np.zeros((0, 3)), np.zeros((1, 0)), np.full((1, 1), np.inf)):
        with pytest.raises(WireError):
            Request(**fields, X=X)
    assert Request(**fields, X=[[1, 2]]).X.dtype == np.float32


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
def test_response_refuses_labels_and_probabilities_that_do_not_match(changes):
    fields = {"labels": np.array([1]), "probabilities": np.array([[0.25, 0.75]])}
    Response(id=ID, model="m", version="1", **fields)
    # Half precision gives such values.
    Response(id=ID, model="m", version="1", labels=[1], probabilities=[[-0.0005, 1.0005]])
    with pytest.raises(WireError):
        Response(id=ID, model="m", version="1", **(fields | changes))


def test_error_response_has_no_answers():
    refusal = Response(id=ID, model="m", version="1", error="busy", wait_ms=5)
    assert (refusal.n_rows, refusal.probabilities.shape, refusal.retryable) == (0, (0, 0), True)
    assert not Response(id=ID, model="m", version="1", error="failed").retryable


def test_error_names_the_probability_farthest_outside_of_0_to_1():
    for outlier, other_probability in ((-1.0, 1.0), (2.0, 0.0)):
        with pytest.raises(WireError, match=f"a probability of {outlier:g}"):
            Response(
                id=ID,
                model="m",
                version="1",
                labels=[0],
                probabilities=[[other_probability, outlier]],
            )


@pytest.mark.parametrize("probability", [0.0, 1.01, -0.5])
def test_audit_mark_has_a_probability_above_0_and_up_to_1(probability):
    assert AuditMark(0, 1.0, 0).probability == 1.0
    assert AuditMark(0, 0.5, MAX_SKIPPED, confidence=0.0).confidence == 0.0
    with pytest.raises(WireError):
        AuditMark(0, probability, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"class_index": -1},
        {"class_index": MAX_CLASSES + 1},
        {"n_skipped": -1},
        {"n_skipped": MAX_SKIPPED + 1},
        {"confidence": -0.1},
        {"confidence": 1.1},
    ],
)
def test_audit_mark_refuses_fields_out_of_bounds(changes):
    with pytest.raises(WireError):
        AuditMark(**({"class_index": 0, "probability": 1.0, "n_skipped": 0} | changes))


@pytest.mark.parametrize(("ttl_ms", "is_allowed"), [(-1, False), (0, True), (86_400_000, True)])
def test_time_to_live_is_0_to_one_day(ttl_ms, is_allowed):
    fields = {"id": ID, "model": "m", "version": "1", "X": [[1.0]]}
    if is_allowed:
        assert Request(**fields, ttl_ms=ttl_ms).ttl_ms == ttl_ms
        assert Request(**fields, ttl_ms=1).n_rows == 1
    else:
        with pytest.raises(WireError):
            Request(**fields, ttl_ms=ttl_ms)
    with pytest.raises(WireError):
        Request(**fields, ttl_ms=86_400_001)


@pytest.mark.parametrize(
    ("n_columns", "n_classes", "n_rows"),
    [
        (0, 2, 256),  # more rows would make the worker's other devices wait
        (1, 255, 128),  # (128 KiB - 256) / (4 * 255 + 2) = 128 answers exactly
        (1, 256, 127),
        (500, 2, 65),  # (128 KiB - 69) / 2000
        (1 << 20, 2, 1),  # too many columns even for one row, which the encoder refuses
    ],
)
def test_max_rows_is_the_largest_number_that_fits_request_and_response(
    n_columns, n_classes, n_rows
):
    assert max_rows(n_columns, n_classes) == n_rows


def test_only_floats_can_have_missing_values():
    fields = {"id": ID, "model": "m", "version": "1", "ttl_ms": 1}
    assert Request(**fields, X=[[np.nan, 1.0]]).has_missing
    assert not Request(**fields, X=[[0.0, 1.0]]).has_missing
    assert not Request(**fields, X=np.zeros((2, 2), np.uint8)).has_missing


def test_request_may_be_late_by_up_to_a_year():
    fields = {"id": ID, "model": "m", "version": "1", "ttl_ms": 1, "X": [[1.0]]}
    assert Request(**fields, late_s=31_622_400).late_s == 31_622_400  # 366 days
    for late_s in (-1, 31_622_401):
        with pytest.raises(WireError):
            Request(**fields, late_s=late_s)


def test_response_without_answers_is_refused():
    with pytest.raises(WireError):
        Response(id=ID, model="m", version="1", labels=[], probabilities=np.empty((0, 2)))


def test_answer_needs_its_model_and_an_error_may_lack_it():
    assert Response(id=ID, model="", version="", error="bad-request").n_rows == 0
    answer = {"labels": [0], "probabilities": [[0.5, 0.5]]}
    for model_and_version in (("", ""), ("m", ""), ("", "1")):
        with pytest.raises(WireError):
            Response(id=ID, model=model_and_version[0], version=model_and_version[1], **answer)


def test_values_and_the_other_fields_fit_one_message():
    # 128 KiB, and 69 bytes for the other fields of a request.
    assert MAX_VALUE_BYTES == 131_072 - 69
