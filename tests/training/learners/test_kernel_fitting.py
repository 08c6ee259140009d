from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gatewise_training.learners.kernel_fitting import _Basis, _Ridge, fit_kernel


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X.astype(np.float32), y, random_state=0, stratify=y)


@pytest.fixture(scope="module")
def of_ten(digits):
    X, _, y, _ = digits
    return fit_kernel(X, y, 10, seed=0)


@pytest.mark.parametrize("classes", [2, 10])
def test_it_learns(digits, of_ten, classes):
    X, X_test, y, y_test = digits
    model, left_out = of_ten if classes == 10 else fit_kernel(X, y % 2, 2, seed=0)
    margins = model.margins(X_test)
    assert margins.shape == (len(X_test), 1 if classes == 2 else classes)

    def hits(m, labels):
        answers = m[:, 0] > 0 if classes == 2 else m.argmax(axis=1)
        return np.mean(answers == labels % classes)

    assert hits(margins, y_test) > 0.97
    # left-out margins say beforehand how good it will be
    assert abs(hits(left_out, y) - hits(margins, y_test)) < 0.02


def test_float32_keeps_the_margins(digits, of_ten):
    (_, X_test, _, _), (model, _) = digits, of_ten
    z = ((X_test - model.mean) * model.scale).astype(np.float64)
    marks = model.landmarks.astype(np.float64)
    distance = ((z[:, None, :] - marks[None]) ** 2).sum(axis=2)
    exact = (1 + distance * float(model.rate)) ** -64.0 @ model.weights.astype(np.float64)
    np.testing.assert_allclose(model.margins(X_test), exact + model.bias, atol=2e-3)


def test_left_out_is_leaving_out():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 3))
    target = np.sign(z[:, :1] * z[:, 1:2])
    weight = rng.uniform(0.5, 2, 40)
    features = _Basis(z[:15], 0.5).features(z)
    whole = _Ridge(features, target, weight, ridges=(0.1,))
    for i in range(0, 40, 7):
        rest = np.arange(40) != i
        part = _Ridge(features[rest], target[rest], weight[rest], ridges=(0.1,))
        np.testing.assert_allclose(features[i] @ part.coefficients, whole.left_out[i], atol=1e-9)


def test_constant_columns_are_not_acquired(digits, of_ten):
    (X, *_), (model, _) = digits, of_ten
    varying = np.flatnonzero(np.ptp(X, axis=0) > 0)
    kept, used = model.compact()
    np.testing.assert_array_equal(used, varying)
    np.testing.assert_array_equal(kept.margins(X[:50, used]), model.margins(X[:50]))
