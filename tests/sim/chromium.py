"""A headless Chromium for the page tests, controlled by the DevTools protocol over a pipe.

Tests use it through the fixture ``browser`` of ``conftest.py``. It needs no port and no library.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

_PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Longest wait for one message: a browser starts slowly on a machine that runs many tests.
_TIMEOUT_SECONDS = 120.0
#: Longest wait for the browser to end by itself before it is killed.
_END_SECONDS = 20.0
#: First descriptor that pipes get in this process, clear of 3 and 4.
_FIRST_DESCRIPTOR = 20


def find_chromium() -> str | None:
    """Find the path of an installed browser."""
    return next((path for name in _PROGRAM_NAMES if (path := shutil.which(name))), None)


def _make_pipe() -> tuple[int, int]:
    """Make a pipe with high descriptors, because the browser needs descriptors 3 and 4."""
    descriptors = os.pipe()
    high_descriptors = [
        fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        for descriptor in descriptors
    ]
    for descriptor in descriptors:
        os.close(descriptor)
    return high_descriptors[0], high_descriptors[1]


class Chromium:
    """A browser process; :meth:`open_page` opens a page in it."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="gatewise-chromium-")
        browser_command_end, self._command_end = _make_pipe()
        self._event_end, browser_event_end = _make_pipe()
        # the browser reads commands from descriptor 3 and writes events to 4; the shell moves the
        # pipes there and then executes the browser
        shell_command = (
            f'exec "$0" "$@" 3<&{browser_command_end} 4>&{browser_event_end} '
            f"{browser_command_end}<&- {browser_event_end}>&-"
        )
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-breakpad",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", shell_command, program, *flags],
            pass_fds=(browser_command_end, browser_event_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(browser_command_end)
        os.close(browser_event_end)
        self._buffer = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; store the events that arrive before it."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._command_end, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read_message(f"reply to {method}")
            if reply.get("id") == self._last_id:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]
            self.events.append(reply)

    def wait_for(self, method: str, session: str) -> None:
        """Wait for an event of a page."""
        while not any(event.get("method") == method and event.get("sessionId") == session
                      for event in self.events):  # fmt: skip
            self.events.append(self._read_message(method))

    def _read_message(self, description: str) -> dict[str, Any]:
        """Read the next message; `description` names it in a timeout error."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while b"\0" not in self._buffer:
            seconds_left = deadline - time.monotonic()
            assert seconds_left > 0, f"no {description} within {_TIMEOUT_SECONDS} s"
            if select.select([self._event_end], [], [], seconds_left)[0]:
                content = os.read(self._event_end, 1 << 16)
                assert content, f"the browser ended with status {self._process.poll()}"
                self._buffer += content
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open_page(self, url: str, width: int = 1200, **options: Any) -> Page:
        """Open a page and wait until it is loaded."""
        return Page(self, url, width, **options)

    def close(self) -> None:
        """End the browser and delete its profile."""
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(_END_SECONDS)
        except ProcessLookupError:
            pass
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._event_end)
        os.close(self._command_end)
        shutil.rmtree(self._folder, ignore_errors=True)


class Page:
    """A page of a browser, `width` CSS pixels wide."""

    def __init__(
        self,
        browser: Chromium,
        url: str,
        width: int,
        *,
        is_dark: bool = False,
        media: str = "screen",
    ) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        session_reply = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = session_reply["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width)
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # phones show no scroll bars
        scheme = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        error = self.call("Page.navigate", url=url).get("errorText")
        assert error is None, f"{url}: {error}"
        browser.wait_for("Page.loadEventFired", self._session)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command about this page and return its result."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the window in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression and return its value."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                        awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    @property
    def console_messages(self) -> list[str]:
        """Messages of the page's console, exceptions and log entries."""
        event_kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        self.evaluate("1")  # earlier events arrive before its reply
        return [
            json.dumps(event["params"])
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] in event_kinds
        ]

    def close(self) -> None:
        """Close the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)
