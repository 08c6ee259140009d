"""Package names that load their module on first use (PEP 562).

``from gatewise_export import pack`` works, and yet ``import gatewise_edge`` on a device
does not drag in scikit-learn: a package lists where its public names live, and a name's
module is imported when the name is first touched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's ``__getattr__`` and ``__dir__``.

    Parameters
    ----------
    package : str
        The package's own ``__name__``.
    homes : mapping of str to str
        Public name to the module, relative to the package, that defines it.

    Returns
    -------
    tuple of two callables
        ``__getattr__`` and ``__dir__`` for the package.

    Examples
    --------
    >>> getattr_, dir_ = lazy_names("json", {"JSONDecoder": "decoder"})
    >>> getattr_("JSONDecoder").__name__
    'JSONDecoder'
    >>> dir_()
    ['JSONDecoder']
    """

    def __getattr__(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home}"), name)

    def __dir__() -> list[str]:
        return sorted(homes)

    return __getattr__, __dir__
