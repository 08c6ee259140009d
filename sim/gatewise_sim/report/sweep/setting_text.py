"""Texts of the settings that a sweep changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Value = bool | int | float | str | None
"""Of a setting, as a :class:`gatewise_sim.experiment.scenario.Scenario` holds it."""

NONE: Final = "none"
"""Stands for a setting that is left out."""


def setting(settings: Mapping[str, Value]) -> str:
    """Settings as people read them.

    >>> setting({"devices": 10, "budget": None, "outages": ""})
    'devices=10, budget=none, outages=none'
    """
    return ", ".join(f"{name}={value_text(value, name)}" for name, value in settings.items())


def value_text(value: Value, name: str = "") -> str:
    """Value of the setting `name`, as ``--sweep`` reads it."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if isinstance(value, float) and float(short := f"{value:.12g}") == value:
        text = short
    return f"{text}s" if name == "seconds" else text
