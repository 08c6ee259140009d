"""Fitted scikit-learn classifiers as ONNX graphs, by skl2onnx and converters of ours."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from gatewise.errors import InputError, one_line
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET

if TYPE_CHECKING:
    import onnx


def sklearn_graph(estimator: Any, n_features: int, what: str) -> onnx.ModelProto:
    """Convert a fitted classifier: rows in; labels and, if it gives any, probabilities out.

    The rows are one matrix, float32 (n, n_features). Classes are the estimator's own, in their
    order. `what` is its name in the InputError that is raised if it cannot be converted.
    """
    import skl2onnx

    from gatewise_training.learners.given_models.flat_converters import taught_converters

    inputs = _inputs(estimator, n_features)
    with warnings.catch_warnings(), taught_converters(estimator):
        # the converter of SVC reads what scikit-learn 1.9 calls deprecated
        warnings.filterwarnings("ignore", "Attribute `prob[AB]_` was deprecated", FutureWarning)
        try:
            graph: onnx.ModelProto = skl2onnx.to_onnx(
                estimator,
                name="given",
                initial_types=inputs,
                options=_options(estimator),
                target_opset={"": OPSET, ML_DOMAIN: ML_OPSET},
            )
        except Exception as error:  # skl2onnx raises types of every kind
            raise InputError(
                f"{what}: skl2onnx cannot convert {type(estimator).__name__}: {one_line(error)}; "
                "give another classifier, or an ONNX file"
            ) from error
    if len(inputs) > 1:
        _join_columns(graph, n_features)
    return graph


def _join_columns(model: onnx.ModelProto, n_features: int) -> None:
    """Take the columns from one matrix."""
    from onnx import helper

    graph = model.graph
    split = helper.make_node("Split", ["gw_rows"], [i.name for i in graph.input], axis=1)
    body = list(graph.node)
    del graph.node[:], graph.input[:]
    graph.node.extend([split, *body])
    graph.input.append(helper.make_tensor_value_info("gw_rows", 1, ["n", n_features]))


def unwrapped(estimator: Any) -> Any:
    """Look into scikit-learn's FrozenEstimator and searches, which have no converter."""
    while True:
        if type(estimator).__name__ == "FrozenEstimator":
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator


def _inputs(estimator: Any, n_features: int) -> list[tuple[str, Any]]:
    """One matrix; one input a column where the estimator finds columns by their names."""
    from skl2onnx.common.data_types import FloatTensorType

    names = getattr(estimator, "feature_names_in_", None)
    if names is None or not _takes_names(estimator):
        return [("x", FloatTensorType([None, n_features]))]
    return [(str(name), FloatTensorType([None, 1])) for name in names]


def _takes_names(estimator: Any) -> bool:
    """Whether a ColumnTransformer, perhaps of a pipeline, is the first to see the rows."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[0][1]
    return type(estimator).__name__ == "ColumnTransformer"


def _options(estimator: Any) -> dict[Any, dict[str, Any]]:
    """Options with which skl2onnx computes what scikit-learn computes."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    # a division, not the product with the inverse: one bit can move a row across a split
    options: dict[Any, dict[str, Any]] = {StandardScaler: {"div": "div"}}
    if hasattr(estimator, "predict_proba"):
        options[id(estimator)] = {"zipmap": False}
    final = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    for calibrated in getattr(final, "calibrated_classifiers_", ()):
        inner = calibrated.estimator
        # without this, a pipeline inside a calibration is calibrated on its probabilities
        # where scikit-learn takes its decision function (sklearn-onnx issue 1246)
        if (
            isinstance(final, CalibratedClassifierCV)
            and isinstance(inner, Pipeline)
            and hasattr(inner, "decision_function")
        ):
            options[id(inner)] = options[id(inner[-1])] = {"raw_scores": True}
    return options
