"""MQTT brokers on this machine, for demos and tests: mosquitto or the embedded broker.

Such a broker listens on loopback only, because everyone may connect. For devices on other machines,
configure a broker with certificates and TLS (:mod:`.broker_init`).

The embedded broker is amqtt, in pure Python, which is enough for a demo with one worker. amqtt
0.12.1 deviates from the standard:

- It grants ``$share/...`` but delivers nothing (:func:`.shared_subscriptions_work` tests this).
- It sends a new client the retained messages of all topics that any client is subscribed to.
- It does not end the session of a client that falls silent, and does not publish its last will.
- It stores neither the session nor the messages of a client that is disconnected.
- It sends a message with the QoS of the subscription, and twice if subscriptions overlap.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, Self

from gatewise_cloud.broker.mqtt_client import broker_url, connect_reason
from gatewise_cloud.child_process import ChildProcess
from gatewise_cloud.errors import BrokerError
from gatewise_edge.link.endpoint import Endpoint

#: Address on which these brokers listen.
LOOPBACK: Final = "127.0.0.1"
#: Time to wait for a started mosquitto to accept connections, which takes less than a second on an
#: idle machine.
_START_TIMEOUT_SECONDS: Final = 15.0
#: Number of free ports to try, because other programs may take them first.
_MAX_PORT_ATTEMPTS: Final = 5
#: Folders of mosquitto that are often missing from PATH.
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")


class Broker(ABC):
    """MQTT broker in a separate process; a context manager.

    The broker accepts clients when the constructor returns. It listens on `port` of
    :data:`LOOPBACK`, where 0 selects a free port. `has_shared_subscriptions` says whether several
    workers can share the load. Raises BrokerError if the broker is not installed, cannot listen on
    this port, or does not start.
    """

    kind = ""
    has_shared_subscriptions = False
    _follows_input = False

    def __init__(self, port: int = 0) -> None:
        self.port = port
        # the broker reads its configuration only when it starts
        with tempfile.TemporaryDirectory(prefix="gatewise-broker-") as folder:
            self._child = self._start(port, Path(folder))

    @property
    def url(self) -> str:
        """URL of the broker, ``mqtt://host:port``."""
        return broker_url("mqtt", LOOPBACK, self.port)

    @property
    def pid(self) -> int:
        """Id of the broker's process."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether the broker's process is running."""
        return self._child.is_alive

    @property
    def last_lines(self) -> str:
        """Last lines of the broker's log."""
        return self._child.last_lines(2)

    def kill(self) -> None:
        """Kill the broker, so that its clients lose their connections."""
        self._child.kill()
        self.close()

    def close(self) -> None:
        """Stop the broker; a second call does nothing."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _make_command(self, folder: Path) -> list[str]:
        """Return the program and arguments that start the broker with its files in `folder`."""

    def _start(self, port: int, folder: Path) -> ChildProcess:
        """Start the broker on `port`, or on a free port if it is 0.

        If another program takes the free port first, the broker is started on another free port.
        """
        name = f"the {self.kind} broker"
        for attempt in range(1, _MAX_PORT_ATTEMPTS + 1):
            self.port = _find_usable_port(port)
            child = ChildProcess(
                name, self._make_command(folder), follows_input=self._follows_input
            )
            try:
                if self._wait_until_ready(child):
                    return child
                failure = child.wait_for_failure(2)
            except BaseException:
                child.close()
                raise
            child.close()
            if port or attempt == _MAX_PORT_ATTEMPTS:
                break
        raise BrokerError(port, f"{name} ended while it started: {failure}")

    def _wait_until_ready(self, child: ChildProcess) -> bool:
        """Wait until the broker accepts a client; return False if its process ends first."""
        endpoint = Endpoint(self.url)
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while child.is_alive:
            # if the child is still alive, the response is not from another program on the port
            reason_code = connect_reason(endpoint)
            if reason_code is not None and not reason_code.is_failure and child.is_alive:
                return True
            if time.monotonic() > deadline:
                raise BrokerError(
                    self.port,
                    f"{child.name} did not respond on {LOOPBACK}:{self.port} within "
                    f"{_START_TIMEOUT_SECONDS:g} s: {child.last_lines(2) or 'it logged nothing'}",
                )
            time.sleep(0.01)
        return False


class EmbeddedBroker(Broker):
    """amqtt broker, which comes with Gatewise, for demos with one worker."""

    kind = "embedded"
    _follows_input = True

    def _make_command(self, folder: Path) -> list[str]:
        module = "gatewise_cloud.broker.embedded_process"
        return [sys.executable, "-m", module, LOOPBACK, str(self.port)]


class MosquittoBroker(Broker):
    """mosquitto broker that is installed on this machine, for demos and tests."""

    kind = "mosquitto"
    has_shared_subscriptions = True

    def _make_command(self, folder: Path) -> list[str]:
        program = find_mosquitto()
        if program is None:
            raise BrokerError(
                self.port,
                "mosquitto is neither on PATH nor in /usr/sbin: install it "
                "(apt install mosquitto, brew install mosquitto) or use the embedded broker",
            )
        config = folder / "mosquitto.conf"
        config.write_text(mosquitto_config(self.port))
        return [str(program), "-c", str(config)]


def find_mosquitto() -> Path | None:
    """Find the mosquitto program on PATH or in the folders where packages install it."""
    folders = [os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS]
    program = shutil.which("mosquitto", path=os.pathsep.join(folders))
    return Path(program) if program else None


def mosquitto_config(port: int) -> str:
    """Make the configuration of mosquitto 2 on loopback, without users or persistence.

    It disables Nagle's algorithm, with which a request and its response take 44 ms instead of 0.7.
    """
    return f"""\
listener {port} {LOOPBACK}
allow_anonymous true
set_tcp_nodelay true
persistence false
log_dest stderr
log_type error
"""


def _find_usable_port(port: int) -> int:
    """Return `port`, or a free port if it is 0; BrokerError if `port` cannot be used."""
    try:
        with socket.socket() as listener:
            # as in brokers, a port counts as free while its old connections are still closing
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, port))
            listener.listen(1)
            return int(listener.getsockname()[1])
    except (OSError, OverflowError) as error:
        problem = _PORT_PROBLEMS.get(
            getattr(error, "errno", 0) or 0, f"cannot be used ({error}): give another --port"
        )
        raise BrokerError(port, f"port {port} on {LOOPBACK} {problem}") from error


_PORT_PROBLEMS: Final = {
    errno.EADDRINUSE: "is in use: stop the program that listens on it, or give another --port",
    errno.EACCES: "may only be used by the administrator: give a --port above 1023",
}
