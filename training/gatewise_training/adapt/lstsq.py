"""Adapt-LSTSQ: Adapt-LIN with a squared distance between the gate and the log odds of q.

Nan & Saligrama (NIPS 2017, sections 3 and 4) name, beside the Kullback-Leibler divergence,
"another symmetrized metric fitting g directly to the log odds ratio of q", and a third
algorithm that uses it, described in a supplement that is not to be had. Reconstructed here:

- the distance is ``D(q, g) = (log(q / (1 - q)) - g)^2``, with weight 1, as the text says;
- OPT and the alternation are those of Adapt-LIN, and so is the penalty over the rows of
  ``[f1, g]``, since the paper says that all of its algorithms minimise OPT alternately;
- the losses of OPT stand alone in the q-step. In Adapt-LIN they meet the gate's log loss
  there, which is part of the divergence that this distance replaces.

The M-step then is a weighted logistic regression for f1 and least squares for g. The q-step is
a problem in one dimension for each row, with one multiplier for the bound on the mean
(:func:`gatewise_training.adapt.qstep.q_step_log_odds`).
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

    Further parameters are those of all cascades (:class:`.CascadeClassifier`) and of those on
    windows (:class:`.WindowSettings`).

    Parameters
    ----------
    penalties, stop, refit, n_starts, max_alternations, tol
        As for :class:`AdaptLin`.
    p_full : sequence of float, optional
        As for :class:`AdaptLin`; above 0, where log odds are finite.

    Notes
    -----
    What was reconstructed, since the paper's supplement is not available: the distance
    ``(log(q / (1 - q)) - g)^2`` with weight 1, and that the rest is as in Adapt-LIN.
    """

    _distance: ClassVar[Distance] = LogOdds()

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.p_full is not None and min(self.p_full) == 0.0:
            raise InputError("p_full must be above 0 for AdaptLstsq: log odds must be finite")
