"""Parallel fits under any backend of joblib.

Training modules give their fits to :func:`parallel_results`, and users choose the backend with
``joblib.parallel_config``: local processes or threads, or a cluster of Dask, Ray or Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib

#: Bytes that an argument claims to have, far above the 1000 from which joblib's backend of Dask
#: sends an argument once to each worker, instead of with each fit.
LARGE_SIZE = 1 << 20


class SharedArgument:
    """An argument of all fits, such as the rows, that a cluster sends once to each worker.

    The backend of Dask does so for large arguments. It measures only the object itself, without its
    arrays, so `__sizeof__` returns :data:`LARGE_SIZE`. For the `backend` of Ray, the argument is
    put in Ray's object store, and a pickle has only the reference to it.
    """

    def __init__(self, argument: Any, backend: object = None) -> None:
        self.argument = argument
        self._ray_reference: Any = None
        # by the module's name, because Ray is not installed everywhere and is slow to import
        if type(backend).__module__.startswith("ray."):
            import ray

            self._ray_reference = ray.put(argument)

    def __sizeof__(self) -> int:
        return LARGE_SIZE

    def __reduce__(self) -> tuple[Callable[..., SharedArgument], tuple[Any, ...]]:
        if self._ray_reference is None:
            return SharedArgument, (self.argument,)
        return _read_from_object_store, (self._ray_reference,)


def _read_from_object_store(ray_reference: Any) -> SharedArgument:
    import ray

    return SharedArgument(ray.get(ray_reference))


def parallel_results(
    fits: Iterable[Any], *, shared_data: Any = None, **options: Any
) -> Iterator[Any]:
    """Run ``joblib.delayed`` fits under the backend of the caller's ``parallel_config``.

    Results are in the order of the fits. No fit starts before the first result is asked for. The
    backends of joblib and Dask return results one by one, which allows progress reports. The
    backends of Ray and Spark return all of them at the end.

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
        active_backend, _ = joblib.parallel.get_active_backend()
        shared_argument = SharedArgument(shared_data, active_backend)
        # a fit of joblib.delayed is a tuple of a function, its arguments and its keywords
        fits = (
            joblib.delayed(_call_with_shared)(shared_argument, function, *arguments, **keywords)
            for function, arguments, keywords in fits
        )
    try:
        parallel = joblib.Parallel(return_as="generator", **options)
    except ValueError:  # the backend has no generators; wrong options raise again below
        parallel = joblib.Parallel(**options)
    yield from parallel(fits)


def _call_with_shared(
    shared_argument: SharedArgument,
    function: Callable[..., Any],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    return function(shared_argument.argument, *arguments, **keywords)
