"""Start an MQTT broker on this machine: a real mosquitto, or the embedded one.

It listens on loopback only, because everyone may connect. For devices on other machines, configure
a broker with users and TLS (:mod:`.broker_init`).

The embedded broker is amqtt in pure Python, which is enough for a demo with one worker. Where amqtt
0.12.1 differs from the standard:

- it grants ``$share/...`` and delivers nothing on it (:func:`.shared_subscriptions_work` tests it);
- it sends a new client all retained messages that any client is subscribed to;
- keepalive ends no session and publishes no last will, so that a silent client stays unnoticed;
- it keeps no session and no message for a client that is away;
- it sends a message with the QoS of the subscription, and twice if subscriptions overlap.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, Self

from gatewise_cloud.broker.mqtt_client import connect_reason
from gatewise_cloud.child_process import ChildProcess
from gatewise_cloud.errors import BrokerError
from gatewise_edge.link.mqtt import Endpoint

_READY_SECONDS: Final = 15.0
_PORT_TRIES: Final = 5
#: Folders of mosquitto that are often not on PATH.
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")


class Broker(ABC):
    """A broker in a process of its own, ready when the constructor returns; a context manager.

    It listens on `host`, a loopback address, and `port`, where 0 takes a free one.
    `shared_subscriptions` says whether several workers can share the load. Raises BrokerError if
    the broker is not installed, cannot listen there, or does not start.
    """

    kind = ""
    shared_subscriptions = False
    _follows_input = False

    def __init__(self, port: int = 0, *, host: str = "127.0.0.1") -> None:
        _check_loopback(host, port)
        self.host = host
        self.port = port
        # The configuration is read only at the start.
        with tempfile.TemporaryDirectory(prefix="gatewise-broker-") as folder:
            self._child = self._start(port, Path(folder))

    @property
    def url(self) -> str:
        """Its address: ``mqtt://host:port``."""
        return f"mqtt://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self._child.alive

    @property
    def last_lines(self) -> str:
        """The end of its log."""
        return self._child.last_lines(2)

    def kill(self) -> None:
        """Kill it, so that its clients lose their connections."""
        self._child.kill()
        self.close()

    def close(self) -> None:
        """End it; a second call does nothing."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _command(self, folder: Path) -> list[str]:
        """Program and arguments that start the broker with its files in `folder`."""

    def _start(self, port: int, folder: Path) -> ChildProcess:
        """Start on `port`, or on a free one; try again if another program takes that one first."""
        name = f"the {self.kind} broker"
        for attempt in range(1, _PORT_TRIES + 1):
            self.port = _free_port(self.host, port)
            child = ChildProcess(name, self._command(folder), follows_input=self._follows_input)
            try:
                if self._wait_ready(child):
                    return child
                failure = child.failure(2)
            except BaseException:
                child.close()
                raise
            child.close()
            if port or attempt == _PORT_TRIES:
                break
        raise BrokerError(self.host, port, f"{name} ended while it started: {failure}")

    def _wait_ready(self, child: ChildProcess) -> bool:
        """Wait until it accepts a client; False if its process ended before."""
        endpoint = Endpoint(self.url)
        deadline = time.monotonic() + _READY_SECONDS
        while child.alive:
            # The response is of this broker, not of another program, if it was alive all the time.
            reason = connect_reason(endpoint, 1.0)
            if reason is not None and not reason.is_failure and child.alive:
                return True
            if time.monotonic() > deadline:
                raise BrokerError(
                    self.host,
                    self.port,
                    f"{child.name} did not respond on {self.host}:{self.port} within "
                    f"{_READY_SECONDS:g} s: {child.last_lines(2) or 'it left no message'}",
                )
            time.sleep(0.01)
        return False


class EmbeddedBroker(Broker):
    """The broker that comes with Gatewise (amqtt): one worker, plain subscription, demos."""

    kind = "embedded"
    _follows_input = True

    def _command(self, folder: Path) -> list[str]:
        module = "gatewise_cloud.broker.embedded_process"
        return [sys.executable, "-m", module, self.host, str(self.port)]


class MosquittoBroker(Broker):
    """A mosquitto of this machine, with a configuration of its own."""

    kind = "mosquitto"
    shared_subscriptions = True

    def _command(self, folder: Path) -> list[str]:
        program = find_mosquitto()
        if program is None:
            raise BrokerError(
                self.host,
                self.port,
                "no mosquitto found on PATH or in /usr/sbin: install it "
                "(apt install mosquitto, brew install mosquitto) or use the embedded broker",
            )
        config = folder / "mosquitto.conf"
        config.write_text(mosquitto_config(self.port, host=self.host))
        return [str(program), "-c", str(config)]


def find_mosquitto() -> Path | None:
    """Find the mosquitto program: on PATH, or where packages put it outside of PATH."""
    folders = [os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS]
    program = shutil.which("mosquitto", path=os.pathsep.join(folders))
    return Path(program) if program else None


def mosquitto_config(port: int, *, host: str = "127.0.0.1") -> str:
    """Configuration of a mosquitto 2 for loopback, without users and without persistence.

    With Nagle's algorithm a request and its response take 44 ms instead of 0.7.
    """
    return f"""\
listener {port} {host}
allow_anonymous true
set_tcp_nodelay true
persistence false
log_dest stderr
log_type error
"""


def _check_loopback(host: str, port: int) -> None:
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise BrokerError(
        host,
        port,
        f"everyone may connect to this broker, so that it listens on loopback only, not on {host}: "
        "for other machines use gatewise broker init",
    )


def _free_port(host: str, port: int) -> int:
    """Check that a port is free, or find a free one for 0; raise BrokerError."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            # As in brokers: a port with connections that are closing counts as free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1)
            return int(listener.getsockname()[1])
    except (OSError, OverflowError) as error:
        problem = _PROBLEMS.get(
            getattr(error, "errno", 0) or 0, f"cannot be used ({error}): give another --port"
        )
        raise BrokerError(host, port, f"port {port} on {host} {problem}") from error


_PROBLEMS: Final = {
    errno.EADDRINUSE: "is in use: stop the program that listens on it, or give another --port",
    errno.EACCES: "may only be used by the administrator: give a --port above 1023",
}
