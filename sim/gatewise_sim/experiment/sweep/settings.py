"""Which settings a sweep tries: ``devices=10,100,1000``, ``link=wifi|4g``.

Values are joined by commas, or by ``|`` where there is one. An outage or a class mix may hold
commas itself, so theirs are joined by ``|`` only:
``outages=none|cloud:12:00-12:10,link:+30s-+35s``. A name that is given again gets more values.
``none`` stands for what can be left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Final, Self

from gatewise.errors import InputError
from gatewise.formats import read_number, read_span
from gatewise_sim.experiment.scenario import GOALS, OPTIONS, Scenario
from gatewise_sim.report.sweep.setting_text import NONE, Value, value_text

POINTS: Final = 1000
"""How many combinations a sweep may have at most."""

_DEFAULT: Final = Scenario()
#: A live run of its own is what each of these is about: points side by side would disturb it.
_LEFT_OUT: Final = ("engine", "broker", "processes")
NAMES: Final = tuple(f.name for f in fields(Scenario) if f.name not in _LEFT_OUT)
"""The settings that can be swept: fields of a scenario."""

#: As the command line's options call them.
_ALSO: Final = {option: name for name, option in OPTIONS.items()}
_WITH_COMMAS: Final = ("outages", "mix")
_DIGITS: Final = 16
#: What ``none`` stands for; a link's profile has that name.
_LEAVE_OUT: Final[dict[str, Value]] = {
    "outages": "",
    **{f.name: None for f in fields(Scenario) if f.default is None},
}


@dataclass(frozen=True)
class SweptSetting:
    """The values that one setting takes in turn: at least one, none of them twice.

    >>> SweptSetting.parse("devices=10,100,1000")
    SweptSetting(name='devices', values=(10, 100, 1000))
    >>> SweptSetting.parse("outages=none|cloud:12:00-12:10,link:+30s-+35s").values
    ('', 'cloud:12:00-12:10,link:+30s-+35s')
    """

    name: str  # one of NAMES
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            close = get_close_matches(self.name, NAMES, n=1)
            hint = f", did you mean {close[0]!r}?" if close else f"; there are {', '.join(NAMES)}"
            raise InputError(f"sweep: no setting {self.name!r}{hint}")
        if not self.values:
            raise InputError(f"sweep {self.name}: give at least one value")
        for i, value in enumerate(self.values):
            if value in self.values[:i]:
                raise InputError(
                    f"sweep {self.name}: {value_text(value, self.name)} is given twice"
                )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a sweep, as the module's head shows."""
        name, equals, rest = text.partition("=")
        name = name.strip().replace("-", "_")
        name = _ALSO.get(name, name)
        if not equals or not name:
            raise InputError(f"sweep {text!r}: write it as devices=10,100,1000")
        cls(name, (0,))  # is there such a setting?
        between = "|" if "|" in rest or name in _WITH_COMMAS else ","
        parts = [part.strip() for part in rest.split(between)]
        if not all(parts):
            none = f"; write {NONE} to leave it out" if name in _LEAVE_OUT else ""
            raise InputError(f"sweep {text!r}: a value is empty{none}")
        return cls(name, tuple(_read(name, part) for part in parts))


def merged(
    sweeps: Iterable[SweptSetting | str],
) -> tuple[SweptSetting, ...]:
    """Read sweeps; those of one name become one."""
    values: dict[str, tuple[Value, ...]] = {}
    for given in sweeps:
        sweep = SweptSetting.parse(given) if isinstance(given, str) else given
        values[sweep.name] = values.get(sweep.name, ()) + sweep.values
    if not values:
        raise InputError("sweep: give at least one setting, as devices=10,100,1000")
    several = [name for name in GOALS if name in values]
    if len(several) > 1:
        raise InputError(
            f"sweep: {' and '.join(several)} each choose the operating point; sweep one of them"
        )
    points = math.prod(map(len, values.values()))
    if points > POINTS:
        raise InputError(f"sweep: {points:,} points; at most {POINTS:,} can be run")
    return tuple(SweptSetting(name, some) for name, some in values.items())


def combinations(sweeps: Sequence[SweptSetting]) -> list[dict[str, Value]]:
    """Every combination of the values, the last sweep's changing fastest.

    >>> combinations([SweptSetting("workers", (1, 2)), SweptSetting("link", ("wifi", "4g"))])[1]
    {'workers': 1, 'link': '4g'}
    """
    names = [sweep.name for sweep in sweeps]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(sweep.values for sweep in sweeps))
    ]


def _read(name: str, text: str) -> Value:
    if text == NONE and name in _LEAVE_OUT:
        return _LEAVE_OUT[name]
    default = getattr(_DEFAULT, name)
    where = f"sweep {name}"
    value: Value = text
    if isinstance(default, bool):
        if text not in ("yes", "no"):
            raise InputError(f"{where}: {text!r}; say yes or no")
        value = text == "yes"
    elif isinstance(default, int):
        # int() would take underscores and other scripts' digits.
        if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
            raise InputError(f"{where}: {text!r} is not a whole number")
        value = int(text)
    elif name == "seconds":
        value = read_span(text, where)
    elif name in (*GOALS, "audit") or isinstance(default, float):
        value = read_number(text, where) if "_" not in text else math.nan
    try:
        _DEFAULT.changed(**{name: value})
    except InputError as error:
        hint = "; several values are joined by |" if name in _WITH_COMMAS and "," in text else ""
        raise InputError(f"{where}: {error}{hint}") from None
    return value
