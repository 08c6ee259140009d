"""Test that warnings name a line of the user."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from gatewise.errors import GroupsWarning, warn_caller
from gatewise_training import CEGBClassifier, CEGBRegressor


def test_a_warning_names_the_line_that_calls():
    with pytest.warns(GroupsWarning, match="rows of a person") as caught_warnings:
        warn_caller("rows of a person", GroupsWarning)
    assert [warning.filename for warning in caught_warnings] == [__file__]


@pytest.mark.parametrize("estimator_class", [CEGBClassifier, CEGBRegressor])
def test_a_warning_of_a_fit_names_the_line_that_calls_fit(estimator_class):
    rng = np.random.default_rng(0)
    seconds = 1.7e9 + 30 * np.arange(60)  # float32 rounds them
    rows = np.column_stack([rng.normal(size=60), seconds])
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        estimator_class(n_rounds=1, n_penalties=1).fit(rows, rng.integers(0, 2, 60))
    file_names = [
        warning.filename for warning in caught_warnings if "float32" in str(warning.message)
    ]
    assert file_names == [__file__]
