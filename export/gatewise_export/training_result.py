"""The result of a training: figures and promise on test rows, remarks, and test rows as CSV."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import VerifyReport
from gatewise_export.training_data import Split, feature_table
from gatewise_export.training_settings import TrainingSettings
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.data.datasets import Dataset
from gatewise_training.data.misleading_columns import TableRemark, label_remark
from gatewise_training.data.neighbouring_rows import neighbour_remark
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.promise_check import (
    MeasuredFigure,
    PromiseCheck,
    UnseenRows,
)
from gatewise_training.operating_points.recall_check import recall_remark

if TYPE_CHECKING:
    import pandas as pd

#: Smallest gain of the stages over the high-cost model that causes a remark.
MIN_GAIN = 0.02


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A fitted system with its bundle and its figures on test rows.

    Attributes
    ----------
    settings : TrainingSettings
    data : Dataset
    split : Split
    system : BudgetedClassifier
    bundle : Bundle
    verification : VerifyReport
        Comparison of system and bundle on the test rows.
    seconds : dict
        Wall time of the phases ``load``, ``train`` and ``pack``.
    troubles : tuple of str
        Deviations from the settings. Either no operating point reaches the goal and the nearest one
        is active, or the test rows could not be written.
    table_remarks : tuple of TableRemark
        Remarks on misleading columns.
    """

    settings: TrainingSettings
    data: Dataset
    split: Split
    system: BudgetedClassifier
    bundle: Bundle
    verification: VerifyReport
    seconds: Mapping[str, float]
    troubles: tuple[str, ...] = ()
    table_remarks: tuple[TableRemark, ...] = ()

    @property
    def test_table(self) -> pd.DataFrame:
        """Test rows as a data frame with the features' names."""
        return feature_table(self.data, self.split.test)

    @property
    def test_labels(self) -> NDArray[Any]:
        """Labels of the test rows, in the data set's type."""
        return self.data.y[self.split.test]

    def measure(self) -> dict[str, Any]:
        """Measure the system and the policy cloud-only on the test rows."""
        system = self.system
        rows = self.test_table
        y = self.test_labels
        high_cost_model = system.high_cost_model_
        cloud_only = None
        if high_cost_model is not None:
            feature_rows = self.data.X[self.split.test]
            offload_price = system.cloud_prices_.offload_price(len(high_cost_model.features))
            cost = system.feature_costs_.price(high_cost_model.features) + offload_price
            answers = system.classes_[high_cost_model.labels(feature_rows)]
            cloud_only = {"cost": cost} | self._figures(
                answers, high_cost_model.predict_proba(feature_rows)
            )
        groups = self.data.groups
        classes, counts = np.unique(self.data.y[self.split.training], return_counts=True)
        majority_class = classes.tolist()[int(counts.argmax())]
        return {
            "rows": len(y),
            "majority": {"class": majority_class, "share": float(np.mean(y == majority_class))},
            **({} if groups is None else {"groups": len(np.unique(groups[self.split.test]))}),
            "class_rows": [int(np.sum(y == label)) for label in system.classes_],
            "system": {
                **self._figures(system.predict(rows), system.predict_proba(rows)),
                "cost": float(system.cost(rows).mean()),
                "offload_rate": float(np.mean(system.exit_stage(rows) == len(system.stages_))),
            },
            "cloud_only": cloud_only,
        }

    def check_promise(self) -> PromiseCheck:
        """Check the goal and the bounds of the settings on the test rows."""
        system = self.system
        feature_rows = self.data.X[self.split.test]
        high_cost_model = system.high_cost_model_
        index_of_label = {
            label: class_index for class_index, label in enumerate(system.classes_.tolist())
        }
        true_classes = np.array(
            [index_of_label.get(label, -1) for label in self.test_labels.tolist()], np.int64
        )
        weights = np.ones(len(true_classes))
        if system.class_weights_ is not None:
            weights = np.where(true_classes < 0, 1.0, system.class_weights_[true_classes])
        rows = self.test_table
        answers = np.searchsorted(system.classes_, system.predict(rows))
        return PromiseCheck.of_system(
            system,
            UnseenRows(
                truth=true_classes,
                answers=answers.astype(np.int64),
                reference=None if high_cost_model is None else high_cost_model.labels(feature_rows),
                costs=system.cost(rows),
                is_offloaded=np.equal(system.exit_stage(rows), len(system.stages_)),
                weights=weights,
                splitter=self._test_splitter(),
            ),
            similarity_reasons=[
                remark.text
                for remark in self.table_remarks
                if remark.trouble in ("entities", "time")
            ],
        )

    def _test_splitter(self) -> RowSplitter:
        """Make a splitter of the test rows, by groups if the data has groups."""
        n_rows = len(self.split.test)
        if self.data.groups is None:
            return RowSplitter(n_rows)
        groups = self.data.groups[self.split.test]
        return RowSplitter(n_rows, np.unique(groups, return_inverse=True)[1].astype(np.int64))

    def summary(self) -> dict[str, Any]:
        """Build the document of ``gatewise train --json``."""
        manifest = self.bundle.manifest
        return {
            "bundle": str(self.bundle.path),
            "bytes": manifest.total_bytes,
            "dataset": self.data.name,
            "method": self.settings.method,
            "operating_point": msgspec.to_builtins(manifest.active_point),
            "test": self.measure(),
            "promise": self.check_promise().to_dict(),
            "remarks": self.remarks,
            "verify": msgspec.to_builtins(self.verification),
            "test_rows": str(self.settings.rows),
            "troubles": self.troubles,
        }

    def _figures(self, answers: NDArray[Any], probabilities: NDArray[np.float64]) -> dict[str, Any]:
        """Compute the accuracy on all test rows, and figures by class on rows of known classes."""
        classes = self.system.classes_
        y = self.test_labels
        has_class = np.isin(y, classes)
        true_classes, answered_classes = (
            np.searchsorted(classes, labels[has_class]) for labels in (y, answers)
        )
        exit_answers = ExitAnswers.from_probabilities(
            true_classes, answered_classes[None], len(classes), [probabilities[has_class]]
        )
        ones = np.ones(len(true_classes))
        figures = exit_answers.figures(np.zeros(len(true_classes), np.int64), ones)
        weights = self.system.class_weights_
        if weights is not None:
            is_right = true_classes == answered_classes
            figures["weighted_accuracy"] = float(
                np.average(is_right, weights=weights[true_classes])
            )
        accuracy = MeasuredFigure.share(answers == y, np.ones(len(y)), self._test_splitter())
        return {"accuracy": accuracy.value, "accuracy_interval": accuracy.ends(), **figures}

    @property
    def remarks(self) -> list[str]:
        """Remarks on the data and the system."""
        texts = [remark.text for remark in self.table_remarks]
        remarks = [
            *texts,
            label_remark(self.system.classes_),
            recall_remark(self.system, as_options=True),
            reference_remark(self.system, self.bundle.path),
        ]
        if self.data.groups is None and self.data.time is None and not len(self.split.validation):
            y = np.unique(self.data.y, return_inverse=True)[1]
            options = "--groups COLUMN or --time-split COLUMN"
            remarks.append(neighbour_remark(self.data.X, y, option_text=options))
        return [remark for remark in remarks if remark is not None]

    def test_csv(self) -> str:
        """Write the test rows as CSV for ``gatewise edge --data``, with the label as last column.

        With an encoder the columns are all raw columns, and otherwise the features. The label's
        column is named ``label``, or, if that name is taken, by another name that commands find.
        """
        raw_table = self.data.raw_table
        columns = self.data.feature_names if raw_table is None else raw_table.frame.columns
        lower_names = {name.lower() for name in columns}
        label_columns = [
            name for name in ("label", "target", "class", "y") if name not in lower_names
        ][:1]
        if raw_table is not None:
            frame = raw_table.used_columns if self.data.encoder is None else raw_table.frame
            rows = frame.iloc[self.split.test].copy()
            rows[label_columns[0] if label_columns else raw_table.target] = raw_table.y[
                self.split.test
            ]
            csv_text = str(rows.to_csv(index=False, lineterminator="\n"))
            if "\r" in csv_text:  # pandas quotes cells with "\r" only when it quotes all texts
                csv_text = rows.to_csv(
                    index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
                )
            return csv_text
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*self.data.feature_names, *label_columns])
        rows = self.data.X[self.split.test].tolist()
        for values, label in zip(rows, self.test_labels.tolist(), strict=True):
            writer.writerow([*(f"{value:.9g}" for value in values), *[label][: len(label_columns)]])
        return buffer.getvalue()


def reference_remark(system: BudgetedClassifier, bundle: Path) -> str | None:
    """Write a remark if stages are much more accurate than the high-cost model.

    A goal that is a loss refers to the high-cost model, and then says little about the system.

    Parameters
    ----------
    system : BudgetedClassifier
        Fitted on a goal that may be a loss of accuracy.
    bundle : Path
        The packed system, for the command that activates the most accurate point.

    Returns
    -------
    str or None
        None if the goal is not a loss, if the active point is about as accurate as the best one, or
        if chance may explain the gain.
    """
    if system.high_cost_model_ is None or "max_loss" not in system._goal():
        return None
    frontier = system._reference_frontier()
    reference = frontier.reference_effective_accuracy
    best_point = max(frontier.points, key=lambda point: point.effective_accuracy)
    gain = best_point.effective_accuracy - max(
        reference, system.operating_point_.effective_accuracy
    )
    standard_error = math.sqrt(reference * (1 - reference) / max(sum(frontier.class_rows), 1))
    if gain <= max(MIN_GAIN, 2 * standard_error):
        return None
    budget = math.ceil(best_point.cost * 1000) / 1000
    command = f"gatewise frontier {shlex.quote(str(bundle))} --budget {budget:.10g}"
    return (
        f"an operating point that costs {best_point.cost:.4g} has an accuracy of "
        f"{best_point.effective_accuracy:.3f}, and the high-cost model only {reference:.3f} (on "
        "validation rows), so that a small loss against this model is no sign of a good system: "
        f"activate that point ({command}), or give a better high-cost model in Python"
    )
