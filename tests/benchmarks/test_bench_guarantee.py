"""Tests of the records of a cascade that the benchmark of the guarantee resamples."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.data import problems
from benchmarks.data.cascade_records import cascade_record
from gatewise.errors import InputError
from gatewise_training import StagedCascade


def test_record_refuses_a_class_that_the_cascade_was_not_fitted_on():
    fold = problems.get("breast_cancer").make_folds(0)[0]
    system = StagedCascade(n_stages=1, families=("linear",), effort="low", random_state=0)
    system.fit(*fold.train, validation=fold.validation)
    rows, row_classes = fold.test
    record = cascade_record(system, 0, rows, row_classes)
    is_cloud_correct = system.classes_[system.high_cost_model_.labels(rows)] == row_classes
    np.testing.assert_array_equal(record.correctness[-1], is_cloud_correct)
    for unknown_class in (-1, 2):  # searchsorted would give -1 the number of class 0
        with pytest.raises(InputError, match=rf"not fitted on the classes \[{unknown_class}\]"):
            cascade_record(system, 0, rows, np.append(row_classes[1:], unknown_class))
