"""Splits of rows into fit rows and validation rows: at random, by group or by time.

Rows of one group (a subject, a machine, a recording) are on the same side of a split. If rows
have times, fit rows are earlier than validation rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.utils.validation import _check_sample_weight

from gatewise.errors import InputError, one_line
from gatewise.formats import plural

Rows = NDArray[np.intp]

#: Largest number of groups that are stratified by class. Stratification loops over the groups in
#: Python, and random parts of more groups are nearly equal.
MAX_STRATIFIED_GROUPS = 2000

#: Largest number of random assignments of groups to parts. The first assignment that puts every
#: class of several groups into several parts is used.
MAX_TRIES = 20

#: Number of folds in the cross-validation inside a model's fit; even, so that they form halves.
N_INNER_FOLDS = 6


@dataclass(frozen=True, eq=False)
class RowSplitter:
    """Splitter of rows by their groups or times.

    With both groups and times, groups stay whole, and the latest groups are validation rows.
    """

    n_rows: int
    groups: NDArray[np.int64] | None = None  # (n,): numbers of groups
    time: NDArray[np.int64] | None = None  # (n,): ranks of times

    @classmethod
    def from_arrays(cls, n_rows: int, groups: Any = None, time: Any = None) -> RowSplitter:
        """Make the splitter of `n_rows` rows; raise InputError for unusable groups or times.

        >>> RowSplitter.from_arrays(3, groups=["b", "a", "b"]).groups
        array([1, 0, 1])
        """
        ranks: dict[str, NDArray[np.int64] | None] = {"groups": None, "time": None}
        for name, values in (("groups", groups), ("time", time)):
            if values is None:
                continue
            try:
                distinct_values, rank_of_row = np.unique(
                    check_row_values(name, values, n_rows), return_inverse=True
                )
            except TypeError:
                raise InputError(f"{name} holds values that cannot be compared") from None
            if len(distinct_values) < 2:
                raise InputError(
                    f"{name} has one value only ({distinct_values.tolist()[0]!r}): nothing is left "
                    f"to validate on; give more, or leave {name} out"
                )
            ranks[name] = rank_of_row.astype(np.int64)
        return cls(n_rows, **ranks)

    @property
    def is_random(self) -> bool:
        """Whether splits are random, because rows have neither groups nor times."""
        return self.groups is None and self.time is None

    @property
    def n_groups(self) -> int | None:
        """Number of groups, or None if rows have no groups."""
        return None if self.groups is None else self._n_units

    @cached_property
    def _unit_of_row(self) -> NDArray[np.int64]:
        """Index of the group of each row or, without groups, of its time."""
        row_units = self.time if self.groups is None else self.groups
        assert row_units is not None
        return np.unique(row_units, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def _n_units(self) -> int:
        return int(self._unit_of_row.max(initial=-1)) + 1

    def take(self, rows: Rows | NDArray[np.bool_]) -> RowSplitter:
        """Return the splitter of some of the rows, in this order."""
        groups = None if self.groups is None else self.groups[rows]
        time = None if self.time is None else self.time[rows]
        return RowSplitter(len(np.arange(self.n_rows)[rows]), groups, time)

    # -- splits ----------------------------------------------------------------------------

    def folds(
        self, y: NDArray[np.int64] | None, n_folds: int, seed: int
    ) -> tuple[tuple[Rows, Rows], ...]:
        """Make up to `n_folds` folds of fit rows and unseen rows; no fold is empty.

        With class indices `y`, (n,), classes are spread evenly over the folds. With times, the
        later half of the rows is cut into periods, and each period is unseen by the fit rows before
        it.
        """
        if self.time is not None and self._n_units > 1:
            return self._make_time_folds(n_folds)
        part_of_row = self._assign_parts(y, n_folds, seed)
        folds = []
        for part in range(n_folds):
            is_unseen = part_of_row == part
            if is_unseen.any() and not is_unseen.all():
                folds.append((np.flatnonzero(~is_unseen), np.flatnonzero(is_unseen)))
        return tuple(folds)

    def hold_out(self, y: NDArray[np.int64] | None, n_parts: int, seed: int) -> tuple[Rows, Rows]:
        """Hold out one of `n_parts` parts of the rows; with times, the latest part."""
        if self.time is not None:
            early_rows, late_rows = self.cut(self.order(None), n_parts - 1, n_parts)
            return np.sort(early_rows), np.sort(late_rows)
        part_of_row = self._assign_parts(y, n_parts, seed)
        return np.flatnonzero(part_of_row != 0), np.flatnonzero(part_of_row == 0)

    def order(self, rng: np.random.RandomState | None) -> Rows:
        """Order the rows for :meth:`cut`: at random, by random groups, or by time."""
        if self.groups is None and self.time is None:
            assert rng is not None
            return np.asarray(rng.permutation(self.n_rows), np.intp)
        if self.time is None:
            assert rng is not None
            unit_rank = np.asarray(rng.permutation(self._n_units), np.int64)
        else:
            last_time_of_unit = np.zeros(self._n_units, np.int64)
            np.maximum.at(last_time_of_unit, self._unit_of_row, self.time)
            unit_rank = np.argsort(np.argsort(last_time_of_unit, kind="stable"), kind="stable")
        return np.argsort(unit_rank[self._unit_of_row], kind="stable")

    def cut(self, rows: Rows, numerator: int, denominator: int) -> tuple[Rows, Rows]:
        """Cut rows, in the order of :meth:`order`, after the share `numerator / denominator`.

        Groups and times stay whole: the cut is at the boundary nearest to the share.
        """
        position = numerator * len(rows) // denominator
        if self.is_random:
            return rows[:position], rows[position:]
        unit_of_row = self._unit_of_row[rows]
        boundaries = 1 + np.flatnonzero(unit_of_row[1:] != unit_of_row[:-1])
        if self.time is not None:
            latest_before = np.maximum.accumulate(self.time[rows])
            earliest_after = np.minimum.accumulate(self.time[rows][::-1])[::-1]
            splits_times = latest_before[boundaries - 1] < earliest_after[boundaries]
            if len(boundaries) and not splits_times.any():
                raise InputError(
                    "all groups overlap in time, so no split puts whole groups after other groups: "
                    "give groups or time, not both"
                )
            boundaries = boundaries[splits_times]
        if not len(boundaries):
            unit_name = "different times" if self.groups is None else "groups"
            raise InputError(f"there are too few {unit_name} to split {len(rows)} rows: give more")
        position = int(boundaries[np.abs(boundaries - position).argmin()])
        return rows[:position], rows[position:]

    def inner_folds(self, seed: int) -> NDArray[np.intp] | None:
        """Get the fold of each row in the cross-validation inside a model's fit, (n,).

        The result is None if splits are random. With times, each fold is a period, so that
        neighbouring rows stay together.
        """
        if self.is_random:
            return None
        if self.time is None:
            return self._assign_groups(None, min(N_INNER_FOLDS, self._n_units), seed)
        row_order = self.order(None)
        fold_of_row = np.empty(self.n_rows, np.intp)
        fold_of_row[row_order] = np.arange(self.n_rows) * N_INNER_FOLDS // self.n_rows
        first_fold_of_unit = np.full(self._n_units, N_INNER_FOLDS, np.intp)
        np.minimum.at(first_fold_of_unit, self._unit_of_row, fold_of_row)
        return first_fold_of_unit[self._unit_of_row]

    def _make_time_folds(self, n_folds: int) -> tuple[tuple[Rows, Rows], ...]:
        rows_by_time = self.order(None)
        # the rows before each period of the later half, and finally all rows
        early_rows = [
            self.cut(rows_by_time, n_folds + period, 2 * n_folds)[0] for period in range(n_folds)
        ]
        folds = []
        for fit_rows, fit_and_unseen_rows in pairwise([*early_rows, rows_by_time]):
            if len(fit_and_unseen_rows) > len(fit_rows):
                folds.append((np.sort(fit_rows), np.sort(fit_and_unseen_rows[len(fit_rows) :])))
        return tuple(folds)

    def _assign_parts(
        self, y: NDArray[np.int64] | None, n_parts: int, seed: int
    ) -> NDArray[np.intp]:
        """Assign rows or whole groups to parts, shape (n,)."""
        if self.groups is not None:
            return self._assign_groups(y, n_parts, seed)
        if y is not None:
            return stratified_parts(y, n_parts, seed)
        return np.random.default_rng(seed).permutation(self.n_rows) % n_parts

    def _assign_groups(
        self, y: NDArray[np.int64] | None, n_parts: int, seed: int
    ) -> NDArray[np.intp]:
        """Assign whole groups to parts so that a class of several groups is in several parts."""
        group_of_row = self._unit_of_row
        n_groups = self._n_units
        n_parts = min(n_parts, n_groups)
        if n_parts < 2:
            raise InputError(
                f"{plural(n_groups, 'group')} cannot both fit and validate a model: give more"
            )
        classes = np.zeros(self.n_rows, np.int64) if y is None else y
        class_of_pair = np.unique(np.stack([classes, group_of_row]), axis=1)[0]
        classes_of_several_groups = [
            class_index
            for class_index in np.unique(classes).tolist()
            if np.sum(class_of_pair == class_index) > 1
        ]
        part_of_row = np.empty(self.n_rows, np.intp)
        for attempt in range(MAX_TRIES):
            # StratifiedGroupKFold refuses more parts than the most frequent class has rows
            if n_groups > MAX_STRATIFIED_GROUPS or np.bincount(classes).max() < n_parts:
                group_ranks = np.random.default_rng(seed + attempt).permutation(n_groups)
                part_of_row = (group_ranks % n_parts)[group_of_row]
            else:
                folds = StratifiedGroupKFold(
                    n_parts, shuffle=True, random_state=(seed + attempt) % 2**32
                )
                with warnings.catch_warnings():  # of a class with fewer rows than parts
                    warnings.simplefilter("ignore", UserWarning)
                    for part, (_, rows) in enumerate(folds.split(classes, classes, group_of_row)):
                        part_of_row[rows] = part
            if all(
                np.ptp(part_of_row[classes == class_index])
                for class_index in classes_of_several_groups
            ):
                break
        return part_of_row

    # -- errors of means -------------------------------------------------------------------

    def group_sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add values over the rows of each group; shapes (..., n), (..., n_groups)."""
        assert self.groups is not None
        rows_by_group = np.argsort(self._unit_of_row, kind="stable")
        group_starts = np.concatenate([[0], np.cumsum(np.bincount(self._unit_of_row))[:-1]])
        sums: NDArray[np.float64] = np.add.reduceat(
            values[..., rows_by_group], group_starts, axis=-1
        )
        return sums

    def group_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average values over the rows of each group; shapes (..., n), (..., n_groups)."""
        return self.group_sums(values) / np.bincount(self._unit_of_row)

    def clustered_error(self, contributions: NDArray[np.float64]) -> float:
        """Compute the standard error of a mean over groups.

        `contributions`, (n,), are the parts of the rows in the deviation of the mean. With few
        groups an interval of one error would cover too little, so Student's t widens it to the
        coverage of one standard error of a normal distribution.
        """
        if self.groups is None or self._n_units < 2:
            return 0.0
        n_groups = self._n_units
        group_contributions = np.bincount(self._unit_of_row, contributions)
        # sqrt(G / (G - 1) * sum over groups of contribution^2)
        error = float(np.sqrt(n_groups / (n_groups - 1) * (group_contributions**2).sum()))
        return error * float(special.stdtrit(n_groups - 1, special.ndtr(1.0)))


def check_row_values(name: str, values: Any, n_rows: int) -> NDArray[Any]:
    """Check that each of `n_rows` rows has a value; convert values of several types to text."""
    import pandas as pd

    row_values = np.asarray(values)
    if row_values.shape != (n_rows,):
        raise InputError(
            f"{name} must have one value for each of the {n_rows} rows, "
            f"not shape {row_values.shape}"
        )
    missing_rows = np.flatnonzero(pd.isna(row_values)).tolist()
    if missing_rows:
        raise InputError(
            f"{name} is missing in row {missing_rows[0]} "
            f"({plural(len(missing_rows), 'row')} in all)"
        )
    if name == "time" and any(isinstance(value, str) for value in row_values.tolist()):
        raise InputError("time must hold numbers or dates, not text")
    has_mixed_types = row_values.dtype.kind == "O" and name != "time"
    return row_values.astype(str) if has_mixed_types else row_values


def stratified_parts(y: NDArray[np.int64], n_parts: int, seed: int) -> NDArray[np.intp]:
    """Assign the rows of each class to parts of nearly equal size, shape (n,)."""
    rng = np.random.default_rng(seed)
    part_of_row = np.empty(len(y), np.intp)
    next_part = 0  # each class continues where the previous class ended
    for class_index in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == class_index))
        part_of_row[rows] = (next_part + np.arange(len(rows))) % n_parts
        next_part += len(rows)
    return part_of_row


def check_splits(
    x: NDArray[np.float32], sample_weight: Any, groups: Any, time: Any, validation: Any
) -> tuple[NDArray[np.float64], Any, RowSplitter]:
    """Check weights, groups and times; return weights, the pair (X_val, y_val) and the splitter.

    The splitter covers the training rows of weight above 0, followed by the validation rows.
    """
    try:
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    except ValueError as error:
        raise InputError(one_line(error)) from None
    validation, splitter = _make_splitter(len(x), groups, time, validation)
    all_validation_rows = np.ones(splitter.n_rows - len(x), bool)
    return weight, validation, splitter.take(np.concatenate([weight > 0, all_validation_rows]))


def _make_splitter(n: int, groups: Any, time: Any, validation: Any) -> tuple[Any, RowSplitter]:
    """Check groups and times; return the pair (X_val, y_val) and the splitter of all rows."""
    if validation is None:
        return None, RowSplitter.from_arrays(n, groups, time)
    # validation rows, with groups if the training rows have them
    try:
        X_val, y_val, *optional_groups = validation
        (groups_val,) = optional_groups or (None,)
    except (TypeError, ValueError):
        raise InputError(
            "validation must be a pair (X_val, y_val), or with groups (X_val, y_val, groups_val)"
        ) from None
    if time is not None:
        raise InputError("give time or validation, not both: validation rows are already chosen")
    if (groups is None) != (groups_val is None):
        missing_argument = "groups=" if groups is None else "validation=(X_val, y_val, groups_val)"
        raise InputError(
            "groups are given for training rows or for validation rows only: add "
            f"{missing_argument}"
        )
    n_val = len(np.asarray(y_val).ravel())
    if groups is None:
        return (X_val, y_val), RowSplitter(n + n_val)
    # no group may have both training and validation rows
    training_groups = check_row_values("groups", groups, n)
    validation_groups = check_row_values("groups_val", groups_val, n_val)
    if len(np.unique(validation_groups)) < 2:
        raise InputError("groups_val has one value only: give validation rows of several groups")
    # of one type, because numbers of one array may be texts in the other
    all_groups = np.concatenate([training_groups, validation_groups])
    shared_groups = np.intersect1d(all_groups[:n], all_groups[n:]).tolist()
    if shared_groups:
        raise InputError(
            f"group {shared_groups[0]!r} has training and validation rows "
            f"({plural(len(shared_groups), 'such group')}): keep each group whole, because a model "
            "that remembers a group would seem too accurate"
        )
    return (X_val, y_val), RowSplitter.from_arrays(n + n_val, all_groups)


def check_class_groups(
    classes: NDArray[Any], y: NDArray[np.int64], groups: NDArray[np.int64]
) -> None:
    """Raise InputError if all rows of a class are in one group."""
    single_group_classes = [
        class_index
        for class_index in range(len(classes))
        if len(np.unique(groups[y == class_index])) < 2
    ]
    if single_group_classes:
        class_names = ", ".join(repr(label) for label in classes[single_group_classes[:5]].tolist())
        raise InputError(
            f"all rows of class {class_names} are in one group, so no model can be validated on "
            "groups that it has not seen: give more groups with the class, or drop the class"
        )
