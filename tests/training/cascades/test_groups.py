"""Test that splits, standard errors and guarantees respect groups and times of rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.tree import DecisionTreeClassifier

from gatewise.errors import GroupsWarning, InputError
from gatewise_training import FeatureCosts, PairCascade, StagedCascade
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.risk_tests import exact_interval
from tests.support.budgeted_methods import METHODS

PRICES = FeatureCosts([1.0, 1.0, 5.0, 5.0])


def draw_subjects(seed, n_groups=20, rows_per_group=30):
    """Draw rows of subjects, their labels and their subjects.

    Only the two cheap features depend on the subject. The sum of the two costly ones gives the
    label, which neither of them gives alone.
    """
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), rows_per_group)
    y = rng.integers(0, 2, len(groups))
    offsets, effects = rng.normal(size=(2, n_groups, 2))
    cheap_features = 4 * offsets[groups] + (2 * y - 1)[:, None] * (0.7 * effects[groups] + 0.7)
    hidden_values, noise = rng.normal(size=len(y)), rng.normal(size=(4, len(y)))
    costly_features = 3 * hidden_values + 0.1 * noise[2], y - 3 * hidden_values + 0.2 * noise[3]
    return np.column_stack([*(cheap_features.T + 0.4 * noise[:2]), *costly_features]), y, groups


class GroupChecker(LogisticRegression):
    """A classifier that refuses to predict rows of a group that it was fitted on."""

    n_checks = 0

    def fit(self, X, y):
        self.groups_ = set(X[:, 0])
        return super().fit(X, y)

    def predict_proba(self, X):
        assert not self.groups_ & set(X[:, 0])
        type(self).n_checks += 1
        return super().predict_proba(X)


@pytest.fixture
def recorded_splits(monkeypatch):
    """Groups of both sides of each split, recorded in the order of the splits."""
    recorded_splits = []

    def record_splits_of(name):
        original_method = getattr(RowSplitter, name)

        def split_and_record(self, *args):
            split = original_method(self, *args)
            pairs_of_sides = split if name == "folds" else [split]
            recorded_splits.extend(
                [set(self.groups[rows].tolist()) for rows in sides] for sides in pairs_of_sides
            )
            return split

        monkeypatch.setattr(RowSplitter, name, split_and_record)

    for name in ("folds", "hold_out", "cut"):
        record_splits_of(name)
    return recorded_splits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["staged", "adapt-lin", "confidence"])
def test_fits_never_split_a_group(name, recorded_splits, monkeypatch):
    X, y, groups = draw_subjects(0, 12, 12)
    monkeypatch.setattr(GroupChecker, "n_checks", 0)
    # Adapt learns its gate from the answers of the model on training rows
    high_cost_model = LogisticRegression() if name == "adapt-lin" else GroupChecker()
    system = clone(METHODS[name]).set_params(
        high_cost_model=high_cost_model, random_state=0, guarantee=0.9, offload_rate=0.9
    )
    system.fit(np.column_stack([groups, X]), y, groups=groups)
    assert len(recorded_splits) >= 6  # calibration groups and five folds
    assert all(not fit & unseen for fit, unseen in recorded_splits)
    assert system.operating_point_.guarantee["calibration_groups"] in (2, 3)
    # at least once in each of the five folds
    assert GroupChecker.n_checks >= 5 or name == "adapt-lin"


@pytest.mark.slow
def test_features_that_identify_a_group_gain_no_accuracy():
    """The features identify the subject and the label depends on the subject alone."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 10)
    X = rng.normal(size=(30, 4))[groups] + 0.01 * rng.normal(size=(300, 4))
    y = rng.integers(0, 2, 30)[groups]
    system = StagedCascade(
        RandomForestClassifier(20, random_state=0), n_stages=1, families=("svm", "linear"),
        random_state=0,
    )  # fmt: skip
    with pytest.warns(GroupsWarning):
        system_without_groups = clone(system).fit(X, y)
    # rows of a subject are on both sides of its splits
    assert system_without_groups.frontier_.reference_accuracy > 0.95
    system.fit(X, y, groups=groups)
    # labels of new subjects are coin flips
    assert max(point.accuracy for point in system.frontier_.points) < 0.8
    # the standard error is that of 30 coin flips instead of 300
    assert max(point.accuracy_error for point in system.frontier_.points) > 0.05
    assert system.operating_point_.validation_groups == 30
    assert "on validation rows of 30 groups:" in system.summary()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gatewise.errors.GroupsWarning")
def test_losses_on_new_groups_keep_their_bound_only_if_the_fit_knows_the_groups():
    """Six fits on 30 subjects each guarantee a loss of at most 0.03 on 200 new subjects.

    Two fits that ignore the groups each lose more than that.

    A few subjects cause most of the loss, so the guarantee fails for some draws of subjects.
    """
    losses: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(6):
        X, y, groups = draw_subjects(seed, 230, 15)
        is_training = groups < 30
        X_new, y_new = X[~is_training], y[~is_training]
        for knows_groups in (True, False) if seed < 2 else (True,):
            system = StagedCascade(
                LogisticRegression(), PRICES, n_stages=2, families=("svm",), effort="low",
                max_loss=0.03, random_state=0,
            )  # fmt: skip
            fit_groups = groups[is_training] if knows_groups else None
            system.fit(X[is_training], y[is_training], groups=fit_groups)
            reference_accuracy = np.mean(
                system.high_cost_model_.labels(X_new.astype(np.float32)) == y_new
            )
            losses[knows_groups].append(
                reference_accuracy - np.mean(system.predict(X_new) == y_new)
            )
            if knows_groups and not losses[knows_groups][-1]:  # all rows are offloaded
                assert "30 groups are too few to promise as small a loss" in system.summary()
    # the guarantee is for most draws of subjects, not for all
    assert np.sum(np.array(losses[True]) <= 0.03) >= 5
    assert min(losses[False]) > 0.03


def test_summaries_of_systems_without_offloads_state_the_loss_on_new_groups():
    X, y, groups = draw_subjects(0, 12, 12)
    stump = DecisionTreeClassifier(max_depth=1)
    system = StagedCascade(stump, n_stages=1, families=("linear",), random_state=0)
    system.fit(X[:, 2:] @ [[1, 0], [1, 1]], y, groups=groups)
    assert system.operating_point_.offload_rate == 0
    assert "new groups lose 0.0000 at most" in system.summary()


@pytest.mark.slow
def test_guarantees_are_certified_on_groups():
    """Every group counts equally, so few groups certify little."""
    X, y, groups = draw_subjects(1, 200, 4)
    system = StagedCascade(
        LogisticRegression(), n_stages=1, families=("linear",), random_state=0, guarantee=0.9,
        offload_rate=0.6,
    ).fit(X, y, groups=groups)  # fmt: skip
    guarantee = system.operating_point_.guarantee
    assert (guarantee["method"], guarantee["calibration_groups"]) == ("betting on groups", 40)
    assert json.loads(json.dumps(guarantee)) == guarantee
    assert "guaranteed at 0.9: offload_rate=0.6 (40 calibration groups)" in system.summary()
    assert 0 < system.offload(X).mean() < 0.6  # some rows, and fewer than the bound
    # 40 groups cannot exclude that one group in a hundred loses everything, so only
    # the cloud keeps this loss
    assert system.at(max_loss=0.01).operating_point_.guarantee["method"] == "certain"


def test_pairs_tune_and_measure_on_different_groups():
    X, y, groups = draw_subjects(2, 20, 10)
    low_cost_model = LogisticRegression().fit(X * [1, 1, 0, 0], y)
    high_cost_model = RandomForestClassifier(20, random_state=0).fit(X, y)
    new_rows, new_labels, groups = draw_subjects(3, 20, 10)
    pair = PairCascade(
        low_cost_model=low_cost_model, high_cost_model=high_cost_model, random_state=0
    )
    points = pair.fit(new_rows, new_labels, groups=groups).frontier_.points
    n_wider_intervals = 0
    for point in points:
        # half of the 20 groups; the others tune the thresholds
        assert point.validation_groups == 10
        low_end, high_end = exact_interval(round(point.accuracy * 100), 100)
        assert point.interval[0] <= low_end <= high_end <= point.interval[1]
        n_wider_intervals += point.interval[0] < low_end
    assert n_wider_intervals
    assert PairCascade(low_cost_model=low_cost_model, high_cost_model=high_cost_model).fit(
        new_rows, new_labels, time=groups
    )


def test_later_rows_validate_models_of_earlier_rows():
    """The labels are inverted after some time, which shuffled validation rows do not show."""
    rng = np.random.default_rng(0)
    X, times = rng.normal(size=(400, 3)), rng.permutation(400)
    y = ((X[:, 0] > 0) ^ (times >= 320)).astype(int)
    system = StagedCascade(LogisticRegression(), n_stages=1, families=("linear",), random_state=0)
    # 80 % of the rows follow the first rule
    assert clone(system).fit(X, y).frontier_.reference_accuracy > 0.7
    # the last fifth follows the opposite rule
    assert system.fit(X, y, time=times).frontier_.reference_accuracy < 0.1


def test_grid_searches_of_scikit_learn_split_by_group():
    X, y, groups = draw_subjects(0, 8, 12)
    search = GridSearchCV(
        StagedCascade(LogisticRegression(), n_stages=1, random_state=0),
        {"families": [("linear",)]},
        cv=GroupKFold(2),
    ).fit(X, y, groups=groups)
    assert search.best_score_ > 0.5  # the accuracy of a coin flip


def test_invalid_groups_are_refused_in_one_line():
    X, y, groups = draw_subjects(0, 6, 10)
    system = StagedCascade(LogisticRegression(), n_stages=1, families=("linear",))
    y_of_one_group = np.where(groups == 3, 2, y)
    early_rows, early_groups = (X[:30], y[:30]), groups[:30]
    late_rows, late_groups = (X[30:], y[30:]), groups[30:]
    late_fold = (*late_rows, late_groups)
    for rows, labels, options, message in [
        (X, y, {"groups": groups[1:]}, "one value for each of the 60 rows"),
        (X, y_of_one_group, {"groups": groups}, "all rows of class 2 are in one group"),
        (X, y_of_one_group, {"time": groups >= 3}, "times leaves a fold without a class"),
        (*early_rows, {"validation": late_fold}, "only: add groups="),
        (*early_rows, {"validation": late_rows, "groups": early_groups}, "only: add validation="),
        (
            *early_rows,
            {"validation": late_fold, "groups": late_groups},
            "group 3 has training and val",
        ),
        (
            *early_rows,
            {"validation": (*late_rows, 0 * late_groups), "groups": early_groups},
            "_val",
        ),
        (*early_rows, {"validation": late_rows, "time": early_groups}, "time or validation, not"),
    ]:
        with pytest.raises(InputError, match=message) as raised:
            system.fit(rows, labels, **options)
        assert "\n" not in str(raised.value)
    fitted_system = system.fit(*early_rows, validation=late_fold, groups=early_groups)
    assert fitted_system.operating_point_.validation_groups == 3
