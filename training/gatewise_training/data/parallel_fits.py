"""Parallel fits under any backend of joblib, with results one by one where it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib


class SharedData:
    """Data that all fits of a run read, such as the rows; a cluster sends it once to each worker.

    Dask's backend does so with arguments whose size is large. It asks for the size of the object
    alone, without its arrays. Under Ray's `backend` the data is in Ray's object store.
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


def parallel_results(fits: Iterable[Any], *, shared: Any = None, **options: Any) -> Iterator[Any]:
    """Run ``joblib.delayed`` fits under the backend of the caller's ``parallel_config``.

    Results keep the order of the fits. They arrive one by one, for progress reports, from the
    backends of joblib and dask; backends that other libraries derive from joblib's (Ray, Spark)
    return them together at the end.

    Parameters
    ----------
    fits : iterable of joblib.delayed calls
    shared : object, optional
        First argument of every fit, in front of its own. A cluster gets it once per worker.
    **options
        Of ``joblib.Parallel``.
    """
    if shared is not None:
        data = SharedData(shared, joblib.parallel.get_active_backend()[0])
        fits = (
            joblib.delayed(_fit_with)(data, function, *arguments, **named)
            for function, arguments, named in fits
        )
    try:
        parallel = joblib.Parallel(return_as="generator", **options)
    except ValueError:  # the backend has no generators
        parallel = joblib.Parallel(**options)
    yield from parallel(fits)


def _fit_with(
    shared: SharedData, function: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    return function(shared.data, *arguments, **named)
