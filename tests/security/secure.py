"""A broker as `gatewise broker init` makes it, with its log; clients that hold certificates.

Plain helpers; the fixtures are in ``conftest.py``.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_cloud.broker.broker_init import BrokerFolder, init_broker
from gatewise_cloud.broker.mqtt_client import close_client
from gatewise_edge.link.mqtt import Endpoint, make_client

#: No stage stops for it: it goes to the cloud.
HARD = [0.1, 0, 0.1, 0, -1.0, 0]


def _edge_tools() -> Any:
    """Load the small bundle of the edge's tests: fixtures of another folder are not in reach."""
    path = Path(__file__).parents[1] / "edge" / "conftest.py"
    spec = importlib.util.spec_from_file_location("gatewise_tests_edge_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


EDGE = _edge_tools()


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.01)


class SecureBroker:
    """A mosquitto that runs from a folder of `gatewise broker init`, and what it logs."""

    def __init__(self, made: BrokerFolder, *, lines: str = "", log: str = "mosquitto.log") -> None:
        self.made = made
        self.url = f"mqtts://127.0.0.1:{made.port}"
        self._log = made.folder / log
        config = made.config
        if lines:
            config = made.folder / "with-lines.conf"
            config.write_text(made.config.read_text() + lines)
        program = find_mosquitto()
        if program is None:
            pytest.skip("mosquitto is not installed (apt install mosquitto)")
        self._file = self._log.open("wb")
        # -v: a refused PUBLISH is told at level debug only.
        self._process = subprocess.Popen(
            [program, "-v", "-c", str(config)], stdout=self._file, stderr=self._file
        )
        until(self._listens, "mosquitto to listen")

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def says(self, pattern: str) -> None:
        """Wait until a line of the log matches."""
        try:
            until(lambda: re.search(pattern, self.log), f"{pattern!r} in the log")
        except AssertionError:
            print(self.log[-4000:])
            raise

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._file.close()

    def _listens(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            socket.create_connection(("127.0.0.1", self.made.port), timeout=1).close()
        except OSError:
            return False
        return True


class Client:
    """A paho client with a certificate: publishes, and keeps what it gets."""

    def __init__(self, url: str, name: str, files: dict[str, str], *topics: str) -> None:
        self.got: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._ready = threading.Event()
        self._client = make_client(Endpoint(url, **files), name, max_inflight=1000)
        self._topics = [(topic, 1) for topic in topics]
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _c, _u, m: self.got.put((m.topic, bytes(m.payload)))
        endpoint = Endpoint(url, **files)
        self._client.connect(endpoint.host, endpoint.port)
        self._client.loop_start()
        assert self._ready.wait(10), "no connection"

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        if self._topics:
            client.subscribe(self._topics)
        else:
            self._ready.set()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait for the acknowledgement, which says nothing."""
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        info.wait_for_publish(10)
        assert info.is_published()

    def get(self, seconds: float = 10.0) -> tuple[str, bytes]:
        return self.got.get(timeout=seconds)

    def close(self) -> None:
        close_client(self._client)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def make_folder(folder: Path, **settings: Any) -> BrokerFolder:
    defaults: dict[str, Any] = {
        "hosts": ["127.0.0.1", "localhost"],
        "devices": ["pi-1", "pi-2"],
        "workers": ["w-1"],
        "operators": ["boss"],
        "port": free_port(),
        # Started by root it would become a user who may not read the test's folder.
        "run_as": "root" if os.geteuid() == 0 else None,
    }
    return init_broker(folder, **(defaults | settings))
