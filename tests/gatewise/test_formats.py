"""What the examples of the formats leave out: nothing known, tiny, and at the border of a unit."""

from __future__ import annotations

import math

import pytest

from gatewise import formats


@pytest.mark.parametrize(
    "form",
    [
        formats.number,
        formats.count,
        formats.percent,
        formats.byte_size,
        formats.millis,
        formats.duration,
        formats.joules,
        lambda value: formats.money(value, "EUR"),
    ],
)
@pytest.mark.parametrize("unknown", [None, math.nan])
def test_what_is_not_known_is_said_to_be(form, unknown):
    assert form(unknown) == "n/a"


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (formats.number, 0.00123, "0.00123"),
        (formats.number, -123.4, "-123"),
        (formats.percent, 0.0, "0 %"),
        (formats.percent, 0.0123, "1.2 %"),
        (formats.byte_size, 999.4, "999 B"),
        (formats.byte_size, 12_345, "12.3 kB"),
        (formats.duration, 86_400, "1 day"),
        (formats.joules, 0.99999, "1 J"),
        (formats.count, 999_999, "999,999"),
    ],
)
def test_values_at_borders(form, value, text):
    assert form(value) == text


@pytest.mark.parametrize(
    ("low", "high", "form", "text"),
    [
        (1.0, 12.0, formats.millis, "1 to 12 ms"),
        (0.5, 1.0, formats.percent, "50.0 to 100 %"),
        (1200, 2_000_000, formats.count, "1,200 to 2 million"),
        (3.0, 4.0, formats.number, "3 to 4"),
    ],
)
def test_an_interval_has_its_unit_once(low, high, form, text):
    assert formats.interval(low, high, form) == text
