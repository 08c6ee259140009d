"""Tests of the checks before a live run."""

import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import EmbeddedBroker
from gatewise_sim.live.run import check_live
from tests.sim.live.runs import make_live_scenario

#: Nothing listens on the port of the discard protocol.
UNREACHABLE_BROKER = "mqtt://127.0.0.1:9"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 70_000}, "devices is 70000"),  # each device is a process
        ({"outage": ("broker:+1s-+2s",), "broker": UNREACHABLE_BROKER}, "omit its URL"),
        ({"link": "4g", "broker": "mqtts://127.0.0.1:9"}, "for mqtt://host:port"),
        ({"broker": "http://x"}, "mqtt://"),
        ({"breaker": False}, "breaker can only be used with the virtual engine"),
    ],
)
def test_impossible_live_run_is_refused_before_anything_starts(changes, message):
    with pytest.raises(InputError, match=message):
        check_live(make_live_scenario(**changes))


@pytest.mark.slow
def test_two_workers_need_a_broker_with_shared_subscriptions():
    with (
        EmbeddedBroker() as broker,
        pytest.raises(InputError, match="does not support shared subscriptions"),
    ):
        check_live(make_live_scenario(workers=2, broker=broker.url))


def test_embedded_broker_serves_only_one_worker(monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.run.find_mosquitto", lambda: None)
    with pytest.raises(InputError, match="install mosquitto, or run one worker"):
        check_live(make_live_scenario(workers=2))
