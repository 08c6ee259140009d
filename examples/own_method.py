"""A method for the benchmark of Adapt: trees of increasing depth, which pay for their features.

python -m benchmarks.bench_adapt --only thyroid --add examples/own_method.py:Trees --out out
"""

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from benchmarks.comparison.record import Point
from benchmarks.data.folds import Truth


class Trees:
    """Method that is fitted with labels and prices, and gives operating points on test rows."""

    def __init__(self, seed):
        self.seed = seed

    def fit(self, rows, labels, prices, validation):
        """Fit a tree of each depth."""
        self.prices = prices
        self.validation = validation
        if validation is None:  # use a quarter of the training rows
            rows, validation_rows, labels, validation_labels = train_test_split(
                rows, labels, random_state=self.seed
            )
            self.validation = validation_rows, validation_labels
        depths = range(1, 13)
        trees = [
            DecisionTreeClassifier(max_depth=depth, random_state=self.seed) for depth in depths
        ]
        self.trees = [tree.fit(rows, labels) for tree in trees]

    def points(self, rows, truth):
        """Yield the operating point of each tree, with its figures on validation and test rows."""
        validation_rows, labels = self.validation
        for tree in self.trees:
            cost = self.prices.price(np.unique(tree.tree_.feature[tree.tree_.feature >= 0]))
            validation_answers = tree.predict(validation_rows), Truth(labels)
            test_answers = tree.predict(rows), truth
            n_bytes = 8 * tree.tree_.node_count  # a compact node has 8 bytes
            yield Point.of_single_model(validation_answers, test_answers, cost, nbytes=n_bytes)
