"""Rules of a simulated fleet that learns, as a file in TOML has them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gatewise.documents import Positive, Record, Share, Text
from gatewise.errors import InputError

_AtLeastOne = Annotated[int, Meta(ge=1)]
#: Settings of a refit that the simulation sets.
_OWN: Final = ("bundle", "train", "target", "kept", "out", "seed", "version", "sign")


class LoopRules(Record, frozen=True, kw_only=True):
    """What a fleet does each day, and when it is refitted.

    Attributes
    ----------
    days : int
        Simulated days.
    instances : int
        Instances of the whole fleet per day.
    devices : int
        Devices, each of which downloads a release.
    audit : float
        Share of the devices' own answers that is audited, above 0.
    mix : str or None
        Shares of the classes over time, as for ``gatewise simulate``; without it, the rows come in
        the order of the table, from its first row again after the last.
    labels : int
        Labels that a choice asks for, on average.
    choose_every : int
        Days from one choice to the next.
    label_days : int
        Days until the labels of a choice come.
    label_errors : float
        Share of labels that name another class.
    refit_on : {"alarm", "labels"}
        Refit at an alarm of the monitor, or whenever there are enough new labels.
    refit_labels : int
        Labels of the version that must have come since its last refit.
    release : {"better", "always"}
        Publish only a bundle that its held rows show to be better, or any.
    keep_days : float
        Days for which workers keep instances.
    refit : dict
        Further settings of ``gatewise refit``, such as ``high_cost``.
    seed : int
        Seed of all random numbers.
    """

    days: _AtLeastOne = 14
    instances: _AtLeastOne = 1000
    devices: _AtLeastOne = 10
    audit: Annotated[float, Meta(gt=0, le=1)] = 0.1
    mix: Text | None = None
    labels: _AtLeastOne = 50
    choose_every: _AtLeastOne = 1
    label_days: Annotated[int, Meta(ge=0)] = 1
    label_errors: Share = 0.0
    refit_on: Literal["alarm", "labels"] = "alarm"
    refit_labels: Annotated[int, Meta(ge=20)] = 100
    release: Literal["better", "always"] = "better"
    keep_days: Positive = 30.0
    refit: dict[str, Any] = msgspec.field(default_factory=dict)
    seed: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        for name in self.refit:
            if name in _OWN:
                raise InputError(f"refit.{name}: the simulation sets it")
