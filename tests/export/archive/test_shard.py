"""Shards are read as they were written, and other files are refused."""

import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_export.archive.shard import (
    ArchivedRows,
    read_facts,
    read_shard,
    write_shard,
)
from tests.export.archive.archived_rows import FACTS, make_archived_rows

pytest.importorskip("pyarrow")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int16])
def test_a_shard_is_read_as_it_was_written(tmp_path, dtype):
    rows = make_archived_rows(20, dtype=dtype)
    if dtype is np.float32:
        rows.X[3, 1] = np.nan  # a missing value
    path = tmp_path / "kept-1.parquet"
    write_shard(path, rows, FACTS)
    assert read_facts(path) == FACTS
    read_rows = read_shard(path)
    for field in fields(ArchivedRows):
        np.testing.assert_array_equal(getattr(read_rows, field.name), getattr(rows, field.name))
    assert read_rows.X.dtype == dtype
    assert [file.name for file in tmp_path.iterdir()] == ["kept-1.parquet"]


def test_answers_and_weights_follow_from_the_device_and_both_probabilities():
    rows = make_archived_rows(10)
    rows = replace(rows, stored_probability=np.full(10, 0.5))
    is_audit = rows.device_label >= 0
    assert 0 < is_audit.sum() < 10
    np.testing.assert_array_equal(rows.answers[is_audit], rows.device_label[is_audit])
    np.testing.assert_array_equal(rows.answers[~is_audit], rows.cloud_label[~is_audit])
    # 1 / (0.1 * 0.5) for an audit, and 1 / 0.5 for an offload.
    np.testing.assert_allclose(rows.weights, np.where(is_audit, 20.0, 2.0))


def test_weight_of_an_instance_is_limited_if_a_device_claims_a_tiny_probability():
    rows = replace(make_archived_rows(1), sent_probability=np.array([1e-6]))
    assert rows.weights == pytest.approx(1000)  # the limit


def test_error_names_a_file_that_is_not_a_shard(tmp_path):
    path = tmp_path / "kept-1.parquet"
    write_shard(path, make_archived_rows(50), FACTS)
    path.write_bytes(path.read_bytes()[:-100])  # Parquet has its metadata at the end
    with pytest.raises(InputError, match=r"kept-1\.parquet is not a shard"):
        read_facts(path)


def test_writing_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"\[parquet\]"):
        write_shard(tmp_path / "kept-1.parquet", make_archived_rows(1), FACTS)
