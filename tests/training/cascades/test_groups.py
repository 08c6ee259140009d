"""Rows in groups and in time: what is chosen on them, and what is promised."""

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


def subjects(seed, n_groups=20, size=30):
    """Rows of subjects: two cheap features depend on the subject, two costly ones do not."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), size)
    y = rng.integers(0, 2, len(group))
    place, way = rng.normal(size=(2, n_groups, 2))
    cheap = 4 * place[group] + (2 * y - 1)[:, None] * (0.7 * way[group] + 0.7)
    hidden, noise = rng.normal(size=len(y)), rng.normal(size=(4, len(y)))
    costly = 3 * hidden + 0.1 * noise[2], y - 3 * hidden + 0.2 * noise[3]
    return np.column_stack([*(cheap.T + 0.4 * noise[:2]), *costly]), y, group


class GroupChecker(LogisticRegression):
    """A classifier that refuses to predict rows of a group that it was fitted on."""

    checked = 0

    def fit(self, X, y):
        self.groups_ = set(X[:, 0])
        return super().fit(X, y)

    def predict_proba(self, X):
        assert not self.groups_ & set(X[:, 0])
        type(self).checked += 1
        return super().predict_proba(X)


@pytest.fixture
def splits(monkeypatch):
    """Both sides of all splits that are made, as groups."""
    found = []

    def record(name):
        original = getattr(RowSplitter, name)

        def recorded(self, *args):
            made = original(self, *args)
            pairs = made if name == "folds" else [made]
            found.extend([set(self.groups[s].tolist()) for s in pair] for pair in pairs)
            return made

        monkeypatch.setattr(RowSplitter, name, recorded)

    for name in ("folds", "hold_out", "cut"):
        record(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["staged", "adapt-lin", "l1", "confidence"])
def test_no_group_is_on_both_sides_of_a_split_of_a_fit(name, splits, monkeypatch):
    X, y, group = subjects(0, 12, 12)
    monkeypatch.setattr(GroupChecker, "checked", 0)
    # Adapt learns its gate from what the model answers on training rows
    f0 = LogisticRegression() if name in ("adapt-lin", "l1") else GroupChecker()
    system = clone(METHODS[name]).set_params(
        high_cost_model=f0, random_state=0, guarantee=0.9, offload_rate=0.9
    )
    system.fit(np.column_stack([group, X]), y, groups=group)
    assert len(splits) >= 6  # calibration groups, and five folds
    assert all(not fit & unseen for fit, unseen in splits)
    assert system.operating_point_.guarantee["calibration_groups"] in (2, 3)
    assert GroupChecker.checked >= 5 or name in ("adapt-lin", "l1")


@pytest.mark.slow
def test_group_identifiers_are_worth_nothing():
    """Features that identify a subject, and labels that are the subject's own."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 10)
    X = rng.normal(size=(30, 4))[group] + 0.01 * rng.normal(size=(300, 4))
    y = rng.integers(0, 2, 30)[group]
    system = StagedCascade(
        RandomForestClassifier(20, random_state=0), n_stages=1, families=("svm", "linear"),
        random_state=0,
    )  # fmt: skip
    with pytest.warns(GroupsWarning):
        shuffled = clone(system).fit(X, y)
    assert shuffled.frontier_.reference_accuracy > 0.95
    system.fit(X, y, groups=group)
    assert max(p.accuracy for p in system.frontier_.points) < 0.8
    # and its error is that of 30 coins, not of 300
    worst = max(p.accuracy_error for p in system.frontier_.points)
    assert worst > 0.05
    assert system.operating_point_.validation_groups == 30
    assert "on validation rows of 30 groups:" in system.summary()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gatewise.errors.GroupsWarning")
def test_losses_on_new_groups_are_within_the_promise_nine_times_in_ten_and_never_without_groups():
    """Ten times 30 subjects to learn from; a loss of 0.03 on 200 new ones is promised.

    A few subjects hold most of the loss, and which of 30 they are is luck.
    """
    losses: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(10):
        X, y, group = subjects(seed, 230, 15)
        known = group < 30
        for grouped in losses:
            system = StagedCascade(
                LogisticRegression(), PRICES, n_stages=2, families=("svm",), effort="low",
                max_loss=0.03, random_state=0,
            )  # fmt: skip
            system.fit(X[known], y[known], groups=group[known] if grouped else None)
            f0 = system.high_cost_model_.labels(X[~known].astype(np.float32)) == y[~known]
            right = system.predict(X[~known]) == y[~known]
            losses[grouped].append(f0.mean() - right.mean())
            if grouped and not losses[grouped][-1]:  # all to the cloud, and the summary says why
                assert "30 groups are too few to promise as small a loss" in system.summary()
    assert np.sum(np.array(losses[True]) <= 0.03) >= 9
    assert min(losses[False]) > 0.03


def test_summaries_do_not_call_a_stage_the_high_cost_model():
    X, y, group = subjects(0, 12, 12)
    weak = DecisionTreeClassifier(max_depth=1)
    system = StagedCascade(weak, n_stages=1, families=("linear",), random_state=0)
    system.fit(X[:, 2:] @ [[1, 0], [1, 1]], y, groups=group)
    assert system.operating_point_.offload_rate == 0
    assert "new groups lose 0.0000 at most" in system.summary()


@pytest.mark.slow
def test_guarantees_are_about_groups():
    """Every group counts alike, and of few groups little can be certified."""
    X, y, group = subjects(1, 200, 4)
    system = StagedCascade(
        LogisticRegression(), n_stages=1, families=("linear",), random_state=0, guarantee=0.9,
        offload_rate=0.6,
    ).fit(X, y, groups=group)  # fmt: skip
    promise = system.operating_point_.guarantee
    assert (promise["method"], promise["calibration_groups"]) == ("betting on groups", 40)
    assert json.loads(json.dumps(promise)) == promise
    assert "guaranteed at 0.9: offload_rate=0.6 (40 calibration groups)" in system.summary()
    assert 0 < system.offload(X).mean() < 0.6
    # forty groups are no proof that one in a hundred does not lose all: only the cloud is certain
    assert system.at(max_loss=0.01).operating_point_.guarantee["method"] == "certain"


def test_pairs_measure_on_other_groups_than_they_tune_on():
    X, y, group = subjects(2, 20, 10)
    low = LogisticRegression().fit(X * [1, 1, 0, 0], y)
    high = RandomForestClassifier(20, random_state=0).fit(X, y)
    new, truth, group = subjects(3, 20, 10)
    pair = PairCascade(low_cost_model=low, high_cost_model=high, random_state=0)
    points = pair.fit(new, truth, groups=group).frontier_.points
    wider = 0
    for point in points:
        assert point.validation_groups == 10
        low_end, high_end = exact_interval(round(point.accuracy * 100), 100)
        assert point.interval[0] <= low_end <= high_end <= point.interval[1]
        wider += point.interval[0] < low_end
    assert wider
    assert PairCascade(low_cost_model=low, high_cost_model=high).fit(new, truth, time=group)


def test_later_rows_validate_earlier_ones():
    """A label whose meaning turns over in time: shuffled rows show nothing of it."""
    rng = np.random.default_rng(0)
    X, when = rng.normal(size=(400, 3)), rng.permutation(400)
    y = ((X[:, 0] > 0) ^ (when >= 320)).astype(int)
    system = StagedCascade(LogisticRegression(), n_stages=1, families=("linear",), random_state=0)
    assert clone(system).fit(X, y).frontier_.reference_accuracy > 0.7
    assert system.fit(X, y, time=when).frontier_.reference_accuracy < 0.1


def test_scikit_learns_searches_split_by_group():
    X, y, group = subjects(0, 8, 12)
    search = GridSearchCV(
        StagedCascade(LogisticRegression(), n_stages=1, random_state=0),
        {"families": [("linear",)]},
        cv=GroupKFold(2),
    ).fit(X, y, groups=group)
    assert search.best_score_ > 0.5


def test_bad_groups_are_refused_in_one_line():
    X, y, group = subjects(0, 6, 10)
    system = StagedCascade(LogisticRegression(), n_stages=1, families=("linear",))
    alone = np.where(group == 3, 2, y)
    part = (X[:30], y[:30])
    late = (X[30:], y[30:], group[30:])
    for data, labels, options, message in [
        (X, y, {"groups": group[1:]}, "one value for each of the 60 rows"),
        (X, alone, {"groups": group}, "all rows of class 2 are in one group"),
        (X, alone, {"time": group >= 3}, "by groups or times leaves a fold without a class"),
        (*part, {"validation": late}, "only: add groups="),
        (*part, {"validation": late[:2], "groups": group[:30]}, "only: add validation="),
        (*part, {"validation": late, "groups": group[30:]}, "group 3 has training and valid"),
        (*part, {"validation": (*late[:2], late[2] * 0), "groups": group[:30]}, "groups_val has"),
        (*part, {"validation": late[:2], "time": group[:30]}, "time or validation, not both"),
    ]:
        with pytest.raises(InputError, match=message) as found:
            system.fit(data, labels, **options)
        assert "\n" not in str(found.value)
    fitted = system.fit(*part, validation=late, groups=group[:30])
    assert fitted.operating_point_.validation_groups == 3
