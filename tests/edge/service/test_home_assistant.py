"""The discovery document of a device in Home Assistant, its messages, and its templates."""

from __future__ import annotations

import json
from datetime import date
from types import SimpleNamespace

import pytest

from gatewise.errors import InputError
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.service import home_assistant
from gatewise_edge.service.home_assistant import HomeAssistant, discovery
from gatewise_edge.service.outputs import AnswerPublisher
from tests.support.mqtt_clients import MqttClient
from tests.support.processes import run_in_process
from tests.support.small_bundle import HARD_ROW, SURE_ROW
from tests.support.waiting import wait_until

#: Required and optional keys from https://www.home-assistant.io/integrations/mqtt/ ("Device
#: discovery payload", "Using availability topics", "Adding information about the origin") and
#: .../integrations/sensor.mqtt/, as far as they are used here.
DOCUMENTED_KEYS = {
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
#: Values of `state_class` from https://developers.home-assistant.io/docs/core/entity/sensor/.
STATE_CLASSES = {"measurement", "measurement_angle", "total", "total_increasing"}


def assert_documented_keys(document, document_part):
    required_keys, optional_keys = DOCUMENTED_KEYS[document_part]
    assert required_keys <= document.keys() <= required_keys | optional_keys, document


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
    assert_documented_keys(document, "root")
    assert_documented_keys(document["device"], "device")
    assert_documented_keys(document["origin"], "origin")
    for status, availability in (("online small/7", "online"), ("offline", "offline")):
        assert render(document["availability_template"], status) == availability
    sensors = document["components"]
    assert set(sensors) == {"label", "confidence", "route", "cost_today", "share_offloaded"}
    for sensor in sensors.values():
        assert_documented_keys(sensor, "sensor")
        assert sensor["platform"] == "sensor"
        assert sensor.get("state_class", "total") in STATE_CLASSES
    other_sensors = discovery("pi-2", "ha/x")[1]["components"].values()
    ids = {sensor["unique_id"] for sensor in [*sensors.values(), *other_sensors]}
    assert len(ids) == 2 * len(sensors)
    for device, prefix in (("küche", "homeassistant"), ("a b", "x"), ("pi-1", "a/#"), ("pi-1", "")):
        with pytest.raises(InputError, match="--home-assistant"):
            discovery(device, prefix)


def test_messages_have_the_sums_of_the_day_and_come_once_per_second(broker):
    """The arguments set the day and the time; the last message is published on closing."""
    subscriber = MqttClient(broker.url, "gw/v1/pi-3/answers")
    link = MqttLink(broker.url, device="pi-3")
    link.connect(60)
    now, day = [0.0], [date(2026, 1, 1)]
    line = {"label": "yes", "route": "cloud", "cost": 2.0, "probabilities": [0.25, 0.75]}
    clocks = {"clock": lambda: now[0], "today": lambda: day[0]}
    with (
        AnswerPublisher(link, "gw/v1/pi-3/answers") as answer_publisher,
        HomeAssistant(link, "ha", answer_publisher.write, **clocks) as publisher,
    ):
        publisher.write(line)
        publisher.write(line | {"route": "edge"})  # it waits, and a later line replaces it
        publisher.write({"error": "no reading"})
        now[0] = 1.0
        publisher.write(line | {"route": "edge", "probabilities": []})
        day[0] = date(2026, 1, 2)
        publisher.write(line | {"cost": 0.5})
    messages = [json.loads(subscriber.get()[1]) for _ in range(3)]
    link.close()
    subscriber.close()
    # The messages follow the lines 1, 3 and 4. Line 4 belongs to the next day.
    assert [message["cost_today"] for message in messages] == [2.0, 6.0, 0.5]
    assert [message["share_offloaded"] for message in messages] == [1.0, 0.333333, 1.0]
    assert [message["confidence"] for message in messages] == [0.75, None, 0.75]
    template = discovery("pi-3")[1]["components"]["confidence"]["value_template"]
    assert render(template, json.dumps(messages[1])) == "None"


def test_last_answer_of_a_second_is_published_at_its_end(monkeypatch):
    monkeypatch.setattr(home_assistant, "_MIN_INTERVAL_S", 0.05)
    labels = []
    line = {"route": "edge", "cost": 1.0, "probabilities": [1.0]}
    link = SimpleNamespace(device="pi-1", connection_number=1, publish=lambda *_, **__: True)
    with HomeAssistant(link, "ha", lambda document: labels.append(document["label"])) as publisher:
        for label in ("open", "ajar", "closed"):
            publisher.write(line | {"label": label})
        wait_until(lambda: labels == ["open", "closed"])


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
def test_broker_that_lost_the_description_gets_it_again(broker):
    link = MqttLink(broker.url, device="pi-5")
    link.connect(60)
    line = {"label": "yes", "route": "edge", "cost": 1.0, "probabilities": [1.0]}
    with HomeAssistant(link, "ha", lambda document: None) as publisher:
        publisher.write(line)
        broker.kill()  # this broker keeps retained messages in memory only
        broker.start()
        wait_until(lambda: link.connection_number == 2 and link.is_ready, "the reconnection")
        publisher.write(line)
        subscriber = MqttClient(broker.url, "ha/device/pi-5/config")
        assert json.loads(subscriber.get()[1]) == discovery("pi-5")[1]
    link.close()
    subscriber.close()


@pytest.mark.slow
def test_command_shows_its_answers_and_its_end_in_home_assistant(bundle, broker, make_peer):
    make_peer()
    config_topic, document = discovery("pi-4")
    status_topic, answers_topic = "gw/v1/pi-4/status", "gw/v1/pi-4/answers"
    subscriber = MqttClient(broker.url, status_topic, answers_topic)
    options = ["--broker", broker.url, "--device", "pi-4", "--home-assistant", "homeassistant"]
    input_lines = "".join(f"{row}\n" for row in (SURE_ROW, HARD_ROW))
    completed = run_in_process(
        "edge", bundle.path, *options, "--deadline-ms", 20_000, stdin_text=input_lines
    )
    assert completed.returncode == 0, completed.stderr
    # The description is retained, so that a later subscriber gets it.
    later_client = MqttClient(broker.url, config_topic)
    assert json.loads(later_client.get()[1]) == document
    assert later_client.messages[0][2]
    wait_until(lambda: (status_topic, b"offline", False) in subscriber.messages, "the last status")
    payloads = [payload.decode() for topic, payload, _ in subscriber.messages if "answ" in topic]
    first_display, last_display = (
        {
            name: render(sensor["value_template"], payload)
            for name, sensor in document["components"].items()
        }
        for payload in (payloads[0], payloads[-1])
    )
    assert (first_display["label"], first_display["route"]) == ("yes", "edge")
    assert first_display["share_offloaded"] == "0.0"
    assert (last_display["label"], last_display["route"]) == ("no", "cloud")
    assert last_display["share_offloaded"] == "50.0"
    assert 0 < float(last_display["confidence"]) <= 100
    assert float(last_display["cost_today"]) > float(first_display["cost_today"])
    for client in (later_client, subscriber):
        client.close()
