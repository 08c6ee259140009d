"""Test that the service notifies systemd through a real socket, and how systemd is configured.

The notifications come from a Notifier, from a Heartbeat and from a process. tests/test_deploy.py
tests the command and the syntax of systemd's units.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from gatewise_edge.service.watchdog import Heartbeat, Notifier

#: Seconds to wait for a notification on a loaded machine.
TIMEOUT_S = 60
#: More notifications than a socket queues, which is 10 on Linux.
MAX_QUEUED = 100


class FakeServiceManager:
    """A service manager that receives notifications."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # systemd writes @ for the null byte with which an abstract socket's name begins.
        self.socket.bind("\0" + path[1:] if path[0] == "@" else path)
        self.socket.settimeout(TIMEOUT_S)
        self.environment = {"NOTIFY_SOCKET": path}

    def receive(self) -> list[str]:
        """Receive the lines of the next notification."""
        return self.socket.recv(4096).decode().splitlines()

    def receive_until(self, line: str) -> list[list[str]]:
        """Receive notifications up to one with this line."""
        notifications = [self.receive()]
        while line not in notifications[-1]:
            notifications.append(self.receive())
        return notifications

    def wait_for_silence(self, seconds: float) -> None:
        """Receive the queued notifications; fail if they do not stop for this time."""
        self.socket.settimeout(seconds)
        try:
            for _ in range(MAX_QUEUED):
                self.receive()
        except TimeoutError:
            return
        finally:
            self.socket.settimeout(TIMEOUT_S)
        pytest.fail("the notifications do not stop")


@pytest.fixture
def service_manager(request, tmp_path):
    """A manager with a socket in a folder, or with an abstract one if a test asks for it."""
    path = str(tmp_path / "notify")
    if getattr(request, "param", "path") == "abstract":
        if sys.platform != "linux":
            pytest.skip("only Linux has abstract sockets")
        path = f"@gatewise-test-{os.getpid()}-{tmp_path.name}"
    service_manager = FakeServiceManager(path)
    yield service_manager
    service_manager.socket.close()


@pytest.mark.parametrize("service_manager", ["path", "abstract"], indirect=True)
def test_notifier_sends_only_if_there_is_a_manager(service_manager, tmp_path):
    notifier = Notifier(service_manager.environment)
    assert (notifier.is_enabled, notifier.watchdog_s) == (True, None)
    assert notifier.send("READY=1", "model\nsmall")
    assert service_manager.receive() == ["READY=1", "STATUS=model small"]
    assert notifier.send("STOPPING=1", "a path that is not text: \udcff")
    assert service_manager.receive() == ["STOPPING=1", "STATUS=a path that is not text: ?"]
    assert not Notifier({}).send("READY=1")
    notifier_without_manager = Notifier(
        {"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "1000"}
    )
    assert (notifier_without_manager.is_enabled, notifier_without_manager.send("READY=1")) == (
        True,
        False,
    )


@pytest.mark.parametrize(
    ("variables", "expected_seconds"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_time_is_read_only_if_it_is_for_this_process(variables, expected_seconds):
    assert Notifier({"NOTIFY_SOCKET": "/run/n", **variables}).watchdog_s == expected_seconds


@pytest.mark.slow
def test_heartbeat_pauses_while_an_instance_hangs(service_manager):
    now = [0.0]
    # A notification is due within 0.1 s.
    notifier = Notifier(service_manager.environment | {"WATCHDOG_USEC": "100000"})
    heartbeat = Heartbeat(notifier, max_seconds=1.0, status=lambda: "well", clock=lambda: now[0])
    with heartbeat:
        assert service_manager.receive() == ["WATCHDOG=1", "STATUS=well"]
        now[0] = 1000.0
        assert heartbeat.is_alive  # it may wait for an instance for any length of time
        heartbeat.begin(0)
        assert heartbeat.is_alive
        now[0] = 1001.5  # 0.5 s later than `max_seconds` allows
        assert not heartbeat.is_alive
        heartbeat.begin(1)  # another instance ends in time
        heartbeat.end(1)
        assert not heartbeat.is_alive
        service_manager.wait_for_silence(0.5)  # ten times as long as between notifications
        heartbeat.end(0)
        assert "WATCHDOG=1" in service_manager.receive()
    assert not any(thread.name == "gatewise-watchdog" for thread in threading.enumerate())


def test_heartbeat_pauses_while_all_instances_fail():
    now = [0.0]
    heartbeat = Heartbeat(Notifier({}), max_seconds=5.0, clock=lambda: now[0])
    for n_seconds in range(6):
        now[0] = float(n_seconds)
        heartbeat.note_failure()
        assert heartbeat.is_alive
    now[0] = 1000.0
    assert heartbeat.is_alive  # no instance has come since
    heartbeat.note_failure()
    assert heartbeat.trouble == "no instance could be answered in 1000 s: see the log"
    heartbeat.note_answer()
    assert heartbeat.is_alive


@pytest.mark.slow
def test_process_notifies_that_it_is_ready_alive_and_stopping(bundle, service_manager, command):
    environment = service_manager.environment | {"WATCHDOG_USEC": "200000"}
    process = command("edge", bundle.path, environment=environment)
    assert not any("STOPPING=1" in lines for lines in service_manager.receive_until("READY=1"))
    process.write("[1,0,0,0,0,0]\n")
    assert '"edge"' in process.read_line()
    status = "STATUS=1 edge, 0 cloud, 0 fallback, 0 errors"
    while status not in service_manager.receive_until("WATCHDOG=1")[-1]:
        pass
    process.process.send_signal(signal.SIGTERM)
    service_manager.receive_until("STOPPING=1")
    assert process.finish()[0] == 0


def test_systemd_unit_is_hardened_and_has_a_watchdog():
    unit_file = Path(__file__).parents[3] / "deploy" / "gatewise-edge.service"
    settings = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit_file.read_text()))
    expected_settings = {
        "Type": "notify", "NotifyAccess": "main", "Restart": "always", "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
    }  # fmt: skip
    assert expected_settings.items() <= settings.items()
    # a busy device may notify some seconds late, and must not be restarted for that
    assert float(settings["WatchdogSec"]) > 5
    assert {
        *("DynamicUser", "NoNewPrivileges", "PrivateTmp", "MemoryDenyWriteExecute", "MemoryMax")
    } <= settings.keys()
