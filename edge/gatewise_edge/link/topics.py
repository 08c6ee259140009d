"""Names on the wire and the topics made of them, at most 7 slashes deep.

::

    gw/v1/<device>/req                requests       (the device writes)
    gw/v1/<device>/rsp                responses      (workers write)
    gw/v1/<device>/status             retained: online [<model>/<version>]; last will: offline
    gw/v1/<device>/metrics            counters
    gw/v1/model/<name>/manifest       retained: announced models
    gw/v1/dead/<reason>               what could not be answered
"""

from __future__ import annotations

import re
from typing import Final

from gatewise_edge.checks import MAX_NAME, check_text
from gatewise_edge.errors import WireError

__all__ = [
    "REQUESTS",
    "check_device",
    "check_model",
    "dead_topic",
    "device_of",
    "manifest_topic",
    "metrics_topic",
    "request_topic",
    "response_topic",
    "shared",
    "status_topic",
]

_ROOT: Final = "gw/v1"
#: Topic filter of every device's requests.
REQUESTS: Final = f"{_ROOT}/+/req"
_NO_LEVEL: Final = re.compile(r"[/+#\x00-\x1f\x7f-\x9f]")
_RESERVED: Final = frozenset({"model", "dead"})


def check_device(device: str) -> str:
    """Check a device id: a topic level of 1 to 64 bytes, not ``model`` and not ``dead``.

    Raises
    ------
    WireError
        If it is too long or empty, holds ``/``, ``+``, ``#`` or a control character, or is
        one of the reserved names.
    """
    _check_level("device id", device)
    if device in _RESERVED:
        raise WireError("name", f"device id {device!r} is reserved")
    return device


def check_model(name: str, what: str = "model name") -> str:
    """Check a model's name or version: a topic level of 1 to 64 bytes.

    Raises
    ------
    WireError
        As :func:`check_device`, but no name is reserved.
    """
    return _check_level(what, name)


def _check_level(what: str, value: str) -> str:
    check_text(what, value, 1, MAX_NAME)
    if _NO_LEVEL.search(value):
        raise WireError("name", f"{what} {value!r} holds '/', '+', '#' or a control character")
    return value


def request_topic(device: str) -> str:
    """Where `device` asks."""
    return f"{_ROOT}/{check_device(device)}/req"


def response_topic(device: str) -> str:
    """Where `device` is answered."""
    return f"{_ROOT}/{check_device(device)}/rsp"


def status_topic(device: str) -> str:
    """Where `device` says, retained, that it is ``online ...`` or (its last will) ``offline``."""
    return f"{_ROOT}/{check_device(device)}/status"


def metrics_topic(device: str) -> str:
    """Where `device` tells its counters."""
    return f"{_ROOT}/{check_device(device)}/metrics"


def manifest_topic(model: str) -> str:
    """Where a model's manifest is announced, retained."""
    return f"{_ROOT}/model/{check_model(model)}/manifest"


def dead_topic(reason: str) -> str:
    """Where messages go that cannot be answered."""
    return f"{_ROOT}/dead/{_check_level('reason', reason)}"


def shared(pool: str, topic_filter: str = REQUESTS) -> str:
    """Make the shared subscription by which the workers of `pool` divide the requests."""
    return f"$share/{_check_level('pool', pool)}/{topic_filter}"


def device_of(topic: str) -> str:
    """Device id in a topic of the form ``gw/v1/<device>/<what>``.

    Raises
    ------
    WireError
        If the topic has another form.

    Examples
    --------
    >>> device_of("gw/v1/pi-7/req")
    'pi-7'
    """
    levels = topic.split("/")
    if len(levels) != 4 or levels[:2] != _ROOT.split("/"):
        raise WireError("name", f"topic {topic[:80]!r} is not a device's")
    return check_device(levels[2])
