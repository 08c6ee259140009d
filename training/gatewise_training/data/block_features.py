"""Blocks as a transformer of scikit-learn: windows in, features out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from gatewise_signals.blocks.block import Block
from gatewise_signals.signal_input import SignalInput


class BlockFeatures(TransformerMixin, BaseEstimator):
    """Compute blocks' features of windows, for models that are not Gatewise's.

    Parameters
    ----------
    blocks : sequence of Block
        As `StagedCascade(blocks=...)` takes them.

    Attributes
    ----------
    signal_input_ : SignalInput
        The blocks with their prices, and the windows that they take.

    Raises
    ------
    InputError
        If windows do not fit the blocks, or are not an array of numbers.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> import gatewise_signals as sig
    >>> windows = np.sin(np.arange(1, 9)[:, None] * np.arange(64))
    >>> blocks = [sig.Mean(sig.Channels()), sig.Statistics(sig.Channels())]
    >>> model = make_pipeline(BlockFeatures(blocks), LogisticRegression())
    >>> model.fit(windows, np.arange(8) % 2).predict(windows).shape
    (8,)
    """

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks = blocks

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Take the windows' shape, and measure blocks without a price.

        Parameters
        ----------
        X : array-like of shape (n, ...)
            Windows: an array, a list of arrays or DataFrames of equal length, or a DataFrame with
            an index (instance, time).
        y : ignored

        Returns
        -------
        self
        """
        self.signal_input_ = SignalInput.from_windows(self.blocks, X)
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Compute the features of windows.

        Parameters
        ----------
        X : array-like of shape (n, ...)
            Windows, as :meth:`fit` takes them.

        Returns
        -------
        ndarray of float32, shape (n, n_features)
        """
        check_is_fitted(self)
        return self.signal_input_.features(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the features.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        ndarray of object, shape (n_features,)
        """
        check_is_fitted(self)
        return np.array(self.signal_input_.feature_names, object)
