"""The high-cost model f0: a classifier or an ONNX graph that was given, or one trained here.

Inside, classes are indices 0..M-1. A given fitted model is never refitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise import _onnxruntime
from gatewise.decision import Link, labels, probabilities
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.boosting import link_of

__all__ = ["HighCostModel"]


@dataclass(frozen=True, eq=False)
class HighCostModel:
    """A fitted high-cost model of any kind.

    Attributes
    ----------
    features : ndarray of intp, shape (n_used,)
        Columns of the instance that it reads, in its own order.
    n_classes : int
    kind : str
        What it is, for people: "svm", "boosting", "extra-trees", "given", "onnx".
    trees : TreeEnsemble or None
        Its margins as flat arrays over `features`, where it is our own boosted model.
    estimator : object or None
        A fitted scikit-learn classifier over `features`.
    onnx : bytes or None
        A given ONNX graph over `features`.
    lookup : ndarray of int64, shape (n_own_classes,) or None
        Class index of each of the estimator's (or the graph's) own classes.
    rounds : int
        Boosting rounds, 0 for other kinds.
    """

    features: NDArray[np.intp]
    n_classes: int
    kind: str
    trees: TreeEnsemble | None = None
    estimator: Any = None
    onnx: bytes | None = None
    lookup: NDArray[np.int64] | None = None
    rounds: int = 0

    @property
    def link(self) -> Link:
        """Link from the margins of `trees` to probabilities."""
        return link_of(self.n_classes)

    def predict_proba(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Get class probabilities of whole instances, shape (n, n_classes).

        One-hot labels for a classifier that gives none.
        """
        part = x[:, self.features]
        if self.trees is not None:
            return probabilities(self.trees.margins(part), self.link)
        out = np.zeros((len(x), self.n_classes))
        if self.onnx is None and not hasattr(self.estimator, "predict_proba"):
            out[np.arange(len(x)), self.labels(x)] = 1.0
            return out
        raw = (
            self.estimator.predict_proba(self._named(part))
            if self.onnx is None
            else _graph(self.onnx).answer(part)[1]
        )
        out[:, np.arange(raw.shape[1]) if self.lookup is None else self.lookup] = raw
        return out

    def labels(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Get class indices, shape (n,): those of its own ``predict``."""
        part = x[:, self.features]
        if self.trees is not None:
            return labels(self.trees.margins(part))
        if self.onnx is not None:
            position = _graph(self.onnx).answer(part)[0]
        else:
            own = self.estimator.predict(self._named(part))
            position = np.searchsorted(np.asarray(self.estimator.classes_), own)
        return position.astype(np.int64) if self.lookup is None else self.lookup[position]

    def _named(self, part: NDArray[np.float32]) -> Any:
        """Give rows the estimator's column names, if it has any."""
        names = getattr(self.estimator, "feature_names_in_", None)
        if names is None:
            return part
        import pandas as pd

        return pd.DataFrame(part, columns=names)

    @classmethod
    def given(
        cls,
        model: Any,
        classes: NDArray[Any],
        n_features: int,
        names: Sequence[str] | None = None,
    ) -> HighCostModel:
        """Wrap a fitted classifier or an ONNX file; nothing is refitted.

        Parameters
        ----------
        model : fitted scikit-learn or LightGBM classifier, or path or bytes of an ONNX graph
            A graph has one float32 input of shape (n, n_features), and the outputs label
            (int64 or strings) and probabilities (a tensor: zipmap off).
        classes : ndarray, shape (n_classes,)
            The data's class labels, sorted.
        n_features : int
        names : sequence of str, optional
            The data's column names, which must be the model's where it has any.

        Returns
        -------
        HighCostModel
            Of kind "given" or "onnx".

        Raises
        ------
        InputError
            If it reads other features or has other classes than the data.
        """
        every = np.arange(n_features)
        if isinstance(model, str | Path | bytes):
            return _given_graph(model, classes, every)
        reads = int(getattr(model, "n_features_in_", n_features))
        if reads != n_features:
            raise InputError(
                f"high_cost_model was fitted on {reads} features, the data has {n_features}"
            )
        known = getattr(model, "feature_names_in_", None)
        if names is not None and known is not None and list(known) != list(names):
            at = next(k for k in range(n_features) if known[k] != names[k])
            raise InputError(
                f"high_cost_model was fitted with {known[at]!r} as column {at}, the data has "
                f"{names[at]!r} there; give the columns in the model's order"
            )
        own = np.asarray(getattr(model, "classes_", ()))
        lookup = _match(own.tolist(), classes)
        return cls(every, len(classes), "given", estimator=model, lookup=lookup)


def _match(own: list[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    known = classes.tolist()
    unknown = [c for c in own if c not in known]
    if unknown:
        raise InputError(f"high_cost_model has class {unknown[0]!r}, the data has not")
    if not own:
        raise InputError("high_cost_model is not a fitted classifier: it has no classes_")
    return np.array([known.index(c) for c in own], np.int64)


# -- f0 as an ONNX graph -------------------------------------------------------------------


class _GraphAnswers:
    """A session on a given graph; made again after pickling, which sessions do not survive."""

    def __init__(self, graph: bytes) -> None:
        onnxruntime = _onnxruntime.load()

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )

    def answer(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Get each label's position among the graph's classes, and probabilities."""
        name = self.session.get_inputs()[0].name
        first, second = self.session.run(None, {name: np.ascontiguousarray(x, np.float32)})[:2]
        classes = self.classes()
        if classes is None:
            position = np.asarray(first, np.int64).ravel()
        else:
            place = {c: i for i, c in enumerate(classes)}
            position = np.array([place[c] for c in np.ravel(first).tolist()], np.int64)
        return position, np.asarray(second, np.float64)

    def classes(self) -> list[Any] | None:
        """Read class labels from the graph's metadata; None: labels are indices."""
        import json

        text = self.session.get_modelmeta().custom_metadata_map.get("classes")
        return None if text is None else list(json.loads(text))


_GRAPHS: dict[int, _GraphAnswers] = {}


def _graph(graph: bytes) -> _GraphAnswers:
    key = hash(graph)
    if key not in _GRAPHS:
        _GRAPHS[key] = _GraphAnswers(graph)
    return _GRAPHS[key]


def _given_graph(
    model: str | Path | bytes, classes: NDArray[Any], every: NDArray[np.intp]
) -> HighCostModel:
    if not isinstance(model, bytes):
        path = Path(model)
        if not path.is_file():
            raise InputError(f"high_cost_model: file {path} does not exist")
        model = path.read_bytes()
    try:
        session = _graph(model).session
    except Exception as error:  # onnxruntime raises types of its own, without a common base
        raise InputError(f"high_cost_model is not a usable ONNX graph: {error}") from error
    shape = session.get_inputs()[0].shape
    if len(session.get_inputs()) != 1 or len(shape) != 2 or shape[1] not in (None, len(every)):
        raise InputError(
            f"high_cost_model's graph must have one input of shape (n, {len(every)}), not {shape}"
        )
    if len(session.get_outputs()) < 2:
        raise InputError("high_cost_model's graph must give labels and probabilities")
    own = _graph(model).classes()
    if own is None and classes.tolist() != list(range(len(classes))):
        raise InputError(
            "high_cost_model's graph does not name the labels of its outputs: write a "
            'JSON list of them into its metadata as "classes", or train with labels 0, 1, ...'
        )
    lookup = None if own is None else _match(own, classes)
    return HighCostModel(every, len(classes), "onnx", onnx=model, lookup=lookup)
