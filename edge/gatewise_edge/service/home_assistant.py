"""Home Assistant's MQTT discovery: a device describes its page there, and its answers fill it.

The description (:func:`discovery`) is retained on ``<prefix>/device/<device>/config``. The values
come from the device's own topic ``gw/v1/<device>/answers``, the availability from its status, whose
last will is ``offline``. So a broker needs one more right for it, or none if somebody else
publishes the description.

Source: https://www.home-assistant.io/integrations/mqtt/, "Device discovery payload".
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Self

from gatewise.errors import InputError
from gatewise_edge.link.topics import answers_topic, status_topic

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import MqttLink

#: Shortest time from one publication to the next, in seconds.
_EVERY: Final = 1.0
#: Home Assistant takes no others in the levels of a discovery topic.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
_PREFIX: Final = re.compile(r"[^/+#\0]+(/[^/+#\0]+)*")
#: Name, template and further description of each sensor.
_SENSORS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "label": ("Label", "value_json.label", {"icon": "mdi:label"}),
    "confidence": (
        "Confidence",
        "(value_json.confidence * 100) | round(1) if value_json.confidence is number else None",
        {"unit_of_measurement": "%", "state_class": "measurement"},
    ),
    "route": ("Route", "value_json.route", {"icon": "mdi:source-branch"}),
    "cost_today": (
        "Cost today",
        "value_json.cost_today | round(6)",
        {"state_class": "total_increasing", "icon": "mdi:counter"},
    ),
    "share_offloaded": (
        "Share offloaded today",
        "(value_json.share_offloaded * 100) | round(1)",
        {"unit_of_measurement": "%", "state_class": "measurement"},
    ),
}


def discovery(device: str, prefix: str = "homeassistant") -> tuple[str, dict[str, Any]]:
    """Topic and document, to be retained there, that make a device known to Home Assistant.

    Raises InputError for a device's name or a prefix that Home Assistant would pass over.
    """
    if _NAME.fullmatch(device) is None:
        raise InputError(
            f"--home-assistant: it takes device ids of letters, digits, - and _ only, not "
            f"{device!r}; name another with --device"
        )
    if _PREFIX.fullmatch(prefix) is None:
        raise InputError(f"--home-assistant {prefix!r}: no topic; by default it is homeassistant")
    own_id = f"gatewise_{device}"
    return f"{prefix}/device/{device}/config", {
        "device": {"identifiers": [own_id], "name": device, "manufacturer": "Gatewise"},
        "origin": {"name": "gatewise", "support_url": "https://github.com/gatewise/gatewise"},
        "state_topic": answers_topic(device),
        "availability_topic": status_topic(device),
        "availability_template": "{{ 'offline' if value == 'offline' else 'online' }}",
        "components": {
            key: {
                "platform": "sensor",
                "unique_id": f"{own_id}_{key}",
                "name": name,
                "value_template": "{{ " + template + " }}",
                **more,
            }
            for key, (name, template, more) in _SENSORS.items()
        },
    }


class HomeAssistant:
    """Publishes a device's answers with the sums of the day; a context manager. Thread-safe.

    Answers are published once per second or less often: the last one of a second is published at
    its end. An error is not published.

    Parameters
    ----------
    link : MqttLink
    prefix : str
        Discovery prefix of Home Assistant.
    write : callable
        Publishes a line on ``gw/v1/<device>/answers``. It gets the answer's line and
        ``confidence`` (null for a value), ``cost_today`` and ``share_offloaded``.
    clock, today : callable
        Steady seconds, and the day.
    """

    def __init__(
        self,
        link: MqttLink,
        prefix: str,
        write: Callable[[dict[str, Any]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = date.today,
    ) -> None:
        self._link = link
        self._clock = clock
        self._today = today
        self._config_topic, config = discovery(link.device, prefix)
        self._config = json.dumps(config).encode()
        self._announced = False
        self._write = write
        self._latest: dict[str, Any] | None = None
        self._timer: threading.Timer | None = None
        self._due = clock()
        self._day = today()
        self._cost = 0.0
        self._answers = 0
        self._offloaded = 0
        self._writing = threading.Lock()

    def write(self, document: dict[str, Any]) -> None:
        """Add a line of ``gatewise edge``, and publish it if it is time to."""
        with self._writing:
            self._announce()
            if "error" in document:
                return
            if (day := self._today()) != self._day:
                self._day = day
                self._cost = 0.0
                self._answers = 0
                self._offloaded = 0
            self._cost += document["cost"]
            self._answers += 1
            self._offloaded += document["route"] == "cloud"
            self._latest = document | {
                "confidence": max(document["probabilities"], default=None),
                "cost_today": round(self._cost, 9),
                "share_offloaded": round(self._offloaded / self._answers, 6),
            }
            self._publish_when_due()

    def _announce(self) -> None:
        self._announced = self._announced or self._link.publish(
            self._config_topic, self._config, retain=True
        )

    def _publish_when_due(self) -> None:
        wait = self._due - self._clock()
        if wait <= 0:
            self._due = self._clock() + _EVERY
            self._publish()
        elif self._timer is None:
            self._timer = threading.Timer(wait, self._on_timer)
            self._timer.daemon = True
            self._timer.start()

    def _on_timer(self) -> None:
        with self._writing:
            self._timer = None
            if self._latest is not None:
                self._publish_when_due()

    def _publish(self) -> None:
        if self._latest is not None:
            self._write(self._latest)
            self._latest = None

    def __enter__(self) -> Self:
        self._announce()
        return self

    def __exit__(self, *_: object) -> None:
        with self._writing:
            if self._timer is not None:
                self._timer.cancel()
            self._publish()
