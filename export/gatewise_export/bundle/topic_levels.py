"""Names of bundles as levels of MQTT topics."""

from __future__ import annotations

import re
from typing import Final

from gatewise.errors import InputError

#: The rule of :func:`is_topic_level`, for messages.
TOPIC_LEVEL_RULE: Final = (
    "cannot be a level of MQTT topics: give 1 to 64 bytes without / + # and control characters"
)
#: Largest size of a name in bytes. Names are levels of topics and labels of metrics, of which
#: brokers and Prometheus keep one for each device.
MAX_LEVEL_BYTES: Final = 64
#: Separators and wildcards of topics (MQTT 3.1.1, section 4.7), and control characters.
FORBIDDEN_CHARACTERS: Final = re.compile(r"[/+#\x00-\x1f\x7f-\x9f]")


def is_topic_level(text: str) -> bool:
    """Whether devices and workers can put a text into topics and messages.

    >>> is_topic_level("digits"), is_topic_level("a/b"), is_topic_level("é" * 33)
    (True, False, False)
    """
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 1 <= n_bytes <= MAX_LEVEL_BYTES and not FORBIDDEN_CHARACTERS.search(text)


def check_topic_level(field: str, text: str) -> None:
    """Raise InputError if the text of a field or an option cannot be a topic level."""
    if not is_topic_level(text):
        raise InputError(f"{field} {text!r} {TOPIC_LEVEL_RULE}")


def topic_level(name: str) -> str:
    """Make a level of MQTT topics from a file's name.

    >>> topic_level("a/b+c#"), topic_level(""), len(topic_level("x" * 80))
    ('a-b-c-', 'model', 64)
    """
    safe_text = "".join(
        character if character.isascii() and (character.isalnum() or character in "-_.") else "-"
        for character in name
    )
    return safe_text[:MAX_LEVEL_BYTES] or "model"
