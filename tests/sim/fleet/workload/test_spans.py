import pytest

from gatewise_sim.fleet.workload.spans import DAY, read_clock, read_rate, read_span
from tests.sim.refused import refused


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("10min", 600), ("10m", 600), ("2h", 7200), ("1day", DAY)],
)
def test_spans(text, seconds):
    assert read_span(text, "x") == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 weeks", "1e3s", "nans"])
def test_no_spans(text):
    refused(read_span, text, "x", says=f"x: {text!r} is not a span of time")


def test_rates_and_clocks():
    assert read_rate("6/min", "x") == 0.1
    assert read_clock("24:00", "x") == DAY
    assert read_clock("1:02:03", "x") == 3723
    for text in ("6", "6/week", "0/s", "nan/s", "inf/s", "-1/s", "x/s"):
        refused(read_rate, text, "rate", says="rate: ")
    for text in ("24:01", "12", "12:00:60", "noon"):
        refused(read_clock, text, "peak", says="is not a time of day")
