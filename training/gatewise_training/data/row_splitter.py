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

Rows = NDArray[np.intp]

#: Largest number of groups that are stratified by class.
#:
#: Stratification loops over the groups in Python, and random parts of more groups are nearly equal.
MAX_STRATIFIED_GROUPS = 2000

#: Largest number of random assignments of groups to parts.
#:
#: The first one is used in which every class of several groups is in several parts.
MAX_TRIES = 20

#: Number of parts in the cross-validation inside a model's fit; even, so that they form halves.
N_BLOCKS = 6


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
        return None if self.groups is None else self._units[1]

    @cached_property
    def _units(self) -> tuple[NDArray[np.int64], int]:
        """Index of the group or time of each row, and the number of groups or times."""
        row_units = self.time if self.groups is None else self.groups
        assert row_units is not None
        distinct_units, unit_of_row = np.unique(row_units, return_inverse=True)
        return unit_of_row.astype(np.int64), len(distinct_units)

    def take(self, rows: Rows | NDArray[np.bool_]) -> RowSplitter:
        """Return the splitter of some of the rows, in this order."""
        groups = None if self.groups is None else self.groups[rows]
        time = None if self.time is None else self.time[rows]
        return RowSplitter(len(np.arange(self.n_rows)[rows]), groups, time)

    # -- splits ----------------------------------------------------------------------------

    def folds(
        self, y: NDArray[np.int64] | None, k: int, seed: int
    ) -> tuple[tuple[Rows, Rows], ...]:
        """Make up to `k` folds of fit rows and unseen rows; no fold is empty.

        With class indices `y`, (n,), classes are spread evenly over the folds. With times, the
        later half of the rows is cut into periods, and each period is unseen by the fit rows before
        it.
        """
        if self.time is not None and self._units[1] > 1:
            return self._make_time_folds(k)
        part_of_row = self._assign_parts(y, k, seed)
        folds = (
            (np.flatnonzero(part_of_row != part), np.flatnonzero(part_of_row == part))
            for part in range(k)
        )
        return tuple(pair for pair in folds if len(pair[0]) and len(pair[1]))

    def hold_out(self, y: NDArray[np.int64] | None, k: int, seed: int) -> tuple[Rows, Rows]:
        """Hold out one of `k` parts of the rows; with times, the latest part."""
        if self.time is not None:
            early_rows, late_rows = self.cut(self.order(None), k - 1, k)
            return np.sort(early_rows), np.sort(late_rows)
        part_of_row = self._assign_parts(y, k, seed)
        return np.flatnonzero(part_of_row != 0), np.flatnonzero(part_of_row == 0)

    def order(self, rng: np.random.RandomState | None) -> Rows:
        """Order the rows for :meth:`cut`: at random, by random groups, or by time."""
        if self.groups is None and self.time is None:
            assert rng is not None
            return np.asarray(rng.permutation(self.n_rows), np.intp)
        unit_of_row, n_units = self._units
        if self.time is None:
            assert rng is not None
            unit_rank = np.asarray(rng.permutation(n_units), np.int64)
        else:
            last_time_of_unit = np.zeros(n_units, np.int64)
            np.maximum.at(last_time_of_unit, unit_of_row, self.time)
            unit_rank = np.argsort(np.argsort(last_time_of_unit, kind="stable"), kind="stable")
        return np.argsort(unit_rank[unit_of_row], kind="stable")

    def cut(self, rows: Rows, numerator: int, denominator: int) -> tuple[Rows, Rows]:
        """Cut rows, in the order of :meth:`order`, after the share `numerator / denominator`.

        Groups and times stay whole: the cut is at the boundary nearest to the share.
        """
        position = numerator * len(rows) // denominator
        if self.is_random:
            return rows[:position], rows[position:]
        unit_of_row = self._units[0][rows]
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

    def blocks(self, seed: int) -> NDArray[np.intp] | None:
        """Assign each row to a part of the cross-validation inside a model's fit, (n,).

        The result is None if splits are random. With times, the parts are periods, in which
        neighbouring rows stay together.
        """
        if self.is_random:
            return None
        unit_of_row, n_units = self._units
        if self.time is None:
            return self._assign_groups(None, min(N_BLOCKS, n_units), seed)
        row_order = self.order(None)
        block_of_row = np.empty(self.n_rows, np.intp)
        block_of_row[row_order] = np.arange(self.n_rows) * N_BLOCKS // self.n_rows
        first_block_of_unit = np.full(n_units, N_BLOCKS, np.intp)
        np.minimum.at(first_block_of_unit, unit_of_row, block_of_row)
        return first_block_of_unit[unit_of_row]

    def _make_time_folds(self, k: int) -> tuple[tuple[Rows, Rows], ...]:
        order = self.order(None)
        folds = []
        early_rows = [self.cut(order, k + period, 2 * k)[0] for period in range(k)] + [order]
        for fit_rows, fit_and_unseen_rows in pairwise(early_rows):
            if len(fit_and_unseen_rows) > len(fit_rows):
                folds.append((np.sort(fit_rows), np.sort(fit_and_unseen_rows[len(fit_rows) :])))
        return tuple(folds)

    def _assign_parts(self, y: NDArray[np.int64] | None, k: int, seed: int) -> NDArray[np.intp]:
        """Assign rows or whole groups to `k` parts, shape (n,)."""
        if self.groups is not None:
            return self._assign_groups(y, k, seed)
        if y is not None:
            return strata(y, k, seed)
        return np.random.default_rng(seed).permutation(self.n_rows) % k

    def _assign_groups(self, y: NDArray[np.int64] | None, k: int, seed: int) -> NDArray[np.intp]:
        """Assign whole groups to parts so that a class of several groups is in several parts."""
        unit_of_row, n_units = self._units
        k = min(k, n_units)
        if k < 2:
            raise InputError(f"{n_units} group(s) are too few to fit and validate a model")
        classes = np.zeros(self.n_rows, np.int64) if y is None else y
        class_of_pair = np.unique(np.stack([classes, unit_of_row]), axis=1)[0]
        shared_classes = [
            class_index
            for class_index in np.unique(classes).tolist()
            if np.sum(class_of_pair == class_index) > 1
        ]
        part_of_row = np.empty(self.n_rows, np.intp)
        for attempt in range(MAX_TRIES):
            # StratifiedGroupKFold refuses more parts than the most frequent class has rows
            if n_units > MAX_STRATIFIED_GROUPS or np.bincount(classes).max() < k:
                part_of_row = (np.random.default_rng(seed + attempt).permutation(n_units) % k)[
                    unit_of_row
                ]
            else:
                splitter = StratifiedGroupKFold(
                    k, shuffle=True, random_state=(seed + attempt) % 2**32
                )
                with warnings.catch_warnings():  # of a class with fewer rows than parts
                    warnings.simplefilter("ignore", UserWarning)
                    for part, (_, rows) in enumerate(splitter.split(classes, classes, unit_of_row)):
                        part_of_row[rows] = part
            if all(np.ptp(part_of_row[classes == class_index]) for class_index in shared_classes):
                break
        return part_of_row

    # -- errors of means -------------------------------------------------------------------

    def group_sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add values over the rows of each group; shapes (..., n), (..., n_groups)."""
        assert self.groups is not None
        order = np.argsort(self._units[0], kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(self._units[0]))[:-1]])
        sums: NDArray[np.float64] = np.add.reduceat(values[..., order], starts, axis=-1)
        return sums

    def group_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average values over the rows of each group; shapes (..., n), (..., n_groups)."""
        return self.group_sums(values) / np.bincount(self._units[0])

    def clustered_error(self, contributions: NDArray[np.float64]) -> float:
        """Compute the standard error of a mean over groups.

        `contributions`, (n,), are the parts of the rows in the deviation of the mean. With few
        groups an interval of one error would cover too little, so Student's t widens it to the
        coverage of one standard error of a normal distribution.
        """
        if self.groups is None or self._units[1] < 2:
            return 0.0
        group_of_row, n_groups = self._units
        sums = np.bincount(group_of_row, contributions)
        # sqrt(G / (G - 1) * sum over groups of (sum of a group's parts)^2)
        error = float(np.sqrt(n_groups / (n_groups - 1) * (sums**2).sum()))
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
            f"{name} is missing in row {missing_rows[0]} ({len(missing_rows)} row(s) in all)"
        )
    if name == "time" and any(isinstance(value, str) for value in row_values.tolist()):
        raise InputError("time must hold numbers or dates, not text")
    has_mixed_types = row_values.dtype.kind == "O" and name != "time"
    return row_values.astype(str) if has_mixed_types else row_values


def strata(y: NDArray[np.int64], k: int, seed: int) -> NDArray[np.intp]:
    """Assign the rows of each class to k parts of nearly equal size, shape (n,)."""
    rng = np.random.default_rng(seed)
    part_of_row = np.empty(len(y), np.intp)
    next_part = 0  # each class continues where the previous class ended
    for class_index in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == class_index))
        part_of_row[rows] = (next_part + np.arange(len(rows))) % k
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
    shared_groups = [
        group
        for group in np.unique(validation_groups).tolist()
        if group in set(training_groups.tolist())
    ]
    if shared_groups:
        raise InputError(
            f"group {shared_groups[0]!r} has training and validation rows ({len(shared_groups)} "
            "such group(s)): rows of one group are similar, and a model that remembers them would "
            "seem too accurate"
        )
    return (X_val, y_val), RowSplitter.from_arrays(
        n + n_val, np.concatenate([training_groups, validation_groups])
    )


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
