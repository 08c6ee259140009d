"""Computation of blocks: how many instances compute each step of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise_signals.graph import SignalGraph


def step_shares(
    graph: SignalGraph, sets: NDArray[np.bool_], counts: Sequence[float]
) -> dict[str, float]:
    """Share of the instances for which each step was computed, by its label.

    Shapes: `sets` (n_sets, n_features), which features instances acquired; `counts` (n_sets,), how
    many acquired each set. Features behind the blocks' are a window's values: nothing computes
    them.
    """
    blocks, n = np.array(graph.block_of), len(graph.block_of)
    computed = np.zeros((len(sets), len(graph.steps)), np.bool_)
    for number, chosen in enumerate(sets[:, :n]):
        computed[number, [graph.step_of_block[b] for b in np.unique(blocks[chosen])]] = True
    for step in reversed(range(len(graph.steps))):  # each stands behind those that it needs
        for needed in graph.needed[step]:
            computed[:, needed] |= computed[:, step]
    shares = np.asarray(counts, np.float64) @ computed / max(float(np.sum(counts)), 1e-300)
    labels = [step.label for step in graph.steps]
    return dict(zip(labels, shares.tolist(), strict=True))
