"""Rules of a simulated fleet that learns, which a TOML file can set."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gatewise.documents import Positive, Record, Share, Text
from gatewise.errors import InputError
from gatewise_export.archive.choice import Purpose

_AtLeastOne = Annotated[int, Meta(ge=1)]
#: Refit settings that the simulation sets.
_RESERVED_SETTINGS: Final = ("bundle", "train", "target", "kept", "out", "seed", "version", "sign")


class LoopRules(Record, frozen=True, kw_only=True):
    """Workload, labels and conditions for refits of a simulated fleet.

    Attributes
    ----------
    days : int
        Number of days.
    instances : int
        Instances of the whole fleet per day.
    devices : int
        Number of devices. Each device downloads every release.
    audit : float
        Share of device answers that is audited, above 0.
    mix : str or None
        Shares of the classes over time, as for ``gatewise simulate``. Without a mix, instances are
        the rows of the table in order, repeated from the first row after the last.
    labels : int
        Mean number of labels that a choice requests.
    choose_for : {"estimate", "refit"}
        Purpose of most of the labels, as for ``gatewise labels choose``.
    choose_every : int
        Number of days between choices.
    label_days : int
        Number of days until the labels of a choice arrive.
    label_errors : float
        Share of labels that name a wrong class.
    refit_on : {"alarm", "labels"}
        Refit after an alarm of the monitor, or after enough new labels.
    refit_labels : int
        Minimum number of new labels of the version since its last refit.
    release : {"better", "always"}
        Release a refitted bundle only if its comparison rows show that it is better, or always.
    keep_days : float
        Number of days for which workers keep instances.
    refit : dict
        Further settings of ``gatewise refit``, such as ``high_cost``.
    seed : int
        Seed of the simulation.
    """

    days: _AtLeastOne = 14
    instances: _AtLeastOne = 1000
    devices: _AtLeastOne = 10
    audit: Annotated[float, Meta(gt=0, le=1)] = 0.1
    mix: Text | None = None
    labels: _AtLeastOne = 50
    choose_for: Purpose = "estimate"
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
            if name in _RESERVED_SETTINGS:
                raise InputError(f"refit.{name}: the simulation sets it")
