"""Conversion of scikit-learn's, XGBoost's and CatBoost's boosted classifiers to flat trees.

The libraries compare rows with thresholds in different ways. The conversion changes thresholds so
that the test ``x <= threshold`` has the same result for every float32 value.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models.tree_sources import FLOAT32_MAX, LEAF, Nodes, float32_below


class BoostedTrees(NamedTuple):
    """Trees of a boosted classifier."""

    trees: list[Nodes]
    output: NDArray[np.int32]  # (n_trees,): output that each tree adds to; -1 for all outputs
    base: NDArray[np.float32]  # (n_outputs,)
    n_features: int
    link: Link


def hist_gradient_trees(model: Any) -> BoostedTrees:
    """Convert scikit-learn's ``HistGradientBoostingClassifier``."""
    trees = []
    for iteration in model._predictors:
        for predictor in iteration:
            nodes = predictor.nodes
            if nodes["is_categorical"].any():
                raise InputError(
                    "HistGradientBoosting's categorical splits are not supported; encode the "
                    "categories, or train with categorical_features=None"
                )
            is_leaf = nodes["is_leaf"].astype(bool)
            # a split of NaN from all numbers has an infinite threshold, which becomes finite
            threshold = np.minimum(np.where(is_leaf, 0.0, nodes["num_threshold"]), FLOAT32_MAX)
            trees.append(
                _order_nodes(
                    np.where(is_leaf, LEAF, nodes["feature_idx"]),
                    float32_below(threshold),
                    np.where(is_leaf, LEAF, nodes["left"].astype(np.int64)),
                    np.where(is_leaf, LEAF, nodes["right"].astype(np.int64)),
                    nodes["missing_go_to_left"].astype(bool),
                    np.where(is_leaf, nodes["value"], 0.0)[:, None],
                )
            )
    base = np.asarray(model._baseline_prediction, np.float32).ravel()
    output = np.arange(len(trees)) % len(base)
    link: Link = "sigmoid" if len(base) == 1 else "softmax"
    return BoostedTrees(trees, output.astype(np.int32), base, model.n_features_in_, link)


class CategoricalSplitsError(InputError):
    """Booster with categorical splits, which only its own library can run."""


def xgboost_trees(model: Any) -> BoostedTrees:
    """Convert the trees of an ``XGBClassifier`` or ``XGBRFClassifier`` up to its best iteration."""
    booster = model.get_booster()
    if model.missing is not None and not math.isnan(model.missing):
        raise InputError(f"XGBoost's missing={model.missing} is not supported; only NaN is missing")
    # predict_proba uses the trees up to the best iteration
    best_iteration = getattr(model, "best_iteration", None)
    if best_iteration is not None:
        booster = booster[: best_iteration + 1]
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    link = _read_xgboost_link(learner["objective"]["name"])
    parameters = learner["learner_model_param"]
    booster_model = learner["gradient_booster"]
    if booster_model["name"] not in ("gbtree", "dart"):
        raise InputError(
            f"XGBoost's booster {booster_model['name']!r} is not supported; use gbtree"
        )
    # DART has a weight for each tree
    dart_weights = booster_model.get("weight_drop")
    tree_model = booster_model["gbtree"] if booster_model["name"] == "dart" else booster_model
    n_outputs = max(int(parameters["num_class"]), 1)
    # base_score is a probability for two classes, and otherwise a margin
    base = np.array(json.loads(f"[{parameters['base_score'].strip('[]')}]"), np.float64)
    if link == "sigmoid":
        base = np.log(base / (1.0 - base))
    trees = [
        _convert_xgboost_tree(tree, 1.0 if dart_weights is None else dart_weights[tree_index])
        for tree_index, tree in enumerate(tree_model["model"]["trees"])
    ]
    return BoostedTrees(
        trees,
        output=np.array(tree_model["model"]["tree_info"], np.int32),
        base=np.broadcast_to(base, n_outputs).astype(np.float32),
        n_features=int(parameters["num_feature"]),
        link=link,
    )


def _read_xgboost_link(objective: str) -> Link:
    """Get the link of an objective, or raise InputError."""
    links: dict[str, Link] = {
        "binary:logistic": "sigmoid",
        "multi:softprob": "softmax",
        "multi:softmax": "softmax",
    }
    if objective not in links:
        raise InputError(
            f"XGBoost's objective {objective!r} is not supported; use binary:logistic or "
            "multi:softprob"
        )
    return links[objective]


def _convert_xgboost_tree(tree: dict[str, Any], weight: float) -> Nodes:
    """Convert a tree of XGBoost's JSON, with its leaves multiplied by a weight."""
    if any(tree["split_type"]):
        raise CategoricalSplitsError(
            "XGBoost's categorical splits are not supported; encode the categories"
        )
    left = np.array(tree["left_children"], np.int64)
    is_leaf = left < 0
    condition = np.array(tree["split_conditions"], np.float32)
    return _order_nodes(
        np.where(is_leaf, LEAF, np.array(tree["split_indices"], np.int64)),
        # XGBoost goes left if x < condition, which is x <= the float32 number below it
        np.where(is_leaf, np.float32(0), np.nextafter(condition, np.float32(-np.inf))),
        left,
        np.array(tree["right_children"], np.int64),
        np.array(tree["default_left"], bool),
        np.where(is_leaf, condition * np.float32(weight), np.float32(0))[:, None],
    )


def catboost_trees(model: Any) -> BoostedTrees:
    """Convert a ``CatBoostClassifier``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    _check_catboost_model(document)
    float_features = document["features_info"].get("float_features", [])
    column_of_feature = {
        feature["feature_index"]: feature["flat_feature_index"] for feature in float_features
    }
    goes_left_if_nan = {
        feature["feature_index"]: feature["nan_value_treatment"] != "AsTrue"
        for feature in float_features
    }
    # margin = scale * sum of the leaves + bias
    scale, base = document["scale_and_bias"]
    base = np.atleast_1d(np.asarray(base, np.float64))
    trees = []
    for tree in document.get("oblivious_trees", document.get("trees")):
        if "splits" in tree:
            tree = _nest_tree(tree["splits"] or [], tree["leaf_values"], len(base))
        nodes = _flatten_tree(tree, len(base))
        features = [node.feature for node in nodes]
        columns = [LEAF if feature < 0 else column_of_feature[feature] for feature in features]
        values = np.array([node.value for node in nodes], np.float64)
        trees.append(
            Nodes(
                feature=np.array(columns, np.int64),
                # borders are float32 values, and CatBoost goes right if x > border
                threshold=np.array([node.border for node in nodes], np.float32),
                left=np.array([node.left for node in nodes], np.int64),
                right=np.array([node.right for node in nodes], np.int64),
                nan_left=np.array(
                    [feature >= 0 and goes_left_if_nan[feature] for feature in features], bool
                ),
                value=values.reshape(len(nodes), len(base)) * scale,
            )
        )
    output = np.full(len(trees), 0 if len(base) == 1 else -1, np.int32)
    link: Link = "sigmoid" if len(base) == 1 else "softmax"
    # a model loaded from a file has no number of features, only their names
    n_features = len(model.feature_names_)
    return BoostedTrees(trees, output, base.astype(np.float32), n_features, link)


def _check_catboost_model(document: dict[str, Any]) -> None:
    """Raise InputError for a loss or features that flat trees with one link cannot represent."""
    parameters = document["model_info"]["params"]
    if isinstance(parameters, str):
        parameters = json.loads(parameters)
    loss = parameters["loss_function"]["type"]
    if loss not in ("Logloss", "CrossEntropy", "MultiClass"):
        raise InputError(f"CatBoost's loss {loss!r} is not supported; use Logloss or MultiClass")
    other_kinds = set(document["features_info"]) - {"float_features"}
    if any(document["features_info"][kind] for kind in other_kinds):
        raise InputError("CatBoost's categorical and text features are not supported; encode them")


def _read_split(split: dict[str, Any]) -> tuple[int, float]:
    """Read the feature and the border of a split."""
    if split.get("split_type", "FloatFeature") != "FloatFeature":
        raise InputError("CatBoost's categorical and text features are not supported; encode them")
    return int(split["float_feature_index"]), float(split["border"])


def _nest_tree(splits: Sequence[Any], leaves: Sequence[float], width: int) -> dict[str, Any]:
    """Convert an oblivious tree, which has one split per level, to nested nodes.

    Bit i of the index of a leaf says which side of the i-th split the leaf is on.
    """

    def make_node(depth: int, leaf: int) -> dict[str, Any]:
        if depth == len(splits):
            return {"value": leaves[leaf * width : (leaf + 1) * width]}
        left, right = (make_node(depth + 1, leaf + (bit << depth)) for bit in (0, 1))
        return {"split": splits[depth], "left": left, "right": right}

    return make_node(0, 0)


class _FlatNode(NamedTuple):
    """Node of a CatBoost tree, with its children as numbers of nodes."""

    feature: int = LEAF
    border: float = 0.0
    left: int = LEAF
    right: int = LEAF
    value: Any = None  # (width,)


def _flatten_tree(root: dict[str, Any], width: int) -> list[_FlatNode]:
    """List nested nodes, each before its children."""
    flat_nodes: list[_FlatNode] = []

    def add_node(node: dict[str, Any]) -> int:
        number = len(flat_nodes)
        flat_nodes.append(_FlatNode())  # reserves the number until the children have theirs
        if "value" in node:
            flat_nodes[number] = _FlatNode(value=np.atleast_1d(node["value"]))
        else:
            feature, border = _read_split(node["split"])
            left = add_node(node["left"])
            right = add_node(node["right"])
            flat_nodes[number] = _FlatNode(feature, border, left, right, np.zeros(width))
        return number

    add_node(root)
    return flat_nodes


def _order_nodes(
    feature: NDArray[Any],
    threshold: NDArray[np.float32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    nan_left: NDArray[np.bool_],
    value: NDArray[Any],
) -> Nodes:
    """Sort nodes so that children come after parents, and drop unreachable nodes."""
    # go breadth first: the children of a level are the next level
    levels = []
    level = np.zeros(1, np.int64)
    while len(level):
        levels.append(level)
        inner_nodes = level[left[level] >= 0]
        level = np.column_stack([left[inner_nodes], right[inner_nodes]]).ravel()
    reachable_nodes = np.concatenate(levels)
    new_index = np.full(len(feature) + 1, LEAF, np.int64)
    # the last entry stays -1, for the children of leaves
    new_index[reachable_nodes] = np.arange(len(reachable_nodes))
    return Nodes(
        feature=feature[reachable_nodes],
        threshold=threshold[reachable_nodes],
        left=new_index[left[reachable_nodes]],
        right=new_index[right[reachable_nodes]],
        nan_left=nan_left[reachable_nodes],
        value=value[reachable_nodes],
    )
