"""Formats of unknown values, tiny values and values at the borders of units."""

from __future__ import annotations

import math
import re

import pytest

from gatewise import formats
from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_rate, read_span


def test_unknown_values_are_formatted_as_not_available():
    for format_value in (
        formats.number, formats.count, formats.percent, formats.byte_size, formats.millis,
        formats.duration, formats.joules,
    ):  # fmt: skip
        assert format_value(None) == format_value(math.nan) == "n/a"
    assert formats.money(None, "EUR") == "n/a"


@pytest.mark.parametrize(
    ("format_value", "value", "text"),
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
        (formats.count, 999_600_000, "1 billion"),
        (formats.count, 1.5e12, "1,500 billion"),
        (formats.duration, 1095 * 86_400, "1,095 days"),
    ],
)
def test_values_at_the_borders_of_units_are_formatted(format_value, value, text):
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("low", "high", "format_value", "text"),
    [
        (1.0, 12.0, formats.millis, "1 to 12 ms"),
        (0.5, 1.0, formats.percent, "50.0 to 100 %"),
        (1200, 2_000_000, formats.count, "1,200 to 2 million"),
        (3.0, 4.0, formats.number, "3 to 4"),
    ],
)
def test_an_interval_states_its_unit_once(low, high, format_value, text):
    assert formats.interval(low, high, format_value) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("10min", 600), ("10m", 600), ("2h", 7200), ("1day", DAY)],
)
def test_spans_are_read_in_seconds(text, seconds):
    assert read_span(text, "x") == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 weeks", "1e3s", "nans"])
def test_invalid_spans_are_refused(text):
    with pytest.raises(InputError, match=re.escape(f"x: {text!r} is not a span of time")):
        read_span(text, "x")


def test_rates_and_clock_times_are_read_or_refused():
    assert read_rate("6/min", "x") == 0.1  # per second
    assert read_clock("24:00", "x") == DAY
    assert read_clock("1:02:03", "x") == 3723  # 3,600 + 2 * 60 + 3
    for text in ("6", "6/week", "0/s", "nan/s", "inf/s", "-1/s", "x/s"):
        with pytest.raises(InputError, match=re.escape("rate: ")):
            read_rate(text, "rate")
    for text in ("24:01", "12", "12:00:60", "noon"):
        with pytest.raises(InputError, match=re.escape("is not a time of day")):
            read_clock(text, "peak")
