"""High-cost models of all kinds that users may pass, for ``bench_models``."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import onnx
import pandas as pd
import skl2onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import gatewise as gw

PIXEL_NAMES = [f"pixel {pixel}" for pixel in range(64)]


def _make_booster(library: str) -> Any:
    if library == "lightgbm":
        import lightgbm

        return lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)
    if library == "xgboost":
        import xgboost

        return xgboost.XGBClassifier(n_estimators=20, n_jobs=1)
    import catboost

    settings = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
    return catboost.CatBoostClassifier(iterations=40, depth=4, **settings)


def _make_scaled(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


def _make_column_transformer() -> Any:
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), PIXEL_NAMES[:8]),
        (StandardScaler(), PIXEL_NAMES[8:32]),
        remainder="passthrough",
    )
    return make_pipeline(columns, RandomForestClassifier(50, random_state=0))


#: Models of the user, fitted on the frames of :data:`FRAMES` and otherwise on arrays.
#:
#: They are small, because the benchmark compares the answers of a model with those of its graph,
#: and not its accuracy.
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "random forest": lambda: RandomForestClassifier(50, random_state=0),
    "random forest of a polars frame": lambda: RandomForestClassifier(50, random_state=0),
    "HistGradientBoosting": lambda: HistGradientBoostingClassifier(max_iter=20, random_state=0),
    "LightGBM": lambda: _make_booster("lightgbm"),
    "XGBoost": lambda: _make_booster("xgboost"),
    "CatBoost": lambda: _make_booster("catboost"),
    "logistic regression in a pipeline": lambda: _make_scaled(LogisticRegression(max_iter=300)),
    "calibrated SVM": lambda: CalibratedClassifierCV(SVC(), ensemble=False, cv=2),
    "network of scikit-learn": lambda: _make_scaled(
        MLPClassifier((32,), max_iter=300, random_state=0)
    ),
    # smoothed, because some pixels of digits are constant
    "naive Bayes": lambda: GaussianNB(var_smoothing=1e-3),
    "OneHotEncoder in a pipeline": lambda: make_pipeline(
        OneHotEncoder(handle_unknown="ignore"), LogisticRegression(max_iter=200)
    ),
    "ColumnTransformer by names": _make_column_transformer,
    "vote": lambda: VotingClassifier(
        [
            ("a", HistGradientBoostingClassifier(max_iter=10)),
            ("b", _make_booster("xgboost")),
            ("c", _make_scaled(LogisticRegression(max_iter=300))),
        ],
        voting="soft",
        weights=[1, 1, 2],
    ),
    "stack": lambda: StackingClassifier(
        [
            ("a", RandomForestClassifier(20, random_state=0)),
            ("b", _make_scaled(LogisticRegression(max_iter=300))),
        ],
        cv=3,
    ),
}

#: Models that must be refused, because they cannot be written as a graph.
REFUSED: dict[str, Callable[[], Any]] = {
    "AdaBoost": AdaBoostClassifier,
    "Gaussian process": GaussianProcessClassifier,
    "isotonic calibration": lambda: CalibratedClassifierCV(SVC(), method="isotonic"),
}


def pandas_frame(X: NDArray[np.float32]) -> pd.DataFrame:
    """Make a pandas frame of rows, with column names."""
    return pd.DataFrame(X, columns=PIXEL_NAMES)


def polars_frame(X: NDArray[np.float32]) -> Any:
    """Make a polars frame of rows."""
    import polars

    return polars.DataFrame(X, schema=PIXEL_NAMES)


FRAMES: dict[str, Callable[[NDArray[np.float32]], Any]] = {
    "random forest of a polars frame": polars_frame,
    "ColumnTransformer by names": pandas_frame,
}


def _make_forest_graph(X: NDArray[np.float32], y: NDArray[Any], *, zipmap: bool) -> bytes:
    model = RandomForestClassifier(50, random_state=0).fit(X, y)
    options = {id(model): {"zipmap": zipmap}}
    opset = {"": 17, "ai.onnx.ml": 3}
    graph = skl2onnx.to_onnx(model, X[:1], options=options, target_opset=opset)
    content: bytes = graph.SerializeToString()
    return content


def make_network(X: NDArray[np.float32], y: NDArray[Any], *, softmax: bool, image: bool) -> bytes:
    """Fit a network and write it as ONNX for rows or images (n, 1, 8, 8), with one output."""
    # the pixels of digits are 0 to 16
    network_model = MLPClassifier((32,), max_iter=300, random_state=0).fit(X / 16, y)
    nodes, tensors = [], {"scale": np.array(1 / 16, np.float32)}
    input_name = "x"
    if image:  # a convolution that is the identity
        tensors["kernel"] = np.array([[[[0, 0, 0], [0, 1, 0], [0, 0, 0]]]], np.float32)
        nodes.append(helper.make_node("Conv", ["x", "kernel"], ["convolved"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Flatten", ["convolved"], ["row"]))
        input_name = "row"
    nodes.append(helper.make_node("Mul", [input_name, "scale"], ["h0"]))
    for i, (weights, bias) in enumerate(
        zip(network_model.coefs_, network_model.intercepts_, strict=True)
    ):
        tensors[f"w{i}"], tensors[f"b{i}"] = weights.astype(np.float32), bias.astype(np.float32)
        is_last = i == len(network_model.coefs_) - 1
        output_name = "logits" if is_last else f"a{i}"
        nodes.append(helper.make_node("Gemm", [f"h{i}", f"w{i}", f"b{i}"], [output_name]))
        if not is_last:
            nodes.append(helper.make_node("Relu", [output_name], [f"h{i + 1}"]))
    nodes.append(helper.make_node("Softmax", ["logits"], ["chances"], axis=1))
    shape: list[Any] = ["n", 1, 8, 8] if image else ["n", 64]
    output = "chances" if softmax else "logits"
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opset = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _write_external_data_file(X: NDArray[np.float32], y: NDArray[Any]) -> Path:
    """Write an ONNX file that stores its tensors in a second file; return its path."""
    model = onnx.load_model_from_string(make_network(X, y, softmax=False, image=False))
    path = Path(tempfile.mkdtemp(), "network.onnx")
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    return path


def _make_single_row_graph(X: NDArray[np.float32], y: NDArray[Any]) -> bytes:
    """Make an ONNX graph that takes one row, because it reshapes to a fixed size."""
    model = onnx.load_model_from_string(make_network(X, y, softmax=False, image=False))
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([1, 64]), "one_row"))
    graph.node.insert(0, helper.make_node("Reshape", ["x", "one_row"], ["row"]))
    graph.node[1].input[0] = "row"
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    content: bytes = model.SerializeToString()
    return content


FILES: dict[str, Callable[[NDArray[np.float32], NDArray[Any]], Any]] = {
    "ONNX: label and probabilities": lambda X, y: _make_forest_graph(X, y, zipmap=False),
    "ONNX: label and ZipMap": lambda X, y: _make_forest_graph(X, y, zipmap=True),
    "ONNX: probabilities alone, named classes": lambda X, y: gw.OnnxModel(
        make_network(X, y, softmax=True, image=False), classes=list(range(10))
    ),
    "ONNX: logits alone, images (n, 1, 8, 8)": lambda X, y: make_network(
        X, y, softmax=False, image=True
    ),
    "ONNX: external data": _write_external_data_file,
    "ONNX: a fixed batch of one row": _make_single_row_graph,
}


# -- PyTorch -------------------------------------------------------------------------------


def _fit_module(X: NDArray[np.float32], y: NDArray[Any]) -> Any:
    """Fit a convolutional network on rows."""
    import torch

    torch.manual_seed(0)
    # 8 channels of 4 x 4 pixels after the pooling are the 128 inputs of the last layer
    layers = [
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    ]
    module = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    rows, targets = torch.from_numpy(X), torch.from_numpy(y)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(rows), targets).backward()
        optimizer.step()
    return module


def _export_program(X: NDArray[np.float32], y: NDArray[Any]) -> Any:
    import torch

    return torch.export.export(_fit_module(X, y).eval(), (torch.zeros(1, 64),))


TORCH: dict[str, Callable[[NDArray[np.float32], NDArray[Any]], Any]] = {
    "PyTorch module": _fit_module,
    "torch.export program of a fixed batch": _export_program,
}


# -- boosters ------------------------------------------------------------------------------

#: Columns of whole numbers that some boosters read as categories.
CATEGORY_COLUMNS = [20, 28]


def _fit_lightgbm(X: NDArray[np.float32], y: NDArray[Any], **columns: Any) -> Any:
    import lightgbm

    settings = {"objective": "multiclass", "num_class": 10, "verbose": -1, "num_threads": 1}
    return lightgbm.train(settings, lightgbm.Dataset(X, y, **columns), 20)


def _fit_xgboost(X: NDArray[np.float32], y: NDArray[Any], **columns: Any) -> Any:
    import xgboost

    settings = {"objective": "multi:softprob", "num_class": 10, "nthread": 1}
    return xgboost.train(settings, xgboost.DMatrix(X, y, **columns), 20)


def _fit_xgboost_categories(X: NDArray[np.float32], y: NDArray[Any]) -> Any:
    feature_types = ["c" if column in CATEGORY_COLUMNS else "float" for column in range(X.shape[1])]
    return _fit_xgboost(X, y, feature_types=feature_types, enable_categorical=True)


def _fit_catboost(X: NDArray[np.float32], y: NDArray[Any]) -> Any:
    return _make_booster("catboost").fit(X, y)


def _fit_catboost_categories(X: NDArray[np.float32], y: NDArray[Any]) -> Any:
    table = pandas_frame(X).astype({PIXEL_NAMES[column]: int for column in CATEGORY_COLUMNS})
    return _make_booster("catboost").fit(table, y, cat_features=CATEGORY_COLUMNS)


def _save_booster(booster: Any, name: str) -> str:
    """Save a booster into a file and return its path."""
    path = str(Path(tempfile.mkdtemp(), name))
    booster.save_model(path)
    return path


#: Fitted on rows with NaN if WITH_MISSING_VALUES has the name.
BOOSTERS: dict[str, Callable[[NDArray[np.float32], NDArray[Any]], Any]] = {
    "lightgbm.Booster": _fit_lightgbm,
    "lightgbm.Booster, missing values": _fit_lightgbm,
    "LightGBM's text, categories": lambda X, y: _save_booster(
        _fit_lightgbm(X, y, categorical_feature=CATEGORY_COLUMNS), "model.txt"
    ),
    "xgboost.Booster": _fit_xgboost,
    "XGBoost's JSON": lambda X, y: _save_booster(_fit_xgboost(X, y), "model.json"),
    "XGBoost's UBJSON, missing values": lambda X, y: _save_booster(_fit_xgboost(X, y), "model.ubj"),
    "xgboost.Booster, categories": _fit_xgboost_categories,
    "CatBoost's file": lambda X, y: _save_booster(_fit_catboost(X, y), "model.cbm"),
    "CatBoost's file, missing values": lambda X, y: _save_booster(_fit_catboost(X, y), "model.cbm"),
    "CatBoost's file, categories": lambda X, y: _save_booster(
        _fit_catboost_categories(X, y), "model.cbm"
    ),
}

WITH_MISSING_VALUES = {
    "lightgbm.Booster, missing values",
    "XGBoost's UBJSON, missing values",
    "CatBoost's file, missing values",
}


# -- code ----------------------------------------------------------------------------------


def probabilities(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute class probabilities from distances to mean digits, which the first call computes."""
    from sklearn.datasets import load_digits

    if not _DIGIT_MEANS:
        rows, digits = load_digits(return_X_y=True)
        _DIGIT_MEANS.append(
            np.stack([rows[:500][digits[:500] == digit].mean(axis=0) for digit in range(10)])
        )
    # p(digit) ~ exp(-|row - mean of the digit|^2 / 100); the smallest distance is subtracted, so
    # that not all weights underflow
    squared_distances = ((np.asarray(X, np.float64)[:, None, :] - _DIGIT_MEANS[0]) ** 2).sum(axis=2)
    class_weights = np.exp(
        -(squared_distances - squared_distances.min(axis=1, keepdims=True)) / 100.0
    )
    class_probabilities: NDArray[np.float64] = class_weights / class_weights.sum(
        axis=1, keepdims=True
    )
    return class_probabilities


#: Means of the digits after the first call. A bundle names the function by its module, so
#: nobody can give it the means as an argument.
_DIGIT_MEANS: list[NDArray[np.float64]] = []


@contextmanager
def service() -> Iterator[None]:
    """Run a JSON service of :func:`probabilities` for :func:`ask_service`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(probabilities(np.array(rows, np.float32)).tolist()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _SERVICE_URLS.append(f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        _SERVICE_URLS.clear()


def ask_service(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Ask the service of :func:`service` for class probabilities over HTTP."""
    with urlopen(Request(_SERVICE_URLS[0], json.dumps(X.tolist()).encode()), timeout=5) as response:
        return np.array(json.load(response), np.float64)


#: URL of the running service, or empty.
_SERVICE_URLS: list[str] = []
