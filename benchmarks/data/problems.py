"""The problems: data sets with the authors' splits and prices.

Their files are in the folder that the environment variable GATEWISE_DATA names (by default
``../shared/data`` beside the repository), among the fetched ones (``python -m benchmarks.data
fetch``) or in ``benchmarks/data/sets``. Classes are indices 0..M-1. A seed determines the models
and, unless the publisher of a set fixed its split, the split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cache import CACHE
from benchmarks.data import images
from benchmarks.data.fetching import find_file
from benchmarks.data.folds import Fold, fixed_split, select_rows
from benchmarks.data.sources import SOURCES
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.data import datasets

#: Seed of the 110,392 rows of Forest; it is not known which rows the papers used.
FOREST_SEED = 2017
#: Seed of the training and validation rows of CIFAR-10; those of the paper are unknown.
CIFAR_SEED = 2017


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem to be solved at several budgets."""

    name: str
    title: str
    costs: FeatureCosts
    n_classes: int
    min_budget: float  # the smallest budget, at which the cheapest useful features can be bought
    make_folds: Callable[[int], list[Fold]] = field(repr=False)  # by seed; several folds are pooled
    split_depends_on_seed: bool = False  # also if only the validation rows depend on it
    target: float | None = None  # cost cut (a share) within 1 % of the top accuracy
    source: str = ""  # SHA-256 of the data file
    note: str = ""  # about split and prices
    metric: str = "accuracy"  # or AP@5
    has_noisy_labels: bool = False  # large trees overfit, so peers also try small ones

    def budgets(self) -> NDArray[np.float64]:
        """Space 12 budgets geometrically from the smallest useful one to the full price."""
        return np.geomspace(self.min_budget, self.costs.total, 12)


@lru_cache(maxsize=1)
def get(name: str) -> Problem:
    """Load a problem; raise InputError if its name is unknown or its data file is missing."""
    if name not in PROBLEMS:
        raise InputError(f"no problem {name!r}; there are {', '.join(PROBLEMS)}")
    return PROBLEMS[name](name)


def data_file(name: str) -> Path:
    """Find a data file; if it is missing, raise an InputError that says how to get it."""
    path = find_file(name)
    if path is None:
        advice = (
            f"python -m benchmarks.data fetch {name}"
            if name in SOURCES
            else "put it into the folder that GATEWISE_DATA names"
        )
        raise InputError(f"data file {name}.npz is not there: {advice}")
    return path


def data_arrays(name: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of a data file; raise InputError if it is missing."""
    with np.load(data_file(name), allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _hash_data_file(name: str) -> str:
    return hashlib.sha256(data_file(name).read_bytes()).hexdigest()


# -- the sets ------------------------------------------------------------------------------


def _make_letter(name: str) -> Problem:
    arrays = data_arrays("letter")
    is_binary = name == "letter-bin"
    row_classes = arrays["y"] >= 13 if is_binary else arrays["y"]  # 13 is N
    return Problem(
        name,
        "Letters, N-Z against A-M" if is_binary else "Letters, 26 classes",
        FeatureCosts.uniform(16),
        2 if is_binary else 26,
        min_budget=2.0,
        make_folds=fixed_split(
            arrays["X"], row_classes, slice(12000), slice(12000, 16000), slice(16000, 20000)
        ),
        target=0.62 if is_binary else 0.52,
        source=_hash_data_file("letter"),
        note="rows 0-11999 / 12000-15999 / 16000-19999 as the authors; price 1 a feature",
    )


def _make_forest(name: str) -> Problem:
    arrays = data_arrays("covertype")
    is_binary = name == "forest-bin"
    rows = np.random.default_rng(FOREST_SEED).permutation(len(arrays["y"]))[:110392]
    row_classes = arrays["y"] == 1 if is_binary else arrays["y"]  # 1 is cover type 2
    return Problem(
        name,
        "Forest, class 2 against the rest" if is_binary else "Forest, 7 classes",
        FeatureCosts.uniform(54),
        2 if is_binary else 7,
        min_budget=1.0,
        make_folds=fixed_split(arrays["X"], row_classes, *np.split(rows, [36603, 36603 + 15688])),
        target=0.78 if is_binary else 0.58,
        source=_hash_data_file("covertype"),
        note="36,603 / 15,688 / 58,101 rows drawn from all 581,012 with a fixed seed: the papers' "
        "own 110,392 rows are not known; price 1 a feature",
    )


def _make_mbne_tiny(name: str) -> Problem:
    arrays = data_arrays(name)
    masks = [arrays["part"] == part for part in range(3)]
    return Problem(
        name,
        "MiniBooNE, the 5,000-row sample",
        FeatureCosts.uniform(50),
        2,
        min_budget=1.0,
        make_folds=fixed_split(arrays["X"], arrays["y"], *masks),
        target=0.84,
        source=_hash_data_file(name),
        note="the BudgetRF authors' sample and parts, not the papers' full set; price 1 a feature",
    )


def _make_hapt(name: str) -> Problem:
    arrays = data_arrays("hapt")
    features, row_classes, subject = arrays["X"], arrays["y"], arrays["subject"]
    is_test = arrays["part"] == 1
    has_group_prices = name == "hapt-9"
    if has_group_prices:
        costs = FeatureCosts(np.zeros(features.shape[1]), group=arrays["group"], shared=[1.0] * 9)
    else:
        costs = FeatureCosts.uniform(features.shape[1])
    training_subjects = np.unique(subject[~is_test])

    def make_folds(seed: int) -> list[Fold]:
        validation_subjects = np.random.default_rng(seed).choice(
            training_subjects, 5, replace=False
        )
        is_validation = np.isin(subject, validation_subjects) & ~is_test
        return fixed_split(
            features, row_classes, ~is_test & ~is_validation, is_validation, is_test
        )(seed)

    return Problem(
        name,
        "HAPT activities, 9 signal groups" if has_group_prices else "HAPT activities, 349 features",
        costs,
        12,
        min_budget=1.0 if has_group_prices else 4.0,
        make_folds=make_folds,
        split_depends_on_seed=True,
        target=0.70 if has_group_prices else 0.80,
        source=_hash_data_file("hapt"),
        note="test: the publisher's 9 subjects; validation: 5 of the 21 training subjects, drawn "
        "by the seed; "
        + (
            "price 1 a signal group, its features free" if has_group_prices else "price 1 a feature"
        ),
    )


def _make_statlog_heart(name: str) -> Problem:
    data_set = datasets.load(data_file(name))
    return Problem(
        name,
        "Statlog heart, Turney's prices",
        data_set.feature_costs,
        2,
        min_budget=1.0,
        make_folds=_make_ten_folds(data_set.X, data_set.y),
        split_depends_on_seed=True,
        target=0.50,
        source=_hash_data_file(name),
        note="10-fold cross-validation, a partition a seed, test rows pooled; Turney's prices and "
        "groups",
    )


def _make_sonar(name: str) -> Problem:
    arrays = data_arrays(name)
    features, row_classes = arrays["X"], arrays["y"].astype(np.int64)
    return Problem(
        name,
        "Sonar, mines against rocks",
        FeatureCosts.uniform(features.shape[1]),
        2,
        min_budget=1.0,
        make_folds=_make_ten_folds(features, row_classes),
        split_depends_on_seed=True,
        source=_hash_data_file(name),
        note="10-fold cross-validation, a partition a seed, test rows pooled; price 1 a feature",
    )


def _make_ten_folds(
    features: NDArray[np.float32], row_classes: NDArray[np.int64]
) -> Callable[[int], list[Fold]]:
    """Make stratified folds from the seed; they have no validation rows."""

    def make_folds(seed: int) -> list[Fold]:
        from sklearn.model_selection import StratifiedKFold

        folds = StratifiedKFold(10, shuffle=True, random_state=seed).split(features, row_classes)
        return [
            Fold(
                select_rows(features, row_classes, train),
                None,
                select_rows(features, row_classes, test),
            )
            for train, test in folds
        ]

    return make_folds


def _make_thyroid(name: str) -> Problem:
    data_set = datasets.load(data_file(name))
    return Problem(
        name,
        "Thyroid, Turney's prices",
        data_set.feature_costs,
        3,
        min_budget=23.0,
        make_folds=fixed_split(
            data_set.X, data_set.y, data_set.parts["train"], None, data_set.parts["test"]
        ),
        split_depends_on_seed=True,
        target=0.64,
        source=_hash_data_file(name),
        note="UCI's split, validation by five-fold cross-fitting; Turney's prices, with FTI at "
        "the price of TT4 and T4U together, which it is computed from",
    )


def _make_occupancy(name: str) -> Problem:
    data_set = datasets.load(data_file(name))
    return Problem(
        name,
        "Room occupancy",
        FeatureCosts.uniform(data_set.X.shape[1]),
        2,
        min_budget=1.0,
        make_folds=fixed_split(
            data_set.X,
            data_set.y,
            *(data_set.parts[part] for part in ("train", "validation", "test")),
        ),
        source=_hash_data_file(name),
        note="the publisher's training file, its first test file as validation, its second as "
        "test (other days, door open); price 1 a feature",
    )


def _make_cifar10(name: str) -> Problem:
    arrays = data_arrays("cifar10_jpeg")
    code_hash = hashlib.sha256(Path(images.__file__).read_bytes()).hexdigest()
    data_hash = _hash_data_file("cifar10_jpeg")
    cached_features = CACHE / f"cifar10-{data_hash[:16]}-{code_hash[:16]}.npz"
    features = images.patch_features(arrays["jpeg"], arrays["offset"], cached_features)
    # "combining the first 5 classes into one class" (ICML 2015, section 3)
    is_last_five = arrays["y"] >= 5
    training_rows = np.random.default_rng(CIFAR_SEED).permutation(
        np.flatnonzero(arrays["part"] == 0)
    )
    return Problem(
        name,
        "CIFAR-10, the last five classes against the first five",
        FeatureCosts.uniform(features.shape[1]),
        2,
        min_budget=4.0,
        make_folds=fixed_split(
            features,
            is_last_five,
            training_rows[:19761],
            training_rows[19761 : 19761 + 8468],
            arrays["part"] == 1,
        ),
        source=f"{data_hash} features {code_hash[:16]} last five classes",
        note="400 features computed here from the JPEG images (k-means patches), since the paper's "
        "are not known; as many rows as in the paper, 19,761 / 8,468 / 10,000, drawn with a fixed "
        "seed; price 1 per feature",
    )


def _make_mq2008(name: str) -> Problem:
    arrays = data_arrays(name)
    features, is_relevant, qid, partition_of_row = (
        arrays["X"],
        arrays["y"] > 0,
        arrays["qid"],
        arrays["part"],
    )

    def make_folds(_seed: int) -> list[Fold]:
        folds = []
        # three partitions to train, one to validate and one to test, in turn, as in LETOR
        for first_partition in range(5):
            partition_order = [(first_partition + offset) % 5 + 1 for offset in range(5)]
            parts = [
                np.flatnonzero(np.isin(partition_of_row, partition))
                for partition in (partition_order[:3], partition_order[3], partition_order[4])
            ]
            train, validation, test = (select_rows(features, is_relevant, rows) for rows in parts)
            folds.append(Fold(train, validation, test, (qid[parts[1]], qid[parts[2]])))
        return folds

    return Problem(
        name,
        "MQ2008, ranking by relevance",
        FeatureCosts.uniform(features.shape[1]),
        2,
        min_budget=1.0,
        make_folds=make_folds,
        source=_hash_data_file(name),
        note="LETOR's five folds, split by query, test queries pooled (784); grades 1 and 2 are "
        "relevant, 0 is not. Methods learn relevant or not as two classes, by which they also "
        "choose models and thresholds; a document ranks by the probability of relevance that "
        "the model which answers it gives. Accuracy is AP@5, and 1 % is 0.01 of it, which is as "
        "much as its standard error over the queries. No prices are published: 1 a feature",
        metric="AP@5",
        has_noisy_labels=True,
    )


def _make_bundled(name: str) -> Problem:
    data_set = datasets.load(name)
    classes, row_classes = np.unique(data_set.y, return_inverse=True)

    def make_folds(seed: int) -> list[Fold]:
        order = np.random.default_rng(seed).permutation(len(row_classes))
        return fixed_split(
            data_set.X,
            row_classes,
            *np.split(order, [len(row_classes) // 2, 3 * len(row_classes) // 4]),
        )(seed)

    return Problem(
        name,
        name.replace("_", " "),
        data_set.feature_costs,
        len(classes),
        min_budget=1.0,
        make_folds=make_folds,
        split_depends_on_seed=True,
        note="bundled with scikit-learn, for tests; half / quarter / quarter drawn by the seed",
    )


#: Functions that make a problem from its name, from the quickest problem to the slowest.
PROBLEMS: dict[str, Callable[[str], Problem]] = {
    "mbne_tiny": _make_mbne_tiny,
    "thyroid": _make_thyroid,
    "letter-bin": _make_letter,
    "statlog_heart": _make_statlog_heart,
    "occupancy": _make_occupancy,
    "mq2008": _make_mq2008,
    "letter-26": _make_letter,
    "hapt": _make_hapt,
    "hapt-9": _make_hapt,
    "forest-bin": _make_forest,
    "forest-7": _make_forest,
    "cifar10": _make_cifar10,
    "sonar": _make_sonar,
    "breast_cancer": _make_bundled,
    "digits": _make_bundled,
}
