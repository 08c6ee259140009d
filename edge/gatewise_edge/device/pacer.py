"""Move the gate's threshold so that a budget is kept while the data drift.

The gate is the last stage before an instance leaves the device. The pacer keeps the latest scores
at the gate and sets the threshold at their quantile of order v, so v is the share of those
instances that is offloaded: it has no unit, and follows a drift of the scores at once. v is found
by dual ascent on what was used against what was allowed::

    v    <- clip(v + step * (allowed - debt / horizon - used), 0, 1)
    debt <- clip(debt + used - allowed)

all in offloads: bytes and costs are divided by those of one offload. The first line alone is the
quantile tracker of online conformal prediction; its mean error over T instances is at most
``1 / (step * T)`` for ANY sequence, unless v is at an end (Gibbs and Candes 2021, Proposition 4.1;
Angelopoulos, Candes, Tibshirani 2023). The debt, repaid over a horizon, makes up for what was used
too much on the way. Only the gate moves: raising its threshold can only offload more instances,
whereas moving an earlier stage's also changes which instances reach it.

A threshold that moves is not the one that was validated: no guarantee of the operating point
holds any more, and answers are marked ``paced``. Where the bundle bounds the recall or precision of
classes, the threshold stays within the limits that the operating point names: these bounds come
before the budget.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger(__name__)

#: Seconds between two writes of the state: memory cards wear out.
_EVERY: Final = 60.0
_REMEMBERED: Final = 512
#: Scores that must have been seen before the threshold is moved.
_WARM: Final = 64
#: The step as a part of the allowed offload rate, and its bounds: small enough that the threshold
#: is quiet, large enough to follow within some hundred instances at usual rates.
_STEP: Final = 0.1
_STEPS: Final = (0.001, 0.02)
#: Horizon times step. Above 4 the loop of the two lines above does not swing.
_DAMPING: Final = 10.0
#: Time between instances is averaged over about so many.
_GAPS: Final = 100
_LONGEST_GAP: Final = 10.0
#: What was not used in the past may be used later only up to this part of an hour's budget.
_CREDIT: Final = 0.1

_BUDGETS: Final[dict[str, tuple[Literal["offloads", "bytes", "cost"], bool]]] = {
    "offload_rate": ("offloads", False),
    "bytes": ("bytes", False),
    "cost": ("cost", False),
    "offloads_per_hour": ("offloads", True),
    "bytes_per_hour": ("bytes", True),
    "cost_per_hour": ("cost", True),
}


Limits = tuple[float | None, float | None]


def _or_never(threshold: float | None) -> float:
    return math.inf if threshold is None else threshold


@dataclass(frozen=True, slots=True)
class PacerBudget:
    """What may be used, an instance or an hour.

    `name`: ``offload_rate``, ``bytes`` or ``cost`` an instance, or ``offloads_per_hour``,
    ``bytes_per_hour`` or ``cost_per_hour``. Bytes are payload, up and down; costs are those of
    answers, features included. Raises InputError if there is no such budget, or the amount is out
    of range.
    """

    name: str
    amount: float

    def __post_init__(self) -> None:
        if self.name not in _BUDGETS:
            raise InputError(f"pacer: no budget {self.name!r}; choose one of {', '.join(_BUDGETS)}")
        if not 0 < self.amount < math.inf:
            raise InputError(f"pacer: {self.name} is {self.amount}; give a positive number")
        if self.name == "offload_rate" and self.amount >= 1:
            raise InputError(f"pacer: offload_rate is {self.amount}; it must be below 1")

    @property
    def metric(self) -> Literal["offloads", "bytes", "cost"]:
        """What is counted."""
        return _BUDGETS[self.name][0]

    @property
    def hourly(self) -> bool:
        """Whether it is for an hour, not for an instance."""
        return _BUDGETS[self.name][1]


class Pacer:
    """Keep a `budget` over time, over bundles and, with a :class:`PacerFile`, restarts.

    `debt` is the number of offloads made too many, less those not made; bounded.

    >>> pacer = Pacer.parse("offload_rate=0.25")
    >>> pace = pacer.attach("digits/7", threshold=1.0, local=5.0, offload=9.0, bytes=200.0)
    >>> pace.threshold() is pace.packed, pace.moved
    (True, False)
    """

    def __init__(self, budget: PacerBudget) -> None:
        self.budget = budget
        self.debt = 0.0
        self.pace: Pace | None = None
        self._saved: Mapping[str, Any] | None = None
        self.lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Make one from `text`, as ``offload_rate=0.1``; InputError if there is no such budget."""
        name, _, amount = text.partition("=")
        try:
            number = float(amount)
        except ValueError:
            raise InputError(
                f"pacer: {text!r}; give a budget as offload_rate=0.1 or bytes_per_hour=1e6"
            ) from None
        return cls(PacerBudget(name.strip(), number))

    def attach(
        self,
        key: str,
        *,
        threshold: float | None,
        local: float,
        offload: float,
        bytes: float,  # noqa: A002
        limits: Limits | None = None,
    ) -> Pace:
        """Begin with a bundle; the debt is carried over.

        `key` names the bundle and its operating point: scores of another one cannot be used.
        `threshold` is the gate's as packed, `local` and `offload` are the costs of an instance that
        stops at the gate and of one that is offloaded, `bytes` those of one offload, up and down.
        `limits` are the least and the most that the threshold may be; None: never stops.
        Raises InputError if the budget is of costs and an offload costs no more than stopping.
        """
        unit = {"offloads": 1.0, "bytes": bytes, "cost": offload - local}[self.budget.metric]
        if not unit > 0:
            raise InputError(
                f"pacer: {self.budget.name} cannot be paced, an offload costs no more than stopping"
            )
        self.pace = Pace(self, key, threshold, unit, limits)
        if self._saved is not None and self._saved["key"] == key:
            self.pace.restore(self._saved)
        return self.pace

    def state(self) -> dict[str, Any]:
        """State to keep over a restart, fit for JSON."""
        with self.lock:
            kept = {} if self.pace is None else self.pace.state()
            return {"budget": self.budget.name, "amount": self.budget.amount} | {
                "debt": self.debt,
                **kept,
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`, before :meth:`attach`; InputError if it does not fit."""
        if (state.get("budget"), state.get("amount")) != (self.budget.name, self.budget.amount):
            raise InputError("the pacer's state is of another budget")
        numbers = [state.get("debt"), state.get("level", 0.0), state.get("gap", 0.0)]
        scores = state.get("scores", [])
        if not isinstance(scores, list) or len(scores) > _REMEMBERED:
            raise InputError("the pacer's state has no list of scores")
        for value in (*numbers, *scores):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError("the pacer's state holds something that is no number")
        self.debt = float(state["debt"])
        self._saved = state if {"key", "level", "gap", "scores"} <= state.keys() else None


class Pace:
    """The pacer of one bundle's gate; made by :meth:`Pacer.attach`. Thread-safe.

    `packed` is the gate's threshold as packed. Once `moved`, the threshold is the pacer's, and
    `level` is the share of the instances at the gate that is offloaded.
    """

    def __init__(
        self,
        pacer: Pacer,
        key: str,
        packed: float | None,
        unit: float,
        limits: Limits | None = None,
    ) -> None:
        self.key = key
        self.packed = packed
        self.level = 0.0
        self.moved = False
        self._pacer = pacer
        self._unit = unit
        least, most = (-math.inf, math.inf) if limits is None else limits
        self._limits = _or_never(least), _or_never(most)
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._last: float | None = None
        self._gap = 0.0

    def threshold(self) -> float | None:
        """The active threshold; None never stops."""
        with self._pacer.lock:
            if not self.moved:
                return self.packed
            least, most = self._limits
            moved = min(max(self._quantile(), least), most)
            return None if moved == math.inf else moved

    def _quantile(self) -> float:
        """The threshold that offloads the share `level`; infinite where that is all."""
        position = self.level * len(self._sorted)
        if self.level <= 0:
            return ALWAYS_STOP
        if self.level >= 1:
            return math.inf
        i = int(position)
        low, high = self._sorted[max(i - 1, 0)], self._sorted[i]
        return low + (position - i) * (high - low)

    def observe(self, score: float | None, used: float | None, now: float) -> None:
        """Update with an instance.

        `score` is that at the gate, None or NaN if it did not get there or has none. `used` is what
        it used of the budget; None if it should have been offloaded and could not be, which is no
        evidence about the threshold. `now` is in seconds, steady.
        """
        with self._pacer.lock:
            if score is not None and math.isfinite(score):
                self._remember(score)
            if used is None:
                self._last = now
                return
            allowed, mean = self._allowed(now)
            self._ascend(used / self._unit, allowed, mean)

    def _remember(self, score: float) -> None:
        self._latest.append(score)
        insort(self._sorted, score)
        if len(self._latest) > _REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        if not self.moved and len(self._latest) >= _WARM:
            # From here on the pacer's threshold decides, beginning at the packed one.
            below = len(self._sorted)
            if self.packed is not None:
                below = bisect_left(self._sorted, self.packed)
            self.level = below / len(self._sorted)
            self.moved = True

    def _allowed(self, now: float) -> tuple[float, float]:
        """Offloads allowed since the instance before, and for an instance on average."""
        budget = self._pacer.budget
        if not budget.hourly:
            each = budget.amount / self._unit
            if budget.metric == "cost":
                return each, min(each, 1.0)
            return each, each
        rate = budget.amount / self._unit / 3600.0
        since = 0.0 if self._last is None else max(0.0, now - self._last)
        if self._last is not None:
            # One long silence is little evidence about the instances to come.
            usual = min(since, _LONGEST_GAP * self._gap) if self._gap else since
            self._gap += (usual - self._gap) / (_GAPS if self._gap else 1)
        self._last = now
        return rate * since, min(rate * self._gap, 1.0)

    def _ascend(self, used: float, allowed: float, mean: float) -> None:
        pacer = self._pacer
        step = min(max(_STEP * mean, _STEPS[0]), _STEPS[1])
        horizon = _DAMPING / step
        most = horizon * max(mean, _STEPS[0])
        credit = most
        if pacer.budget.hourly:
            hour = pacer.budget.amount / self._unit
            most, credit = min(most, hour), min(most, _CREDIT * hour)
        if self.moved:
            aim = (mean if pacer.budget.hourly else allowed) - pacer.debt / horizon
            # What lies beyond the limits is not wound up.
            scores = self._sorted
            low, high = (bisect_left(scores, limit) / len(scores) for limit in self._limits)
            self.level = min(max(self.level + step * (aim - used), low), high)
        pacer.debt = min(max(pacer.debt + used - allowed, -credit), most)

    def used(self, *, sent: bool, size: float, cost: float) -> float:
        """Budget that an instance used: one offload, its bytes, or its answer's cost."""
        return {"offloads": float(sent), "bytes": size, "cost": cost}[self._pacer.budget.metric]

    @property
    def gauges(self) -> dict[str, float]:
        """``pacer_level`` and ``pacer_debt``, in offloads."""
        with self._pacer.lock:
            return {"pacer_level": self.level, "pacer_debt": self._pacer.debt}

    def state(self) -> dict[str, Any]:
        """State for :meth:`restore`; called with the lock held."""
        return {
            "key": self.key,
            "level": self.level,
            "gap": self._gap,
            "scores": list(self._latest),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self._latest = deque(float(s) for s in state["scores"])
        self._sorted = sorted(self._latest)
        self._gap = float(state["gap"])
        self.level = min(max(float(state["level"]), 0.0), 1.0)
        self.moved = len(self._latest) >= _WARM


class PacerFile:
    """A pacer's state in a JSON file, for restarts; a power cut leaves the old one or the new one.

    The pacer continues from the file at once if there is a usable one. One that is damaged or of
    another budget is logged and written anew.
    """

    def __init__(self, pacer: Pacer, path: str | Path) -> None:
        self._pacer = pacer
        self._path = Path(path)
        self._written: float | None = None
        self._failed = False
        self._writing = threading.Lock()
        try:
            pacer.restore(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            _LOG.warning("pacer state %s is not used: %s", self._path, error)

    def save_when_due(self, now: float) -> None:
        """Write the file in the background if a minute has passed; `now` in seconds, steady."""
        if self._written is None:
            self._written = now
        if now - self._written >= _EVERY:
            self._written = now
            # A memory card may take a second to take it.
            threading.Thread(target=self.save, name="gatewise-pacer", daemon=True).start()

    def save(self) -> None:
        """Write the file. What goes wrong is logged, once: answers matter more."""
        with self._writing:
            try:
                text = json.dumps(self._pacer.state(), allow_nan=False)
                replace_file(self._path, text.encode())
                self._failed = False
            except OSError as error:
                if not self._failed:
                    _LOG.warning("pacer state %s cannot be written: %s", self._path, error)
                self._failed = True
