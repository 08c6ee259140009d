"""Fit of kernel machines as least-squares SVMs on landmarks (Nystroem).

The fit is a ridge regression on the features of the kernel. The width of the kernel, the scaling
and the ridge are chosen by leave-one-out errors, which have a closed form (Rifkin & Lippert, "Notes
on regularized least squares", 2007), or by errors on left-out folds of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, solve
from scipy.optimize import minimize_scalar

from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import Scaling, column_scaling, standard_scaling
from gatewise_training.learners.losses import log_loss, one_hot

#: Ridges to try.
RIDGES_TO_TRY = (1e-3, 1e-2, 1e-1, 1.0)
#: Values of gamma to try, as multiples of one over the summed variance of the features.
GAMMA_FACTORS_TO_TRY = (0.25, 0.5, 1.0, 2.0, 4.0)

#: With more rows than this, no kernel machine or SVM is tried: stages are fitted on at most
#: MAX_KERNEL_ROWS rows, and the time of an SVM is quadratic in the rows.
MAX_SVM_ROWS = 16_000
#: Numbers of rows and landmarks on which scaling, gamma and ridge are chosen; few, because several
#: machines are fitted on them.
N_TUNING_ROWS = 1500
N_TUNING_LANDMARKS = 200
#: Number of landmarks of the small machines that compare columns.
N_TRIAL_LANDMARKS = 120


def fit_kernel(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    n_classes: int,
    *,
    weight: NDArray[np.float64] | None = None,
    n_landmarks: int = 512,
    seed: int = 0,
    fold_of_row: NDArray[np.intp] | None = None,
) -> tuple[KernelModel, NDArray[np.float32]]:
    """Fit a least-squares SVM on landmarks that are drawn from the rows.

    Returns the machine, and the margins of rows that are left out of the fit, (n, n_outputs). With
    `fold_of_row`, (n,), the rows of a fold are left out together instead of single rows.
    Shapes: `x` (n, n_features), `y` (n,), `weight` (n,).
    """
    weight = np.ones(len(x)) if weight is None else weight / weight.mean()
    target = one_hot(y, n_classes)
    shuffled_rows = np.random.default_rng(seed).permutation(len(x))
    settings = _choose_settings(x, target, weight, shuffled_rows[:N_TUNING_ROWS], fold_of_row)
    mean, scale = settings.scaling
    scaled_x = ((x - mean) * scale).astype(np.float64)
    basis = _Basis(scaled_x[shuffled_rows[:n_landmarks]], settings.gamma)
    regression = _RidgeRegression(
        basis.features(scaled_x),
        2.0 * target - 1.0,
        weight,
        ridges=(settings.ridge_per_row * len(x),),
        fold_of_row=fold_of_row,
    )
    # a factor turns the left-out margins into log odds
    factor = _find_calibration_factor(regression.left_out_predictions, target, weight)
    model = KernelModel(
        mean=mean,
        scale=scale,
        landmarks=np.ascontiguousarray(basis.landmarks, np.float32),
        rate=np.float32(basis.gamma / 2**SQUARINGS),
        weights=np.ascontiguousarray(
            factor * basis.whitening @ regression.coefficients[:-1], np.float32
        ),
        bias=(factor * regression.coefficients[-1]).astype(np.float32),
    )
    return model, (factor * regression.left_out_predictions).astype(np.float32)


def left_out_error(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    n_classes: int,
    weight: NDArray[np.float64],
    *,
    fold_of_row: NDArray[np.intp] | None = None,
) -> float:
    """Compute the mean squared error of a small kernel machine on left-out rows.

    Single rows are left out in turn or, with `fold_of_row`, (n,), whole folds.
    The first rows are the landmarks, so the rows must be in random order.
    Shapes: `x` (n, n_features), `y` (n,), `weight` (n,).
    """
    signs = 2.0 * one_hot(y, n_classes) - 1.0
    if not x.shape[1]:
        return _RidgeRegression(np.ones((len(x), 1)), signs, weight, fold_of_row=fold_of_row).error
    mean, scale = standard_scaling(x)
    scaled_x = ((x - mean) * scale).astype(np.float64)
    basis = _Basis(scaled_x[:N_TRIAL_LANDMARKS], 1.0 / _sum_variances(scaled_x))
    return _RidgeRegression(basis.features(scaled_x), signs, weight, fold_of_row=fold_of_row).error


class _KernelSettings(NamedTuple):
    """Settings of a kernel machine, and its error on left-out rows."""

    error: float
    scaling: Scaling
    gamma: float
    ridge_per_row: float


def _choose_settings(
    x: NDArray[np.float32],
    target: NDArray[np.float64],
    weight: NDArray[np.float64],
    rows: NDArray[np.intp],
    fold_of_row: NDArray[np.intp] | None,
) -> _KernelSettings:
    """Choose the settings with the smallest left-out error on some of the rows.

    The scaling is the best one at the middle gamma. Then smaller and larger gammas are tried as
    long as the error falls.
    """
    fold_of_tuning_row = None if fold_of_row is None else fold_of_row[rows]

    def choose_ridge(scaling: Scaling, gamma_index: int) -> _KernelSettings:
        mean, scale = scaling
        scaled_x = ((x[rows] - mean) * scale).astype(np.float64)
        gamma = GAMMA_FACTORS_TO_TRY[gamma_index] / _sum_variances(scaled_x)
        features = _Basis(scaled_x[:N_TUNING_LANDMARKS], gamma).features(scaled_x)
        regression = _RidgeRegression(
            features, 2.0 * target[rows] - 1.0, weight[rows], fold_of_row=fold_of_tuning_row
        )
        return _KernelSettings(regression.error, scaling, gamma, regression.ridge / len(rows))

    middle_index = len(GAMMA_FACTORS_TO_TRY) // 2
    best_settings = min(
        (choose_ridge(scaling, middle_index) for scaling in _list_scalings(x)),
        key=lambda settings: settings.error,
    )
    for step in (-1, 1):
        gamma_index = middle_index + step
        while 0 <= gamma_index < len(GAMMA_FACTORS_TO_TRY):
            settings = choose_ridge(best_settings.scaling, gamma_index)
            if settings.error >= best_settings.error:
                break
            best_settings = settings
            gamma_index += step
    return best_settings


def _sum_variances(scaled_x: NDArray[np.float64]) -> float:
    """Compute the summed variance of the columns, above 0 even if all columns are constant."""
    return max(float(scaled_x.var(axis=0).sum()), 1e-9)


class _Basis:
    """Features of the kernel with respect to landmarks, whitened."""

    def __init__(self, landmarks: NDArray[np.float64], gamma: float) -> None:
        self.landmarks = landmarks
        self.gamma = gamma
        eigenvalues, eigenvectors = eigh(self._compute_kernel(landmarks))
        is_large = eigenvalues > 1e-5 * eigenvalues[-1]  # smaller ones would lose float32 precision
        self.whitening = eigenvectors[:, is_large] / np.sqrt(eigenvalues[is_large])

    def _compute_kernel(self, scaled_x: NDArray[np.float64]) -> NDArray[np.float64]:
        # (1 + gamma d^2 / 2^k)^(-2^k), close to exp(-gamma d^2), by k squarings
        squares = (scaled_x * scaled_x).sum(axis=1)[:, None] + (self.landmarks**2).sum(axis=1)
        squared_distances = np.maximum(squares - 2.0 * scaled_x @ self.landmarks.T, 0.0)
        rate = self.gamma / 2**SQUARINGS
        power: NDArray[np.float64] = 1.0 / (1.0 + squared_distances * rate)
        for _ in range(SQUARINGS):
            power = power * power
        return power

    def features(self, scaled_x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute whitened kernel values and a last column of ones, shape (n, rank + 1)."""
        return np.column_stack(
            [self._compute_kernel(scaled_x) @ self.whitening, np.ones(len(scaled_x))]
        )


class _RidgeRegression:
    """Weighted ridge regression with the ridge that has the smallest error on left-out rows."""

    def __init__(
        self,
        features: NDArray[np.float64],
        target: NDArray[np.float64],
        weight: NDArray[np.float64],
        ridges: tuple[float, ...] = RIDGES_TO_TRY,
        fold_of_row: NDArray[np.intp] | None = None,
    ) -> None:
        weighted_features = features * weight[:, None]
        fold_fits = _list_fold_fits(features, weighted_features, target, fold_of_row)
        eigenvalues, eigenvectors = eigh(features.T @ weighted_features)
        rotated_features = features @ eigenvectors
        moments = eigenvectors.T @ (weighted_features.T @ target)
        self.error = np.inf
        for ridge in ridges:
            # residuals of left-out rows: (y - fit) / (1 - leverage) for single rows (Rifkin &
            # Lippert), or by a regression on the other rows for each fold
            inverse_eigenvalues = 1.0 / (np.maximum(eigenvalues, 0.0) + ridge)
            predictions = rotated_features @ (inverse_eigenvalues[:, None] * moments)
            if fold_fits:
                residual = target.copy()
                for fold_fit in fold_fits:
                    is_left_out = fold_fit.is_left_out
                    damped_gram = fold_fit.gram + ridge * np.eye(len(fold_fit.gram))
                    residual[is_left_out] -= features[is_left_out] @ solve(
                        damped_gram, fold_fit.moments, assume_a="pos"
                    )
            else:
                # a row with a leverage of 1 determines its own prediction
                leverage = weight * ((rotated_features**2) @ inverse_eigenvalues)
                residual = (target - predictions) / np.maximum(1.0 - leverage, 1e-6)[:, None]
            error = float(np.average((residual**2).sum(axis=1), weights=weight))
            if error < self.error:
                self.error = error
                self.ridge = ridge
                self.coefficients = eigenvectors @ (inverse_eigenvalues[:, None] * moments)
                self.left_out_predictions = target - residual


class _FoldFit(NamedTuple):
    """The rows of a fold, and the sums over all other rows that a regression on them needs."""

    is_left_out: NDArray[np.bool_]  # (n,)
    gram: NDArray[np.float64]  # (n_basis, n_basis)
    moments: NDArray[np.float64]  # (n_basis, n_outputs)


def _list_fold_fits(
    features: NDArray[np.float64],
    weighted_features: NDArray[np.float64],
    target: NDArray[np.float64],
    fold_of_row: NDArray[np.intp] | None,
) -> list[_FoldFit]:
    """List the fits without each fold; none if rows have no folds or only one."""
    if fold_of_row is None or np.ptp(fold_of_row) == 0:
        return []
    gram = features.T @ weighted_features
    moments = weighted_features.T @ target
    fold_fits = []
    for fold in np.unique(fold_of_row):
        is_left_out = fold_of_row == fold
        fold_fits.append(
            _FoldFit(
                is_left_out,
                gram - features[is_left_out].T @ weighted_features[is_left_out],
                moments - weighted_features[is_left_out].T @ target[is_left_out],
            )
        )
    return fold_fits


def _list_scalings(x: NDArray[np.float32]) -> list[Scaling]:
    """List the scalings to try: to standard scores and to unit ranges."""
    with np.errstate(over="ignore"):
        ranges = np.ptp(x, axis=0).astype(np.float64)
    return [standard_scaling(x), column_scaling(x, x.min(axis=0).astype(np.float64), ranges)]


def _find_calibration_factor(
    margins: NDArray[np.float64], target: NDArray[np.float64], weight: NDArray[np.float64]
) -> float:
    """Find the factor of margins, from exp(-3) to exp(5), with the smallest log loss.

    Its logarithm is searched, because the factor must be positive and may be of any magnitude.
    """

    def loss(log_factor: float) -> float:
        return float(np.average(log_loss(np.exp(log_factor) * margins, target), weights=weight))

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 5.0), method="bounded").x))
