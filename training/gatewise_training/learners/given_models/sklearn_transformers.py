"""Conversion of scikit-learn's transformers to values of an ONNX graph.

The functions add operators to the graph and compute nothing. The graph rounds its values wherever
scikit-learn rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gatewise.errors import InputError
from gatewise_training.learners.given_models.graph_values import Value, hstack
from gatewise_training.learners.given_models.packable import Estimator, library_class_name

#: Magnitude below which a Taylor sum of two terms is more exact than the logarithm of 1 + x and
#: than exp(x) - 1. The relative error of the sum is about x**2 / 3, and that of the others is about
#: 1e-16 / x, so both are near 1e-11 at this magnitude.
MAX_TAYLOR = 1e-5


def write_transformer(model: Estimator, x: Value) -> Value:
    """Write the output of a fitted transformer for the rows `x`."""
    if model is None or isinstance(model, str):  # "passthrough"
        return x
    name = library_class_name(model) or ""
    if hasattr(model, "get_support"):
        return x.columns(np.flatnonzero(model.get_support()))
    if name not in TRANSFORMER_WRITERS:
        raise InputError(f"{name or type(model).__name__} has no form as a graph")
    return TRANSFORMER_WRITERS[name](model, x)


def _round_to_row_type(x: Value, output: Value) -> Value:
    """Round an output to the type of the rows, as in-place arithmetic does."""
    return output.astype(x.dtype)


def _write_binarizer(model: Estimator, x: Value) -> Value:
    is_above: Value = x > model.threshold
    return is_above.astype(x.dtype)


def _write_column_transformer(model: Estimator, x: Value) -> Value:
    inputs = model._transformer_to_input_indices
    return _write_weighted_outputs(
        model,
        [
            (name, transformer, x.columns(inputs[name]))
            for name, transformer, _ in model.transformers_
            if len(inputs[name])
        ],
    )


def _write_feature_union(model: Estimator, x: Value) -> Value:
    return _write_weighted_outputs(
        model, [(name, part, x) for name, part in model.transformer_list]
    )


def _write_weighted_outputs(
    model: Estimator, named_transformers: Sequence[tuple[str, Estimator, Value]]
) -> Value:
    """Concatenate the outputs of named transformers, each multiplied by its weight."""
    weights = model.transformer_weights or {}
    outputs = []
    for name, transformer, x in named_transformers:
        if isinstance(transformer, str) and transformer == "drop":
            continue
        output = write_transformer(transformer, x)
        outputs.append(output * weights[name] if name in weights else output)
    return hstack(outputs)


def _write_pipeline(model: Estimator, x: Value) -> Value:
    for _, step in model.steps:
        x = write_transformer(step, x)
    return x


def _write_projection(model: Estimator, x: Value) -> Value:
    return x.double() @ np.asarray(model.components_, np.float64).T


def _write_pca(model: Estimator, x: Value) -> Value:
    components = np.asarray(model.components_, np.float64).T
    if model.whiten:
        scale = np.sqrt(model.explained_variance_)
        components = components / np.maximum(scale, np.finfo(scale.dtype).eps)
    return x.double() @ components - np.asarray(model.mean_, np.float64)[None, :] @ components


def _write_bin_numbers(model: Estimator, x: Value) -> Value:
    """Write the number of each value's bin, or an indicator of each bin."""
    bin_columns = []
    for column_index, edges in enumerate(model.bin_edges_):
        inner_edges = np.asarray(edges[1:-1], np.float64)
        column = x.columns([column_index])
        if not len(inner_edges):
            bin_number = column * 0.0
        else:
            bin_number = (column.double() >= inner_edges[None, :]).astype(x.dtype).sum()
        if model.encode != "ordinal":
            bin_number = bin_number.equals(
                np.arange(model.n_bins_[column_index], dtype=x.dtype)
            ).astype(x.dtype)
        bin_columns.append(bin_number)
    return hstack(bin_columns)


def _write_max_abs_scaler(model: Estimator, x: Value) -> Value:
    scaled_rows = _round_to_row_type(x, x / model.scale_)
    return scaled_rows.maximum(-1.0).minimum(1.0) if getattr(model, "clip", False) else scaled_rows


def _write_min_max_scaler(model: Estimator, x: Value) -> Value:
    scaled_rows = _round_to_row_type(x, x * model.scale_)
    scaled_rows = _round_to_row_type(x, scaled_rows + model.min_)
    if not model.clip:
        return scaled_rows
    lower_bound, upper_bound = (float(bound) for bound in model.feature_range)
    return scaled_rows.maximum(lower_bound).minimum(upper_bound)


def _write_robust_scaler(model: Estimator, x: Value) -> Value:
    if model.with_centering:
        x = _round_to_row_type(x, x - model.center_)
    return _round_to_row_type(x, x / model.scale_) if model.with_scaling else x


def _write_standard_scaler(model: Estimator, x: Value) -> Value:
    # scikit-learn also gives the constants the type of the rows; no result needs rounding
    if model.with_mean:
        x = x - np.asarray(model.mean_, x.dtype)
    if model.with_std:
        x = x / np.asarray(model.scale_, x.dtype)
    return x


def _write_normalizer(model: Estimator, x: Value) -> Value:
    magnitude = x.apply("Abs")
    if model.norm == "max":
        row_norm = magnitude.max()
    elif model.norm == "l1":
        row_norm = magnitude.sum()
    else:
        row_norm = (x * x).sum().apply("Sqrt")
    # scikit-learn does not change rows with a norm close to 0
    is_small = row_norm < float(10 * np.finfo(x.dtype).eps)
    return x / is_small.where(1.0, row_norm)


def _write_one_hot(model: Estimator, x: Value) -> Value:
    indicators = []
    for column_index, categories in enumerate(model.categories_):
        indicator = _write_category_indicators(x.columns([column_index]), categories).astype(
            np.float64
        )
        dropped_index = None if model.drop_idx_ is None else model.drop_idx_[column_index]
        if dropped_index is not None:
            indicator = indicator.columns(
                [index for index in range(len(categories)) if index != dropped_index]
            )
        indicators.append(indicator)
    return hstack(indicators).astype(model.dtype)


def _write_category_indicators(column: Value, categories: Any) -> Value:
    """Mark the category of each row, (n, n_categories)."""
    # encoders refuse infinite values, so infinity in place of NaN equals no value
    category_numbers = np.asarray(categories, np.float64)
    category_is_nan = np.isnan(category_numbers)
    is_equal = column.double().equals(np.where(category_is_nan, np.inf, category_numbers)[None, :])
    if not category_is_nan.any():
        return is_equal
    nan_indicator = column.isnan().astype(np.float64) * category_is_nan[None, :].astype(np.float64)
    return (is_equal.astype(np.float64) + nan_indicator) > 0.0


def _write_ordinal_codes(model: Estimator, x: Value) -> Value:
    """Write the index of each category; NaN and unknown categories get the model's codes."""
    code_columns = []
    for column_index, categories in enumerate(model.categories_):
        indicator = _write_category_indicators(x.columns([column_index]), categories).astype(
            np.float64
        )
        codes = np.arange(len(categories), dtype=np.float64)
        code = indicator @ codes[:, None]
        if np.isnan(np.asarray(categories, np.float64)).any():
            code = x.columns([column_index]).isnan().where(float(model.encoded_missing_value), code)
        if model.handle_unknown == "use_encoded_value":
            code = indicator.sum().equals(0.0).where(float(model.unknown_value), code)
        code_columns.append(code)
    return hstack(code_columns).astype(model.dtype)


def _write_log1p(x: Value) -> Value:
    taylor_sum = x - x * x / 2.0  # log(1 + x), where log would lose the digits of a small x
    return (x.apply("Abs") < MAX_TAYLOR).where(taylor_sum, (x + 1.0).apply("Log"))


def _write_expm1(x: Value) -> Value:
    taylor_sum = x + x * x / 2.0  # exp(x) - 1, where exp would lose the digits of a small x
    return (x.apply("Abs") < MAX_TAYLOR).where(taylor_sum, x.apply("Exp") - 1.0)


def _write_power_transform(model: Estimator, x: Value) -> Value:
    power_columns = []
    for column_index, power in enumerate(model.lambdas_.tolist()):
        column = x.columns([column_index])
        transform = _write_box_cox if model.method == "box-cox" else _write_yeo_johnson
        power_columns.append(_round_to_row_type(x, transform(column, power)))
    powers = hstack(power_columns)
    return _write_standard_scaler(model._scaler, powers) if model.standardize else powers


def _write_box_cox(x: Value, power: float) -> Value:
    # (x^power - 1) / power, or log x for power 0
    log_value = x.double().apply("Log")
    return log_value if power == 0 else _write_expm1(log_value * power) / power


def _write_yeo_johnson(x: Value, power: float) -> Value:
    # Box-Cox of 1 + x for x >= 0, and minus Box-Cox of 1 - x with the power 2 - power below
    magnitude = x.apply("Abs")
    log_value = _write_log1p(magnitude.double()).astype(x.dtype).double()
    complement = 2.0 - power
    eps = float(np.finfo(np.float64).eps)
    # one comparison is strict and the other is not, as in scikit-learn
    positive_branch = log_value if abs(power) < eps else _write_expm1(log_value * power) / power
    negative_branch = (
        log_value if abs(complement) <= eps else _write_expm1(log_value * complement) / complement
    )
    return (x >= 0.0).where(positive_branch, -negative_branch)


def _write_imputer(model: Estimator, x: Value) -> Value:
    statistics = np.asarray(model.statistics_, x.dtype)
    is_missing = x.isnan() if np.isnan(model.missing_values) else x.equals(model.missing_values)
    filled_rows = is_missing.where(statistics[None, :], x)
    if np.isnan(statistics).any():  # scikit-learn drops columns without any value
        filled_rows = filled_rows.columns(np.flatnonzero(~np.isnan(statistics)))
    if not model.add_indicator:
        return filled_rows
    indicators = is_missing.columns(model.indicator_.features_).astype(x.dtype)
    return hstack([filled_rows, indicators])


#: Functions that write the output of a transformer, by its class.
TRANSFORMER_WRITERS: dict[str, Callable[[Estimator, Value], Value]] = {
    "Binarizer": _write_binarizer,
    "ColumnTransformer": _write_column_transformer,
    "FeatureUnion": _write_feature_union,
    "FunctionTransformer": lambda _model, x: x,  # packable without a function only
    "GaussianRandomProjection": _write_projection,
    "IncrementalPCA": _write_pca,
    "KBinsDiscretizer": _write_bin_numbers,
    "MaxAbsScaler": _write_max_abs_scaler,
    "MinMaxScaler": _write_min_max_scaler,
    "NeighborhoodComponentsAnalysis": _write_projection,
    "Normalizer": _write_normalizer,
    "OneHotEncoder": _write_one_hot,
    "OrdinalEncoder": _write_ordinal_codes,
    "PCA": _write_pca,
    "Pipeline": _write_pipeline,
    "PowerTransformer": _write_power_transform,
    "RobustScaler": _write_robust_scaler,
    "SimpleImputer": _write_imputer,
    "StandardScaler": _write_standard_scaler,
    "TruncatedSVD": _write_projection,
}
