import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_sim.fleet.money import MONTH, Bill, Prices, Usage
from tests.support.refused import refused_file


def test_every_part_of_the_bill():
    prices = Prices(
        "CHF", per_mb=0.5, per_worker_hour=0.1, per_joule=1e-6, per_feature_unit=0.001,
        per_million_requests=2.0, per_device_month=3.0,
    )  # fmt: skip
    used = Usage(
        MONTH / 10, devices=7, workers=4, bytes=3e6, joules=2e6, feature_units=500, requests=1e5
    )
    bill = prices.month(used)
    wanted = Bill(
        "CHF", data=15.0, workers=0.4 * 730.5, energy=20.0, features=5.0, requests=2.0, devices=21.0
    )
    assert bill.currency == wanted.currency
    assert list(vars(bill).values())[1:] == pytest.approx(list(vars(wanted).values())[1:])
    assert bill.total == pytest.approx(15 + 292.2 + 20 + 5 + 2 + 21)


amounts = st.floats(0, 1e9)


@given(amounts, amounts, amounts, amounts, st.integers(0, 9), st.floats(1, 1e7), st.floats(1, 50))
def test_a_run_twice_as_long_with_twice_the_use_costs_the_same(
    sent, joules, units, requests, workers, seconds, times
):
    prices = Prices("EUR", 0.01, 0.08, 1e-7, 0.002, 1.0, 0.5)
    once = Usage(seconds, 10, workers, sent, joules, units, requests)
    again = Usage(
        times * seconds, 10, workers, times * sent, times * joules, times * units, times * requests
    )
    assert prices.month(again).total == pytest.approx(prices.month(once).total, rel=1e-9)


def test_a_list_from_a_file(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('currency = "USD"\nper_mb = 1\nper_kwh = 0.36\n')
    assert Prices.from_file(file) == Prices("USD", per_mb=1.0, per_joule=0.36 / 3.6e6)
    file.write_text("default = 1\n[features]\na = 2\n[bill]\nper_mb = 1\n")  # training's file
    assert Prices.from_file(file) == Prices(per_mb=1.0)
    assert FeatureCosts.from_file(file).total == 2.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("per_gb = 1", "unknown key 'per_gb'; there are currency, per_mb"),
        ("per_kwh = inf", "per_kwh is inf, must be finite"),
        ("currency = 3", "currency is 3, not a text"),
        ("per_kwh = 1\nper_joule = 1", "give per_kwh or per_joule, not both"),
        ("per_mb", "prices.toml: "),
        ("per_mb = 1\n[bill]\nper_mb = 1", "per_mb: put it under [bill]"),
        ("default = 1", "has no [bill]"),
    ],
)
def test_a_bad_list_is_refused_by_its_key(tmp_path, text, complaint):
    refused_file(Prices.from_file, tmp_path / "prices.toml", text, complaint)


def test_prices_and_usage_are_checked():
    with pytest.raises(InputError, match="prices: per_mb"):
        Prices(per_mb=math.nan)
    with pytest.raises(InputError, match=r"usage: seconds is 0\.0, must be above 0"):
        Usage(0.0)
    with pytest.raises(InputError, match="usage: bytes is -1"):
        Usage(1.0, bytes=-1)
