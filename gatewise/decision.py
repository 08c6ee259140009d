"""Decisions from a stage's margins: stop score, label, probabilities, threshold.

Training, device, cloud and simulator all decide with these few functions, in numpy alone, so
that a device stops exactly where the estimator does. Scores are float32 and free of
``exp``: the same bits on every machine. Conventions:

- margins of shape (n, 1) are a binary model's: class 1 where the margin is above 0;
- margins of shape (n, M) name the class of the largest (the first of equals);
- margins of shape (n, 1) under the link ``identity`` are a value: no classes are meant;
- a stage's ``score`` names its stop rule, one of :data:`STOP_RULES`. A further rule is a class
  here, listed there: training, devices, graphs and C99 then know it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

Link = Literal["sigmoid", "softmax", "identity"]
Score = Literal["margin", "column"]
"""Names of the stop rules."""
Margins = NDArray[np.float32]

ALWAYS_STOP = float(np.finfo(np.float32).min)
"""The threshold that every score but NaN clears (JSON has no minus infinity)."""


class StopRule(ABC):
    """How the stop score of a stage is computed from its outputs.

    A stage's outputs are the margins of its classes and, behind them, `n_score_outputs` further
    columns for the rule.
    """

    n_score_outputs: ClassVar[int] = 0
    #: C99: ``static float NAME_score(const float *output, uint32_t n_margins)``.
    c_code: ClassVar[str]

    @abstractmethod
    def scores(self, outputs: Margins) -> Margins:
        """Stop score of each row, shape (n,)."""

    @abstractmethod
    def row_score(self, outputs: Sequence[float]) -> float:
        """Stop score of one row's float32 outputs, the same bits."""

    @abstractmethod
    def graph_nodes(self, n_margins: int) -> tuple[Mapping[str, Any], Sequence[GraphNode]]:
        """Constants and nodes of ONNX from ``margins``, all outputs, to ``score``, shape (n,)."""

    def margins(self, outputs: Margins) -> Margins:
        """Class margins, shape (n, n_margins)."""
        return outputs[:, : outputs.shape[1] - self.n_score_outputs]

    def row_margins(self, outputs: Sequence[float]) -> Sequence[float]:
        """Class margins of one row."""
        return outputs[: len(outputs) - self.n_score_outputs]

    def row_outcome(
        self, outputs: Sequence[float], link: Link
    ) -> tuple[int | float, NDArray[np.float64]]:
        """Class index or value that one row's outputs mean, and the class probabilities."""
        margins = self.row_margins(outputs)
        return row_answer(margins, link), row_probabilities(margins, link)


GraphNode = tuple[str, str, str, dict[str, Any]]
"""A node of ONNX: operator, names of its inputs and outputs, attributes."""


class MarginRule(StopRule):
    """Stop by the margins: :func:`stop_score`."""

    c_code: ClassVar[str] = """
/* The gap between the two largest margins, or the size of the only one. */
static float margin_score(const float *output, uint32_t n_margins)
{
    float best = output[0], second = -INFINITY;
    uint32_t m;
    if (n_margins == 1)
        return fabsf(best);
    for (m = 0; m < n_margins; m++)
        if (output[m] != output[m])
            return output[m];
    for (m = 1; m < n_margins; m++) {
        if (output[m] > best) {
            second = best;
            best = output[m];
        } else if (output[m] > second) {
            second = output[m];
        }
    }
    return best - second;
}
"""

    def scores(self, outputs: Margins) -> Margins:
        return stop_score(outputs)

    def row_score(self, outputs: Sequence[float]) -> float:
        return row_stop_score(outputs)

    def graph_nodes(self, n_margins: int) -> tuple[Mapping[str, Any], Sequence[GraphNode]]:
        axis = {"axis": 1}
        if n_margins == 1:
            nodes = [
                ("Gather", "margins score_column", "score_margin", axis),
                ("Abs", "score_margin", "score", {}),
            ]
            return {"score_column": np.int64(0)}, nodes
        constants = {"two": np.array([2]), "best": np.int64(0), "next": np.int64(1)}
        return constants, [
            ("TopK", "margins two", "top places", axis),
            ("Gather", "top best", "largest", axis),
            ("Gather", "top next", "second_largest", axis),
            ("Sub", "largest second_largest", "score", {}),
        ]


class ColumnRule(StopRule):
    """Stop by the last output: of a gate with ``Pr(offload | x) = sigmoid(g(x))``, ``-g``."""

    n_score_outputs: ClassVar[int] = 1
    c_code: ClassVar[str] = """
static float column_score(const float *output, uint32_t n_margins)
{
    return output[n_margins];
}
"""

    def scores(self, outputs: Margins) -> Margins:
        return outputs[:, -1]

    def row_score(self, outputs: Sequence[float]) -> float:
        return outputs[-1]

    def graph_nodes(self, n_margins: int) -> tuple[Mapping[str, Any], Sequence[GraphNode]]:
        node = ("Gather", "margins score_column", "score", {"axis": 1})
        return {"score_column": np.int64(n_margins)}, [node]


STOP_RULES: Final[Mapping[Score, StopRule]] = {"margin": MarginRule(), "column": ColumnRule()}


def split(outputs: Margins, score: Score) -> tuple[Margins, Margins]:
    """Split a stage's outputs into class margins and stop score.

    Shapes: `outputs` (n, n_outputs); returns `margins` (n, 1), `score` (n,).
    """
    rule = STOP_RULES[score]
    return rule.margins(outputs), rule.scores(outputs)


def stop_score(margins: Margins) -> Margins:
    """Get the stop score: ``|m|``, or the gap between the two largest margins.

    Monotone in the largest probability for binary models, and never computes an ``exp``.
    NaN wherever a margin is NaN.
    """
    if margins.shape[1] == 1:
        return np.abs(margins[:, 0])
    # gap = largest margin - second largest margin
    top = np.partition(margins, margins.shape[1] - 2, axis=1)[:, -2:]
    gap: Margins = top[:, 1] - top[:, 0]
    return np.where(np.isnan(margins).any(axis=1), np.float32(np.nan), gap)


def labels(margins: Margins) -> NDArray[np.int64]:
    """Get the class index of each row, shape (n,)."""
    if margins.shape[1] == 1:
        return (margins[:, 0] > 0).astype(np.int64)
    return np.asarray(margins.argmax(axis=1), np.int64)


def is_value(margins: Margins, link: Link) -> bool:
    """Whether margins are a measured value or a ranking score, not classes'."""
    return link == "identity" and margins.shape[1] == 1


def answers(margins: Margins, link: Link) -> NDArray[Any]:
    """Get the class index of each row, or the value of a regressor or ranker.

    Shapes: `margins` (n, 1); returns (n,).
    """
    return margins[:, 0] if is_value(margins, link) else labels(margins)


def row_stop_score(margins: Sequence[float]) -> float:
    """Get :func:`stop_score` of one row's float32 margins, the same bits without numpy's calls."""
    if len(margins) == 1:
        return abs(margins[0])
    if math.isnan(sum(margins)):  # a NaN, or infinities of both signs
        return float(stop_score(np.array([margins], np.float32))[0])
    second, largest = sorted(margins)[-2:]
    # A difference of two float32 values in float64, rounded once more, is their float32 difference.
    return float(np.float32(largest - second))


def row_answer(margins: Sequence[float], link: Link) -> int | float:
    """Get :func:`answers` of one row's float32 margins."""
    if len(margins) == 1:
        return margins[0] if link == "identity" else int(margins[0] > 0)
    if math.isnan(sum(margins)):
        return int(labels(np.array([margins], np.float32))[0])
    return margins.index(max(margins))


def class_positions(classes: NDArray[Any], predicted: NDArray[Any]) -> NDArray[np.int64]:
    """Get the place of each label among classes in any order, int64 (n,)."""
    order = np.argsort(classes)
    return order[np.searchsorted(classes, predicted, sorter=order)].astype(np.int64)


def probabilities(margins: Margins, link: Link) -> NDArray[np.float64]:
    """Get class probabilities of each row, shape (n, n_classes), float64.

    Shapes: `margins` (n, 1).
    """
    m = margins.astype(np.float64)
    if link == "sigmoid":
        # sigmoid(m) = (1 + tanh(m / 2)) / 2, which cannot overflow
        p = 0.5 * (1.0 + np.tanh(0.5 * m[:, 0]))
        return np.column_stack([1.0 - p, p])
    if link == "softmax":
        # softmax; the largest margin is subtracted, so that exp cannot overflow
        e = np.exp(m - m.max(axis=1, keepdims=True))
        normalised: NDArray[np.float64] = e / e.sum(axis=1, keepdims=True)
        return normalised
    return m[:, :0] if is_value(margins, link) else m


def row_probabilities(margins: Sequence[float], link: Link) -> NDArray[np.float64]:
    """Get :func:`probabilities` of one row's float32 margins, shape (n_classes,)."""
    if link == "sigmoid":
        p = 0.5 * (1.0 + float(np.tanh(0.5 * margins[0])))
        return np.array((1.0 - p, p))
    if link == "softmax":
        largest = max(margins)
        e = np.exp([margin - largest for margin in margins])
        normalised: NDArray[np.float64] = e / np.add.reduce(e)
        return normalised
    of_row: NDArray[np.float64] = probabilities(np.array([margins], np.float32), link)[0]
    return of_row


def stops(score: Margins, threshold: float | None) -> NDArray[np.bool_]:
    """Get where a stage stops: ``score >= threshold``; NaN and None never stop."""
    if threshold is None:
        return np.zeros(len(score), bool)
    return score >= np.float32(threshold)


def as_float32(threshold: float | None) -> float | None:
    """Round a threshold to float32, as :func:`stops` compares it."""
    return None if threshold is None else float(np.float32(threshold))


def midway(below: float, above: float) -> float:
    """Get the float32 threshold midway between two neighbouring distinct float32 scores.

    A threshold that equals a score of the data may flip with the last bit of another
    machine's sum, so thresholds lie between scores. Lies in ``(below, above]``.
    """
    low = np.float32(below)
    high = np.float32(above)
    middle = np.float32(0.5 * (float(low) + float(high)))
    return float(high if middle <= low else middle)


def reachable_exits(
    thresholds: Sequence[float | None], may_be_nan: Callable[[int], bool] = lambda _: False
) -> list[int]:
    """List the exits that an instance can take; the number of stages stands for an offload.

    A stage that always stops ends the list, unless its score may be NaN.

    >>> reachable_exits([None, 0.5, ALWAYS_STOP, 0.5])
    [1, 2]
    """
    exits = []
    for stage, threshold in enumerate(thresholds):
        if threshold is not None:
            exits.append(stage)
            if threshold <= ALWAYS_STOP and not may_be_nan(stage):
                return exits
    return [*exits, len(thresholds)]


def exit_stages(scores: Sequence[Margins], thresholds: Sequence[float | None]) -> NDArray[np.int64]:
    """Get each row's first stage that stops, shape (n,); ``len(scores)`` where none does."""
    n = len(scores[0])
    exits = np.full(n, len(scores), np.int64)
    # backwards, so that the first stage that stops is the last one written
    for s in range(len(scores) - 1, -1, -1):
        exits[stops(scores[s], thresholds[s])] = s
    return exits
