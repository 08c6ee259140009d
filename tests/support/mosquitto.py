"""A real mosquitto that tests configure, kill, pause and restart."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any, Self

import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_cloud.broker.broker_init import BrokerFolder, init_broker
from gatewise_cloud.child_process import ChildProcess
from tests.support.ports import free_port, listens
from tests.support.waiting import wait_until


def mosquitto_user() -> str | None:
    """User of mosquitto: root stays root, because its default user cannot read test folders."""
    return "root" if os.geteuid() == 0 else None


class Mosquitto:
    """A mosquitto on a free port, as a context manager.

    Parameters
    ----------
    folder : Path
        Folder of its configuration.
    *lines : str
        Lines of the configuration. By default anonymous clients are allowed, and Nagle's algorithm,
        with which a request takes 44 ms, is off.
    port : int, optional
        Port of the listener; by default a free one.
    """

    def __init__(self, folder: Path, *lines: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        user_lines = [f"user {mosquitto_user()}"] if mosquitto_user() else []
        defaults = ["allow_anonymous true", "set_tcp_nodelay true"]
        given_keys = {line.split()[0] for line in lines}
        default_lines = [line for line in defaults if line.split()[0] not in given_keys]
        config = folder / f"mosquitto-{self.port}.conf"
        all_lines = [*user_lines, f"listener {self.port} 127.0.0.1", *default_lines, *lines]
        config.write_text("\n".join([*all_lines, ""]))
        self._command = [_find_program(), "-c", str(config)]
        self._child: ChildProcess | None = None
        self.start()

    def start(self) -> None:
        """Start the broker, always on the same port."""
        self._child = ChildProcess("mosquitto", self._command, follows_input=False)
        wait_until(self._listens, "mosquitto to listen")

    def _listens(self) -> bool:
        assert self._child is not None
        assert self._child.is_alive, self._child.stderr_text()
        return listens(self.port)

    @property
    def log(self) -> str:
        """Text that the broker has written to standard error."""
        assert self._child is not None
        return self._child.stderr_text()

    def wait_for_line(self, pattern: str) -> None:
        """Wait until a line of the log matches."""
        try:
            wait_until(lambda: re.search(pattern, self.log), f"{pattern!r} in the log", 30.0)
        except AssertionError:
            print(self.log[-4000:])
            raise

    def reload(self) -> None:
        """Let the process read its configuration, certificates and revocation list again."""
        assert self._child is not None
        n_reloads = self.log.count("Reloading config")
        os.kill(self._child.pid, signal.SIGHUP)
        wait_until(lambda: self.log.count("Reloading config") > n_reloads, "the reload")

    def pause(self) -> None:
        """Stop the process without closing its connections."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill the broker, if it runs."""
        if self._child is not None:
            self._child.kill()
            self._child.close()
            self._child = None

    def close(self) -> None:
        """Stop the broker normally."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class SecureBroker(Mosquitto):
    """A mosquitto with the configuration of `gatewise broker init`.

    Parameters
    ----------
    broker_folder : BrokerFolder
        Folder of the configuration.
    *lines : str
        Additional lines of the configuration.
    """

    def __init__(self, broker_folder: BrokerFolder, *lines: str) -> None:
        self.broker_folder = broker_folder
        self.port = broker_folder.roster.port
        self.url = f"mqtts://127.0.0.1:{broker_folder.roster.port}"
        config = broker_folder.config
        if lines:
            config = broker_folder.folder / "with-lines.conf"
            config.write_text("\n".join([broker_folder.config.read_text(), *lines, ""]))
        # mosquitto logs a refused PUBLISH only with -v.
        self._command = [_find_program(), "-v", "-c", str(config)]
        self._child: ChildProcess | None = None
        self.start()


def make_broker_folder(folder: Path, **settings: Any) -> BrokerFolder:
    """Make the folder of a secured local broker with two devices, a worker and an operator."""
    defaults: dict[str, Any] = {
        "hosts": ["127.0.0.1", "localhost"],
        "devices": ["pi-1", "pi-2"],
        "workers": ["w-1"],
        "operators": ["boss"],
        "port": free_port(),
        "run_as": mosquitto_user(),
    }
    return init_broker(folder, **(defaults | settings))


def _find_program() -> str:
    program = find_mosquitto()
    if program is None:
        pytest.fail("tests need a mosquitto: apt install mosquitto, or `make mosquitto`")
    return str(program)
