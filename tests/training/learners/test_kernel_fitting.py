"""Kernel machines: accuracy, float32 margins and left-out margins."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gatewise_training.learners.kernel_fitting import _Basis, _RidgeRegression, fit_kernel


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X.astype(np.float32), y, random_state=0, stratify=y)


@pytest.fixture(scope="module")
def ten_class_fit(digits):
    X, _, y, _ = digits
    return fit_kernel(X, y, 10, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 10])
def test_left_out_margins_have_the_accuracy_of_new_rows(digits, ten_class_fit, n_classes):
    X, X_test, y, y_test = digits
    model, left_out_margins = ten_class_fit if n_classes == 10 else fit_kernel(X, y % 2, 2, seed=0)
    margins = model.margins(X_test)
    assert margins.shape == (len(X_test), 1 if n_classes == 2 else n_classes)

    def compute_accuracy(row_margins, labels):
        predictions = row_margins[:, 0] > 0 if n_classes == 2 else row_margins.argmax(axis=1)
        return np.mean(predictions == labels % n_classes)

    assert compute_accuracy(margins, y_test) > 0.97
    # the sampling error of both sets of rows is about 0.01
    assert abs(compute_accuracy(left_out_margins, y) - compute_accuracy(margins, y_test)) < 0.02


@pytest.mark.slow
def test_float32_margins_are_close_to_float64_margins(digits, ten_class_fit):
    _, X_test, _, _ = digits
    model, _ = ten_class_fit
    z = ((X_test - model.mean) * model.scale).astype(np.float64)
    landmarks = model.landmarks.astype(np.float64)
    squared_distances = ((z[:, None, :] - landmarks[None]) ** 2).sum(axis=2)
    # the kernel (1 + rate |z - landmark|^2)^-64
    kernel_values = (1 + squared_distances * float(model.rate)) ** -64.0
    expected_margins = kernel_values @ model.weights.astype(np.float64)
    np.testing.assert_allclose(model.margins(X_test), expected_margins + model.bias, atol=2e-3)


def test_left_out_margins_equal_those_of_fits_without_the_row():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 3))
    targets = np.sign(z[:, :1] * z[:, 1:2])
    weight = rng.uniform(0.5, 2, 40)
    features = _Basis(z[:15], 0.5).features(z)
    ridge_of_all_rows = _RidgeRegression(features, targets, weight, ridges=(0.1,))
    for row in range(0, 40, 7):
        is_other_row = np.arange(40) != row
        ridge_without_row = _RidgeRegression(
            features[is_other_row], targets[is_other_row], weight[is_other_row], ridges=(0.1,)
        )
        prediction = features[row] @ ridge_without_row.coefficients
        left_out_prediction = ridge_of_all_rows.left_out_predictions[row]
        np.testing.assert_allclose(prediction, left_out_prediction, atol=1e-9)


def test_constant_columns_are_not_acquired(digits, ten_class_fit):
    X = digits[0]
    model, _ = ten_class_fit
    compact_model, columns = model.compact()
    np.testing.assert_array_equal(columns, np.flatnonzero(np.ptp(X, axis=0) > 0))
    np.testing.assert_array_equal(compact_model.margins(X[:50, columns]), model.margins(X[:50]))
