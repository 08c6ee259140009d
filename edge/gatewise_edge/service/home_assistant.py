"""MQTT discovery of Home Assistant, which then shows a device's answers.

The device publishes a retained description of itself (:func:`discovery`) on
``<prefix>/device/<device>/config``. Home Assistant reads the values from the device's topic
``gw/v1/<device>/answers``, and the availability from its status. The device therefore needs
permission for one more topic, unless somebody else publishes the description.

Source: https://www.home-assistant.io/integrations/mqtt/, "Device discovery payload".
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from gatewise.errors import InputError
from gatewise_edge.link.topics import answers_topic, status_topic

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt_link import MqttLink

#: Shortest time between two publications, in seconds. Home Assistant stores every state in its
#: database.
_MIN_INTERVAL_S: Final = 1.0
#: Names that Home Assistant accepts in the levels of a discovery topic.
_NAME_FORM: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
#: Topic levels without wildcards and NUL.
_PREFIX_FORM: Final = re.compile(r"[^/+#\0]+(/[^/+#\0]+)*")


class _Entity(NamedTuple):
    """A sensor as Home Assistant shows it: its name, the template of its value, and properties."""

    name: str
    template: str
    properties: dict[str, Any]


_ENTITIES: Final = {
    "label": _Entity("Label", "value_json.label", {"icon": "mdi:label"}),
    "confidence": _Entity(
        "Confidence",
        "(value_json.confidence * 100) | round(1) if value_json.confidence is number else None",
        {"unit_of_measurement": "%", "state_class": "measurement"},
    ),
    "route": _Entity("Route", "value_json.route", {"icon": "mdi:source-branch"}),
    "cost_today": _Entity(
        "Cost today",
        "value_json.cost_today | round(6)",
        {"state_class": "total_increasing", "icon": "mdi:counter"},
    ),
    "share_offloaded": _Entity(
        "Share offloaded today",
        "(value_json.share_offloaded * 100) | round(1)",
        {"unit_of_measurement": "%", "state_class": "measurement"},
    ),
}


def check_discovery_names(device: str, prefix: str) -> None:
    """Raise InputError for a device id or a prefix that Home Assistant would ignore."""
    if _NAME_FORM.fullmatch(device) is None:
        raise InputError(
            "--home-assistant: a device id may have letters, digits, - and _ only, not "
            f"{device!r}; give another with --device"
        )
    if _PREFIX_FORM.fullmatch(prefix) is None:
        raise InputError(
            f"--home-assistant {prefix!r} is not a topic; Home Assistant's default is homeassistant"
        )


def discovery(device: str, prefix: str = "homeassistant") -> tuple[str, dict[str, Any]]:
    """Make the topic and the retained document that describe a device to Home Assistant.

    Raises InputError as :func:`check_discovery_names` does.
    """
    check_discovery_names(device, prefix)
    entity_prefix = f"gatewise_{device}"
    return f"{prefix}/device/{device}/config", {
        "device": {"identifiers": [entity_prefix], "name": device, "manufacturer": "Gatewise"},
        "origin": {"name": "gatewise", "support_url": "https://github.com/gatewise/gatewise"},
        "state_topic": answers_topic(device),
        "availability_topic": status_topic(device),
        "availability_template": "{{ 'offline' if value == 'offline' else 'online' }}",
        "components": {
            key: {
                "platform": "sensor",
                "unique_id": f"{entity_prefix}_{key}",
                "name": entity.name,
                "value_template": "{{ " + entity.template + " }}",
                **entity.properties,
            }
            for key, entity in _ENTITIES.items()
        },
    }


class HomeAssistant:
    """A publisher of a device's answers with the sums of the day; a context manager. Thread-safe.

    It publishes at most once per second, and then only the last answer. It publishes no errors.

    Parameters
    ----------
    link : MqttLink
        Link of the device.
    prefix : str
        Discovery prefix of Home Assistant.
    publish_document : callable
        Publishes a document on ``gw/v1/<device>/answers``. The document has the fields of the
        answer's line and ``confidence`` (null for a value), ``cost_today`` and
        ``share_offloaded``.
    clock : callable
        Returns monotonic seconds.
    today : callable
        Returns the date.
    """

    def __init__(
        self,
        link: MqttLink,
        prefix: str,
        publish_document: Callable[[dict[str, Any]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = date.today,
    ) -> None:
        self._link = link
        self._clock = clock
        self._today = today
        self._config_topic, config = discovery(link.device, prefix)
        self._config = json.dumps(config).encode()
        #: Number of the connection on which the description was last published.
        self._announced_connection = 0
        self._publish_document = publish_document
        self._latest_document: dict[str, Any] | None = None
        self._timer: threading.Timer | None = None
        self._next_publication_at = clock()
        #: The current day, and the sums of its answers.
        self._day = today()
        self._cost = 0.0
        self._n_answers = 0
        self._n_offloaded = 0
        self._write_lock = threading.Lock()

    def write(self, document: dict[str, Any]) -> None:
        """Add a line of ``gatewise edge``, and publish it now or at the end of the second."""
        with self._write_lock:
            self._announce()
            if "error" in document:
                return
            day = self._today()
            if day != self._day:
                self._day = day
                self._cost = 0.0
                self._n_answers = 0
                self._n_offloaded = 0
            self._cost += document["cost"]
            self._n_answers += 1
            self._n_offloaded += document["route"] == "cloud"
            # Round the figures far below the digits that Home Assistant shows.
            self._latest_document = document | {
                "confidence": max(document["probabilities"], default=None),
                "cost_today": round(self._cost, 9),
                "share_offloaded": round(self._n_offloaded / self._n_answers, 6),
            }
            self._publish_when_due()

    def _announce(self) -> None:
        """Publish the description once per connection, because a broker may lose it."""
        connection_number = self._link.connection_number
        if connection_number != self._announced_connection and self._link.publish(
            self._config_topic, self._config, retain=True
        ):
            self._announced_connection = connection_number

    def _publish_when_due(self) -> None:
        wait_s = self._next_publication_at - self._clock()
        if wait_s <= 0:
            self._next_publication_at = self._clock() + _MIN_INTERVAL_S
            self._publish()
        elif self._timer is None:
            self._timer = threading.Timer(wait_s, self._on_timer)
            self._timer.daemon = True
            self._timer.start()

    def _on_timer(self) -> None:
        with self._write_lock:
            self._timer = None
            if self._latest_document is not None:
                self._publish_when_due()

    def _publish(self) -> None:
        if self._latest_document is not None:
            self._publish_document(self._latest_document)
            self._latest_document = None

    def __enter__(self) -> Self:
        self._announce()
        return self

    def __exit__(self, *_: object) -> None:
        with self._write_lock:
            if self._timer is not None:
                self._timer.cancel()
            self._publish()
