"""GreedyPrune: drop one feature everywhere, again and again.

A baseline of BudgetPrune (NIPS 2016, section 5): "at each iteration it attempts to remove all nodes
corresponding to one feature". A node that tests a dropped feature becomes a leaf.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import PruneProblem

Words = NDArray[np.uint64]


def greedy_prune(problem: PruneProblem, forest: Forest, costs: FeatureCosts) -> PruneSequence:
    """Drop the feature that loses least training error per unit of cost saved, until none is left.

    The paper does not say how it weighs error against cost; this is the usual ratio. A feature
    group with a shared price may also go as a whole, as one of the paper's descriptors does.
    """
    parts: list[tuple[int, ...]] = [(k,) for k in range(costs.n_features)]
    for g in np.flatnonzero(costs.shared):
        members = np.flatnonzero(costs.group == g)
        if len(members) > 1:
            parts.append(tuple(members.tolist()))
    above = _path_parts(problem, forest.trees.feature, parts)
    keep = problem.inner
    until = np.where(keep, np.inf, -np.inf)
    step = 0
    while keep.any():
        lost = np.zeros(len(parts))
        saved = np.zeros(len(parts))
        _losses(
            problem.column_start, problem.column_nodes, problem.column_price,
            problem.profit, problem.depth_price, above, keep, lost, saved,
        )  # fmt: skip
        gone = _with_part(above, keep, len(parts))
        ratio = np.full(len(parts), np.inf)
        np.divide(np.maximum(lost, 0.0), saved, out=ratio, where=saved > 0)
        ratio[~gone] = np.nan  # the feature is in no tree any more
        best = int(np.lexsort((lost, ratio))[0])
        word, bit = divmod(best, 64)
        out = keep & ((above[:, word] >> np.uint64(bit)) & np.uint64(1)).astype(np.bool_)
        step += 1
        until[out] = step
        keep = keep & ~out
    return PruneSequence(problem, until)


def _path_parts(
    problem: PruneProblem, feature: NDArray[np.int32], parts: list[tuple[int, ...]]
) -> Words:
    """Bit p of row h: whether the path to h, h included, tests a column of part p."""
    n_words = -(-len(parts) // 64)
    bits = np.zeros((max(max(p) for p in parts) + 1, n_words), np.uint64)
    for p, columns in enumerate(parts):
        for k in columns:
            bits[k, p // 64] |= np.uint64(1) << np.uint64(p % 64)
    above = np.zeros((problem.n_nodes, n_words), np.uint64)
    inner = problem.inner
    above[inner] = bits[feature[inner]]
    _gather(problem.parent, above)
    return above


def _with_part(above: Words, keep: NDArray[np.bool_], n_parts: int) -> NDArray[np.bool_]:
    """Which parts some node that is kept tests, shape (n_parts,)."""
    union = np.bitwise_or.reduce(above[keep], axis=0)
    part = np.arange(n_parts)
    bit = (union[part // 64] >> (part % 64).astype(np.uint64)) & np.uint64(1)
    return np.asarray(bit, np.bool_)


@numba.njit(cache=True, nogil=True)
def _gather(parent: Any, above: Any) -> None:
    for h in range(len(parent)):
        if parent[h] >= 0:
            for w in range(above.shape[1]):
                above[h, w] |= above[parent[h], w]


@numba.njit(cache=True, nogil=True)
def _credit(word: Any, w: int, amount: float, out: Any) -> None:
    """Add an amount to the parts with set bits."""
    for b in range(64):
        if word >> np.uint64(b) & np.uint64(1):
            out[64 * w + b] += amount


@numba.njit(cache=True, nogil=True)
def _losses(
    start: Any, nodes: Any, price: Any, profit: Any, depth: Any, above: Any, keep: Any,
    lost: Any, saved: Any,
) -> None:  # fmt: skip
    """Error that dropping each part would cost, and the cost that it would save.

    An acquisition is saved if every node that is kept for it has the part on its path.
    """
    n_words = above.shape[1]
    for h in range(len(profit)):
        if keep[h] and (profit[h] != 0.0 or depth[h] != 0.0):
            for w in range(n_words):
                _credit(above[h, w], w, profit[h], lost)
                _credit(above[h, w], w, depth[h], saved)
    common = np.empty(n_words, np.uint64)
    for c in range(len(price)):
        acquired = False
        for j in range(start[c], start[c + 1]):
            if keep[nodes[j]]:
                if acquired:
                    for w in range(n_words):
                        common[w] &= above[nodes[j], w]
                else:
                    for w in range(n_words):
                        common[w] = above[nodes[j], w]
                    acquired = True
        if acquired:
            for w in range(n_words):
                if common[w]:
                    _credit(common[w], w, price[c], saved)
