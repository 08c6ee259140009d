"""Decisions from the margins of a stage: stop score, label, probabilities and threshold.

Training, devices, workers and the simulator all use these functions, and a device therefore stops
exactly where the estimator stops. Scores are float32 and are computed without ``exp``, because all
machines must compute the same bits. Conventions:

- Margins of shape (n, 1) belong to a binary model, which answers class 1 if the margin is above 0.
- Margins of shape (n, M) give the class with the largest margin, or the first of equal ones.
- Margins of shape (n, 1) with the link ``identity`` are values without classes.
- The ``score`` of a stage names its rule in :data:`STOP_RULES`. To add a rule, add a class here and
  list it there. Training, devices, graphs and C99 then support it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Names of the functions from a model's outputs to probabilities.
Link = Literal["sigmoid", "softmax", "identity"]
#: Names of the stop rules.
Score = Literal["margin", "column"]
#: Outputs of a stage's model, or its stop scores.
Margins = NDArray[np.float32]

#: Threshold that every score except NaN reaches. JSON cannot represent minus infinity.
ALWAYS_STOP = float(np.finfo(np.float32).min)


class StopRule(ABC):
    """Rule that computes the stop score of a stage from its outputs.

    The outputs are the margins of the classes, followed by `n_score_outputs` columns that only the
    rule reads.
    """

    n_score_outputs: ClassVar[int] = 0
    #: C99 source of ``static float NAME_score(const float *output, uint32_t n_margins)``.
    c_code: ClassVar[str]

    @abstractmethod
    def scores(self, outputs: Margins) -> Margins:
        """Compute the stop score of each row, shape (n,)."""

    @abstractmethod
    def row_score(self, outputs: Sequence[float]) -> float:
        """Compute the stop score of one row's float32 outputs, with the bits of :meth:`scores`."""

    @abstractmethod
    def graph_nodes(self, n_margins: int) -> tuple[Mapping[str, Any], Sequence[GraphNode]]:
        """Make the constants and ONNX nodes that compute ``score``, (n,), from ``margins``.

        ``margins`` is the name of the tensor of all outputs.
        """

    def margins(self, outputs: Margins) -> Margins:
        """Select the class margins, shape (n, n_margins)."""
        return outputs[:, : outputs.shape[1] - self.n_score_outputs]

    def row_margins(self, outputs: Sequence[float]) -> Sequence[float]:
        """Select the class margins of one row."""
        return outputs[: len(outputs) - self.n_score_outputs]

    def row_outcome(
        self, outputs: Sequence[float], link: Link
    ) -> tuple[int | float, NDArray[np.float64]]:
        """Compute the class index or value of one row, and its class probabilities."""
        margins = self.row_margins(outputs)
        return row_answer(margins, link), row_probabilities(margins, link)


class GraphNode(NamedTuple):
    """ONNX node; the names of its inputs, and of its outputs, are separated by spaces."""

    operator: str
    inputs: str
    outputs: str
    attributes: Mapping[str, Any]


class MarginRule(StopRule):
    """Stop rule that uses the margins; see :func:`stop_score`."""

    c_code: ClassVar[str] = """
/* The gap between the two largest margins, or the size of the only one. */
static float margin_score(const float *output, uint32_t n_margins)
{
    float largest = output[0], second_largest = -INFINITY;
    uint32_t m;
    if (n_margins == 1)
        return fabsf(largest);
    for (m = 0; m < n_margins; m++)
        if (output[m] != output[m])
            return output[m];
    for (m = 1; m < n_margins; m++) {
        if (output[m] > largest) {
            second_largest = largest;
            largest = output[m];
        } else if (output[m] > second_largest) {
            second_largest = output[m];
        }
    }
    return largest - second_largest;
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
                GraphNode("Gather", "margins score_column", "score_margin", axis),
                GraphNode("Abs", "score_margin", "score", {}),
            ]
            return {"score_column": np.int64(0)}, nodes
        constants = {"two": np.array([2]), "best": np.int64(0), "next": np.int64(1)}
        return constants, [
            GraphNode("TopK", "margins two", "top indices", axis),
            GraphNode("Gather", "top best", "largest", axis),
            GraphNode("Gather", "top next", "second_largest", axis),
            GraphNode("Sub", "largest second_largest", "score", {}),
        ]


class ColumnRule(StopRule):
    """Stop rule that uses the last output, ``-g`` of a gate ``Pr(offload | x) = sigmoid(g(x))``."""

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
        node = GraphNode("Gather", "margins score_column", "score", {"axis": 1})
        return {"score_column": np.int64(n_margins)}, [node]


STOP_RULES: Final[Mapping[Score, StopRule]] = {"margin": MarginRule(), "column": ColumnRule()}


def split_outputs(outputs: Margins, score: Score) -> tuple[Margins, Margins]:
    """Compute class margins, (n, n_margins), and stop scores, (n,), from outputs (n, n_outputs)."""
    rule = STOP_RULES[score]
    return rule.margins(outputs), rule.scores(outputs)


def stop_score(margins: Margins) -> Margins:
    """Compute the stop score: ``|m|``, or the gap between the two largest margins.

    For a binary model the score increases with the largest probability. It is NaN if a margin is
    NaN.
    """
    if margins.shape[1] == 1:
        return np.abs(margins[:, 0])
    # gap = largest margin - second largest margin
    two_largest = np.partition(margins, margins.shape[1] - 2, axis=1)[:, -2:]
    gap: Margins = two_largest[:, 1] - two_largest[:, 0]
    return np.where(np.isnan(margins).any(axis=1), np.float32(np.nan), gap)


def labels(margins: Margins) -> NDArray[np.int64]:
    """Compute the class index of each row, shape (n,)."""
    if margins.shape[1] == 1:
        return (margins[:, 0] > 0).astype(np.int64)
    return np.asarray(margins.argmax(axis=1), np.int64)


def is_value(margins: Margins, link: Link) -> bool:
    """Whether margins are values or ranking scores instead of margins of classes."""
    return link == "identity" and margins.shape[1] == 1


def answers(margins: Margins, link: Link) -> NDArray[Any]:
    """Compute the class index of each row, or the value of a regressor or ranker, shape (n,)."""
    return margins[:, 0] if is_value(margins, link) else labels(margins)


def row_stop_score(margins: Sequence[float]) -> float:
    """Compute :func:`stop_score` for one row's float32 margins, with the same bits."""
    if len(margins) == 1:
        return abs(margins[0])
    if math.isnan(sum(margins)):  # a NaN, or infinities of both signs
        return float(stop_score(np.array([margins], np.float32))[0])
    second_largest, largest = sorted(margins)[-2:]
    # the float64 difference of two float32 values rounds to their float32 difference
    return float(np.float32(largest - second_largest))


def row_answer(margins: Sequence[float], link: Link) -> int | float:
    """Compute :func:`answers` for one row's float32 margins."""
    if len(margins) == 1:
        return margins[0] if link == "identity" else int(margins[0] > 0)
    if math.isnan(sum(margins)):
        return int(labels(np.array([margins], np.float32))[0])
    return margins.index(max(margins))


def class_positions(classes: NDArray[Any], predicted_labels: NDArray[Any]) -> NDArray[np.int64]:
    """Find the index of each label in `classes`, which may be in any order; int64 (n,)."""
    order = np.argsort(classes)
    return order[np.searchsorted(classes, predicted_labels, sorter=order)].astype(np.int64)


def probabilities(margins: Margins, link: Link) -> NDArray[np.float64]:
    """Compute class probabilities, float64 (n, n_classes)."""
    margins64 = margins.astype(np.float64)
    if link == "sigmoid":
        # sigmoid(m) = (1 + tanh(m / 2)) / 2, which cannot overflow
        positive_probability = 0.5 * (1.0 + np.tanh(0.5 * margins64[:, 0]))
        return np.column_stack([1.0 - positive_probability, positive_probability])
    if link == "softmax":
        # softmax(m) = exp(m - max m) / sum exp(m - max m), which cannot overflow
        exponentials = np.exp(margins64 - margins64.max(axis=1, keepdims=True))
        class_probabilities: NDArray[np.float64] = exponentials / exponentials.sum(
            axis=1, keepdims=True
        )
        return class_probabilities
    return margins64[:, :0] if is_value(margins, link) else margins64


def row_probabilities(margins: Sequence[float], link: Link) -> NDArray[np.float64]:
    """Compute :func:`probabilities` for one row's float32 margins, shape (n_classes,)."""
    if link == "sigmoid":
        positive_probability = 0.5 * (1.0 + float(np.tanh(0.5 * margins[0])))
        return np.array((1.0 - positive_probability, positive_probability))
    if link == "softmax":
        largest = max(margins)
        exponentials = np.exp([margin - largest for margin in margins])
        class_probabilities: NDArray[np.float64] = exponentials / np.add.reduce(exponentials)
        return class_probabilities
    class_probabilities_of_row: NDArray[np.float64] = probabilities(
        np.array([margins], np.float32), link
    )[0]
    return class_probabilities_of_row


def stop_mask(score: Margins, threshold: float | None) -> NDArray[np.bool_]:
    """Compute which rows stop: ``score >= threshold``; a NaN score or no threshold never stops."""
    if threshold is None:
        return np.zeros(len(score), bool)
    return score >= np.float32(threshold)


def as_float32(threshold: float | None) -> float | None:
    """Round a threshold to float32."""
    return None if threshold is None else float(np.float32(threshold))


def midpoint_threshold(lower_score: float, upper_score: float) -> float:
    """Compute a float32 threshold in ``(lower, upper]``, midway between two float32 scores.

    With a threshold equal to a score, a rounding error could change the decision.
    """
    low_score = np.float32(lower_score)
    high_score = np.float32(upper_score)
    midpoint = np.float32(0.5 * (float(low_score) + float(high_score)))
    return float(high_score if midpoint <= low_score else midpoint)


def reachable_exits(
    thresholds: Sequence[float | None], may_be_nan: Callable[[int], bool] = lambda _: False
) -> list[int]:
    """List the exits that an instance can take; the number of stages stands for an offload.

    A stage that always stops is the last exit, unless its score may be NaN.

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
    """Find the first stage that stops each row, shape (n,); ``len(scores)`` means no stage."""
    exits = np.full(len(scores[0]), len(scores), np.int64)
    # go backwards, so that the first stage that stops a row overwrites later stages
    for stage in range(len(scores) - 1, -1, -1):
        exits[stop_mask(scores[stage], thresholds[stage])] = stage
    return exits
