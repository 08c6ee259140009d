"""Parallel fits under any backend of joblib, with results one by one where it has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import joblib


def parallel_results(fits: Iterable[Any], **options: Any) -> Iterator[Any]:
    """Run ``joblib.delayed`` fits under the backend of the caller's ``parallel_config``.

    Results keep the order of the fits. They arrive one by one, for progress reports, from the
    backends of joblib and dask; backends that other libraries derive from joblib's (Ray, Spark)
    return them together at the end.

    Parameters
    ----------
    fits : iterable of joblib.delayed calls
    **options
        Of ``joblib.Parallel``.
    """
    try:
        parallel = joblib.Parallel(return_as="generator", **options)
    except ValueError:  # the backend has no generators
        parallel = joblib.Parallel(**options)
    yield from parallel(fits)
