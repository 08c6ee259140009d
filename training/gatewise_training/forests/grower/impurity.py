r"""Impurity of a set of examples, computed from its class counts.

Threshold-Pairs (BudgetRF, ICML 2015, equation 11) is ::

    F(S) = sum over i != j of [ [n_i - a]_+ [n_j - a]_+ - a^2 ]_+

The sum is over ordered pairs of classes, ``n_i`` is the number of examples of class i, and
``[x]_+ = max(x, 0)``; the threshold ``a`` is `alpha` in the code.

The printed text has lost the two minus signs of this equation, but they follow from the conditions
of the paper. In a pure set
``n_j = 0`` for all classes except one. Purity (F = 0) therefore requires that ``[n_j - a]_+``
vanishes there, which ``n_j + a`` does not, and that nothing is added to the product. With both
minus signs the function is admissible. ``[n - a]_+`` is non-negative, rising and convex in ``n``. A
product of two such functions of different counts has rising differences in both counts.
``[t - a^2]_+`` is rising and convex, which preserves the rising differences of a rising function.
Hence F is monotone and supermodular. ``F <= n^2``, so ``log F = O(log n)``.

With ``a = 1``, a set with 255 examples of one class and one example of another counts as pure,
which ends the trees of the paper's figure 2 at depth 2.

Entropy is a sum over examples, in bits. It is not admissible, because it is not supermodular: each
further example of a class adds less. Forests that grow by gain use it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def threshold_pairs(counts: Any, alpha: float) -> float:
    """Compute the threshold-Pairs impurity of a set, by the equation of this module.

    `counts`, (n_classes,), are the numbers of examples of each class, and `alpha` is the threshold
    in examples. With a threshold of 0 the impurity is the number of ordered pairs of examples of
    different classes.

    >>> threshold_pairs(np.array([3, 2]), 0.0)
    12.0
    >>> threshold_pairs(np.array([255, 1, 0, 0]), 1.0)
    0.0
    """
    if alpha == 0.0:  # ordered pairs of different classes: (sum n)^2 - sum n^2
        n_examples = 0.0
        for count in counts:
            n_examples += count
        pairs = n_examples * n_examples
        for count in counts:
            pairs -= float(count) * count
        return pairs
    half_impurity = 0.0  # the sum over i > j, because F is symmetric in i and j
    for i in range(len(counts)):
        surplus = counts[i] - alpha
        if surplus > 0.0:
            for j in range(i):
                if counts[j] > alpha:
                    half_impurity += max(surplus * (counts[j] - alpha) - alpha * alpha, 0.0)
    return 2.0 * half_impurity


@numba.njit(cache=True, nogil=True)
def change_of_pairs(counts: Any, n_examples: float, m: int, n_added: float, alpha: float) -> float:
    """Compute the change of threshold-Pairs when examples of class m are added, in O(classes).

    `n_examples` is the sum of the counts before; `n_added` is negative if examples are removed.

    >>> change_of_pairs(np.array([3, 2]), 5, 1, 1, 0.0)
    6.0
    """
    if alpha == 0.0:  # an added example forms two ordered pairs with each of another class
        return float(2.0 * n_added * (n_examples - counts[m]))
    # twice the change of the terms of F with class m, which are the only ones that change
    surplus_before = max(counts[m] - alpha, 0.0)
    surplus_after = max(counts[m] + n_added - alpha, 0.0)
    change = 0.0
    for j in range(len(counts)):
        if j != m and counts[j] > alpha:
            surplus = counts[j] - alpha
            change += max(surplus_after * surplus - alpha * alpha, 0.0)
            change -= max(surplus_before * surplus - alpha * alpha, 0.0)
    return 2.0 * change


def log_table(n: int) -> Any:
    """Compute ``i log2 i`` for i = 0 .. n, so that :func:`entropy` needs no logarithms.

    >>> log_table(4)
    array([0.       , 0.       , 2.       , 4.7548875, 8.       ])
    """
    table = np.arange(n + 1, dtype=np.float64)
    table[1:] *= np.log2(table[1:])
    return table


@numba.njit(cache=True, nogil=True)
def entropy(counts: Any, table: Any) -> float:
    """Compute the bits that encode the classes of all examples of a set, at least 0.

    `table` is a :func:`log_table` up to at least the sum of the counts.

    >>> entropy(np.array([2, 2]), log_table(4))
    4.0
    """
    # n log2 n - sum n_i log2 n_i
    n_examples = 0
    sum_of_logs = 0.0
    for count in counts:
        n_examples += count
        sum_of_logs += table[count]
    bits: float = table[n_examples] - sum_of_logs
    return max(bits, 0.0)  # rounding may leave a pure set slightly below 0
