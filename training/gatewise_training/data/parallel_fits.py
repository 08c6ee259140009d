"""Parallel fits under any backend of joblib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib


class SharedData:
    """Data that all fits of a run read, such as the rows; a cluster sends it once to each worker.

    The backend of Dask sends arguments once if their size is large. It measures only the object
    itself, without its arrays, so that `__sizeof__` returns a large size. With the `backend` of
    Ray, the data is in the object store of Ray.
    """

    def __init__(self, data: Any, backend: object = None) -> None:
        self.data = data
        self._reference: Any = None
        if type(backend).__module__.startswith("ray."):
            import ray

            self._reference = ray.put(data)

    def __sizeof__(self) -> int:
        return 1 << 20

    def __reduce__(self) -> tuple[Callable[..., SharedData], tuple[Any, ...]]:
        if self._reference is None:
            return SharedData, (self.data,)
        return _from_object_store, (self._reference,)


def _from_object_store(reference: Any) -> SharedData:
    import ray

    return SharedData(ray.get(reference))


def parallel_results(
    fits: Iterable[Any], *, shared_data: Any = None, **options: Any
) -> Iterator[Any]:
    """Run ``joblib.delayed`` fits under the backend of the caller's ``parallel_config``.

    Results are in the order of the fits. The backends of joblib and Dask return them one by one,
    which allows progress reports. The backends of Ray and Spark return all of them at the end.

    Parameters
    ----------
    fits : iterable of joblib.delayed calls
    shared_data : object, optional
        First argument of every fit, before its other arguments. A cluster sends it once per
        worker.
    **options
        Options of ``joblib.Parallel``.
    """
    if shared_data is not None:
        wrapped_data = SharedData(shared_data, joblib.parallel.get_active_backend()[0])
        fits = (
            joblib.delayed(_fit_with)(wrapped_data, function, *arguments, **keywords)
            for function, arguments, keywords in fits
        )
    try:
        parallel = joblib.Parallel(return_as="generator", **options)
    except ValueError:  # the backend has no generators
        parallel = joblib.Parallel(**options)
    yield from parallel(fits)


def _fit_with(
    shared_data: SharedData, function: Callable[..., Any], *arguments: Any, **keywords: Any
) -> Any:
    return function(shared_data.data, *arguments, **keywords)
