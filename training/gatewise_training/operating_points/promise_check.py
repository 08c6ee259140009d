"""Check of a system's bounds on rows that no choice has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gatewise.formats import listed, plural
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.risk_tests import exact_interval

#: Confidence of the intervals of figures.
CONFIDENCE = 0.95

#: With fewer rows, the interval of a figure is written before its value.
FEW_ROWS = 100

Verdict = Literal["kept", "missed by chance", "broken"]


class MeasuredFigure(NamedTuple):
    """A figure on rows, and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def share(
        cls, events: NDArray[np.bool_], weights: NDArray[np.float64], splitter: RowSplitter
    ) -> MeasuredFigure:
        """Measure the share of rows with an event.

        The interval is exact if rows are independent and have equal weights. If no row has the
        event, or every row, it is the exact interval of as many independent units as the weights of
        the rows or groups are worth: ``(sum w)^2 / sum w^2``.
        """
        if splitter.is_random and len(events) and not np.ptp(weights):
            return cls(events.mean().item(), *exact_interval(int(events.sum()), len(events)))
        if len(events) and events.all() == events.any():
            unit_weights = weights if splitter.groups is None else splitter.group_sums(weights)
            n_units = max(int(unit_weights.sum() ** 2 / (unit_weights**2).sum()), 1)
            share = int(events[0])
            return cls(float(share), *exact_interval(n_units * share, n_units))
        return cls.mean(events.astype(np.float64), weights, splitter).clipped(0.0, 1.0)

    @classmethod
    def mean(
        cls, values: NDArray[np.float64], weights: NDArray[np.float64], splitter: RowSplitter
    ) -> MeasuredFigure:
        """Measure a mean; if rows have groups, its error is the error between groups."""
        n_units = splitter.n_groups or len(values)
        if n_units < 2:
            mean = float(np.average(values, weights=weights)) if len(values) else np.nan
            return cls(mean, -np.inf, np.inf)
        mean = float(np.average(values, weights=weights))
        # each row's contribution to the deviation of the mean
        deviations = weights * (values - mean) / weights.sum()
        deviation_sums = deviations if splitter.groups is None else splitter.group_sums(deviations)
        error = float(np.sqrt(n_units / (n_units - 1) * (deviation_sums**2).sum()))
        half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, n_units - 1)) * error
        return cls(mean, mean - half_width, mean + half_width)

    @classmethod
    def loss(
        cls, losses: NDArray[np.float64], weights: NDArray[np.float64], splitter: RowSplitter
    ) -> MeasuredFigure:
        """Measure a mean of paired losses, each -1, 0 or 1.

        Without groups the interval is Agresti and Min's (Statistics in Medicine 24, 2005), which
        adds half a row to each cell of the table of right and wrong answers. If all losses are
        equal, which says nothing of the error between groups, each group counts as a row in it.
        """
        if splitter.groups is not None and len(losses) and not np.ptp(losses):
            losses = splitter.group_means(losses)
            weights = splitter.group_sums(weights)
        elif splitter.groups is not None or not len(losses):
            return cls.mean(losses, weights, splitter).clipped(-1.0, 1.0)
        weights = weights / weights.mean()
        total_weight = weights.sum() + 2.0
        mean = float(weights @ losses / total_weight)
        # sum of w² (loss - mean)², with half a row each of losses 1, -1, 0, 0
        square_sum = (weights**2) @ (losses - mean) ** 2 + 1.0 + 2.0 * mean**2
        half_width = float(
            stats.norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt(square_sum) / total_weight
        )
        value = float(np.average(losses, weights=weights))
        return cls(value, mean - half_width, mean + half_width).clipped(-1.0, 1.0)

    def ends(self) -> list[float | None]:
        """Get the ends of the interval for JSON; an unbounded end is None."""
        return [limit if np.isfinite(limit) else None for limit in (self.low, self.high)]

    def clipped(self, low: float, high: float) -> MeasuredFigure:
        """Clip the interval to the limits of its figure."""
        return MeasuredFigure(self.value, max(self.low, low), min(self.high, high))

    def text(self, n_rows: int) -> str:
        """Write the figure with its interval, which comes first if rows are few.

        >>> MeasuredFigure(0.714, 0.29, 0.963).text(7)
        '0.29 to 0.96 (on these rows 0.714)'
        >>> MeasuredFigure(0.944, 0.93, 0.956).text(1000)
        '0.9440 (95 %: 0.9300 to 0.9560)'
        """
        if n_rows < FEW_ROWS:
            return f"{self.low:.2f} to {self.high:.2f} (on these rows {self.value:.3g})"
        return f"{self.value:.4f} (95 %: {self.low:.4f} to {self.high:.4f})"


class CheckedBound(NamedTuple):
    """A bound, and the figure that it limits on rows that no choice has seen."""

    name: str
    bound: float
    is_upper: bool
    measured: MeasuredFigure
    expected: float | None = None  # figure on validation rows, if a point may miss the bound there

    @property
    def verdict(self) -> Verdict:
        """Whether the bound is kept, missed by chance or broken.

        A missed bound is broken if the whole interval is beyond it, or if it is missed on
        validation rows as well.
        """
        value, low, high = self.measured
        if self._allows(value):
            return "kept"
        if not self.is_kept_on_validation_rows:
            return "broken"
        return "missed by chance" if self._allows(low) or self._allows(high) else "broken"

    @property
    def is_kept_on_validation_rows(self) -> bool:
        """Whether the operating point keeps the bound on the rows that it was chosen on."""
        return self.expected is None or self._allows(self.expected)

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval keeps the bound."""
        _, low, high = self.measured
        return self._allows(low) and self._allows(high)

    def _allows(self, figure: float) -> bool:
        # 1e-9 allows for rounding
        return figure <= self.bound + 1e-9 if self.is_upper else figure >= self.bound - 1e-9

    @property
    def promise(self) -> str:
        """The bound as text, with the figure on validation rows if it is known."""
        text = f"{self.name} of at {'most' if self.is_upper else 'least'} {self.bound:g}"
        return text if self.expected is None else f"{text} ({self.expected:.4f} on validation rows)"


class UnseenRows(NamedTuple):
    """Rows that no choice has seen, and the answers of a system and its high-cost model, (n,)."""

    truth: NDArray[np.int64]  # class indices; -1 for a label that training has not seen
    answers: NDArray[np.int64]  # class indices
    reference: NDArray[np.int64] | None  # answers of the high-cost model, or None without a cloud
    costs: NDArray[np.float64]
    is_offloaded: NDArray[np.bool_]
    weights: NDArray[np.float64]  # class weight of each row
    splitter: RowSplitter

    @property
    def accuracy(self) -> MeasuredFigure:
        """Accuracy of the system."""
        ones = np.ones(len(self.truth))
        return MeasuredFigure.share(self.answers == self.truth, ones, self.splitter)

    def loss_on(self, rows: NDArray[np.bool_]) -> MeasuredFigure:
        """Measure the loss of accuracy against the high-cost model on some rows."""
        assert self.reference is not None
        truth = self.truth[rows]
        losses = (self.reference[rows] == truth) * 1.0 - (self.answers[rows] == truth)
        return MeasuredFigure.loss(losses, self.weights[rows], self.splitter.take(rows))


@dataclass(frozen=True)
class PromiseCheck:
    """Bounds of a system's operating point on rows that no choice has seen."""

    goal: str  # the first of `bounds` as text, with the figure on validation rows
    bounds: tuple[CheckedBound, ...]
    accuracy: MeasuredFigure
    expected_accuracy: float  # on validation rows
    n_rows: int
    confidence: float | None  # of a guarantee
    has_groups: bool
    similarity_reasons: tuple[str, ...] = ()  # why rows may be too similar to training rows
    undetected_classes: tuple[str, ...] = ()  # classes of these rows that the system never answers

    @classmethod
    def of_system(
        cls, system: Any, rows: UnseenRows, *, similarity_reasons: Sequence[str] = ()
    ) -> PromiseCheck:
        """Check the active operating point of a fitted system."""
        point = system.operating_point_
        reference_accuracy = system._reference_frontier().reference_effective_accuracy
        expected_loss = reference_accuracy - point.effective_accuracy
        ((kind, bound),) = system._goal().items()
        goal_text, checked_bound = _measure_goal(kind, bound, system, rows, expected_loss)
        bounds = [checked_bound, *_measure_class_bounds(system, rows)]
        if checked_bound.bound >= 1.0 and len(bounds) > 1:  # only classes are bounded
            bounds = bounds[1:]
            goal_text = bounds[0].promise
        guarantee = point.guarantee
        return cls(
            goal=goal_text,
            bounds=tuple(bounds),
            accuracy=rows.accuracy,
            expected_accuracy=point.accuracy,
            n_rows=len(rows.truth),
            confidence=None if guarantee is None else guarantee["confidence"],
            has_groups=rows.splitter.groups is not None,
            similarity_reasons=tuple(similarity_reasons),
            undetected_classes=tuple(
                str(label)
                for class_index, label in enumerate(system.classes_)
                if (is_of_class := rows.truth == class_index).any()
                and not (rows.answers[is_of_class] == class_index).any()
            ),
        )

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the bounds."""
        verdicts = [bound.verdict for bound in self.bounds]
        return next(
            (verdict for verdict in ("broken", "missed by chance") if verdict in verdicts), "kept"
        )

    def lines(self) -> list[str]:
        """Write the promise, the figures on the rows, the verdict and the advice as lines."""
        confidence = "" if self.confidence is None else f", with confidence {self.confidence:g}"
        promise_text = ", a ".join([self.goal, *(bound.promise for bound in self.bounds[1:])])
        figures = [f"{bound.name} {bound.measured.text(self.n_rows)}" for bound in self.bounds]
        article = "an " if promise_text[0] in "aeiou" else "a "
        accuracy_text = self.accuracy.text(self.n_rows)
        drop_text = accuracy_drop_text(self.expected_accuracy, self.accuracy)
        verdict_text, advice = self._write_verdict_and_advice()
        return [
            f"promised: {article}{promise_text}{confidence}",
            f"reached on {plural(self.n_rows, 'row')} held out: {'; '.join(figures)}",
            f"accuracy on them: {accuracy_text}; on validation rows {self.expected_accuracy:.4f}",
            *([] if drop_text is None else [f"accuracy is lower than expected: {drop_text}"]),
            verdict_text,
            *(
                f"but these rows are similar to the training rows: {reason}"
                for reason in self.similarity_reasons
            ),
            f"what to do: {advice}",
        ]

    def _write_verdict_and_advice(self) -> tuple[str, str]:
        """Write the verdict, and what the user can do about it."""
        broken_bounds = [bound for bound in self.bounds if bound.verdict != "kept"]
        expected_misses = [bound for bound in broken_bounds if not bound.is_kept_on_validation_rows]
        if expected_misses:
            advice = "train on more rows of the class, weigh it (class_weight in --settings)"
            if "accuracy" in expected_misses[0].name:  # few bytes or a cap leave no point within it
                advice = "allow more bytes or a higher cost of an instance"
            return (
                f"not kept: {_breaches_text(expected_misses)}, on validation rows as well",
                f"{advice}, or give a looser bound",
            )
        breaches = _breaches_text(broken_bounds)
        # --slack applies to losses and to bounds on classes
        broken_names = {bound.name for bound in broken_bounds}
        remedy = "keep a larger margin (--slack 2)"
        if broken_names <= {"mean cost", "share offloaded"}:
            remedy = "give a smaller bound"
        advice = f"train on more rows, or {remedy}"
        if self.confidence is None:
            advice += ", or certify the bounds on rows set aside (--guarantee 0.95)"
        if not self.has_groups:
            advice += "; where rows belong together, say so (--groups or --time-split)"
        if self.verdict == "broken":
            return f"not kept: {breaches}, by more than chance explains", advice
        if broken_bounds:
            rows = plural(self.n_rows, "row")
            return (
                f"not kept on these rows: {breaches}, but chance explains as much on {rows}",
                advice,
            )
        if self.similarity_reasons:
            return "kept on these rows", "hold out rows that are new, as above"
        if all(bound.is_certain for bound in self.bounds):
            return "kept, with the whole interval", self._advise_on_unbounded_figures()
        remedy = "a looser bound" if self.confidence is not None else "--guarantee 0.95"
        return (
            "kept on these rows, which do not rule out that new rows break it",
            f"for certainty, more rows or {remedy}",
        )

    def _advise_on_unbounded_figures(self) -> str:
        """Write the advice about figures that no bound limits."""
        if self.undetected_classes:
            return (
                f"train on more rows of {listed(self.undetected_classes)}, never found on these "
                "rows, or weigh the classes (class_weight in --settings)"
            )
        if accuracy_drop_text(self.expected_accuracy, self.accuracy) is not None:
            return "compare these rows with the training rows, to see why accuracy falls"
        return "nothing"

    def to_dict(self) -> dict[str, Any]:
        """Get the check as plain values for JSON."""
        return {
            "kept": self.verdict == "kept",
            "verdict": self.verdict,
            "lines": self.lines(),
            "bounds": [
                {
                    "name": bound.name,
                    "at_most" if bound.is_upper else "at_least": bound.bound,
                    "reached": bound.measured.value,
                    "interval": bound.measured.ends(),
                    "verdict": bound.verdict,
                }
                for bound in self.bounds
            ],
            "accuracy_interval": self.accuracy.ends(),
        }


def _breaches_text(bounds: Sequence[CheckedBound]) -> str:
    """Write that bounds are broken.

    >>> _breaches_text([CheckedBound("mean cost", 2.0, True, MeasuredFigure(3.0, 2.5, 3.5))])
    'the mean cost breaks its bound'
    """
    names = listed([f"the {bound.name}" for bound in bounds])
    return f"{names} {'breaks its bound' if len(bounds) == 1 else 'break their bounds'}"


def accuracy_drop_text(expected: float, accuracy: MeasuredFigure) -> str | None:
    """Write that accuracy is lower than on validation rows, or None if chance may explain it.

    >>> accuracy_drop_text(0.986, MeasuredFigure(0.965, 0.947, 0.979))
    '98.6 % on validation rows, 94.7 to 97.9 % on these'
    >>> accuracy_drop_text(0.97, MeasuredFigure(0.965, 0.947, 0.979))
    """
    if accuracy.high >= expected:
        return None
    low_percent = 100 * accuracy.low
    high_percent = 100 * accuracy.high
    return (
        f"{100 * expected:.1f} % on validation rows, {low_percent:.1f} to {high_percent:.1f} % on "
        "these"
    )


def _measure_goal(
    kind: str, bound: float, system: Any, rows: UnseenRows, expected_loss: float
) -> tuple[str, CheckedBound]:
    """Get the goal as text, and as a bound with its figure on the rows."""
    point = system.operating_point_
    unit_weights = np.ones(len(rows.truth))
    if kind == "budget":
        measured = MeasuredFigure.mean(rows.costs, unit_weights, rows.splitter).clipped(0.0, np.inf)
        checked_bound = CheckedBound("mean cost", bound, is_upper=True, measured=measured)
        return f"{checked_bound.promise} ({point.cost:.4g} on validation rows)", checked_bound
    if kind == "offload_rate":
        measured = MeasuredFigure.share(rows.is_offloaded, unit_weights, rows.splitter)
        checked_bound = CheckedBound("share offloaded", bound, is_upper=True, measured=measured)
        return (
            f"{checked_bound.promise} ({point.offload_rate:.4g} on validation rows)",
            checked_bound,
        )
    accuracy_name = "accuracy" if point.weighted_accuracy is None else "weighted accuracy"
    if rows.reference is None:
        # without a high-cost model, the reference was measured on validation rows only
        lowest_accuracy = point.effective_accuracy + expected_loss - bound
        measured = MeasuredFigure.share(rows.answers == rows.truth, rows.weights, rows.splitter)
        checked_bound = CheckedBound(
            accuracy_name, round(lowest_accuracy, 4), is_upper=False, measured=measured
        )
        goal_text = (
            f"{checked_bound.promise}, {bound:g} below the costliest model's on validation rows"
        )
        return goal_text, checked_bound
    all_rows = np.ones(len(unit_weights), bool)
    checked_bound = CheckedBound(
        f"loss of {accuracy_name}", bound, is_upper=True, measured=rows.loss_on(all_rows)
    )
    expected = max(expected_loss, 0.0)
    goal_text = f"{checked_bound.promise} against the high-cost model"
    goal_text += f" ({expected:.4f} on validation rows)"
    return goal_text, checked_bound._replace(expected=expected)


def _measure_class_bounds(system: Any, rows: UnseenRows) -> list[CheckedBound]:
    """Measure the figures that the bounds on classes limit; leave out classes without rows."""
    checked_bounds = []
    point = system.operating_point_
    reference_recalls = system._reference_frontier().reference_recall
    for kind, class_index, limit in system.class_bounds_.as_list():
        label = system.classes_[class_index]
        is_of_class = rows.truth == class_index
        is_answered = rows.answers == class_index
        if kind == "loss":
            if rows.reference is not None and is_of_class.any():
                reference_recall = reference_recalls[class_index]
                recall = point.recall[class_index]
                expected_loss = None
                if reference_recall is not None and recall is not None:
                    expected_loss = max(reference_recall - recall, 0.0)
                checked_bounds.append(
                    CheckedBound(
                        f"loss of recall of {label}",
                        limit,
                        is_upper=True,
                        measured=rows.loss_on(is_of_class),
                        expected=expected_loss,
                    )
                )
            continue
        is_counted = is_of_class if kind == "recall" else is_answered
        if is_counted.any():
            is_right = (is_of_class & is_answered)[is_counted]
            splitter = rows.splitter.take(is_counted)
            checked_bounds.append(
                CheckedBound(
                    f"{kind} of {label}",
                    limit,
                    is_upper=False,
                    measured=MeasuredFigure.share(is_right, np.ones(len(is_right)), splitter),
                    expected=(point.recall if kind == "recall" else point.precision)[class_index],
                )
            )
    return checked_bounds


def undetected_classes(recall: Sequence[float | None], classes: Sequence[Any]) -> list[str]:
    """List the classes with a recall of 0; the recall of a class without rows is None."""
    return [str(label) for label, share in zip(classes, recall, strict=True) if share == 0.0]
