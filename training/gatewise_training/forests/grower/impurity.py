r"""Impurity of a set of examples, from its number of examples of each class.

threshold-Pairs (BudgetRF, ICML 2015, equation 11) is ::

    F(S) = sum over i != j of [ [n_i - a]_+ [n_j - a]_+ - a^2 ]_+

over ordered pairs of classes, ``n_i`` the number of examples of class i, ``[x]_+ = max(x, 0)``.
The text garbles the signs; they follow from the paper's own conditions. A pure set has ``n_j = 0``
for all classes but one, so purity (F = 0) requires that ``[n_j - a]_+`` vanishes there, which
``n_j + a`` does not, and that nothing is added to the product. Both minuses keep the function
admissible: ``[n - a]_+`` is
non-negative, rising and convex in ``n``; a product of two such functions of different counts has
rising differences in both; and ``[t - a^2]_+`` is rising and convex, which keeps rising differences
of a rising function. Hence F is monotone and supermodular. ``F <= n^2``, so ``log F = O(log n)``.

With ``a = 1`` four classes of which one has 255 examples and another a single one count as pure,
which cuts the trees of the paper's figure 2 at depth 2.

Entropy, a sum over examples in bits, is not admissible, because it is not monotone; it serves
forests that grow by gain.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def threshold_pairs(counts: Any, alpha: float) -> float:
    """Get the threshold-Pairs impurity of a set; the equation is above.

    `counts`, of shape (n_classes,), are the examples of each class, `alpha` is the threshold in
    examples, at least 0. 0 counts the ordered pairs of examples that belong to different classes.

    >>> threshold_pairs(np.array([3, 2]), 0.0)
    12.0
    >>> threshold_pairs(np.array([255, 1, 0, 0]), 1.0)
    0.0
    """
    total = 0.0
    if alpha == 0.0:  # ordered pairs of different classes: (sum n)^2 - sum n^2
        for n in counts:
            total += n
        pairs = total * total
        for n in counts:
            pairs -= float(n) * n
        return pairs
    for i in range(len(counts)):
        surplus = counts[i] - alpha
        if surplus > 0.0:
            for j in range(i):
                if counts[j] > alpha:
                    total += max(surplus * (counts[j] - alpha) - alpha * alpha, 0.0)
    return 2.0 * total


@numba.njit(cache=True, nogil=True)
def change_of_pairs(counts: Any, total: float, m: int, more: float, alpha: float) -> float:
    """Get the increase of threshold-Pairs when `more` examples of class m join: O(classes).

    `total` is the sum of the counts before; `more` is negative if examples leave.

    >>> change_of_pairs(np.array([3, 2]), 5, 1, 1, 0.0)
    6.0
    """
    if alpha == 0.0:  # each newcomer pairs with all examples of other classes, in both orders
        return float(2.0 * more * (total - counts[m]))
    before = max(counts[m] - alpha, 0.0)
    after = max(counts[m] + more - alpha, 0.0)
    gain = 0.0
    for j in range(len(counts)):
        if j != m and counts[j] > alpha:
            surplus = counts[j] - alpha
            gain += max(after * surplus - alpha * alpha, 0.0)
            gain -= max(before * surplus - alpha * alpha, 0.0)
    return 2.0 * gain


def log_table(n: int) -> Any:
    """Get ``i log2 i`` for i = 0 .. n, which spares the logarithms of :func:`entropy`.

    >>> log_table(4)
    array([0.       , 0.       , 2.       , 4.7548875, 8.       ])
    """
    table = np.arange(n + 1, dtype=np.float64)
    table[1:] *= np.log2(table[1:])
    return table


@numba.njit(cache=True, nogil=True)
def entropy(counts: Any, table: Any) -> float:
    """Get the bits that code the classes of all examples of a set, at least 0.

    `table` is a :func:`log_table` of at least the sum of the counts.

    >>> entropy(np.array([2, 2]), log_table(4))
    4.0
    """
    # n log2 n - sum n_i log2 n_i
    n = 0
    bits = 0.0
    for c in counts:
        n += c
        bits += table[c]
    difference: float = table[n] - bits
    return max(difference, 0.0)
