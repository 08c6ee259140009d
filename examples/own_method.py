"""A method to compare with the others: trees of growing depth, charged for their features.

python -m benchmarks.bench_adapt --only thyroid --add examples/own_method.py:Trees --out out
"""

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from benchmarks.comparison.record import Point
from benchmarks.data.folds import Truth


class Trees:
    """Fitted with labels and prices, then asked for points on test rows."""

    def __init__(self, seed):
        self.seed = seed

    def fit(self, rows, labels, prices, validation):
        self.prices = prices
        self.validation = validation
        if validation is None:  # then a quarter of the training rows is set apart
            rows, judges, labels, truth = train_test_split(rows, labels, random_state=self.seed)
            self.validation = judges, truth
        sizes = range(1, 13)
        trees = [DecisionTreeClassifier(max_depth=n, random_state=self.seed) for n in sizes]
        self.trees = [tree.fit(rows, labels) for tree in trees]

    def points(self, rows, truth):
        judges, labels = self.validation
        for tree in self.trees:
            cost = self.prices.price(np.unique(tree.tree_.feature[tree.tree_.feature >= 0]))
            answers = (tree.predict(judges), Truth(labels)), (tree.predict(rows), truth)
            yield Point.single(*answers, cost, nbytes=8 * tree.tree_.node_count)
