"""The discovery document of a device in Home Assistant, its messages, and its templates."""

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

#: Required and optional keys from https://www.home-assistant.io/integrations/mqtt/ ("Device
#: discovery payload", "Using availability topics", "Adding information about the origin") and
#: .../integrations/sensor.mqtt/, as far as they are used here.
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


def check(document, part):
    required, optional = DOCUMENTED[part]
    assert required <= document.keys() <= required | optional, document


def render(template, payload):
    """Render a template like Home Assistant, which sets `value` and `value_json`."""
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    variables = {"value": payload}
    if payload.startswith("{"):
        variables["value_json"] = json.loads(payload)
    return environment.from_string(template).render(variables)


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


def test_messages_have_the_sums_of_the_day_and_come_once_per_second(broker):
    """The arguments set the day and the time; the last message is published on closing."""
    reader = MqttClient(broker.url, "gw/v1/pi-3/answers")
    link = MqttLink(broker.url, device="pi-3")
    link.connect(60)
    now, day = [0.0], [date(2026, 1, 1)]
    line = {"label": "yes", "route": "cloud", "cost": 2.0, "probabilities": [0.25, 0.75]}
    clocks = {"clock": lambda: now[0], "today": lambda: day[0]}
    with (
        AnswerPublisher(link, "gw/v1/pi-3/answers") as answers,
        HomeAssistant(link, "ha", answers.write, **clocks) as home,
    ):
        home.write(line)
        home.write(line | {"route": "edge"})  # it waits, and a later line replaces it
        home.write({"error": "no reading"})
        now[0] = 1.0
        home.write(line | {"route": "edge", "probabilities": []})
        day[0] = date(2026, 1, 2)
        home.write(line | {"cost": 0.5})
    messages = [json.loads(reader.get()[1]) for _ in range(3)]
    link.close()
    reader.close()
    assert [message["cost_today"] for message in messages] == [2.0, 6.0, 0.5]
    assert [message["share_offloaded"] for message in messages] == [1.0, 0.333333, 1.0]
    assert [message["confidence"] for message in messages] == [0.75, None, 0.75]
    template = discovery("pi-3")[1]["components"]["confidence"]["value_template"]
    assert render(template, json.dumps(messages[1])) == "None"


def test_last_answer_of_a_second_is_published_at_its_end(monkeypatch):
    monkeypatch.setattr(home_assistant, "_MIN_INTERVAL", 0.05)
    labels = []
    line = {"route": "edge", "cost": 1.0, "probabilities": [1.0]}
    link = SimpleNamespace(device="pi-1", publish=lambda *_, **__: True)
    with HomeAssistant(link, "ha", lambda document: labels.append(document["label"])) as home:
        for label in ("open", "ajar", "closed"):
            home.write(line | {"label": label})
        wait_until(lambda: labels == ["open", "closed"])


@pytest.mark.slow
def test_killed_device_becomes_unavailable(bundle, broker, make_peer, command):
    make_peer()
    config, description = discovery("pi-4")
    status, answers = "gw/v1/pi-4/status", "gw/v1/pi-4/answers"
    reader = MqttClient(broker.url, status, answers)
    options = ["--broker", broker.url, "--device", "pi-4", "--home-assistant", "homeassistant"]
    process = command("edge", bundle.path, *options)

    def messages(topic):
        received = list(reader.got)
        return [
            payload.decode() for message_topic, payload, _ in received if message_topic == topic
        ]

    process.write("[1, 0, 0, 0, 0, 0]\n")
    wait_until(lambda: messages(answers), "the first answer")
    # The description is retained, so that a later subscriber gets it.
    later_client = MqttClient(broker.url, config)
    document = json.loads(later_client.get()[1])
    assert (later_client.got[0][2], document) == (True, description)
    later_client.close()

    def displayed():
        payload, sensors = messages(answers)[-1], document["components"]
        return {k: render(s["value_template"], payload) for k, s in sensors.items()}

    first = displayed()
    assert (first["label"], first["route"], first["share_offloaded"]) == ("yes", "edge", "0.0")
    available = document["availability_template"]
    assert render(available, messages(status)[-1]) == "online"

    def shows_cloud():
        process.write("[0.1, 0, 0.1, 0, -1, 0]\n")
        return displayed()["route"] == "cloud"

    wait_until(shows_cloud, "an offloaded answer")
    later = displayed()
    assert later["label"] == "no"
    assert 0 < float(later["share_offloaded"]) < 100
    assert 0 < float(later["confidence"]) <= 100
    assert float(later["cost_today"]) > float(first["cost_today"])
    process.close()
    wait_until(lambda: messages(status)[-1] == "offline", "the last will")
    assert render(available, "offline") == "offline"
    reader.close()
