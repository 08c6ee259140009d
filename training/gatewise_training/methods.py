"""Methods by name, for the command line and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import gatewise_training
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_training.cascades.base import BudgetedClassifier
    from gatewise_training.cascades.cascade import CascadeClassifier

_CASCADES = {
    "staged": "StagedCascade",
    "adapt-gbrt": "AdaptGBRT",
    "adapt-lin": "AdaptLin",
    "adapt-lstsq": "AdaptLstsq",
    "l1": "L1Cascade",
    "confidence": "ConfidenceCascade",
}
_METHODS = _CASCADES | {  # single models have no cloud
    "cegb": "CEGBClassifier",
    "budget-forest": "BudgetForest",
    "budget-prune": "BudgetPrune",
    "greedy-miser": "GreedyMiser",
}


def names() -> tuple[str, ...]:
    """List the methods of :func:`make`; the recommended method is first, single models are last.

    >>> names()[0], names()[-4:]
    ('staged', ('cegb', 'budget-forest', 'budget-prune', 'greedy-miser'))
    """
    return tuple(_METHODS)


def cascades() -> tuple[str, ...]:
    """List the methods that have a high-cost model in the cloud.

    >>> cascades()
    ('staged', 'adapt-gbrt', 'adapt-lin', 'adapt-lstsq', 'l1', 'confidence')
    """
    return tuple(_CASCADES)


def make(name: str, **params: Any) -> BudgetedClassifier:
    """Make an unfitted budgeted model by the name of its method.

    >>> make("staged", n_stages=3, random_state=0)
    StagedCascade(n_stages=3, random_state=0)
    """
    if name not in _METHODS:
        raise InputError(f"no method {name!r}; there are {', '.join(_METHODS)}")
    method_class = getattr(gatewise_training, _METHODS[name])  # loaded on first use
    unknown_params = [param for param in params if param not in method_class._get_param_names()]
    if unknown_params:
        raise InputError(f"method {name} has no parameter {unknown_params[0]!r}")
    model: BudgetedClassifier = method_class(**params)
    return model


def cascade(name: str, **params: Any) -> CascadeClassifier:
    """Make an unfitted cascade by the name of its method.

    >>> cascade("cegb")
    Traceback (most recent call last):
        ...
    gatewise.errors.InputError: method 'cegb' has no cloud; methods with a cloud are staged, ...
    """
    if name in _METHODS and name not in _CASCADES:
        raise InputError(
            f"method {name!r} has no cloud; methods with a cloud are {', '.join(_CASCADES)}"
        )
    return cast("CascadeClassifier", make(name, **params))
