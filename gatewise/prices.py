"""Prices of an offloaded instance beside its features, and the check of any price."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gatewise.errors import InputError

__all__ = ["CloudPrices", "check_price", "request_bytes"]


def check_price(what: str, price: float) -> None:
    """Refuse a price that is no number, not finite or below 0; `what` names it."""
    if not isinstance(price, int | float | np.number) or isinstance(price, bool):
        raise InputError(f"{what} is {price!r}, not a number")
    if not math.isfinite(price) or price < 0:
        raise InputError(f"{what} is {price}; a price must be finite and at least 0")


@dataclass(frozen=True)
class CloudPrices:
    """Prices of an offloaded instance beside its features, in the unit of the feature costs.

    Parameters
    ----------
    request, byte, evaluation : float, default 0
        Price of a request, of a byte sent up (:func:`request_bytes`), of one evaluation of
        the high-cost model. Request and bytes are the device's, paid once whoever answers.
    gateway : float, default 0
        Price of a gateway's work on an instance, where stages run on one
        (:mod:`gatewise.tiers`), whether it answers or passes the instance on.

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
    gateway: float = 0.0

    def __post_init__(self) -> None:
        for name in ("request", "byte", "evaluation", "gateway"):
            check_price(f"cloud price {name!r}", getattr(self, name))

    def of_offload(self, n_features: int) -> float:
        """Get the price of one instance with `n_features` float32 values that the cloud answers."""
        return self.request + self.evaluation + self.byte * request_bytes(n_features)

    def of_message(self, n_features: int) -> float:
        """Get the price of its request alone."""
        return self.request + self.byte * request_bytes(n_features)


def request_bytes(n_features: int, *, rows: int = 1, item_size: int = 4) -> int:
    """Estimate the bytes of an offload request's payload.

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
