"""Queries with documents of a relevance that can be learned."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw_queries(seed: int, n_queries: int = 60) -> tuple[Any, Any, Any]:
    """Draw documents; their relevance grows with the first three of six features.

    Returns features, grades and query ids.
    """
    rng = np.random.default_rng(seed)
    qid = np.repeat(np.arange(n_queries), rng.integers(5, 13, n_queries))
    x = rng.normal(size=(len(qid), 6)).astype(np.float32)
    relevance = x[:, 0] + 0.7 * x[:, 1] + 0.5 * x[:, 2] + 0.5 * rng.normal(size=len(qid))
    return x, np.digitize(relevance, [0.3, 1.5]), qid
