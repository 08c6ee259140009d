"""Tests of the contrasts between classes, and of the columns that are selected by them."""

import numpy as np
import pytest

from gatewise_training.learners.screening import class_contrasts, most_different_columns


def test_contrasts_are_the_ratio_of_variances_between_and_within_classes():
    y = np.array([0, 0, 1, 1])
    x = np.float32([[0, 5, 1], [2, 5, np.nan], [4, 5, 3], [6, 5, 3]])
    # column 0: means 1 and 5 beside 3, so 4 * 2^2 between and 4 * 1^2 within
    # column 2: its missing value becomes the mean 7/3
    filled_column = np.array([1, 7 / 3, 3, 3])
    class_means = np.array([5 / 3, 5 / 3, 3, 3])
    squares_between = ((class_means - 7 / 3) ** 2).sum()
    squares_within = ((filled_column - class_means) ** 2).sum()
    expected_contrasts = [4.0, 0.0, squares_between / squares_within]
    np.testing.assert_allclose(class_contrasts(x, y), expected_contrasts, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e6])
def test_columns_that_separate_the_classes_perfectly_are_selected_first(scale):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    x = rng.normal(size=(200, 600)).astype(np.float32)
    x[:, 7] = scale * y
    x[:, 599] = -scale * (y == 2)
    assert np.isposinf(class_contrasts(x, y)[[7, 599]]).all()
    # the columns that equal or mark the class
    assert {7, 599} <= set(most_different_columns(x, y).tolist())
