"""``python -m gatewise_sim.live.device_process``: several devices in a process of their own.

Speaks JSON, one document a line. The first line on standard input is the job::

    {"bundle": path, "rows": path of a .npy, "broker": url, "deadline_ms": 500,
     "devices": {name: [row, ...], ...}}

then, for each pass, ``{"policy": "system"}``; it answers ``{"event": "ready"}``, waits for
``{"go": true}``, prints ``{"event": "answer", "answer": [...]}`` for each instance (the fields
of :class:`~gatewise_sim.live.outcome.Outcome`) or
``{"event": "failed", "row": n, "message": text}``, and at last
``{"event": "done", "late": n, "retries": n}``.
When standard input closes it ends, whatever it is doing. Imports what a device has, nothing
more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device import Device
from gatewise_edge.link import Link, Receive
from gatewise_edge.mqtt import MqttLink
from gatewise_edge.wire import request_topic, response_topic
from gatewise_export.bundle import Bundle
from gatewise_sim.live.outcome import PUBACK_BYTES, Outcome, publish_bytes
from gatewise_training.costs import FeatureCosts
from gatewise_training.errors import GatewiseError

__all__ = ["MeteredLink", "main"]

_CONNECT_SECONDS = 15.0


class MeteredLink:
    """A link that weighs the messages of another one.

    Parameters
    ----------
    inner : Link
    device : str
        Its id, for the topics' lengths.
    """

    def __init__(self, inner: Link, device: str) -> None:
        self._inner = inner
        self._request = request_topic(device)
        self._response = response_topic(device)
        self._lock = threading.Lock()
        self._bytes = np.zeros(4, np.int64)

    @property
    def ready(self) -> bool:
        return self._inner.ready

    def open(self, receive: Receive) -> None:
        def weigh(payload: bytes) -> None:
            size = publish_bytes(self._response, len(payload))
            with self._lock:
                self._bytes += PUBACK_BYTES, size, 0, len(payload)
            receive(payload)

        self._inner.open(weigh)

    def send(self, payload: bytes) -> bool:
        sent = self._inner.send(payload)
        if sent:
            size = publish_bytes(self._request, len(payload))
            with self._lock:
                self._bytes += size, PUBACK_BYTES, len(payload), 0
        return sent

    def close(self) -> None:
        self._inner.close()

    def take(self) -> list[int]:
        """Bytes up and down, payload up and down, since the last call."""
        with self._lock:
            taken: list[int] = self._bytes.tolist()
            self._bytes[:] = 0
        return taken


class _Job:
    """The devices of this process, and what they answer."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.bundle = Bundle.open(document["bundle"])
        self.rows: NDArray[np.float32] = np.load(document["rows"], allow_pickle=False)
        self.broker: str = document["broker"]
        self.deadline_ms: float = document["deadline_ms"]
        self.devices: dict[str, list[int]] = document["devices"]
        self.costs = self.bundle.manifest.feature_costs()
        self.out = threading.Lock()

    def say(self, **document: Any) -> None:
        with self.out:
            print(json.dumps(document), flush=True)

    def run_pass(self, policy: Any, orders: Iterator[dict[str, Any]]) -> None:
        """Make the devices, wait for the word, let each answer its rows, one after another."""
        with ExitStack() as stack:
            devices: list[tuple[str, Device, MeteredLink | None]] = []
            for name in self.devices:
                link = None
                if policy != "edge-only":  # it could not use one
                    inner = MqttLink(self.broker, device=name)
                    link = MeteredLink(inner, name)
                device = Device(self.bundle, link=link, deadline_ms=self.deadline_ms, policy=policy)
                stack.enter_context(device)
                if link is not None:
                    inner.connect(_CONNECT_SECONDS)
                devices.append((name, device, link))
            self.say(event="ready")
            next(orders)
            threads = [threading.Thread(target=self._answer, args=entry) for entry in devices]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            counters = [device.counters for _, device, _ in devices]
        self.say(
            event="done",
            late=sum(c["late"] for c in counters),
            retries=sum(c["retries"] for c in counters),
        )

    def _answer(self, name: str, device: Device, link: MeteredLink | None) -> None:
        prices: dict[tuple[int, ...], float] = {}
        for row in self.devices[name]:
            try:
                answer = device.answer(self.rows[row])
            except GatewiseError as error:
                self.say(event="failed", row=row, message=str(error))
                continue
            up, down, payload_up, payload_down = link.take() if link else [0] * 4
            outcome = Outcome(
                row=row,
                route=answer.route,
                stage=answer.stage,
                label=answer.class_index,
                cost=answer.cost,
                feature_cost=_price(self.costs, answer.acquired, prices),
                latency_ms=answer.latency_ms,
                up=up,
                down=down,
                payload_up=payload_up,
                payload_down=payload_down,
                device=name,
                reason=answer.reason,
            )
            self.say(event="answer", answer=outcome)


def _price(
    costs: FeatureCosts, acquired: tuple[int, ...], known: dict[tuple[int, ...], float]
) -> float:
    if acquired not in known:
        known[acquired] = costs.of(np.array(acquired, np.intp))
    return known[acquired]


def _orders() -> Iterator[dict[str, Any]]:
    """Yield what the owner says; end the process when it is gone, even in the middle of a pass.

    Closing the links properly is not worth waiting for a cloud that may be gone, too.
    """
    lines: list[dict[str, Any]] = []
    came = threading.Condition()

    def listen() -> None:
        for line in sys.stdin:
            with came:
                lines.append(json.loads(line))
                came.notify()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with came:
            came.wait_for(lambda: lines)
            order = lines.pop(0)
        yield order


def main() -> int:
    """Take a job and run its passes; 2 on an error of Gatewise's, with one line about it."""
    orders = _orders()
    try:
        job = _Job(next(orders))
        for order in orders:
            job.run_pass(order["policy"], orders)
    except GatewiseError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    # Not sys.exit: the listening thread sits in a read of standard input.
    status = main()
    sys.stdout.flush()
    os._exit(status)
