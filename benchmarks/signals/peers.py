"""Accuracy and feature time of other methods on a split of a signal set."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.signals.splits import MAX_LOSS, Split, make_booster
from gatewise.errors import GatewiseError
from gatewise_training.adapt.gbrt import AdaptGBRT
from gatewise_training.cegb.classifier import CEGBClassifier

#: Settings of CEGB and Adapt-GBRT: few rounds at a high rate, to save time.
ROUNDS: dict[str, Any] = {"n_rounds": 40, "learning_rate": 0.2}


def fit_peers(split: Split) -> dict[str, Any]:
    """Fit a model on the cheapest block, a network on the raw window, CEGB and Adapt-GBRT."""
    graph, x, train, y, seed = split.graph, split.x, split.train, split.signal_set.y, split.seed
    costs = graph.costs()
    # boosted trees on the cheapest block
    cheapest_block = min(
        range(len(graph.blocks)),
        key=lambda block_index: costs.standalone_prices[graph.columns(block_index)].min(),
    )
    columns = graph.columns(cheapest_block)
    booster = make_booster(split, split.class_weight).fit(x[train, columns], y[train])
    price = float(costs.price(np.arange(columns.start, columns.stop)))
    # a network on the raw window
    flat_windows = np.asarray(split.signal_set.windows, np.float32).reshape(len(y), -1)
    network = make_pipeline(
        StandardScaler(), MLPClassifier((64,), early_stopping=True, max_iter=60, random_state=seed)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that the network has not converged
        network.fit(flat_windows[train], y[train])
    figures: dict[str, Any] = {
        "cheapest block": split.figures(split.is_correct(booster, x[:, columns]), price),
        "network on the window": split.figures(split.is_correct(network, flat_windows), 0.0),
    }
    # methods that know prices
    budgeted_models = {
        "CEGB": CEGBClassifier(costs, n_penalties=4, **ROUNDS),
        "Adapt-GBRT": AdaptGBRT(
            make_booster(split, None),
            costs,
            stop="gate",
            penalties=(0.016, 0.0025),
            p_full=(0.3,),
            warm_up=8,
            **ROUNDS,
        ),
    }
    for name, model in budgeted_models.items():
        model.set_params(max_loss=MAX_LOSS, class_weight=split.class_weight, random_state=seed)
        try:
            model.fit(x[train], y[train], groups=split.groups)
        except GatewiseError as error:  # the page shows that this method cannot fit the set
            figures[name] = {"failed": str(error)[:200]}
        else:
            cost = float(model.cost(x[split.test]).mean())
            figures[name] = split.figures(split.is_correct(model, x), cost)
    return figures
