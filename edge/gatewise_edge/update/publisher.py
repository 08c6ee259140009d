"""The operator's side: announce a bundle to the devices of its model.

The serial is the greater of the time in seconds and one more than that of the announcement that
the broker retains, if that one bears this key's signature. MQTT 3.1.1 does not inform a client that
it may not publish, so the announcement is read back.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import paho.mqtt.client as paho

from gatewise.errors import InputError
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint, make_client
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.update.announcement import (
    LARGEST_SERIAL,
    MOST_PAYLOAD,
    Announcement,
    decode,
    encode,
)
from gatewise_edge.update.errors import UpdateError
from gatewise_edge.update.fetch import check_host
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.signing import Signer

__all__ = ["publish"]

#: Seconds that a retained message may take after the broker has confirmed two subscriptions.
_GRACE: Final = 0.5


def publish(
    bundle: str | Path,
    url: str,
    key: str | Path,
    broker: Endpoint,
    *,
    serial: int | None = None,
    timeout: float = 10.0,
    now: Callable[[], float] = time.time,
) -> Announcement:
    """Announce a bundle, retained, on the topic of its model.

    `bundle` is the ``.gwb`` file that devices fetch at `url`, signed by `key`, without the
    high-cost model. The serial is greater than the last one, by default the time in seconds. Raises
    BundleError or InputError if an argument cannot be used, LinkError if the broker cannot be
    reached or does not pass the announcement on.
    """
    signer = Signer(key)
    path = Path(bundle)
    if not path.is_file():
        raise InputError(f"{path} is not a .gwb file; make one: gatewise pack BUNDLE --out X.gwb")
    manifest = _check_bundle(path, signer)
    _check_url(url)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    topic = manifest_topic(manifest.name)
    with _RetainedTopic(broker, topic, timeout) as topic_client:
        last = _last_serial(topic_client.retained, signer, manifest.name)
        if serial is None:
            serial = max(last + 1, int(now()))
        if not last < serial <= LARGEST_SERIAL:
            raise InputError(f"--serial {serial}: the last announcement has {last}; give more")
        announcement = Announcement(
            manifest.name, manifest.version, serial, digest, path.stat().st_size, url
        )
        topic_client.publish(encode(announcement, signer))
    return announcement


def _check_bundle(path: Path, signer: Signer) -> Any:
    opened = Bundle.open(path, public_key=signer.public.raw, for_device=True)
    cloud = opened.manifest.cloud
    if cloud is not None and not opened.absent():
        raise InputError(
            f"{path} holds {cloud.file}, which devices refuse: announce what "
            "`gatewise pack BUNDLE --for device --out X.gwb` writes"
        )
    return opened.manifest


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https":
        check_host(parts.netloc)
    elif parts.scheme != "file":
        raise InputError(f"--url {url}: must begin with https://")


def _last_serial(retained: bytes | None, signer: Signer, name: str) -> int:
    if not retained:
        return 0
    try:
        return decode(retained, signer.public, name=name).serial
    except UpdateError:
        return 0  # devices that trust this key take no notice of it either


class _RetainedTopic:
    """Read what a topic retains, publish there, and wait until it comes back."""

    def __init__(self, broker: Endpoint, topic: str, timeout: float) -> None:
        self._broker, self._topic, self._timeout = broker, topic, timeout
        self.retained: bytes | None = None
        self._published: bytes | None = None
        self._subscribed, self._back = threading.Event(), threading.Event()
        self._waiting: set[int] = set()
        self._refused: str | None = None
        self._client = make_client(broker, f"gw-publish-{secrets.token_hex(4)}", max_inflight=4)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def __enter__(self) -> _RetainedTopic:
        try:
            self._client.connect(self._broker.host, self._broker.port, keepalive=10)
        except (OSError, ValueError) as error:
            raise self._error(getattr(error, "strerror", None) or str(error)) from None
        self._client.loop_start()
        try:
            if not self._subscribed.wait(self._timeout):
                raise self._error(f"no answer within {self._timeout:g} s")
            if self._refused is not None:
                raise self._error(self._refused)
            if self.retained is None:
                self._back.wait(_GRACE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, payload: bytes) -> None:
        """Publish, retained, and wait until it comes back."""
        self._back.clear()
        self._published = payload
        self._client.publish(self._topic, payload, qos=1, retain=True)
        if not self._back.wait(self._timeout):
            raise self._error(f"it does not pass on messages on {self._topic}: may this user?")

    def _error(self, why: str) -> LinkError:
        return LinkError(self._broker.url, f"broker {self._broker.url} cannot be used: {why}")

    def _on_connect(
        self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        if reason.is_failure:
            self._refused = str(reason)
            self._subscribed.set()
            return
        # The second confirmation comes after what the topic retains for the first.
        for _ in range(2):
            _, mid = client.subscribe(self._topic, qos=1)
            if mid is not None:
                self._waiting.add(mid)

    def _on_subscribe(
        self, client: paho.Client, userdata: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        self._waiting.discard(mid)
        if not self._waiting:
            self._subscribed.set()

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        payload = bytes(message.payload)
        if self._published is None:
            if message.retain and len(payload) <= MOST_PAYLOAD:
                self.retained = payload
                self._back.set()
        elif payload == self._published:
            self._back.set()
