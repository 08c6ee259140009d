"""Methods by name, for the command line and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatewise_training.errors import InputError

if TYPE_CHECKING:
    from gatewise_training.cascade import Cascade

__all__ = ["make", "names"]

_METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "staged": ("gatewise_training.staged", "StagedCascade", {}),
    "staged-lazy": ("gatewise_training.staged", "StagedCascade", {"acquisition": "node"}),
    "adapt-gbrt": ("gatewise_training.adapt.gbrt", "AdaptGBRT", {}),
    "adapt-lin": ("gatewise_training.adapt.lin", "AdaptLin", {}),
    "adapt-lstsq": ("gatewise_training.adapt.lstsq", "AdaptLstsq", {}),
    "l1": ("gatewise_training.adapt.l1", "L1Cascade", {}),
    "confidence": ("gatewise_training.confidence", "ConfidenceCascade", {}),
}


def names() -> tuple[str, ...]:
    """Names that :func:`make` knows, the recommended first.

    Examples
    --------
    >>> names()
    ('staged', 'staged-lazy', 'adapt-gbrt', 'adapt-lin', 'adapt-lstsq', 'l1', 'confidence')
    """
    return tuple(_METHODS)


def make(name: str, **params: Any) -> Cascade:
    """Make an unfitted cascade by the name of its method.

    Raises
    ------
    InputError
        If there is no such method.

    Examples
    --------
    >>> make("staged", n_stages=3, random_state=0)
    StagedCascade(n_stages=3, random_state=0)
    """
    import importlib

    if name not in _METHODS:
        raise InputError(f"no method {name!r}; there are {', '.join(_METHODS)}")
    module, cls, settings = _METHODS[name]
    cascade: Cascade = getattr(importlib.import_module(module), cls)(**settings | params)
    return cascade
