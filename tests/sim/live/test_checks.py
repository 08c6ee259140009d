import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.live.run import check_live
from tests.sim.live.runs import settings


@pytest.mark.parametrize(
    ("changes", "broker", "error", "message"),
    [
        ({"devices": 70_000}, None, InputError, "devices is 70000"),
        (
            {"outages": Outages.parse("broker:+1s-+2s")},
            "mqtt://127.0.0.1:9",
            InputError,
            "leave out its URL",
        ),
        ({"link": PROFILES["4g"]}, "mqtts://127.0.0.1:9", InputError, "in front of mqtt://"),
        ({}, "http://x", InputError, "mqtt://"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(changes, broker, error, message):
    with pytest.raises(error, match=message):
        check_live(settings(**changes), broker=broker)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gateways": 2}, r"gateways: .*tiers=\{.device.: 1, .gateway.: None\}\)$"),
        ({"uplink": PROFILES["4g"]}, "uplink: the bundle"),
        ({"outages": Outages.parse("gateway:+1s-+2s")}, "outage of a gateway: the bundle"),
    ],
)
def test_gateways_need_a_bundle_that_uses_them(changes, message):
    with pytest.raises(InputError, match=message):
        check_live(settings(**changes))
    if "outages" not in changes:
        check_live(settings(**changes), gateways=True)


def test_gateways_have_brokers_of_the_runs_own():
    with pytest.raises(InputError, match="leave out the broker's URL"):
        check_live(settings(), broker="mqtt://127.0.0.1:9", gateways=True)
    with pytest.raises(InputError, match="audits through gateways"):
        check_live(settings(audit=0.1), gateways=True)


def test_the_embedded_broker_serves_one_worker(monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.run.find_mosquitto", lambda: None)
    with pytest.raises(InputError, match="install mosquitto, or run one worker"):
        check_live(settings(workers=2))
