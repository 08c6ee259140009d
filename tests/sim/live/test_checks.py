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


def test_the_embedded_broker_serves_one_worker(monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.run.find_mosquitto", lambda: None)
    with pytest.raises(InputError, match="install mosquitto, or run one worker"):
        check_live(settings(workers=2))
