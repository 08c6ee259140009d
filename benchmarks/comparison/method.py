"""Interface of the methods in the comparison: fit on training rows, then measure points.

This project's methods, the peers and methods of users have the same interface. The comparison fits
each method on the same rows and prices, and compares the points at equal cost on test rows. A user
names a class in a file as ``FILE.py:CLASS``; see ``examples/own_method.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison.record import Point
from benchmarks.data.folds import LabelledRows, Truth
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError


class Method(Protocol):
    """Method in the comparison.

    The comparison calls the constructor, :meth:`fit` and :meth:`points`, in this order, once per
    fold. It passes the arguments of `fit` and `points` by position, and ``seed=`` to a constructor
    that has this parameter.
    """

    def fit(
        self,
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
        prices: FeatureCosts,
        validation: LabelledRows | None,
    ) -> object:
        """Fit on training rows.

        Parameters
        ----------
        rows : ndarray of shape (n, n_features)
        labels : ndarray of shape (n,)
            Class indices; for a ranking, 1 marks relevant documents.
        prices : FeatureCosts
            Prices of features and of their groups.
        validation : (rows, labels) or None
            Rows to choose points on. If None, the method reserves some of its training rows.
        """

    def points(self, rows: NDArray[np.float32], truth: Truth) -> Iterable[Point]:
        """Measure all operating points on test rows.

        Parameters
        ----------
        rows : ndarray of shape (n, n_features)
        truth : Truth
            ``truth.score(labels)`` is the accuracy. For a ranking, ``truth.score(scores)`` is AP@5.

        Returns
        -------
        iterable of Point
            Accuracy and mean cost per instance on validation and test rows, and bytes.
        """


def is_user_method(name: str) -> bool:
    """Return whether a method's name is ``FILE.py:CLASS``."""
    return ".py:" in name


def load_user_method(name: str, seed: int) -> Method:
    """Make the method ``FILE.py:CLASS`` of a user; raise InputError if that fails.

    Importing the file runs the user's code.
    """
    path, _, class_name = name.rpartition(":")
    if not Path(path).is_file():
        raise InputError(f"method {name}: there is no file {path}")
    # the prefix avoids the names of modules of this project and of Python, and the hash those of
    # users' files in other folders
    path_hash = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()
    module_name = f"user_method_{Path(path).stem}_{path_hash[:16]}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    # both exist, because Python has a loader for names that end in .py
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # dataclasses and pickle look up the module of a class by its name
    sys.modules[module_name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # a user's code may raise anything
        raise InputError(f"method {name}: {path} fails: {error}") from error
    method_class = getattr(module, class_name, None)
    if not inspect.isclass(method_class):
        raise InputError(f"method {name}: {path} has no class {class_name}")
    for function_name in ("fit", "points"):
        if not callable(getattr(method_class, function_name, None)):
            raise InputError(f"method {name}: the class has no function {function_name!r}")
    try:
        takes_seed = "seed" in inspect.signature(method_class).parameters
        return cast("Method", method_class(**({"seed": seed} if takes_seed else {})))
    except Exception as error:
        raise InputError(f"method {name}: its constructor fails: {error}") from error


def list_checked_points(name: str, points: Iterable[Any]) -> list[Point]:
    """List the points of a method; raise InputError unless all are Points with finite figures.

    All comparisons with NaN are false, so a point with NaN could be chosen as the best one.
    """
    checked_points = list(points)
    for point in checked_points:
        if not isinstance(point, Point):
            raise InputError(f"method {name}: points() gave {type(point).__name__}, not Point")
        figures = (point.val_accuracy, point.val_cost, point.accuracy, point.cost)
        if not all(math.isfinite(figure) for figure in figures):
            raise InputError(f"method {name}: points() gave a figure that is not finite: {point}")
    return checked_points
