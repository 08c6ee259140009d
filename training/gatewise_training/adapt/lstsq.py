"""Adapt-LSTSQ: Adapt-LIN with a squared distance between the gate and the log odds of q.

In addition to the Kullback-Leibler divergence, Nan & Saligrama (NIPS 2017, sections 3 and 4)
mention "another symmetrized metric fitting g directly to the log odds ratio of q", and a third
algorithm that uses it. They describe it in a supplement that is not available. This module
reconstructs it. The gate g and the low-cost model f1 are linear, q are the free probabilities of
offloads, and OPT is the problem of :mod:`.qstep`:

- the distance is ``D(q, g) = (log(q / (1 - q)) - g)^2``, with weight 1;
- OPT, the alternation and the penalty over the rows of ``[f1, g]`` are the same as in Adapt-LIN,
  because all algorithms of the paper minimise OPT alternately;
- the q-step has the losses of OPT without the gate's log loss, which is part of the divergence
  that this distance replaces (:func:`gatewise_training.adapt.qstep.q_step_log_odds`).

The M-step is then a weighted logistic regression for f1 and least squares for g.
"""

from __future__ import annotations

from typing import ClassVar

from gatewise.errors import InputError
from gatewise_training.adapt.lin import AdaptLin
from gatewise_training.adapt.qstep import Distance, LogOdds


class AdaptLstsq(AdaptLin):
    """Linear gate and low-cost model; the gate fits the log odds of q by least squares.

    Nan & Saligrama, "Adaptive classification for prediction under a budget", NIPS 2017, sections 3
    and 4.

    Further parameters: :class:`.CascadeClassifier` and, for windows, :class:`.WindowSettings`.

    Parameters
    ----------
    penalties, stop, accounting, refit, n_starts
        As for :class:`AdaptLin`.
    p_full : sequence of float, optional
        As for :class:`AdaptLin`, but above 0, because the log odds of 0 are infinite.

    Notes
    -----
    The algorithm is reconstructed, because the supplement of the paper is not available. It differs
    from Adapt-LIN in its distance, ``(log(q / (1 - q)) - g)^2``.
    """

    _distance: ClassVar[Distance] = LogOdds()

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.p_full is not None and min(self.p_full) == 0.0:
            raise InputError(
                "p_full must be above 0 for AdaptLstsq, because the log odds of 0 are infinite"
            )
