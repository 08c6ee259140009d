"""Validation of the regressor on whole groups and on later rows."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_training.cegb.scored_models import CEGBRegressor

SETTINGS = {"n_rounds": 15, "penalties": (0.02,), "max_loss": 0.2, "random_state": 0}


def draw_machine_rows(n=300, n_machines=12):
    """Draw rows in which the first column identifies the machine, and so its mean value."""
    rng = np.random.default_rng(0)
    n_rows_each = n // n_machines
    groups = np.repeat([f"machine {i}" for i in range(n_machines)], n_rows_each)
    machine_column = np.repeat(rng.normal(size=n_machines), n_rows_each)
    x = np.column_stack([machine_column, rng.normal(size=(n, 3))])
    return x, rng.normal(size=n_machines).repeat(n_rows_each) * 3 + x[:, 1], groups


def test_groups_are_not_split_between_fit_and_validation():
    x, y, groups = draw_machine_rows()
    ungrouped_model = CEGBRegressor(**SETTINGS).fit(x, y)
    grouped_model = CEGBRegressor(**SETTINGS).fit(x, y, groups=groups)
    # cross-fitting predicts the rows of all 12 machines
    assert grouped_model.operating_point_.validation_groups == 12
    assert ungrouped_model.operating_point_.validation_groups is None
    # the values of new machines cannot be predicted, those of known machines can
    ungrouped_r2, grouped_r2 = (
        max(point.accuracy for point in model.frontier_.points)
        for model in (ungrouped_model, grouped_model)
    )
    # of R^2, to which the values of machines contribute most
    assert ungrouped_r2 > grouped_r2 + 0.3
    all_ones = np.ones(len(y))
    weighted_model = CEGBRegressor(**SETTINGS).fit(x, y, groups=groups, sample_weight=all_ones)
    np.testing.assert_array_equal(weighted_model.predict(x), grouped_model.predict(x))


def test_last_fifth_in_time_is_used_for_validation():
    x, y, _ = draw_machine_rows()
    times = np.arange(300)[::-1]  # the first 60 rows are the latest fifth
    model_by_time = CEGBRegressor(**SETTINGS).fit(x, y, time=times)
    model_with_validation = CEGBRegressor(**SETTINGS).fit(
        x[60:], y[60:], validation=(x[:60], y[:60])
    )
    accuracies, expected_accuracies = (
        [point.accuracy for point in model.frontier_.points]
        for model in (model_by_time, model_with_validation)
    )
    assert accuracies == pytest.approx(expected_accuracies)


def test_validation_rows_need_groups_if_training_rows_have_groups():
    x, y, groups = draw_machine_rows()
    is_validation = groups >= "machine 7"  # as texts: machines 7, 8 and 9
    training = x[~is_validation], y[~is_validation]
    training_groups = groups[~is_validation]
    validation = x[is_validation], y[is_validation], groups[is_validation]
    model = CEGBRegressor(**SETTINGS).fit(*training, groups=training_groups, validation=validation)
    assert model.operating_point_.validation_groups == 3
    with pytest.raises(InputError, match="groups are given for training rows"):
        CEGBRegressor(**SETTINGS).fit(*training, groups=training_groups, validation=validation[:2])
    with pytest.raises(InputError, match="one value for each of the 300 rows"):
        CEGBRegressor(**SETTINGS).fit(x, y, groups=groups[:9])
