"""A device in Home Assistant: what it is told, and what its templates make of the messages."""

from __future__ import annotations

import json
from datetime import date
from types import SimpleNamespace

import pytest

from gatewise.errors import InputError
from gatewise_edge.link.mqtt import MqttLink
from gatewise_edge.service import home_assistant
from gatewise_edge.service.home_assistant import HomeAssistant, discovery
from gatewise_edge.service.outputs import AnswerPublisher
from tests.support.mqtt_clients import MqttClient
from tests.support.waiting import wait_until

#: Keys of https://www.home-assistant.io/integrations/mqtt/ ("Device discovery payload", "Using
#: availability topics", "Adding information about the origin") and .../integrations/sensor.mqtt/
#: that are used here, those that are required first.
DOCUMENTED = {
    "root": (
        {"device", "origin", "components"},
        {"state_topic", "availability_topic", "availability_template"},
    ),
    "device": ({"identifiers"}, {"name", "manufacturer"}),
    "origin": ({"name"}, {"support_url"}),
    "sensor": (
        {"platform", "unique_id"},
        {"name", "value_template", "unit_of_measurement", "state_class", "icon"},
    ),
}
STATE_CLASSES = {"measurement", "measurement_angle", "total", "total_increasing"}


def check(document, what):
    required, optional = DOCUMENTED[what]
    assert required <= document.keys() <= required | optional, document


def rendered(template, payload):
    """What Home Assistant shows: it renders with Jinja, with `value` and `value_json`."""
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    known = {"value": payload}
    if payload.startswith("{"):
        known["value_json"] = json.loads(payload)
    return environment.from_string(template).render(known)


def test_discovery_document_has_the_documented_form():
    topic, document = discovery("pi-1")
    assert topic == "homeassistant/device/pi-1/config"
    check(document, "root")
    check(document["device"], "device")
    check(document["origin"], "origin")
    sensors = document["components"]
    assert set(sensors) == {"label", "confidence", "route", "cost_today", "share_offloaded"}
    for sensor in sensors.values():
        check(sensor, "sensor")
        assert sensor["platform"] == "sensor"
        assert sensor.get("state_class", "total") in STATE_CLASSES
    others = discovery("pi-2", "ha/x")[1]["components"].values()
    ids = {sensor["unique_id"] for sensor in [*sensors.values(), *others]}
    assert len(ids) == 2 * len(sensors)
    for device, prefix in (("küche", "homeassistant"), ("a b", "x"), ("pi-1", "a/#"), ("pi-1", "")):
        with pytest.raises(InputError, match="--home-assistant"):
            discovery(device, prefix)


def test_sums_of_a_day_and_a_message_at_a_time(broker):
    """Days and seconds are those of the arguments; what waited goes at the end."""
    reader = MqttClient(broker.url, "gw/v1/pi-3/answers")
    link = MqttLink(broker.url, device="pi-3")
    link.connect(60)
    now, day = [0.0], [date(2026, 1, 1)]
    line = {"label": "yes", "route": "cloud", "cost": 2.0, "probabilities": [0.25, 0.75]}
    times = {"clock": lambda: now[0], "today": lambda: day[0]}
    with (
        AnswerPublisher(link, "gw/v1/pi-3/answers") as answers,
        HomeAssistant(link, "ha", answers.write, **times) as home,
    ):
        home.write(line)
        home.write(line | {"route": "edge"})  # held, and passed over by the next
        home.write({"error": "no reading"})
        now[0] = 1.0
        home.write(line | {"route": "edge", "probabilities": []})
        day[0] = date(2026, 1, 2)
        home.write(line | {"cost": 0.5})
    told = [json.loads(reader.get()[1]) for _ in range(3)]
    link.close()
    reader.close()
    assert [t["cost_today"] for t in told] == [2.0, 6.0, 0.5]
    assert [t["share_offloaded"] for t in told] == [1.0, 0.333333, 1.0]
    assert [t["confidence"] for t in told] == [0.75, None, 0.75]
    template = discovery("pi-3")[1]["components"]["confidence"]["value_template"]
    assert rendered(template, json.dumps(told[1])) == "None"


def test_a_value_that_is_held_shows_once_its_second_is_over(monkeypatch):
    monkeypatch.setattr(home_assistant, "_MIN_INTERVAL", 0.05)
    shown, line = [], {"route": "edge", "cost": 1.0, "probabilities": [1.0]}
    link = SimpleNamespace(device="pi-1", publish=lambda *_, **__: True)
    with HomeAssistant(link, "ha", lambda document: shown.append(document["label"])) as home:
        for label in ("open", "ajar", "closed"):
            home.write(line | {"label": label})
        wait_until(lambda: shown == ["open", "closed"])


@pytest.mark.slow
def test_a_device_that_is_killed_becomes_unavailable(bundle, broker, make_peer, command):
    make_peer()
    config, description = discovery("pi-4")
    status, answers = "gw/v1/pi-4/status", "gw/v1/pi-4/answers"
    reader = MqttClient(broker.url, status, answers)
    options = ["--broker", broker.url, "--device", "pi-4", "--home-assistant", "homeassistant"]
    process = command("edge", bundle.path, *options)

    def messages(topic):
        return [payload.decode() for where, payload, _ in list(reader.got) if where == topic]

    process.write("[1, 0, 0, 0, 0, 0]\n")
    wait_until(lambda: messages(answers), "the first answer")
    # Who comes later still gets the description: it is retained.
    late = MqttClient(broker.url, config)
    document = json.loads(late.get()[1])
    assert (late.got[0][2], document) == (True, description)
    late.close()

    def shown():
        payload, sensors = messages(answers)[-1], document["components"]
        return {k: rendered(s["value_template"], payload) for k, s in sensors.items()}

    first = shown()
    assert (first["label"], first["route"], first["share_offloaded"]) == ("yes", "edge", "0.0")
    available = document["availability_template"]
    assert rendered(available, messages(status)[-1]) == "online"

    def offloaded():
        process.write("[0.1, 0, 0.1, 0, -1, 0]\n")
        return shown()["route"] == "cloud"

    wait_until(offloaded, "an offloaded answer")
    later = shown()
    assert later["label"] == "no"
    assert 0 < float(later["share_offloaded"]) < 100
    assert 0 < float(later["confidence"]) <= 100
    assert float(later["cost_today"]) > float(first["cost_today"])
    process.close()
    wait_until(lambda: messages(status)[-1] == "offline", "the last will")
    assert rendered(available, "offline") == "offline"
    reader.close()
