"""MQTT topics; docs/wire.md describes the messages on each and who publishes them.

Topics have at most 7 slashes, because some brokers allow no more. Each function raises WireError
for a name that cannot be a topic level.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gatewise_edge.checks import check_device, check_level
from gatewise_edge.errors import WireError

#: First levels of every topic; v1 is the version of the layout.
_ROOT: Final = "gw/v1"
#: Topic filter of every device's requests.
REQUEST_TOPICS: Final = f"{_ROOT}/+/req"
#: Topic filter of every device's JSON requests.
JSON_REQUEST_TOPICS: Final = f"{REQUEST_TOPICS}/json"
#: Topic filter of the labels of every sender, in CBOR; in JSON at ``.../json``.
LABEL_TOPICS: Final = f"{_ROOT}/+/labels"
#: Topic filter of every device's status.
STATUS_TOPICS: Final = f"{_ROOT}/+/status"


def request_topic(device: str) -> str:
    """Topic of a device's requests."""
    return f"{_ROOT}/{check_device(device)}/req"


@lru_cache(maxsize=4096)  # a worker responds to the same devices again and again
def response_topic(device: str) -> str:
    """Topic of the responses to a device."""
    return f"{_ROOT}/{check_device(device)}/rsp"


def json_response_topic(device: str) -> str:
    """Topic of the JSON responses to a device."""
    return f"{response_topic(device)}/json"


def status_topic(device: str) -> str:
    """Topic of a device's retained status: ``online ...``, or ``offline`` as the last will."""
    return f"{_ROOT}/{check_device(device)}/status"


def session_topic(device: str) -> str:
    """Topic of the retained mark of the process that uses a device's id."""
    return f"{_ROOT}/{check_device(device)}/session"


def answers_topic(device: str) -> str:
    """Topic on which a device publishes its answers."""
    return f"{_ROOT}/{check_device(device)}/answers"


def corrections_topic(device: str) -> str:
    """Topic on which a device publishes late answers."""
    return f"{_ROOT}/{check_device(device)}/corrections"


def manifest_topic(model: str) -> str:
    """Topic of the retained announcements of a model's releases."""
    return f"{_ROOT}/model/{check_level('model name', model)}/manifest"


def dead_letter_topic(reason: str) -> str:
    """Topic of messages that cannot be answered."""
    return f"{_ROOT}/dead/{check_level('reason', reason)}"


def shared_subscription(pool: str, topic_filter: str = REQUEST_TOPICS) -> str:
    """Topic filter of the shared subscription with which the workers of `pool` share requests."""
    return f"$share/{check_level('pool', pool)}/{topic_filter}"


@lru_cache(maxsize=4096)  # a worker gets requests on the same topics again and again
def device_of(topic: str) -> str:
    """Device id in a topic such as ``gw/v1/<device>/req`` or ``gw/v1/<device>/req/json``.

    >>> device_of("gw/v1/pi-7/req"), device_of("gw/v1/pi-7/req/json")
    ('pi-7', 'pi-7')
    """
    levels = topic.removesuffix("/json").split("/")
    if len(levels) != 4 or levels[:2] != _ROOT.split("/"):
        raise WireError("name", f"topic {topic[:80]!r} belongs to no device")
    return check_device(levels[2])
