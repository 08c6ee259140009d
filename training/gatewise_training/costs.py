"""What things cost: features and feature groups, requests, bytes and cloud evaluations.

One definition for training, device, cloud and simulator, in numpy alone so that a device
can read it. For one instance, acquiring the set ``S`` of features costs::

    sum(own[k] for k in S) + sum(shared[g] for g in groups touched by S)

An instance that is offloaded also pays for the features of the high-cost model that the
device has not bought yet, and the prices of :class:`CloudPrices`.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise_training.errors import InputError

__all__ = ["CloudPrices", "FeatureCosts", "request_bytes"]

Label = int | str


@dataclass(frozen=True)
class CloudPrices:
    """What one offloaded instance pays beside its features, in the unit of the feature costs.

    Parameters
    ----------
    request, byte, evaluation : float, default 0
        Price of a request, of a byte sent up (:func:`request_bytes`), of one evaluation of
        the high-cost model.

    Raises
    ------
    InputError
        If a price is negative or not finite.

    Examples
    --------
    >>> CloudPrices(request=1.0, byte=0.01).of_offload(n_features=16)
    2.24
    """

    request: float = 0.0
    byte: float = 0.0
    evaluation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("request", "byte", "evaluation"):
            _check_price(f"cloud price {name!r}", getattr(self, name))

    def of_offload(self, n_features: int) -> float:
        """Price of sending one instance with `n_features` float32 values to the cloud."""
        return self.request + self.evaluation + self.byte * request_bytes(n_features)


def request_bytes(n_features: int, *, rows: int = 1, item_size: int = 4) -> int:
    """Bytes of an offload request's payload on the wire, as a formula.

    The message is a CBOR map (docs/wire.md): fields of fixed size take about 60 bytes,
    the matrix ``rows * n_features * item_size`` bytes. A test of the wire holds this
    within 5 % of the real message; MQTT's own header (topic and 2 to 5 bytes) is not in it.

    Parameters
    ----------
    n_features : int
        Columns of the matrix: the number of the high-cost model's features.
    rows : int, default 1
        Instances in the message.
    item_size : {4, 2}, default 4
        Bytes a value: 4 for float32, 2 for float16.

    Examples
    --------
    >>> request_bytes(16), request_bytes(16, rows=10)
    (124, 700)
    """
    return 60 + rows * n_features * item_size


class FeatureCosts:
    """Prices of features and of feature groups.

    Parameters
    ----------
    own : array-like of shape (n_features,)
        What feature ``k`` costs by itself, at least 0.
    group : sequence of n_features labels, optional
        The group of each feature: an int, a str, or None (as -1) for no group. A group's
        shared price is paid once, when the first of its features is acquired.
    shared : mapping of label to price, or sequence indexed by int label, optional
        Shared price of each group; groups that are not listed share no price.
    names : sequence of str, optional
        The features' names, for messages and for matching a table's columns.

    Attributes
    ----------
    own : ndarray of float64, shape (n_features,)
    group : ndarray of intp, shape (n_features,)
        Index into `group_names`, -1 for no group.
    shared : ndarray of float64, shape (n_groups,)
    group_names : tuple of str
    names : tuple of str or None

    Raises
    ------
    InputError
        If a price is negative, NaN or infinite, a length does not match, a name is double, or
        a shared price names a group that no feature belongs to. The message names the culprit.

    Examples
    --------
    A blood sample costs 2.10, each test on it its own price:

    >>> costs = FeatureCosts([1.0, 5.17, 3.10], group=[None, "blood", "blood"],
    ...                      shared={"blood": 2.10}, names=["age", "chol", "fbs"])
    >>> round(costs.of([1, 2]), 2)
    10.37
    >>> round(costs.total, 2)
    11.37
    """

    def __init__(
        self,
        own: ArrayLike,
        *,
        group: Sequence[Label | None] | NDArray[Any] | None = None,
        shared: Mapping[Any, float] | Sequence[float] | NDArray[Any] | None = None,
        names: Iterable[str] | None = None,
    ) -> None:
        self.names = None if names is None else tuple(str(n) for n in names)
        self.own = _own_prices(own, self.names)
        n = len(self.own)
        if self.names is not None:
            if len(self.names) != n:
                raise InputError(f"{n} feature costs but {len(self.names)} feature names")
            doubles = {x for x in self.names if self.names.count(x) > 1}
            if doubles:
                raise InputError(f"feature name {sorted(doubles)[0]!r} stands twice in the costs")
        labels = [None] * n if group is None else [_label(g) for g in group]
        if len(labels) != n:
            raise InputError(f"{n} feature costs but {len(labels)} group labels")
        prices = _shared_prices(shared)
        present = list(dict.fromkeys(g for g in labels if g is not None))
        unknown = [g for g in prices if g not in present and prices[g] != 0.0]
        if unknown:
            raise InputError(f"shared price of group {unknown[0]!r}, but no feature is in it")
        self.group_names: tuple[str, ...] = tuple(str(g) for g in present)
        if len(set(self.group_names)) != len(present):
            raise InputError("two groups have the same name; use either numbers or strings")
        self.group = np.array([-1 if g is None else present.index(g) for g in labels], np.intp)
        self.shared = np.array([prices.get(g, 0.0) for g in present], np.float64)
        for array in (self.own, self.group, self.shared):
            array.setflags(write=False)

    # -- ways in ---------------------------------------------------------------------------

    @classmethod
    def uniform(cls, n_features: int, price: float = 1.0) -> FeatureCosts:
        """Every feature costs `price`; no groups.

        Examples
        --------
        >>> FeatureCosts.uniform(16).total
        16.0
        """
        return cls(np.full(n_features, price))

    @classmethod
    def from_file(cls, path: str | Path, *, names: Sequence[str] | None = None) -> FeatureCosts:
        """Read prices from a TOML or CSV file.

        TOML: a table ``[features]`` of ``name = price`` or ``name = {own = price, group =
        "g"}``, and ``[groups]`` of ``g = shared price``. CSV: a header with ``feature`` and
        ``own`` and, if wanted, ``group`` and ``shared`` (the same on each row of a group).

        Parameters
        ----------
        path : str or Path
            The file; its ending (.toml or .csv) tells the format.
        names : sequence of str, optional
            The features that must be priced, in the order wanted (a table's columns).

        Raises
        ------
        InputError
            If the file is missing or malformed, or if a feature is unknown or has no price.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"costs file {path} does not exist")
        readers = {".toml": _read_toml, ".csv": _read_csv}
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise InputError(f"costs file {path}: the ending must be .toml or .csv")
        try:
            features, groups = reader(path)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"costs file {path}: {error}") from error
        if not features:
            raise InputError(f"costs file {path} lists no feature")
        order = list(features)
        if names is not None:
            order = [str(n) for n in names]
            missing = [n for n in order if n not in features]
            if missing:
                raise InputError(f"costs file {path} has no price for feature {missing[0]!r}")
            extra = [n for n in features if n not in order]
            if extra:
                raise InputError(f"costs file {path} prices an unknown feature {extra[0]!r}")
        return cls(
            [features[n][0] for n in order],
            group=[features[n][1] for n in order],
            shared=groups,
            names=order,
        )

    # -- reading ---------------------------------------------------------------------------

    @property
    def n_features(self) -> int:
        """Number of features priced."""
        return len(self.own)

    @property
    def total(self) -> float:
        """Price of acquiring every feature: what always asking the cloud costs."""
        return self.of(np.arange(self.n_features))

    def mask(self, features: ArrayLike) -> NDArray[np.bool_]:
        """Indices (or a mask) of features as a mask of shape (n_features,)."""
        chosen = np.zeros(self.n_features, bool)
        index = np.asarray(features)
        chosen[index if index.dtype == bool else index.astype(np.intp)] = True
        return chosen

    def of(self, features: ArrayLike, bought: ArrayLike | None = None) -> float:
        """Price of acquiring `features` when `bought` ones are already paid.

        Parameters
        ----------
        features, bought : array-like
            Indices of features, or masks of shape (n_features,).

        Returns
        -------
        float
            Own prices of the new features and shared prices of the groups newly touched.
        """
        new = self.mask(features)
        groups = self._touched(new)
        if bought is not None:
            old = self.mask(bought)
            new &= ~old
            groups &= ~self._touched(old)
        return math.fsum([*self.own[new].tolist(), *self.shared[groups].tolist()])

    def per_instance(self, acquired: ArrayLike) -> NDArray[np.float64]:
        """Cost of each instance, given which features it acquired.

        Parameters
        ----------
        acquired : array-like of bool, shape (n_instances, n_features)

        Returns
        -------
        ndarray of float64, shape (n_instances,)
        """
        acquired = np.asarray(acquired, bool)
        cost: NDArray[np.float64] = acquired @ self.own
        for g in np.flatnonzero(self.shared):
            cost = cost + self.shared[g] * acquired[:, self.group == g].any(axis=1)
        return cost

    def members(self, feature: int) -> NDArray[np.intp]:
        """Features bought together with `feature`: those of its group, or itself alone."""
        g = self.group[feature]
        return np.array([feature]) if g < 0 else np.flatnonzero(self.group == g)

    def _touched(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        touched = np.zeros(len(self.shared), bool)
        ids = self.group[mask]
        touched[ids[ids >= 0]] = True
        return touched

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureCosts):
            return NotImplemented
        return (
            self.names == other.names
            and self.group_names == other.group_names
            and np.array_equal(self.own, other.own)
            and np.array_equal(self.group, other.group)
            and np.array_equal(self.shared, other.shared)
        )

    def __hash__(self) -> int:
        return hash((self.own.tobytes(), self.group.tobytes(), self.shared.tobytes()))

    def __repr__(self) -> str:
        groups = f", {len(self.shared)} groups" if len(self.shared) else ""
        return f"FeatureCosts({self.n_features} features{groups}, total {self.total:g})"


def _check_price(what: str, price: float) -> None:
    if not isinstance(price, int | float | np.number) or isinstance(price, bool):
        raise InputError(f"{what} is {price!r}, not a number")
    if not math.isfinite(price) or price < 0:
        raise InputError(f"{what} is {price}; a price must be finite and at least 0")


def _own_prices(own: ArrayLike, names: tuple[str, ...] | None) -> NDArray[np.float64]:
    try:
        prices = np.array(own, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"feature costs must be numbers: {error}") from error
    if prices.ndim != 1 or not len(prices):
        raise InputError(f"feature costs must be a list of prices, not of shape {prices.shape}")
    for k, price in enumerate(prices):
        name = repr(names[k]) if names is not None and k < len(names) else str(k)
        _check_price(f"the cost of feature {name}", float(price))
    return prices


def _label(group: Any) -> Label | None:
    if group is None or (isinstance(group, float) and math.isnan(group)):
        return None
    if isinstance(group, int | np.integer):
        return None if group < 0 else int(group)
    return str(group) or None


def _shared_prices(shared: Any) -> dict[Label, float]:
    if shared is None:
        return {}
    items = shared.items() if isinstance(shared, Mapping) else enumerate(shared)
    prices: dict[Label, float] = {}
    for group, price in items:
        label = _label(group)
        if label is None:
            raise InputError(f"shared price of group {group!r}: not a group")
        _check_price(f"the shared price of group {group!r}", price)
        prices[label] = float(price)
    return prices


_Table = tuple[dict[str, tuple[float, str | None]], dict[Label, float]]


def _read_toml(path: Path) -> _Table:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = set(document) - {"features", "groups"}
    if unknown:
        raise InputError(f"costs file {path}: unknown table [{sorted(unknown)[0]}]")
    features: dict[str, tuple[float, str | None]] = {}
    for name, entry in document.get("features", {}).items():
        table = entry if isinstance(entry, dict) else {"own": entry}
        unknown = set(table) - {"own", "group"}
        if unknown:
            raise InputError(f"costs file {path}: feature {name!r}: unknown {sorted(unknown)[0]!r}")
        _check_price(f"the cost of feature {name!r}", table.get("own", 0.0))
        group = table.get("group")
        features[name] = (float(table.get("own", 0.0)), None if group is None else str(group))
    return features, {str(g): price for g, price in document.get("groups", {}).items()}


def _read_csv(path: Path) -> _Table:
    features: dict[str, tuple[float, str | None]] = {}
    groups: dict[Label, float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        for wanted in ("feature", "own"):
            if wanted not in (reader.fieldnames or ()):
                raise InputError(f"costs file {path}: no column {wanted!r}")
        for row in reader:
            where = f"costs file {path}, line {reader.line_num}"
            name = row["feature"]
            if not name or name in features:
                raise InputError(f"{where}: feature {name!r} is empty or stands twice")
            group = row.get("group") or None
            features[name] = (_number(row["own"], f"{where}: cost of {name!r}"), group)
            if group is not None and row.get("shared"):
                price = _number(row["shared"], f"{where}: shared price of {group!r}")
                if groups.setdefault(group, price) != price:
                    raise InputError(f"{where}: group {group!r} has two shared prices")
    return features, groups


def _number(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"{where} is {text!r}, not a number") from None
