"""Tests that a rate, an accuracy loss or a mean cost lies below a bound, valid at any sample size.

Each null hypothesis is "the risk is above the bound", so its rejection certifies the bound.

- A rate has the exact test by the tail of the binomial distribution (:func:`rate_pvalue`).
- The accuracy lost against a reference is a paired difference in {-1, 0, 1}. It has the score test
  of non-inferiority, with a critical value from the exact distribution (:func:`loss_limits`).
- A mean cost has one value per exit. It is tested by betting (:func:`mean_pvalue`).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

#: Step of the grid over the share of instances where only the system is right. It is at most half a
#: standard error of the estimated share.
GRID_STEP = 0.25
#: Share of the level that is used on the grid. Between the points of the grid, the size of the test
#: was never more than 0.5 % larger.
USED_LEVEL_SHARE = 0.99
#: Precision of the critical value.
CRITICAL_VALUE_STEP = 0.002
#: Number of times that a bet may change, because a change for every row would take too long.
N_BETS = 60
#: Weight of the first guess at the variance, in rows; low, because the guess is the largest
#: possible variance.
PRIOR_ROWS = 1
#: Probability of each tail beyond a 95 % interval.
TAIL_PROBABILITY = (1.0 - 0.95) / 2.0
#: Largest share of the wealth that one row may lose; below 1, so that the wealth stays above 0.
MAX_STAKE = 0.9


def rate_pvalue(counts: ArrayLike, n: int, bound: float) -> NDArray[np.float64]:
    """Test "the rate is above `bound`" by the exact lower tail of the binomial.

    `counts` are the numbers of rows, out of `n`, where the event happened. The p-values have the
    same shape.

    >>> rate_pvalue([8, 2], 40, 0.25).round(3).tolist()
    [0.3, 0.001]
    """
    return np.asarray(stats.binom.cdf(np.asarray(counts), n, bound), np.float64)


def exact_interval(count: int, n: int) -> tuple[float, float]:
    """Get the exact (Clopper-Pearson) 95 % interval of a rate, given `count` events on `n` rows.

    >>> [round(end, 3) for end in exact_interval(48, 50)]
    [0.863, 0.995]
    """
    low = 0.0 if count == 0 else float(stats.beta.ppf(TAIL_PROBABILITY, count, n - count + 1))
    high = 1.0 if count == n else float(stats.beta.isf(TAIL_PROBABILITY, count + 1, n - count))
    return low, high


@lru_cache(maxsize=64)
def loss_limits(n: int, bound: float, level: float) -> NDArray[np.int64]:
    """Find the limits up to which an accuracy loss is certified to be at most `bound`.

    Of `n` rows, only the system is wrong on `worse`, and only the reference on `better`. The loss
    is certified if ``worse - better <= limits[worse + better]``. The limits have shape (n + 1,).

    The statistic is the score of the paired difference with its variance under the null hypothesis
    (Nam, Biometrics 53, 1997: Establishing equivalence of two treatments in matched-pairs design).
    Its critical value is the smallest for which the exact probability of a false certificate,
    maximised over the nuisance parameter on a grid, stays below `level` (Lloyd & Moldovan,
    Statistics in Medicine 27, 2008: A more powerful exact test of noninferiority). The probability
    is largest where the loss equals the bound, because a row that turns from worse to equal or from
    equal to better never takes a certificate away.

    >>> limits = loss_limits(4000, 0.01, 0.05)
    >>> limits[[30, 80, 200]].tolist()  # of 40 allowed by the bound
    [29, 24, 16]
    """
    # fine at both ends (no row better, no row equal), where one row matters most
    largest_better_share = (1 - bound) / 2
    n_steps = max(round(0.5 * np.pi * np.sqrt(n * largest_better_share) / GRID_STEP), 1)
    grid = (
        largest_better_share * np.sin(np.linspace(0, 0.5 * np.pi, 4 * (n_steps // 4 + 1) + 1)) ** 2
    )

    def exceeds_level(z: float, shares: NDArray[np.float64]) -> bool:
        return bool(
            loss_size(_score_limits(n, bound, z), bound, shares).max() > USED_LEVEL_SHARE * level
        )

    # find the smallest valid critical value by bisection on a coarse grid, then on the fine one
    low = high = float(stats.norm.isf(level))
    while exceeds_level(high, grid[::4]):
        low, high = high, high + max(0.1, high - low) * 2
    while high - low > CRITICAL_VALUE_STEP:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if exceeds_level(middle, grid[::4]) else (low, middle)
    while exceeds_level(high, grid):
        high += CRITICAL_VALUE_STEP
    limits = _score_limits(n, bound, high)
    limits.setflags(write=False)
    return limits


def _score_limits(n: int, bound: float, z: float) -> NDArray[np.int64]:
    """Solve ``gap^2 = z^2 (variance + slope * gap)`` for each number of disagreements.

    The gap is n * bound - net, and its variance under the null hypothesis depends on it.
    """
    n_differing = np.arange(n + 1)
    n_allowed = n * bound
    slope = n_allowed / np.maximum(n_differing, max(n_allowed, 1.0))
    # one more, so that the variance is positive even without disagreement
    variance = np.maximum(n_differing - n_allowed * bound, 0.0) + 1.0
    gap = 0.5 * (z * z * slope + np.sqrt((z * z * slope) ** 2 + 4 * z * z * variance))
    largest_net = np.floor(n_allowed - gap)
    # more disagreements never allow fewer `worse` rows
    limits = np.maximum.accumulate(largest_net + n_differing) - n_differing
    return np.asarray(limits, np.int64)


def loss_size(
    limits: NDArray[np.int64], bound: float, better_shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the exact probability of a false certificate where the loss equals the bound.

    `limits` come from :func:`loss_limits`; `better_shares`, shape (k,), are true shares of
    instances where only the system is right, from 0 to (1 - bound) / 2. Probabilities have the
    shape (k,).
    """
    n = len(limits) - 1
    error_rates = np.empty(len(better_shares))
    for share_index, better_share in enumerate(better_shares):
        differing_share = min(bound + 2 * float(better_share), 1.0)
        # six standard deviations; numbers farther away are improbable
        half_width = 6 * (n * differing_share * (1 - differing_share)) ** 0.5 + 10
        fewest_differing = max(0, int(n * differing_share - half_width))
        n_differing = np.arange(fewest_differing, min(n, int(n * differing_share + half_width)) + 1)
        most_worse = np.minimum((limits[n_differing] + n_differing) // 2, n_differing)
        worse_share = (bound + better_share) / differing_share if differing_share > 0 else 0.5
        error_rates[share_index] = stats.binom.pmf(
            n_differing, n, differing_share
        ) @ stats.binom.cdf(most_worse, n_differing, worse_share)
    return error_rates


def mean_pvalue(
    values: NDArray[np.float64],
    bound: float,
    lowest: NDArray[np.float64],
    highest: NDArray[np.float64],
    level: float,
) -> NDArray[np.float64]:
    """Test "the mean is above `bound`" by a bet against it.

    A gambler stakes ``bet * (bound - value)`` of the wealth on each row, and chooses `bet` before
    the row is seen. If the mean is above the bound, the gambler gains nothing on average. By
    Ville's inequality, one over the largest wealth is a p-value for any bets (Waudby-Smith &
    Ramdas, JRSS B 86, 2024: Estimating means of bounded random variables by betting). The bets here
    aim for the wealth ``1 / level`` at the last row, and for nothing beyond. Each bet hedges this
    all-or-nothing payment, given the wealth so far, the remaining rows and the variance so far
    (Voráček & Orabona: STaR-Bets, 2025). The test therefore rejects nearly as often as a test that
    knows the variance.

    Values are used in random order, because files are often sorted.

    `values` have shape (k, n), and `lowest` and `highest` (k,). The p-values have shape (k,).
    """
    n = values.shape[1]
    values = values[:, np.random.default_rng(0).permutation(n)]
    largest_loss = np.maximum(highest - bound, 1e-300)
    variance = np.maximum(bound - lowest, 0.0) * largest_loss  # the largest one for this range
    square_sum = PRIOR_ROWS * variance
    n_seen = PRIOR_ROWS
    log_wealth = np.zeros(len(values))
    largest_log_wealth = log_wealth.copy()
    # the fewer rows remain, the more often a hedge must change
    step_ends = np.round(n * (1 - np.linspace(1, 0, N_BETS + 1) ** 2)).astype(int)
    for start, stop in pairwise(step_ends.tolist()):
        if start == stop:
            continue
        # wealth *= 1 + bet (bound - value); the hedge is phi(z) / Phi(z) of the payment's z
        gain = bound - values[:, start:stop]
        # aim slightly above the payment, so that it is reached and not only approached
        log_target = np.log(0.97 * level) + log_wealth
        z = special.ndtri(np.exp(np.clip(log_target, -700.0, -1e-9)))
        hedge = np.exp(-0.5 * z * z - special.log_ndtr(z)) / (2 * np.pi) ** 0.5
        with np.errstate(divide="ignore", invalid="ignore"):
            bet = hedge / np.sqrt(square_sum / n_seen * (n - start))
        bet = np.minimum(np.nan_to_num(bet), MAX_STAKE / largest_loss)
        bet[largest_log_wealth >= -np.log(level)] = 0.0
        log_wealth = log_wealth + np.log1p(bet[:, None] * gain).sum(axis=1)
        largest_log_wealth = np.maximum(largest_log_wealth, log_wealth)
        square_sum = square_sum + (gain * gain).sum(axis=1)
        n_seen += stop - start
    pvalues = np.exp(-largest_log_wealth)
    pvalues[bound <= lowest] = 1.0
    pvalues[highest <= bound] = 0.0
    return pvalues
